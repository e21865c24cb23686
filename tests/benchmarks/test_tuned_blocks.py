"""The benchmark of blocks, on a table of two entries."""

import sys

import pytest

from support.places import BENCHMARKS
from tpu_graphs_ext.errors import UserError

sys.path.insert(0, str(BENCHMARKS))

import tuned_blocks

# Of 16 x 256 times 256 x 256 the candidates are 16 rows, all or half of k, and
# all or half of n: four.
TABLE = """
OTHER = 3
SIZES = {
    (6, 16, 256, 256, 'int8', 'int8'): (16, 256, 256),
    (7, 16, 256, 256, 'float8_e4m3fn', 'float4_e2m1fn'): (16, 256, 99, 2),
}
"""


def test_table():
  whole, other = tuned_blocks.entries(TABLE)
  assert (whole.tpu, whole.best) == ('v6e', (16, 256, 256))
  # By the formula one step is the fastest; 99 is no candidate.
  assert tuned_blocks.shares([whole]) == (4, 1, 1, 1, 1)
  assert tuned_blocks.shares([other]) == (4, 0, 0, 0, 0)
  assert tuned_blocks.table([whole, other]).splitlines()[2:] == [
      '| int8 x int8 on v6e, 1 | 4 | 100 % | 100 % | 100 % | 100 % |',
      '| float8_e4m3fn x float4_e2m1fn on v7x, another kernel, 1 | 4 | 0 % | '
      '0 % | 0 % | 0 % |']


def test_what_is_no_table():
  for text in ('', 'x = {', 'T = {}', 'T = {1: 2}'):
    with pytest.raises(UserError, match='no table of blocks'):
      tuned_blocks.entries(text)
