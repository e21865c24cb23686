"""The analytic runtime model: loop nests, terms by hand, real kernels."""

import dataclasses

import numpy as np
import pytest

from support import tiny_hlo
from tpu_graphs_ext.analytic import hlo_loops, tpu
from tpu_graphs_ext.analytic.loops import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.analytic.tpu import TpuConstants
from tpu_graphs_ext.hlo import protos
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid
from tpu_graphs_ext.host import metrics

# Round numbers, so that sums can be done by hand.
MACHINE = TpuConstants(
    launch_ns=100, step_ns=10, bytes_per_ns=1024, piece_ns=1, matrix_row_ns=1,
    matrix_min_rows=128, vector_ns=2, unhidden=0.5, memory_bytes=50_000)


def copy_loops() -> Loops:
  """f32 [24, 256] -> the same: 3 x 2 layout tiles of 4 KiB, in and out."""
  extents = (Extent(24, 8, 0), Extent(256, 128, 1))
  return Loops(TileGrid((Axis(24, 8), Axis(256, 128)), 2),
               (Stream('output', extents, 4.0), Stream('input', extents, 4.0)),
               vector_ops=0.5)


def matmul_loops() -> Loops:
  """bf16 [16, 256] x [256, 512] -> f32 [16, 512]."""
  rows, columns, contracted = Axis(16, 8), Axis(512, 128), Axis(256, 8)
  return Loops(
      TileGrid((rows, columns, contracted), 2, ((2, 8), (1, 128))),
      (Stream('output', (Extent(16, 8, 0), Extent(512, 128, 1)), 4.0),
       Stream('image', (Extent(16, 8, 0), Extent(256, 128, 2)), 2.0),
       Stream('filter', (Extent(256, 8, 2), Extent(512, 128, 1)), 2.0)),
      vector_ops=0.0,
      matrix=Matrix((0,), (), (), contracted=2, feature=1))


# --- Counts ------------------------------------------------------------------


def test_a_bound_that_does_not_divide_adds_a_partial_trip():
  # 3 x 2 layout tiles: bounds (2, 2) need ceil(3/2) x 1 = 2 steps.
  bounds = np.array([[3, 2], [2, 2], [1, 1]])
  np.testing.assert_array_equal(
      tpu.trips(copy_loops(), bounds), [[1, 1], [2, 1], [3, 2]])
  np.testing.assert_array_equal(
      tpu.steps(copy_loops(), bounds), [1, 2, 6])


def test_weights_are_read_again_for_every_tile_of_rows():
  loops, weights = matmul_loops(), matmul_loops().streams[2]
  # Bounds: rows, columns, contraction. Units 2, 4, 32.
  bounds = np.array([
      [2, 4, 32],  # everything at once: 1 block
      [1, 4, 32],  # two tiles of rows, but one block holds all weights: 1
      [2, 2, 32],  # two tiles of columns: 2
      [1, 2, 32],  # each again for each of two tiles of rows: 4
      [1, 2, 16]])  # and the contraction in two: 8
  np.testing.assert_array_equal(
      tpu.fetches(loops, weights, bounds), [1, 1, 2, 4, 8])
  # The result does not depend on the contraction: one block a tile.
  np.testing.assert_array_equal(
      tpu.fetches(loops, loops.streams[0], bounds), [1, 2, 2, 4, 4])


def test_blocks_count_whole_layout_tiles():
  loops = matmul_loops()
  bounds = np.array([[1, 3, 8]])
  # Result: 1 x 3 tiles of 8 x 128 floats = 3 * 1024 * 4 bytes.
  # Image: 8 units of 8 = 64 of 256 columns round up to 1 tile of 128 lanes:
  # 1 * 1024 * 2. Filter: 8 x 3 tiles of 1024 * 2.
  np.testing.assert_array_equal(
      [tpu.block_bytes(loops, s, bounds)[0] for s in loops.streams],
      [3 * 4096, 2048, 24 * 2048])


