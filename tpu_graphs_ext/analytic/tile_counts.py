"""A kernel as a loop nest, and what its tiles do: steps, bytes, pieces, rows.

The loops are those that tile bounds divide (`hlo/tiles.py`): the tiled tensor's
physical dimensions, most major outermost, then a convolution's contracted ones.
A partial layout tile costs as much as a full one. `models.py` counts the same
in TensorFlow, in float32 and for batches.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from tpu_graphs_ext.hlo.tiles import LANES, RANK_1_UNIT, TileGrid

MATRIX_MIN_ROWS = 128  # Rows that a block of weights costs at least.


class Extent(NamedTuple):
  """One physical dimension of a tensor, and how a tile covers it."""
  size: int  # Elements.
  unit: int  # Elements of a layout tile.
  axis: int = -1  # The loop over it; -1: none, so every tile needs all of it.
  scale: float = 1.0  # Elements for one element of the axis.
  window: int = -1  # The loop over the taps of its window, or -1.
  spread: float = 1.0  # Elements from one tap to the next.

  @property
  def units(self) -> int:
    """Layout tiles."""
    return -(-self.size // self.unit)


class Stream(NamedTuple):
  """A tensor that the kernel reads or writes, block by block."""
  kind: str  # 'input', 'output', or a convolution's 'image' or 'filter'.
  extents: tuple  # An `Extent` for each physical dimension, most major first.
  element_bytes: float
  is_operand: bool = False  # Whether the matrix unit needs a copy.


class Matrix(NamedTuple):
  """How a convolution occupies the matrix unit: numbers of loops, or -1."""
  row_axes: tuple  # Over rows that share weights.
  batch_axes: tuple  # Whose every step has weights of its own.
  window_axes: tuple  # Over the window's taps.
  contracted: int  # Over the input features of one group.
  feature: int  # Over the output features.
  sum_bytes: float = 4.0  # Of a partial sum; 0 if the result has room for it.


class Loops(NamedTuple):
  """A kernel's loop nest."""
  grid: TileGrid  # The loops and their tile bounds.
  streams: tuple  # A `Stream` for each tensor read or written.
  vector_ops: float  # Vector instructions on an element of the tiled tensor.
  matrix: Optional[Matrix] = None  # Of a convolution.
  updated: tuple = ()  # Elements of each axis that an update in place writes.


def counts(loops: Loops, tiles: np.ndarray) -> dict[str, np.ndarray]:
  """What tiles int64 [configs, axes] do, by name: float64 [configs] each.

  Names are those of `explain.Explanation`, and:
    pieces: contiguous runs of memory in all transfers.
    matrix_rows: rows through 128 x 128 blocks of weights.
    vector_registers: vector instructions on 1024 elements each.
    tile_elements: elements of an output tile, including padding.
  """
  rank = loops.grid.num_output_axes
  axes = loops.grid.axes[:rank]
  stored = np.prod([float(axis.units * axis.unit) for axis in axes])
  trip, none = trips(loops, tiles), np.zeros(len(tiles))
  output_tiles, kernel_tiles, steps = (
      loop.prod(1, dtype=float) for loop in (
          trip[:, :rank], trip[:, rank:], trip))
  elements = tile_elements(loops, tiles)
  registers = elements / RANK_1_UNIT
  vector = loops.vector_ops * registers * output_tiles
  moved, block_sum, pieces, footprint = np.zeros((4, len(tiles)))
  for stream in loops.streams:
    covered, times = covered_units(loops, stream, tiles), fetches(stream, trip)
    block = block_bytes(stream, covered)
    moved += block * times
    block_sum += block
    pieces += _pieces(stream, covered) * times
    # The block, the next one if there is one, and an operand in float32.
    copies = 4 / stream.element_bytes if stream.is_operand else 0
    footprint += (np.minimum(2, times) + copies) * block
  if loops.matrix is not None:
    footprint += loops.matrix.sum_bytes * elements
    # Partial sums are added once for each further step of the contraction.
    vector += registers * (steps - output_tiles)
  return {
      'output_tiles': output_tiles, 'kernel_tiles': kernel_tiles,
      'steps': steps, 'streams': none + len(loops.streams),
      'moved_bytes': moved, 'block_bytes': block_sum, 'pieces': pieces,
      'matrix_rows': _matrix_rows(loops, tiles, steps),
      'vector_registers': vector, 'tile_elements': elements,
      'footprint_bytes': footprint,
      'padding': none + stored / np.prod([float(axis.size) for axis in axes]),
      'rounding': (tiles[:, :rank] * trip[:, :rank]).prod(1, dtype=float)
                  / np.prod([float(axis.units) for axis in axes])}


