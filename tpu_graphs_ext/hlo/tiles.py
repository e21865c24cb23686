"""How a TPU stores a tensor, and which loops a kernel's tile bounds divide.

A tensor is stored in layout tiles of 8 x 128 elements along the two most minor
physical dimensions, or of 1024 elements at rank 1. A layout tile has only 2 or
4 rows if that holds them all: HLO has T(4,128) for [3, 32] and [4, 64].

Tile bounds count layout tiles, one bound for each physical dimension, most
major first: `output_bounds` of the tiled tensor, `kernel_bounds` of a
convolution's filter. The tiled tensor is a convolution's output, else the
operand of a reduction at the root, else the root. A reshape has no bounds.

Dimensions that the filter shares with the output have one loop. The rules were
inferred from measured kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LANES = 128  # Elements of a layout tile on the most minor dimension.
SUBLANES = 8  # The same on the second most minor.
RANK_1_UNIT = LANES * SUBLANES

_BYTES = {'PRED': 1, 'S8': 1, 'U8': 1, 'S16': 2, 'U16': 2, 'F16': 2,
          'BF16': 2, 'S64': 8, 'U64': 8, 'F64': 8, 'C64': 8, 'C128': 16}


def element_bytes(type_name: str) -> int:
  """Bytes of one element of a type, by XLA's name; 4 if unknown."""
  return _BYTES.get(type_name, 4)


def layout_units(sizes: Sequence[int]) -> list[int]:
  """Elements of a layout tile along dimensions of these sizes, minor last."""
  rank = len(sizes)
  if rank < 2:
    return [RANK_1_UNIT] * rank
  rows = next(few for few in (2, 4, SUBLANES)
              if sizes[-2] <= few or few == SUBLANES)
  return [1] * (rank - 2) + [rows, LANES]


def physical_dims(minor_to_major: Sequence[int], rank: int) -> list[int]:
  """Logical dimensions in physical order, most major first.

  Row-major unless the layout is a permutation of the dimensions.
  """
  dims = [int(dim) for dim in minor_to_major][::-1]
  return dims if sorted(dims) == list(range(rank)) else list(range(rank))


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
  """
  axes: tuple  # Outermost first: the tiled tensor's, then contracted ones.
  num_output_axes: int  # Number of the tiled tensor's.
  # (axis, unit) of each physical dimension of the filter, most major first: the
  # loop that its bound sets or follows, and elements that a bound of 1 covers.
  kernel_axes: tuple = ()
  bounded: bool = True  # False for a reshape, which has no bounds.

  def whole(self, rows: int = 1) -> np.ndarray:
    """int64 [rows, axes]: one tile for the whole kernel."""
    return np.tile(np.array([axis.units for axis in self.axes], np.int64),
                   (rows, 1))

  @property
  def largest(self) -> tuple[tuple, tuple]:
    """Largest `output_bounds` and `kernel_bounds`."""
    return tuple(tuple(bounds(self.whole())[0].tolist()) for bounds in (
        self.output_bounds, self.kernel_bounds))

  def tiles(self, output_bounds, kernel_bounds) -> np.ndarray:
    """int64 [configs, axes]: tile bounds of each loop.

    Args:
      output_bounds: int [configs, output axes].
      kernel_bounds: int [configs, filter rank]; [configs, 0] without a filter.
    """
    tiles = self.whole(len(output_bounds))
    if self.bounded:
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
    bounds = np.zeros((len(tiles), len(self.kernel_axes)), np.int64)
    for position, (axis, unit) in enumerate(self.kernel_axes):
      elements = tiles[:, axis] * self.axes[axis].unit
      whole = -(-self.axes[axis].size // unit)
      bounds[:, position] = np.minimum(-(-elements // unit), whole)
    return bounds


def has_tap_each(size: int, stride: int, base_dilation: int, image: int,
                 output: int) -> bool:
  """Whether each element of the output has a tap of its own.

  Such a window stands for a batch, or for the features of a product. With n
  taps (`size`) it has n - 1 zeros between elements of the image; or n - 2 at a
  stride of n, and an image as long as the window; or an image of one element.
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
  return sorted({min(units, -(-bound // step) * step) for bound in bounds},
                reverse=True)
