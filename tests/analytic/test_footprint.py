"""On-chip memory of tiles, by hand."""

import numpy as np
import pytest

from support.feature_tiles import loops_of
from support.tiny_hlo import convolution, elementwise, product
from tpu_graphs_ext.analytic import tile_counts
from tpu_graphs_ext.hlo import protos

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.


def occupied(module, output_bounds, kernel_bounds=((),)):
  loops = loops_of(module)
  return tile_counts.occupied_bytes(loops, loops.grid.tiles(
      output_bounds, np.array(kernel_bounds))).tolist()


def test_two_blocks_of_a_stream_that_changes_must_fit():
  copy = elementwise([24, 256], opcode='copy')
  # Two streams: of a block of 6 layout tiles there is no next one, of 3 and of
  # 2 there is.
  bounds = [[3, 2], [3, 1], [1, 2]]
  assert occupied(copy, bounds) == [
      2 * 6 * LAYOUT_TILE, 4 * 3 * LAYOUT_TILE, 4 * 2 * LAYOUT_TILE]


@pytest.mark.parametrize('element_type, output, sums', [
    ('F32', 2, 0), ('BF16', 1, 2)])
def test_a_product_keeps_operands_and_sums_too(element_type, output, sums):
  """f32 [64, 256] x [256, 512].

  A filter tile [16, 1] holds 128 of 256 summands, so an output tile [2, 1] of
  16 rows reads 16 x 128 of the image: 2 layout tiles. Filter 128 x 128 (16).
  Two blocks of each, and both operands once more. Sums of 16 x 128 have room in
  a result of float32.
  """
  module = product(64, 256, 512)
  module.computations[0].instructions[2].shape.element_type = (
      protos.PrimitiveType.Value(element_type))
  assert occupied(module, [[2, 1]], [[16, 1]]) == [
      (2 * (2 + 16 + output) + 2 + 16 + sums) * LAYOUT_TILE]


def test_what_does_not_change_has_one_block():
  """All rows of the same product: the filter's next block is its first."""
  assert occupied(product(64, 256, 512), [[2, 4]], [[32, 4]]) == [
      (2 * (2 * 2 + 2 * 4) + 32 * 4 + 2 * 2 + 32 * 4) * LAYOUT_TILE]


def test_a_convolution():
  """Output tile [2, 4, 1, 1], filter tile [3, 1, 16, 1] of bf16; stride 2.

  Output: 2 * 4 = 8 layout tiles.
  Filter: 3 * 1 * 16 layout tiles of half the bytes.
  Image: 2 outputs at stride 2 and the window's other 2 rows are 5 rows, 4
  outputs of one tap 7 columns; batch 8 and 128 features.
  Bias: a layout tile, though it has 128 elements. Operands again in float32.
  """
  assert occupied(convolution(), [[2, 4, 1, 1]], [[3, 1, 16, 1]]) == [
      (2 * (8 + 3 * 16 / 2 + 5 * 7 + 1) + 3 * 16 + 5 * 7) * LAYOUT_TILE]
