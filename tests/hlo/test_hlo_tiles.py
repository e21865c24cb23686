"""Tile grids, by hand and on real kernels."""

import numpy as np

from support.feature_tiles import loops_of
from support.tiny_hlo import add, convolution, elementwise, product
from tpu_graphs_ext.hlo import tiles


def grid_of(module):
  """The tile grid of an HLO module, off its features."""
  return loops_of(module).grid


def test_units():
  for dims, layout_of, element_type, units in (
      # Most major first: dim 1 in rows of 8, dim 0 in lanes of 128.
      ([4096, 1000], [0, 1], 'F32', (125, 32)),
      ([32, 26, 26, 192], [3, 0, 2, 1], 'F32', (26, 26, 4, 2)),
      ([32, 4096], [1, 0], 'PRED', (4, 32)),  # Rows of 8 for small types too.
      ([4097], [0], 'F32', (5,)),  # Rank 1: 1024 elements.
      ([3, 5], [], 'F32', (1, 1))):  # No layout.
    grid = grid_of(elementwise(dims, layout_of, element_type))
    assert grid.largest[0] == units
    assert grid.largest[1] == ()
  for sizes, units in (
      ([], []), ([192], [1024]), ([5, 6], [8, 128]), ([3, 32], [4, 128]),
      ([4, 64], [4, 128]), ([2, 9], [2, 128]), ([7, 1, 300], [1, 2, 128])):
    assert tiles.layout_units(sizes) == units


def test_reshape_and_scalar_have_no_bounds():
  # A reshape's tile is the whole: 32 / 8 and 6400 / 128.
  for module, whole in (
      (elementwise([32, 6400], opcode='reshape'), [[4, 50]]),
      (elementwise([]), [[]])):
    grid = grid_of(module)
    assert grid.largest == ((), ())
    assert grid.tiles([[]], [[]]).tolist() == whole


def test_a_reductions_operand_and_the_largest_part_of_a_tuple_are_tiled():
  reduces, several = elementwise([32, 1000]), elementwise([32, 1000])
  add(reduces.computations[0], 12, 'reduce', [32], operands=[11, 11])
  add(several.computations[0], 12, 'copy', [16], operands=[10])
  add(several.computations[0], 13, 'tuple', [], operands=[12, 11])
  for module, root in ((reduces, 12), (several, 13)):
    module.computations[0].root_id = root
    assert grid_of(module).largest[0] == (4, 8)


def test_grid_of_a_convolution():
  grid = grid_of(convolution())
  # Output: 4, 4, 32 / 8, 384 / 128.  Kernel: 3, 3, 256 / 8, 384 / 128.
  assert grid.largest[0] == (4, 4, 4, 3)
  assert grid.largest[1] == (3, 3, 32, 3)
  # The last dimension of both are the output features: one loop.
  assert len(grid.axes) == 7
  assert grid.kernel_axes == ((4, 1), (5, 1), (6, 8), (3, 128))
  # Bounds of the filter follow the output's.
  kernel, output = [[3, 1, 16, 2], [1, 3, 32, 3]], [[2, 4, 1, 2], [4, 1, 4, 3]]
  rows = grid.tiles(output, np.array(kernel))
  assert rows.tolist() == [[2, 4, 1, 2, 3, 1, 16], [4, 1, 4, 3, 1, 3, 32]]
  assert grid.output_bounds(rows).tolist() == output
  assert grid.kernel_bounds(rows).tolist() == kernel


def test_windows_that_stand_for_a_batch():
  for image, window, output, expected in (
      # Batches of a product, of 8: taps, stride, zeros between elements and 1.
      (8, (8, 7, 8), 8, True),
      (8, (8, 8, 7), 8, True),  # Reversed, with 7 of padding on both sides.
      (1, (8, 1, 1), 8, True),  # Each output has the one element, another tap.
      (8, (1, 1, 1), 8, False),  # No window.
      (8, (3, 1, 1), 8, False),
      (4, (2, 2, 1), 2, False),  # Patches of 2, though 1 is 2 - 1.
      (28, (3, 1, 2), 56, False),
      (56, (56, 1, 1), 1, False)):  # A filter's gradient sums over all.
    assert tiles.has_tap_each(*window, image, output) == expected


def test_units_of_the_filter_may_differ():
  """f32 [64, 256] x [256, 512], the product stored columns first."""
  grid = grid_of(product(64, 256, 512, [0, 1]))
  # 512 / 8 rows of 64 / 128 lanes; the filter has 512 / 128 lanes.
  assert grid.largest[0] == (64, 1)
  assert grid.largest[1] == (32, 4)
  # 40 rows of 8 are 320 columns: 2.5 units of the filter, so 3.
  rows = grid.tiles([[40, 1]], np.array([[16, 3]]))
  assert grid.kernel_bounds(rows).tolist() == [[16, 3]]


def test_bound_candidates():
  assert tiles.bound_candidates(26) == [26, 13, 9, 7, 6, 5, 4, 3, 2, 1]
  # 125 / n = 125, 62.5, 41.7, 31.3, ... in multiples of 16.
  assert tiles.bound_candidates(125, 16) == [125, 64, 48, 32, 16]
  assert tiles.bound_candidates(24, 16) == [24, 16]
  assert tiles.bound_candidates(4, 16) == [4]  # Less than one step.
  for units in range(1, 100):
    every = {-(-units // n) for n in range(1, units + 1)}
    assert set(tiles.bound_candidates(units)) == every
