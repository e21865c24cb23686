"""Layout tiles and tile bounds, by hand."""

from tpu_graphs_ext.hlo import tiles


def test_layout_units():
  for sizes, units in (
      ([], []), ([192], [1024]), ([5, 6], [8, 128]), ([3, 32], [4, 128]),
      ([4, 64], [4, 128]), ([2, 9], [2, 128]), ([7, 1, 300], [1, 2, 128])):
    assert tiles.layout_units(sizes) == units


def test_bound_candidates():
  assert tiles.bound_candidates(26) == [26, 13, 9, 7, 6, 5, 4, 3, 2, 1]
  # 125 / n = 125, 62.5, 41.7, 31.3, ... in multiples of 16.
  assert tiles.bound_candidates(125, 16) == [125, 64, 48, 32, 16]
  assert tiles.bound_candidates(24, 16) == [24, 16]
  assert tiles.bound_candidates(4, 16) == [4]  # Less than one step.
  for units in range(1, 100):
    every = {-(-units // n) for n in range(1, units + 1)}
    assert set(tiles.bound_candidates(units)) == every
