"""What a tile does, by hand."""

import numpy as np

from support.feature_tiles import loops_of
from support.tiny_hlo import convolution, elementwise, product
from tpu_graphs_ext.analytic import tile_counts
from tpu_graphs_ext.analytic.tile_counts import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.hlo import protos
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.


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


def test_a_copy():
  found = tile_counts.counts(
      copy_loops(), np.array([[1, 2], [3, 2], [2, 2], [3, 1]]))
  assert {name: float(values[0]) for name, values in found.items()} == {
      'output_tiles': 3, 'kernel_tiles': 1, 'steps': 3, 'streams': 2,
      'moved_bytes': 2 * 3 * 8192, 'block_bytes': 2 * 8192, 'pieces': 2 * 3,
      'matrix_rows': 0, 'vector_registers': 0.5 * 6, 'tile_elements': 2048,
      'footprint_bytes': 4 * 8192, 'padding': 1, 'rounding': 1}
  # A bound of 2 out of 3 needs 2 steps, which are 4/3 of the work.
  assert found['steps'].tolist() == [3, 1, 2, 2]
  # Whole rows are contiguous; each half row is a piece.
  assert found['pieces'].tolist() == [2 * 3, 2, 2 * 2, 2 * 2 * 3]


def test_weights_are_read_again_for_every_tile_of_rows():
  loops, weights = matmul_loops(), matmul_loops().streams[2]
  # Bounds: rows, columns, contraction. Units 2, 4, 32.
  bounds = np.array([
      [2, 4, 32],  # everything at once: 1 block
      [1, 4, 32],  # two tiles of rows, but one block holds all weights: 1
      [2, 2, 32],  # two tiles of columns: 2
      [1, 2, 32],  # each again for each of two tiles of rows: 4
      [1, 2, 16]])  # and the contraction in two: 8
  trip = tile_counts.trips(loops, bounds)
  np.testing.assert_array_equal(
      tile_counts.fetches(weights, trip), [1, 1, 2, 4, 8])
  # The result does not depend on the contraction: a tile has one block.
  np.testing.assert_array_equal(
      tile_counts.fetches(loops.streams[0], trip), [1, 2, 2, 4, 4])


def test_a_window_widens_the_block_of_the_image():
  for spread, expected in (
      # Output rows 10, window of 3 taps on axis 1, stride 2:
      # (4 rows - 1) * 2 + 3 = 9; (4 - 1) * 2 + 1 = 7; (10 - 1) * 2 + 3 = 21.
      (1.0, [[9], [7], [21]]),
      # Taps 2 apart: (4 - 1) * 2 + 1 + 2 * (3 - 1) = 11; 7; all 22.
      (2.0, [[11], [7], [22]])):
    stream = Stream('image', (Extent(22, 1, 0, 2.0, 1, spread),), 4.0)
    loops = Loops(TileGrid((Axis(10, 1), Axis(3, 1)), 1), (stream,), 0.0)
    np.testing.assert_array_equal(tile_counts.covered_units(
        loops, stream, np.array([[4, 3], [4, 1], [10, 3]])), expected)


def test_few_rows_cost_the_minimum_and_partial_sums_are_added():
  found = tile_counts.counts(
      matmul_loops(), np.array([[2, 4, 32], [1, 4, 32], [2, 4, 16]]))
  # Whole: 2 blocks of 128 contracted x 4 of columns, 16 rows cost 128.
  # 8 rows a step: the same work in twice the steps, each at the minimum.
  assert found['matrix_rows'].tolist()[:2] == [2 * 4 * 128, 2 * (2 * 4 * 128)]
  # Contraction in two: one more step on 2 x 4 layout tiles.
  assert found['vector_registers'].tolist() == [0, 0, 8]


def footprint(module, output_bounds, kernel_bounds=((),)):
  loops = loops_of(module)
  found = tile_counts.counts(
      loops, loops.grid.tiles(output_bounds, np.array(kernel_bounds)))
  return [size / LAYOUT_TILE for size in found['footprint_bytes']]


def test_a_product_keeps_operands_and_sums_too():
  """f32 [64, 256] x [256, 512].

  A filter tile [16, 1] holds 128 of 256 summands, so an output tile [2, 1] of
  16 rows reads 16 x 128 of the image: 2 layout tiles. Filter 128 x 128 (16).
  Two blocks of each, and both operands once more. Sums of 16 x 128 have room in
  a result of float32.
  """
  for element_type, output, sums in (('F32', 2, 0), ('BF16', 1, 2)):
    module = product(64, 256, 512)
    module.computations[0].instructions[2].shape.element_type = (
        protos.PrimitiveType.Value(element_type))
    assert footprint(module, [[2, 1]], [[16, 1]]) == [
        2 * (2 + 16 + output) + 2 + 16 + sums]


def test_blocks_on_chip():
  """Two of what changes, one of what does not.

  Output tile [2, 4, 1, 1], filter tile [3, 1, 16, 1] of bf16; stride 2.
  Output: 2 * 4 = 8 layout tiles. Filter: 3 * 1 * 16 of half the bytes. Image: 2
  outputs at stride 2 and the window's other 2 rows are 5 rows, 4 outputs of one
  tap 7 columns; batch 8 and 128 features. Bias: a layout tile, though it has
  128 elements. Operands again in float32.
  """
  assert footprint(elementwise([24, 256], opcode='copy'),
                   [[3, 2], [3, 1], [1, 2]]) == [2 * 6, 4 * 3, 4 * 2]
  assert footprint(convolution(), [[2, 4, 1, 1]], [[3, 1, 16, 1]]) == [
      2 * (8 + 3 * 16 / 2 + 5 * 7 + 1) + 3 * 16 + 5 * 7]
