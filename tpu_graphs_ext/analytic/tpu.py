"""An analytic runtime model of tiled kernels on a TPU-like machine.

The form and the effects were read off real measurements of 15 kernels of one
program, and the constants are round numbers near what fits those; another set
is another machine.

    time = launch + step overhead + busy + unhidden first transfer
    busy = the larger of memory time and arithmetic time,
           plus the part of the smaller one that does not overlap
    memory time     = bytes / bandwidth + pieces of transfers
    arithmetic time = matrix unit + vector unit

Every term is a small function of (loops, tiles, constants), in nanoseconds
or bytes, with one value a configuration. Sizes are rounded up to layout tiles
and every tile costs as much as a full one, so that a bound that does not
divide its dimension wastes work.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tpu_graphs_ext.analytic.loops import Loops
from tpu_graphs_ext.hlo.layout import LANES, RANK_1_UNIT


@dataclasses.dataclass(frozen=True)
class TpuConstants:
  """A machine. The defaults are close to one core of a TPU v3.

  Attributes:
    launch_ns: time of a kernel that does nothing.
    step_ns: overhead of one step of the loops for each stream, ns.
    bytes_per_ns: bandwidth between main and on-chip memory.
    piece_ns: for each contiguous piece of a transfer.
    matrix_row_ns: one row through one 128 x 128 block of weights.
    matrix_min_rows: rows that a block of weights costs at least.
    vector_ns: one vector instruction, on one layout tile of 1024 elements.
    unhidden: share of the shorter of memory and arithmetic time that does
      not overlap with the longer, 0 to 1.
    memory_bytes: on-chip memory that tiles may occupy.
  """
  launch_ns: float = 220.0
  step_ns: float = 45.0
  bytes_per_ns: float = 540.0
  piece_ns: float = 3.0
  matrix_row_ns: float = 0.6
  matrix_min_rows: int = 128
  vector_ns: float = 0.9
  unhidden: float = 0.05
  memory_bytes: float = 16 * 2**20


TPU_V3_LIKE = TpuConstants()


# --- How often, how much -----------------------------------------------------


def trips(loops: Loops, tiles) -> np.ndarray:
  """int64 [configs, axes]: iterations of each loop, partial ones included."""
  units = np.array([axis.units for axis in loops.grid.axes], np.int64)
  return -(-units // tiles)


def steps(loops: Loops, tiles) -> np.ndarray:
  """float64 [configs]: steps of the whole nest, output tiles x filter tiles."""
  return trips(loops, tiles).prod(1, dtype=np.float64)


def covered_units(loops: Loops, stream, tiles) -> np.ndarray:
  """int64 [configs, rank]: layout tiles that a block of a stream covers."""
  columns = []
  for extent in stream.extents:
    whole = -(-extent.size // extent.unit)
    if extent.axis < 0:
      columns.append(np.full(len(tiles), whole, np.int64))
      continue
    axis = loops.grid.axes[extent.axis]
    elements = tiles[:, extent.axis] * axis.unit * extent.scale
    if extent.window >= 0:
      # From the first tap of the first element to the last tap of the last one.
      taps = tiles[:, extent.window] * loops.grid.axes[extent.window].unit
      elements = (elements - max(extent.scale - 1, 0)
                  + extent.spread * (taps - 1))
    columns.append(np.clip(
        np.ceil(elements / extent.unit).astype(np.int64), 1, whole))
  return np.stack(columns, 1) if columns else np.ones((len(tiles), 1), int)


def block_bytes(loops: Loops, stream, tiles) -> np.ndarray:
  """float64 [configs]: bytes of one block of a stream, padding included."""
  layout_tile = np.prod([extent.unit for extent in stream.extents] or [1])
  units = covered_units(loops, stream, tiles).prod(1, dtype=np.float64)
  return units * layout_tile * stream.element_bytes


def fetches(loops: Loops, stream, tiles) -> np.ndarray:
  """float64 [configs]: how many blocks of a stream are moved.

  A block stays on chip as long as it is the next one too. It changes with the
  loops that walk over its tensor, and comes back from the start each time a
  loop outside of those advances: weights are read again for every tile of
  rows, unless a single block holds them all.
  """
  counts = trips(loops, tiles)
  total = np.ones(len(tiles))
  changes = np.zeros(len(tiles), bool)  # In this loop, or one further inside.
  followed = {a for extent in stream.extents
              for a in (extent.axis, extent.window) if a >= 0}
  for axis in range(len(loops.grid.axes) - 1, -1, -1):
    if axis in followed:
      changes |= counts[:, axis] > 1
    total *= np.where(changes, counts[:, axis], 1)
  return total


def pieces(loops: Loops, stream, tiles) -> np.ndarray:
  """float64 [configs]: contiguous pieces that a block of a stream is in.

  Dimensions that are covered whole join with the next more major one.
  """
  covered = covered_units(loops, stream, tiles)
  count = np.ones(len(tiles))
  joined = np.ones(len(tiles), bool)  # So far, one piece from the minor end.
  for column in range(len(stream.extents) - 1, -1, -1):
    extent = stream.extents[column]
    count *= np.where(joined, 1, covered[:, column])
    joined &= covered[:, column] == -(-extent.size // extent.unit)
  return count


def occupied_bytes(loops: Loops, tiles) -> np.ndarray:
  """float64 [configs]: on-chip memory of a step.

  The block of each stream and the next one, if there is a next one. A product
  has its operands in float32 besides, and its sums, unless its result has room
  for them.
  """
  total = np.zeros(len(tiles))
  for stream in loops.streams:
    blocks = np.minimum(2, fetches(loops, stream, tiles))
    if stream.is_operand:
      blocks = blocks + 4 / stream.element_bytes
    total += blocks * block_bytes(loops, stream, tiles)
  if loops.matrix is not None:
    total += loops.matrix.sum_bytes * _tile_elements(loops, tiles)
  return total


def fits(loops: Loops, tiles, constants: TpuConstants) -> np.ndarray:
  """bool [configs]: whether the blocks of a step fit on-chip memory."""
  return occupied_bytes(loops, tiles) <= constants.memory_bytes


# --- Terms, nanoseconds ------------------------------------------------------


def step_overhead_ns(loops, tiles, constants) -> np.ndarray:
  """Starting and awaiting the transfers of every step."""
  return constants.step_ns * len(loops.streams) * steps(loops, tiles)


def traffic_ns(loops, tiles, constants) -> np.ndarray:
  """Moving all blocks, re-reads included, at full bandwidth."""
  return sum(block_bytes(loops, s, tiles) * fetches(loops, s, tiles)
             for s in loops.streams) / constants.bytes_per_ns


def pieces_ns(loops, tiles, constants) -> np.ndarray:
  """Transfers of split minor dimensions go piece by piece."""
  return constants.piece_ns * sum(
      pieces(loops, s, tiles) * fetches(loops, s, tiles)
      for s in loops.streams)


def matrix_ns(loops, tiles, constants) -> np.ndarray:
  """Rows through the matrix unit; short runs cost as much as the minimum."""
  if loops.matrix is None:
    return np.zeros(len(tiles))
  matrix, elements = loops.matrix, _elements(loops, tiles)
  rows = np.prod([elements[a] for a in matrix.row_axes], axis=0)
  blocks = np.ceil(elements[matrix.feature] / LANES)
  if matrix.contracted >= 0:
    blocks = blocks * np.ceil(elements[matrix.contracted] / LANES)
  for axis in matrix.window_axes + matrix.batch_axes:
    blocks = blocks * elements[axis]
  return (constants.matrix_row_ns * steps(loops, tiles) * blocks
          * np.maximum(rows, constants.matrix_min_rows))


def vector_ns(loops, tiles, constants) -> np.ndarray:
  """Elementwise work, once a result tile; fused producers once a fetch."""
  output_tiles = trips(loops, tiles)[:, :loops.grid.num_output_axes].prod(
      1, dtype=np.float64)
  registers = _tile_elements(loops, tiles) / RANK_1_UNIT
  total = loops.vector_ops * registers * output_tiles
  if loops.matrix is not None:
    # Adding up partial sums: once for each further step of the contraction.
    total = total + registers * (steps(loops, tiles) - output_tiles)
  for stream in loops.streams:
    if stream.vector_ops:
      block = block_bytes(loops, stream, tiles) / stream.element_bytes
      # The producers run again whenever the block is used, not just moved.
      total = total + (stream.vector_ops * block / RANK_1_UNIT
                       * steps(loops, tiles))
  return constants.vector_ns * total


def first_transfer_ns(loops, tiles, constants) -> np.ndarray:
  """The first blocks in and the last out: nothing runs beside them."""
  return sum(block_bytes(loops, s, tiles)
             for s in loops.streams) / constants.bytes_per_ns


def busy_ns(memory_ns, arithmetic_ns, constants) -> np.ndarray:
  """Memory and arithmetic side by side, not quite overlapped."""
  return (np.maximum(memory_ns, arithmetic_ns)
          + constants.unhidden * np.minimum(memory_ns, arithmetic_ns))


def kernel_ns(loops: Loops, tiles, constants=TPU_V3_LIKE) -> np.ndarray:
  """float64 [configs]: runtime without noise, in nanoseconds.

  Args:
    loops: the kernel, of `hlo_loops.kernel_loops`.
    tiles: int64 [configs, axes], of `loops.grid.tiles`.
    constants: the machine.
  """
  memory = (traffic_ns(loops, tiles, constants)
            + pieces_ns(loops, tiles, constants))
  arithmetic = (matrix_ns(loops, tiles, constants)
                + vector_ns(loops, tiles, constants))
  return (constants.launch_ns + step_overhead_ns(loops, tiles, constants)
          + busy_ns(memory, arithmetic, constants)
          + first_transfer_ns(loops, tiles, constants))


def _elements(loops, tiles) -> list:
  """For each axis float64 [configs]: elements that a tile spans, padded."""
  return [tiles[:, a].astype(np.float64) * axis.unit
          for a, axis in enumerate(loops.grid.axes)]


def _tile_elements(loops, tiles) -> np.ndarray:
  """float64 [configs]: elements of a tile of the tiled tensor, padded."""
  return np.prod(_elements(loops, tiles)[:loops.grid.num_output_axes], axis=0)
