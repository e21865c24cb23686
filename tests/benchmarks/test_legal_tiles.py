"""The table of legal tiles, on a program that the compiler took apart."""

import itertools
import sys

from support.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import legal_tiles


def test_a_row_of_compiled_kernels(shared_data):
  known = list(itertools.islice(legal_tiles.of_programs(
      str(shared_data / 'compiled_v3')), 30))
  assert all(kernel.default == 0 and kernel.is_all for kernel in known)
  for title, row in legal_tiles.rows('compiled', iter(known)).items():
    assert title.startswith('compiled, ')
    assert row['kernels'] == row['complete'] == row['defaults']
    assert .99 < row['recall'] == row['complete_recall'] <= 1
    assert .89 < row['precision'] <= 1


def test_what_is_not_listed_lowers_recall(shared_data):
  """Of two known tiles one is larger than the tensor."""
  kernel = next(kernel for kernel in legal_tiles.of_programs(
      str(shared_data / 'compiled_v3')) if kernel.loops.products < 2)
  tiles = kernel.tiles[[0, 0]]
  tiles[1] += 10 ** 6
  row, = legal_tiles.rows('one', iter([kernel._replace(tiles=tiles)])).values()
  assert (row['kernels'], row['listed'], row['known'], row['recall']) == (
      1, 1, 2, .5)