def trips(loops: Loops, tiles: np.ndarray) -> np.ndarray:
  """int64 [configs, axes]: iterations of each loop, counting a partial one."""
  return -(-loops.grid.whole() // tiles)


def covered_units(loops: Loops, stream: Stream,
                  tiles: np.ndarray) -> np.ndarray:
  """int64 [configs, rank]: layout tiles that a block of a stream covers."""
  covered = np.empty((len(tiles), len(stream.extents)), np.int64)
  for column, extent in enumerate(stream.extents):
    covered[:, column] = extent.units
    if extent.axis < 0:
      continue
    axis = loops.grid.axes[extent.axis]
    elements = tiles[:, extent.axis] * axis.unit * extent.scale
    if extent.window >= 0:
      # From the first tap of the first element to the last tap of the last.
      taps = tiles[:, extent.window] * loops.grid.axes[extent.window].unit
      elements = (elements - max(extent.scale - 1, 0)
                  + extent.spread * (taps - 1))
    covered[:, column] = np.clip(
        np.ceil(elements / extent.unit).astype(np.int64), 1, extent.units)
  return covered


def block_bytes(stream: Stream, covered: np.ndarray) -> np.ndarray:
  """float64 [configs]: bytes of blocks that cover int64 [configs, rank]."""
  layout_tile = np.prod([extent.unit for extent in stream.extents] or [1])
  return covered.prod(1, dtype=float) * layout_tile * stream.element_bytes


def fetches(stream: Stream, trip: np.ndarray) -> np.ndarray:
  """float64 [configs]: how many blocks of a stream are moved.

  A block stays on chip while the next step needs it too. It changes with the
  loops over its tensor, and all are read again when a loop outside those
  advances, unless a single block holds the tensor.
  """
  total = np.ones(len(trip))
  changes = np.zeros(len(trip), bool)  # In this loop, or one further inside.
  followed = {axis for extent in stream.extents
              for axis in (extent.axis, extent.window)}
  for axis in reversed(range(trip.shape[1])):
    if axis in followed:
      changes |= trip[:, axis] > 1
    total *= np.where(changes, trip[:, axis], 1)
  return total


def _pieces(stream: Stream, covered: np.ndarray) -> np.ndarray:
  """Contiguous pieces of a block: whole dimensions join the next major one."""
  count = np.ones(len(covered))
  joined = np.ones(len(covered), bool)  # One piece so far, from the minor end.
  for column in reversed(range(len(stream.extents))):
    count *= np.where(joined, 1, covered[:, column])
    joined &= covered[:, column] == stream.extents[column].units
  return count


def _matrix_rows(loops: Loops, tiles: np.ndarray,
                 steps: np.ndarray) -> np.ndarray:
  """Rows through the matrix unit; few cost the minimum."""
  matrix = loops.matrix
  if matrix is None:
    return np.zeros(len(tiles))
  elements = [tiles[:, number].astype(np.float64) * axis.unit
              for number, axis in enumerate(loops.grid.axes)]
  rows = np.prod([elements[axis] for axis in matrix.row_axes], axis=0)
  total = steps * np.maximum(rows, MATRIX_MIN_ROWS)
  for axis in (matrix.feature, matrix.contracted):
    if axis >= 0:
      total = total * np.ceil(elements[axis] / LANES)
  for axis in matrix.window_axes + matrix.batch_axes:
    total = total * elements[axis]
  return total


def tile_elements(loops: Loops, tiles: np.ndarray) -> np.ndarray:
  """float64 [configs]: elements of a tile of the tiled tensor, padded."""
  axes = loops.grid.axes[:loops.grid.num_output_axes]
  unit = np.array([axis.unit for axis in axes], np.float64)
  return (tiles[:, :len(axes)] * unit).prod(1)
