"""Tile geometry: which tensor of a kernel is cut into tiles, and how.

A TPU stores a tensor in layout tiles of 8 x 128 elements on its two most minor
physical dimensions, or 1024 elements at rank 1. Tile bounds count such layout
tiles, one bound a physical dimension, most major first.

Which tensor is cut: a convolution's output; else the operand of a reduction
at the root; else the root. A convolution's kernel, its operand 1, is cut too.
A reshape has no bounds. These rules, and the estimate of on-chip memory, are
read off measured kernels; they are not the compiler's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Optional, Union

import numpy as np

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import layout, protos
from tpu_graphs_ext.hlo.fused import FusedKernel, num_elements

# Bounds of the second most minor dimension of a convolution's tensors are
# whole multiples of 16 layout tiles, 128 rows: the side of the matrix unit.
CONVOLUTION_STEP = 16

ON_CHIP_BYTES = 16 * 2**20  # Vector memory of a TPU v3 core.
ACCUMULATOR_BYTES = 4  # A convolution sums in float32.

# Above this many combinations of bounds, candidates are a random sample.
MAX_LISTED = 2**18


@dataclasses.dataclass(frozen=True)
class TiledTensor:
  """A tensor that tile bounds cut; all tuples are most major first.

  Attributes:
    axes: logical dimension number of each physical dimension.
    sizes: elements of each.
    unit: elements of a layout tile along each.
    step: candidates along each are multiples of so many units, or all.
    element_bytes: bytes of one element.
  """
  axes: tuple
  sizes: tuple
  unit: tuple
  step: tuple
  element_bytes: int

  @property
  def units(self) -> tuple:
    """Size of each physical dimension in layout tiles: the largest bound."""
    return tuple(max(1, -(-size // unit))
                 for size, unit in zip(self.sizes, self.unit))

  def extents(self, bounds: np.ndarray) -> np.ndarray:
    """int64 [tiles, dims]: elements that bounds [tiles, dims] cover."""
    return bounds * np.array(self.unit, np.int64)


@dataclasses.dataclass(frozen=True)
class Stream:
  """A tensor that moves between main and on-chip memory.

  Attributes:
    role: 'input' or 'kernel' where the convolution's operand 0 or 1 depends
      on it, else 'other'.
    elements: of the whole tensor.
    element_bytes: bytes of one element.
    written: True for an output of the kernel.
  """
  role: str
  elements: int
  element_bytes: int
  written: bool


@dataclasses.dataclass(frozen=True)
class InputDim:
  """How far one dimension of a convolution's input reaches for one tile.

      extent = ((output - 1) * stride + (kernel - 1) * dilation) / base + 1

  at most `size`; `output` and `kernel` are the tile's elements along the
  dimensions at these positions of the tiled tensors, 1 where None.
  """
  size: int
  output: Optional[int] = None
  kernel: Optional[int] = None
  stride: int = 1
  dilation: int = 1
  base: int = 1


@dataclasses.dataclass(frozen=True)
class TileGrid:
  """Everything about a kernel that its tile sizes depend on.

  Attributes:
    output: the tensor that `output_bounds` cut; None for a kernel without
      bounds (a reshape, a scalar).
    kernel: the tensor that `kernel_bounds` cut; None without convolution.
    input_dims: of the convolution's operand 0; empty without convolution.
    streams: entry parameters, then outputs.
  """
  output: Optional[TiledTensor]
  kernel: Optional[TiledTensor]
  input_dims: tuple
  streams: tuple

  @property
  def output_units(self) -> tuple:
    """Largest `output_bounds`."""
    return self.output.units if self.output else ()

  @property
  def kernel_units(self) -> tuple:
    """Largest `kernel_bounds`."""
    return self.kernel.units if self.kernel else ()

  def split(self, tiles: np.ndarray) -> tuple:
    """Columns of tiles [tiles, dims] -> (kernel bounds, output bounds)."""
    width = len(self.kernel_units)
    return tiles[..., :width], tiles[..., width:]

  def footprint_bytes(self, tiles: np.ndarray) -> np.ndarray:
    """Estimated on-chip memory of each tile configuration, in bytes.

    Every stream holds two blocks, one in use and one under way; a
    convolution also holds the sums of its output tile. The blocks of the
    convolution's operands are as large as the tile needs, those of all other
    streams as large as the output tile; smaller streams are held whole.

    Args:
      tiles: int64 [tiles, kernel dims + output dims], kernel bounds first.

    Returns:
      int64 [tiles].
    """
    tiles = np.asarray(tiles, np.int64)
    if self.output is None:
      return np.zeros(len(tiles), np.int64)
    kernel_bounds, output_bounds = self.split(tiles)
    blocks = {'other': self.output.extents(output_bounds).prod(axis=1)}
    total = np.zeros(len(tiles), np.int64)
    if self.kernel:
      blocks['kernel'] = self.kernel.extents(kernel_bounds).prod(axis=1)
      blocks['input'] = self._input_elements(kernel_bounds, output_bounds)
      total += ACCUMULATOR_BYTES * blocks['other']
    for stream in self.streams:
      block = np.minimum(blocks[stream.role], _padded(stream.elements))
      total += 2 * stream.element_bytes * block
    return total

  def _input_elements(self, kernel_bounds, output_bounds) -> np.ndarray:
    """int64 [tiles]: elements of the convolution's input that a tile reads."""
    output = self.output.extents(output_bounds)
    kernel = self.kernel.extents(kernel_bounds)
    elements = np.ones(len(output), np.int64)
    for dim in self.input_dims:
      reach = np.zeros(len(output), np.int64)
      if dim.output is not None:
        reach += (output[:, dim.output] - 1) * dim.stride
      if dim.kernel is not None:
        reach += (kernel[:, dim.kernel] - 1) * dim.dilation
      elements *= np.minimum(dim.size, reach // dim.base + 1)
    return elements


# ---------------------------------------------------------------- grid


def tile_grid(module: Union[protos.HloModuleProto, bytes]) -> TileGrid:
  """The tile geometry of one kernel.

  Raises:
    UserError: no HLO module, or one that refers to computations or
      instructions that it does not have, or of impossible sizes.
  """
  module = protos.as_module(module)
  try:
    return _tile_grid(FusedKernel(module))
  except (LookupError, ValueError) as error:
    raise UserError(
        f'HLO module {module.name!r} has no tile grid ({error!r}); it is '
        'incomplete or damaged') from error


def _tile_grid(fused: FusedKernel) -> TileGrid:
  product = fused.product()
  tiled = product or fused.tiled_root()
  if fused.root.opcode == 'reshape' or not tiled.shape.dimensions:
    return TileGrid(None, None, (), _streams(fused, {}))
  output = _tiled(tiled.shape, bool(product))
  if not product:
    return TileGrid(output, None, (), _streams(fused, {}))
  source, weights = product.operand_ids[:2]
  kernel = _tiled(fused.nodes[weights].shape, True)
  dims = (_convolution_dims if product.opcode == 'convolution' else _dot_dims)
  roles = {**dict.fromkeys(fused.parameters_of(source), 'input'),
           **dict.fromkeys(fused.parameters_of(weights), 'kernel')}
  return TileGrid(output, kernel,
                  dims(product, fused.nodes[source].shape, output, kernel),
                  _streams(fused, roles))


def _element_bytes(shape) -> int:
  return layout.element_bytes(protos.PrimitiveType.Name(shape.element_type))


def _padded(elements: int) -> int:
  """Elements in whole layout tiles."""
  return -(-elements // layout.RANK_1_UNIT) * layout.RANK_1_UNIT


def _tiled(shape, of_product: bool) -> TiledTensor:
  rank = len(shape.dimensions)
  num_elements(shape)  # Refuses impossible sizes.
  axes = tuple(layout.physical_dims(shape.layout.minor_to_major, rank))
  unit = tuple(layout.layout_units(rank))
  step = [1] * rank
  if of_product and rank > 1:
    step[-2] = CONVOLUTION_STEP
  return TiledTensor(axes, tuple(shape.dimensions[a] for a in axes), unit,
                     tuple(step), _element_bytes(shape))


def _convolution_dims(product, source, output, kernel) -> tuple:
  """One `InputDim` a dimension of the convolution's operand 0."""
  numbers, sizes = product.convolution_dimension_numbers, source.dimensions
  dims = [
      InputDim(sizes[numbers.input_batch_dimension],
               output=output.axes.index(numbers.output_batch_dimension)),
      InputDim(sizes[numbers.input_feature_dimension],
               kernel=kernel.axes.index(
                   numbers.kernel_input_feature_dimension))]
  for source_dim, kernel_dim, output_dim, window in zip(
      numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions,
      numbers.output_spatial_dimensions, product.window.dimensions):
    dims.append(InputDim(
        sizes[source_dim], output=output.axes.index(output_dim),
        kernel=kernel.axes.index(kernel_dim), stride=window.stride,
        dilation=window.window_dilation, base=max(1, window.base_dilation)))
  return tuple(dims)


def _dot_dims(product, source, output, kernel) -> tuple:
  """The same for a dot: batch, then free dimensions lead its output."""
  numbers = product.dot_dimension_numbers
  contracted = list(numbers.lhs_contracting_dimensions)
  batch = list(numbers.lhs_batch_dimensions)
  free = [d for d in range(len(source.dimensions))
          if d not in contracted and d not in batch]
  dims = [InputDim(source.dimensions[d], output=output.axes.index(position))
          for position, d in enumerate(batch + free)]
  dims += [InputDim(source.dimensions[d], kernel=kernel.axes.index(other))
           for d, other in zip(contracted,
                               numbers.rhs_contracting_dimensions)]
  return tuple(dims)


def _arrays(shape) -> Iterator:
  """The arrays of a shape: itself, or those of a tuple."""
  if not shape.tuple_shapes:
    yield shape
  for part in shape.tuple_shapes:
    yield from _arrays(part)


def _streams(fused: FusedKernel, roles: dict) -> tuple:
  """Entry parameters, with their roles by id, then outputs."""
  streams = [
      Stream(roles.get(node.id, 'other'), num_elements(shape),
             _element_bytes(shape), False)
      for node in fused.entry.instructions if node.opcode == 'parameter'
      for shape in _arrays(node.shape)]
  streams += [Stream('other', num_elements(shape), _element_bytes(shape), True)
              for shape in _arrays(fused.root.shape)]
  return tuple(streams)


# ---------------------------------------------------------- candidates


def bound_candidates(units: int, step: int = 1) -> list:
  """Tile bounds tried along a dimension, largest first.

      {ceil(units / n) for n = 1, 2, ...}, rounded up to a multiple of `step`
      where the dimension has more units than that

  The largest is always the whole dimension.
  """
  root = math.isqrt(units)
  bounds = {-(-units // n) for n in range(1, root + 2)}
  # Below the root every bound is reached: it has a span of n to itself.
  bounds |= set(range(1, root + 1))
  if units > step:
    bounds = {min(units, -(-bound // step) * step) for bound in bounds}
  return sorted(bounds, reverse=True)


def candidate_tiles(grid: TileGrid, *, memory_bytes: int = ON_CHIP_BYTES,
                    limit: Optional[int] = None, seed: int = 0) -> np.ndarray:
  """Tile configurations of a kernel that fit on-chip memory.

  Args:
    grid: the kernel's geometry.
    memory_bytes: what `TileGrid.footprint_bytes` may reach.
    limit: at most so many, chosen uniformly; None for all. A kernel with more
      than MAX_LISTED combinations gives a sample of about so many at most.
    seed: of the choice.

  Returns:
    int64 [tiles, kernel dims + output dims], in falling lexicographic order,
    no doubles; [1, 0] for a kernel without bounds. No rows if nothing fits.
  """
  choices = [bound_candidates(units, step)
             for tensor in (grid.kernel, grid.output) if tensor
             for units, step in zip(tensor.units, tensor.step)]
  counts = [len(choice) for choice in choices]
  total = math.prod(counts)
  random = np.random.default_rng(seed)
  numbers = np.arange(total) if total <= MAX_LISTED else np.unique(
      random.integers(total, size=MAX_LISTED))
  positions = np.unravel_index(numbers, counts) if counts else ()
  tiles = np.empty((len(numbers), len(counts)), np.int64)
  for column, (choice, position) in enumerate(zip(choices, positions)):
    tiles[:, column] = np.array(choice, np.int64)[position]
  tiles = tiles[grid.footprint_bytes(tiles) <= memory_bytes]
  if limit is not None and len(tiles) > limit:
    tiles = tiles[np.sort(random.choice(len(tiles), limit, replace=False))]
  return tiles
