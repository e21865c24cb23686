"""Tile geometry: which tensor of a kernel is cut into tiles, and how.

A TPU stores a tensor in layout tiles (see `layout`). Tile bounds count them,
one bound a physical dimension, most major first: `output_bounds` are those of
the tiled tensor, `kernel_bounds` those of a convolution's second operand, its
filter. The tiled tensor is a convolution's output; else the operand of a
reduction at the root; else the root. A reshape has no bounds.

Bounds of the filter that follow the output's are no choice: a grid has one
loop for both. Its candidates are what a tuner would try. These rules are read
off measured kernels; they are not the compiler's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Optional, Union

import numpy as np

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import layout, protos
from tpu_graphs_ext.hlo.fused import FusedKernel, num_elements

# Above this many combinations of bounds, candidates are a random sample.
MAX_LISTED = 2**18


@dataclasses.dataclass(frozen=True)
class Axis:
  """One loop over tiles.

  Attributes:
    size: of the dimension, in elements.
    unit: elements that a tile bound of 1 covers.
  """
  size: int
  unit: int

  @property
  def units(self) -> int:
    """The largest tile bound: the whole dimension."""
    return math.ceil(self.size / self.unit)


@dataclasses.dataclass(frozen=True)
class TileGrid:
  """The loops over a kernel's tiles, and the bounds that set them.

  In an array of tiles, int64 [configs, axes], each row has one bound a loop.

  Attributes:
    axes: outermost first: those of the tiled tensor, then the contracted ones
      of a convolution.
    num_output_axes: how many are the tiled tensor's.
    kernel_axes: for each physical dimension of the filter, most major first,
      (axis, unit): the loop that its tile bound sets or follows, and the
      elements of one unit of that bound.
    bounded: False for a reshape, whose configurations say no bounds.
    steps: for each loop, of what its bounds are multiples where the dimension
      has more units than that; 1 if empty.
  """
  axes: tuple
  num_output_axes: int
  kernel_axes: tuple = ()
  bounded: bool = True
  steps: tuple = ()

  @property
  def output_units(self) -> tuple:
    """Largest `output_bounds`."""
    return tuple(self.output_bounds(self._whole(1))[0].tolist())

  @property
  def kernel_units(self) -> tuple:
    """Largest `kernel_bounds`."""
    return tuple(self.kernel_bounds(self._whole(1))[0].tolist())

  def choices(self) -> list[list[int]]:
    """The tile bounds tried for each loop, largest first."""
    if not self.bounded:
      return [[axis.units] for axis in self.axes]
    steps = self.steps or [1] * len(self.axes)
    return [bound_candidates(axis.units, step)
            for axis, step in zip(self.axes, steps)]

  def tiles(self, output_bounds, kernel_bounds) -> np.ndarray:
    """int64 [configs, axes]: tile bounds of each loop.

    Args:
      output_bounds: int [configs, output axes].
      kernel_bounds: int [configs, filter rank]; [configs, 0] for other
        kernels.
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
    """int64 [configs, output axes]: the tiled tensor's part of the tiles."""
    return tiles[:, :self.num_output_axes if self.bounded else 0]

  def kernel_bounds(self, tiles: np.ndarray) -> np.ndarray:
    """int64 [configs, filter rank]: the filter's part of the tiles.

    The output features of the filter follow those of the output tile.
    """
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


# ---------------------------------------------------------------- grid


def tile_grid(module: Union[protos.HloModuleProto, bytes]) -> TileGrid:
  """The tile geometry of one kernel.

  Raises:
    UserError: no HLO module, or one that refers to computations or
      instructions that it does not have, or of impossible sizes.
  """
  module = protos.as_module(module)
  try:
    return grid_of(FusedKernel(module))
  except (LookupError, ValueError) as error:
    raise UserError(
        f'HLO module {module.name!r} has no tile grid ({error!r}); it is '
        'incomplete or damaged') from error


def grid_of(kernel: FusedKernel) -> TileGrid:
  """The same, of a module that has been taken apart.

  Raises:
    LookupError, ValueError: see `tile_grid`.
  """
  tiled = kernel.tiled().shape
  axes = _axes(tiled)
  rank = len(axes)
  if not kernel.product:
    return TileGrid(tuple(axes), rank, bounded=kernel.root.opcode != 'reshape')
  axis_of = {dim: axis for axis, (dim, _) in enumerate(
      layout.physical_shape(tiled))}
  image, filters = (
      kernel.nodes[i].shape for i in kernel.product.operand_ids)
  followed = _followed(kernel.product, image)
  kernel_axes, filter_axis = [], {}
  for own, (dim, unit) in zip(_axes(filters), layout.physical_shape(filters)):
    if dim in followed:
      filter_axis[dim] = axis_of[followed[dim]]
    else:
      filter_axis[dim] = len(axes)
      axes.append(own)
    kernel_axes.append((filter_axis[dim], unit))
  others = kernel_axes + _image_axes(kernel, axis_of, filter_axis)
  steps = tuple(
      bounds_step(axis, (unit for walked, unit in others if walked == number))
      for number, axis in enumerate(axes))
  return TileGrid(tuple(axes), rank, tuple(kernel_axes), steps=steps)