def test_window_widens_the_block_of_the_image():
  # Output rows 10, window of 3 taps on axis 1, stride 2.
  stream = Stream('image', (Extent(22, 1, 0, 2.0, 1),), 4.0)
  loops = Loops(TileGrid((Axis(10, 1), Axis(3, 1)), 1), (stream,), 0.0)
  # (4 rows - 1) * 2 + 3 = 9; (4 - 1) * 2 + 1 = 7; (10 - 1) * 2 + 3 = 21.
  np.testing.assert_array_equal(
      tpu.covered_units(
          loops, stream, np.array([[4, 3], [4, 1], [10, 3]])),
      [[9], [7], [21]])


def test_a_dilated_window_reaches_further():
  # Taps 2 apart: (4 rows - 1) * 2 + 1 + 2 * (3 taps - 1) = 11.
  stream = Stream('image', (Extent(22, 1, 0, 2.0, 1, spread=2.0),), 4.0)
  loops = Loops(TileGrid((Axis(10, 1), Axis(3, 1)), 1), (stream,), 0.0)
  assert tpu.covered_units(loops, stream, np.array([[4, 3]])) == 11


def test_split_minor_dimensions_come_in_pieces():
  loops = copy_loops()
  stream = loops.streams[0]
  # Whole rows are contiguous; half rows are a piece each.
  np.testing.assert_array_equal(
      tpu.pieces(loops, stream, np.array([[3, 2], [2, 2], [3, 1]])),
      [1, 1, 3])


# --- Terms -------------------------------------------------------------------


def test_terms_of_a_copy_by_hand():
  loops, bounds = copy_loops(), np.array([[1, 2]])
  # 3 steps, 2 streams, 8192 bytes a block = 8 ns at 1024 bytes/ns.
  assert tpu.step_overhead_ns(loops, bounds, MACHINE) == 10 * 2 * 3
  assert tpu.traffic_ns(loops, bounds, MACHINE) == 2 * 3 * 8
  assert tpu.pieces_ns(loops, bounds, MACHINE) == 2 * 3 * 1
  assert tpu.first_transfer_ns(loops, bounds, MACHINE) == 2 * 8
  # Half an instruction on each of 6 layout tiles, 2 ns each.
  assert tpu.vector_ns(loops, bounds, MACHINE) == 0.5 * 6 * 2
  assert tpu.matrix_ns(loops, bounds, MACHINE) == 0
  # 100 + 60 + (54 + 0.5 * 6) + 16
  assert tpu.kernel_ns(loops, bounds, MACHINE) == 233


def test_few_rows_cost_as_much_as_the_least():
  loops = matmul_loops()
  # Whole: 2 blocks of 128 contracted x 4 of columns, 16 rows cost 128.
  assert tpu.matrix_ns(
      loops, np.array([[2, 4, 32]]), MACHINE) == 2 * 4 * 128
  few = dataclasses.replace(MACHINE, matrix_min_rows=8)
  assert tpu.matrix_ns(
      loops, np.array([[2, 4, 32]]), few) == 2 * 4 * 16
  # 8 rows a step: the same work in twice the steps, each at the least.
  assert tpu.matrix_ns(
      loops, np.array([[1, 4, 32]]), MACHINE) == 2 * (2 * 4 * 128)


def test_partial_sums_are_added_up():
  loops = matmul_loops()
  # Contraction in two: one more step on 2 x 4 layout tiles, 2 ns each.
  assert tpu.vector_ns(loops, np.array([[2, 4, 16]]), MACHINE) == 16


def test_rounding_waste_is_paid():
  loops = copy_loops()
  # A bound of 2 out of 3: two full tiles, 4/3 of the traffic.
  whole, wasted = (
      tpu.vector_ns(loops, np.array([[rows, 2]]), MACHINE)[0]
      for rows in (3, 2))
  assert wasted / whole == pytest.approx(4 / 3)


# --- Streams of compiled kernels ---------------------------------------------


def test_padded_image_moves_with_the_tiles():
  kernel = tiny_hlo.Fused((8, 30, 30, 128), (3, 3, 128, 256))
  image, filters = kernel.parameters
  pad = tiny_hlo.Fused((8, 30, 30, 128), number=2)
  pad.add('pad', (8, 32, 32, 128), *pad.parameters, pad.add('constant', ()))
  kernel.convolve((8, 30, 30, 256), kernel.fuse(pad, image), filters)
  loops = hlo_loops.kernel_loops(kernel.module())
  image = next(s for s in loops.streams if s.kind == 'image')
  # 30 of the 32 padded rows, so 30/32 a row of output; the pad costs vectors.
  rows = [e for e in image.extents if e.size == 30]
  assert [e.scale for e in rows] == [30 / 32, 30 / 32]
  assert all(e.axis >= 0 and e.window >= 0 for e in rows)
  assert image.vector_ops > 0


