"""The tables of the benchmarks of speed and of blocks, not times."""

import json
import re
from unittest import mock

import numpy as np
import pytest

import speed_layout
import tables
import tuned_blocks
from support import tiny_layouts
from tpu_graphs_ext.errors import UserError


def test_medians_and_their_ratio():
  assert speed_layout.rows_of({
      'baseline': [{'time': seconds} for seconds in (9.0, 10.0, 50.0)],
      'ours': [{'time': seconds} for seconds in (2.0, 1.0, 3.0)]}) == {
          'time': {'baseline': 10, 'ours': 2, 'ratio': 5}}


@pytest.mark.baseline
@pytest.mark.usefixtures('checkout_root')
def test_both_sides_have_the_same_scores(tmp_path, monkeypatch, capsys):
  put = mock.create_autospec(tables.put)
  monkeypatch.setattr(tables, 'put', put)
  path = str(tmp_path / 'tiny.npz')
  np.savez(path, **tiny_layouts.program('tiny', 50, 7, 24))
  assert speed_layout.main([path, '--repeats=1']) == 0
  printed = capsys.readouterr().out
  assert '50 nodes, 7 configurable, 24 configurations' in printed
  assert float(re.search(r'score: (\S+) of', printed)[1]) < 1e-5
  assert set(put.call_args.args[1]) >= {
      'ranking, time, s', 'training, memory, MiB'}


# --------------------------------------------------------------------- blocks

# Of 16 x 256 times 256 x 256 the candidates are 16 rows, all or half of k, and
# all or half of n: four.
TABLE = """
SIZES = {
    (6, 16, 256, 256, 'int8', 'int8'): (16, 256, 256),
    (7, 16, 256, 256, 'float8_e4m3fn', 'float4_e2m1fn'): (16, 256, 99, 2),
}
"""


def test_a_table_of_blocks():
  whole, other = tuned_blocks.entries(TABLE)
  assert (whole.tpu, whole.best) == ('v6e', (16, 256, 256))
  # By the formula one step is the fastest; 99 is no candidate.
  assert tuned_blocks.rows_of([whole, other]) == {
      'int8 x int8 on v6e, 1': {
          'candidates': 4, 'random': 100, 'largest': 100, 'rank': 100},
      'float8_e4m3fn x float4_e2m1fn on v7x, another kernel, 1': {
          'candidates': 4, 'random': 0, 'largest': 0, 'rank': 0}}
  for text in ('x = {', 'T = {1: 2}'):
    with pytest.raises(UserError, match='no table of blocks'):
      tuned_blocks.entries(text)


def test_a_table_of_grouped_tiles():
  row = {'tpu': 'tpu7x', 'kind': 'dlhs', 'm': 128, 'k': 128, 'n': 256,
         'groups': 1, 'winner': [128, 256, 128]}
  # The gradient sums over n: 128 rows, 128 or 256 of n, 128 of k.
  assert tuned_blocks.rows_of(tuned_blocks.grouped_entries(json.dumps([
      {**row, 'tpu': 'tpu_v5_lite', 'kind': 'gmm'}, row, row]))) == {
          'gradient of the rows on v7x, 2': {
              'candidates': 2, 'random': 100, 'largest': 100, 'rank': 100},
          'forward on v5e, 1': {
              'candidates': 2, 'random': 0, 'largest': 0, 'rank': 0}}