def _image_axes(kernel, axis_of, filter_axis) -> list[tuple[int, int]]:
  """(axis, elements of a layout tile) of the image's physical dimensions."""
  product = kernel.product
  numbers = product.convolution_dimension_numbers
  walked = {
      numbers.input_batch_dimension: axis_of[numbers.output_batch_dimension],
      numbers.input_feature_dimension: (
          axis_of[numbers.output_feature_dimension]
          if product.feature_group_count > 1
          else filter_axis[numbers.kernel_input_feature_dimension])}
  for image_dim, output_dim in zip(numbers.input_spatial_dimensions,
                                   numbers.output_spatial_dimensions):
    walked[image_dim] = axis_of[output_dim]
  image = kernel.nodes[product.operand_ids[0]].shape
  return [(walked[dim], unit) for dim, unit in layout.physical_shape(image)
          if dim in walked]


def _axes(shape) -> list[Axis]:
  num_elements(shape)  # Refuses impossible sizes.
  return [Axis(shape.dimensions[dim], unit)
          for dim, unit in layout.physical_shape(shape)]


def _followed(convolution, image) -> dict[int, int]:
  """Dimension of the filter -> that of the output whose tiles it follows."""
  numbers = convolution.convolution_dimension_numbers
  followed = {numbers.kernel_output_feature_dimension:
              numbers.output_feature_dimension}
  for image_dim, filter_dim, output_dim, window in zip(
      numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions,
      numbers.output_spatial_dimensions, convolution.window.dimensions):
    if has_tap_each(
        window.size, window.stride, window.base_dilation,
        image.dimensions[image_dim], convolution.shape.dimensions[output_dim]):
      followed[filter_dim] = output_dim
  return followed


def has_tap_each(size: int, stride: int, base_dilation: int, image: int,
                 output: int) -> bool:
  """Whether each element of the output has one tap, and no other has it.

  Such a window stands for a batch, or for the features of a product: it picks
  from the filter what belongs to the element. Three are in use, of n taps:
  n - 1 zeros between elements of the image; n - 2, at a stride of n, and the
  image as long as the window; and an image of one element.

  Args:
    size: taps of the window.
    stride, base_dilation: of the window.
    image, output: sizes of the dimension.
  """
  if size <= 1:
    return False
  alone = image == 1 or (
      image == size == stride and base_dilation == size - 1)
  return base_dilation == size or (alone and output == size)


# ---------------------------------------------------------- candidates


def bounds_step(axis: Axis, units: Iterable[int]) -> int:
  """Of what the bounds of a loop are multiples.

  Args:
    axis: the loop.
    units: elements of a layout tile in the other tensors that it walks over,
      whose layout tiles are not cut.
  """
  return max(1, max(units, default=1) // axis.unit)


def bound_candidates(units: int, step: int = 1) -> list:
  """Tile bounds tried along a dimension, largest first.

      {ceil(units / n) for n = 1, 2, ...}, rounded up to a multiple of `step`

  The largest is always the whole dimension, multiple or not.
  """
  root = math.isqrt(units)
  bounds = {-(-units // n) for n in range(1, root + 2)}
  # Below the root every bound is reached: it has a span of n to itself.
  bounds |= set(range(1, root + 1))
  if step > 1:
    bounds = {min(units, -(-bound // step) * step) for bound in bounds}
  return sorted(bounds, reverse=True)


def candidate_tiles(grid: TileGrid, fits: Callable[[np.ndarray], np.ndarray],
                    *, limit: Optional[int] = None, listed: int = MAX_LISTED,
                    chance: Optional[np.random.Generator] = None
                    ) -> np.ndarray:
  """Tiles of a kernel that a tuner would try: all that fit on-chip memory.

  Args:
    grid: the kernel's geometry.
    fits: int64 [tiles, axes] -> bool [tiles], as `analytic.tpu.fits` has it.
    limit: at most so many, chosen uniformly; None for all.
    listed: of a kernel with more combinations of bounds than this, about so
      many at most are looked at.
    chance: of both choices; always the same ones if None.

  Returns:
    int64 [tiles, axes], in falling lexicographic order, no doubles; no rows
    if nothing fits. `grid.output_bounds` and `grid.kernel_bounds` make
    configurations of them.
  """
  chance = chance or np.random.default_rng(0)
  choices = grid.choices()
  counts = [len(choice) for choice in choices]
  total = math.prod(counts)
  numbers = np.arange(total) if total <= listed else np.unique(
      chance.integers(total, size=listed))
  positions = np.unravel_index(numbers, counts) if counts else ()
  tiles = np.empty((len(numbers), len(counts)), np.int64)
  for column, (choice, position) in enumerate(zip(choices, positions)):
    tiles[:, column] = np.array(choice, np.int64)[position]
  tiles = tiles[fits(tiles)]
  if limit is not None and len(tiles) > limit:
    tiles = tiles[np.sort(chance.choice(len(tiles), limit, replace=False))]
  return tiles