def test_a_mask_follows_the_filter_that_it_is_broadcast_into():
  kernel = tiny_hlo.Fused((8, 16, 16, 128), (3, 3, 128, 256), (128, 256))
  image, filters, mask = kernel.parameters
  masked = tiny_hlo.Fused((3, 3, 128, 256), (128, 256), number=2)
  masked.add('multiply', (3, 3, 128, 256), masked.parameters[0], masked.add(
      'broadcast', (3, 3, 128, 256), masked.parameters[1], dimensions=[2, 3]))
  kernel.convolve((8, 14, 14, 256), image, kernel.fuse(masked, filters, mask))
  loops = hlo_loops.kernel_loops(kernel.module())
  filters = next(s for s in loops.streams if s.kind == 'filter')
  mask = next(s for s in loops.streams if len(s.extents) == 2)
  assert mask.kind == 'input'
  assert [e.axis for e in mask.extents] == [
      e.axis for e in filters.extents if e.size in (128, 256)]
  assert min(e.axis for e in mask.extents) >= 0


def test_reduction_reads_tiles_and_writes_what_is_kept():
  kernel = tiny_hlo.Fused((4096, 256))
  x, = kernel.parameters
  square = kernel.add('multiply', (4096, 256), x, x)
  kernel.add('reduce', (256,), square, kernel.add('constant', ()),
             dimensions=[0])
  loops = hlo_loops.kernel_loops(kernel.module())
  output, operand = loops.streams
  kept = next(a for a, axis in enumerate(loops.grid.axes) if axis.size == 256)
  assert [e.axis for e in output.extents] == [kept]
  assert sorted(e.axis for e in operand.extents) == [0, 1]
  # The square and the sum: two instructions on every element.
  assert loops.vector_ops == 2


def test_broadcast_parameter_follows_its_own_dimension_only():
  kernel = tiny_hlo.Fused((64, 48, 256), (256,))
  x, bias = kernel.parameters
  kernel.add('multiply', (64, 48, 256), x, kernel.add(
      'broadcast', (64, 48, 256), bias, dimensions=[2]))
  loops = hlo_loops.kernel_loops(kernel.module())
  bias = next(s for s in loops.streams if len(s.extents) == 1)
  axis = bias.extents[0].axis
  assert loops.grid.axes[axis].size == 256


# --- Real kernels ------------------------------------------------------------


@pytest.fixture(scope='module')
def real_kernels(shared_data):
  """(loops, tiles, runtimes) of 12."""
  data = protos.TuningData.FromString(
      (shared_data / 'op_tuning_data.pb').read_bytes())
  found = []
  for kernel in data.modules:
    runs = [r for r in kernel.runs if not r.error]
    configs = [r.op_config.tile_size_config for r in runs]
    if not configs[0].output_bounds:
      continue  # A reshape.
    loops = hlo_loops.kernel_loops(kernel.module)
    found.append((
        loops, loops.grid.tiles(
            np.array([list(c.output_bounds) for c in configs]),
            np.array([list(c.kernel_bounds) for c in configs])),
        np.array([r.profile.compute_time_ns for r in runs])))
  return found


def test_model_ranks_the_real_kernels(real_kernels):
  """Its constants were fitted on them: this guards, it does not generalise."""
  taus, slowdowns, ratios = [], [], []
  for loops, tiles, runtime in real_kernels:
    predicted = tpu.kernel_ns(loops, tiles)
    ratios.append(np.log(predicted / runtime).mean())
    if len(runtime) >= 10:
      taus.append(metrics.kendall_tau_b(runtime, predicted))
      slowdowns.append(metrics.top_k_slowdown(runtime, predicted, 5))
  assert len(taus) == 8
  assert np.mean(taus) > 0.85  # 0.876
  assert np.mean(slowdowns) < 0.01  # 0.0
  assert np.abs(ratios).max() < 0.5  # No kernel is off by more than e^0.5.
