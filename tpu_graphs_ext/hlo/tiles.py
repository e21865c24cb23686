"""Tile geometry: which loops a kernel's tile bounds divide, and how.

Tile bounds count layout tiles (see `layout`), one bound for each physical
dimension, most major first: `output_bounds` of the tiled tensor,
`kernel_bounds` of a convolution's filter. The tiled tensor is a convolution's
output, else the operand of a reduction at the root, else the root. A reshape
has no bounds.

Dimensions that the filter shares with the output have one loop. These rules
were inferred from measured kernels; the compiler's own are not public.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Axis(NamedTuple):
  """One loop over tiles."""
  size: int  # Of the dimension, in elements.
  unit: int  # Elements that a tile bound of 1 covers.

  @property
  def units(self) -> int:
    """The largest tile bound: the whole dimension."""
    return math.ceil(self.size / self.unit)


class TileGrid(NamedTuple):
  """The loops over a kernel's tiles, and the bounds that set them.

  An array of tiles, int64 [configs, axes], has one bound for each loop.
  `kernel_axes` has, for each physical dimension of the filter, most major
  first, (axis, unit): the loop that its tile bound sets or follows, and the
  elements that a bound of 1 covers.
  """
  axes: tuple  # Outermost first: the tiled tensor's, then contracted ones.
  num_output_axes: int  # Number of the tiled tensor's.
  kernel_axes: tuple = ()
  bounded: bool = True  # False for a reshape, which has no bounds.

  @property
  def output_units(self) -> tuple:
    """Largest `output_bounds`."""
    return tuple(self.output_bounds(self._whole(1))[0].tolist())

  @property
  def kernel_units(self) -> tuple:
    """Largest `kernel_bounds`."""
    return tuple(self.kernel_bounds(self._whole(1))[0].tolist())

  def tiles(self, output_bounds, kernel_bounds) -> np.ndarray:
    """int64 [configs, axes]: tile bounds of each loop.

    Args:
      output_bounds: int [configs, output axes].
      kernel_bounds: int [configs, filter rank]; [configs, 0] without a filter.
    """
    if not self.bounded:
      return self._whole(len(output_bounds))
    tiles = np.ones((len(output_bounds), len(self.axes)), np.int64)
    tiles[:, :self.num_output_axes] = output_bounds
    for position, (axis, _) in enumerate(self.kernel_axes):
      if axis >= self.num_output_axes:
        tiles[:, axis] = kernel_bounds[:, position]
    return tiles

  def output_bounds(self, tiles: np.ndarray) -> np.ndarray:
    """int64 [configs, output axes]: the tiled tensor's bounds."""
    return tiles[:, :self.num_output_axes if self.bounded else 0]

  def kernel_bounds(self, tiles: np.ndarray) -> np.ndarray:
    """int64 [configs, filter rank]: the filter's bounds."""
    columns = []
    for axis, unit in self.kernel_axes:
      elements = tiles[:, axis] * self.axes[axis].unit
      whole = -(-self.axes[axis].size // unit)
      columns.append(np.minimum(-(-elements // unit), whole))
    if not columns:
      return np.zeros((len(tiles), 0), np.int64)
    return np.stack(columns, 1)

  def _whole(self, rows: int) -> np.ndarray:
    """int64 [rows, axes]: one tile for the whole kernel."""
    units = np.array([axis.units for axis in self.axes], np.int64)
    return np.tile(units, (rows, 1))


def has_tap_each(size: int, stride: int, base_dilation: int, image: int,
                 output: int) -> bool:
  """Whether each element of the output has a tap of its own.

  Such a window stands for a batch, or for the features of a product. The
  compiler writes three kinds, of n taps (`size`): n - 1 zeros between elements
  of the image; n - 2, at a stride of n, and the image as long as the window;
  and an image of one element. `image` and `output` are sizes of the dimension.
  """
  if size <= 1:
    return False
  alone = image == 1 or (
      image == size == stride and base_dilation == size - 1)
  return base_dilation == size or (alone and output == size)


def bound_candidates(units: int, step: int = 1) -> list[int]:
  """Tile bounds to try along a dimension, largest first.

      {ceil(units / n) for n = 1, 2, ...}, rounded up to a multiple of `step`

  The largest is always the whole dimension, multiple or not.
  """
  root = math.isqrt(units)
  bounds = {-(-units // n) for n in range(1, root + 2)}
  bounds |= set(range(1, root + 1))  # Below the root each bound has its n.
  if step > 1:
    bounds = {min(units, -(-bound // step) * step) for bound in bounds}
  return sorted(bounds, reverse=True)
