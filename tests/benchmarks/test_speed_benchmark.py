"""The tables of the benchmarks of speed and of blocks, not times."""

import argparse
import sys

import numpy as np
import pandas as pd
import pytest

from support import tiny_layouts
from support.places import BENCHMARKS
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

sys.path.insert(0, str(BENCHMARKS))

import speed
import speed_layout
import tuned_blocks


def row(value, **changes):
  return {'part': 'memory', 'subject': 'NetA', 'case': 'configs 10',
          'measure': 'time', 'value': value, 'unit': 'ms',
          'date': '2026-01-02', 'machine': 'm', 'versions': 'v', **changes}


def test_a_part_measured_again_replaces_its_rows(tmp_path):
  speed.write_results(str(tmp_path), [
      row(1.0), row(2.0, case='a case of older code'),
      row(4.0, part='loading')])
  speed.write_results(str(tmp_path), [row(3.0)])
  table = pd.read_csv(tmp_path / 'speed.csv')
  assert table[['part', 'value']].values.tolist() == [
      ['loading', 4], ['memory', 3]]
  assert '| NetA | configs 10 | time | 3 | ms |' in (
      tmp_path / 'speed.md').read_text()


# -------------------------------------------------------------------- layouts


def tiny_program(folder):
  path = str(folder / 'tiny.npz')
  np.savez(path, **tiny_layouts.program('tiny', 50, 7, 24))
  return path


def test_medians_and_their_ratio(tmp_path):
  path = tiny_program(tmp_path)

  def answer(seconds):
    part = {'seconds': seconds, 'processor seconds': 2 * seconds,
            'memory': 60.0}
    return {'ranking': part, 'training': part}

  text = speed_layout.markdown(
      argparse.Namespace(file=path, repeats=3, most_configs=20), {
          'baseline': [answer(seconds) for seconds in (9.0, 10.0, 50.0)],
          'ours': [answer(seconds) for seconds in (2.0, 1.0, 3.0)]}, 1e-6)
  assert '| ranking, time | 10 s | 2 s | 5 |' in text
  assert '| training, processor time | 20 s | 4 s | 5 |' in text
  assert 'tiny.npz`: 50 nodes, 7 configurable, 20 of 24 conf' in text


@pytest.mark.baseline
def test_both_sides_have_the_same_scores(tmp_path):
  if checkout.find() is None:
    pytest.skip(f'needs {checkout.ROOT_VARIABLE}')
  out = tmp_path / 'results' / 'speed.md'
  out.parent.mkdir()
  assert speed_layout.main(
      [tiny_program(tmp_path), '--repeats=1', f'--out={out}']) == 0
  difference = out.read_text().split('Largest difference of a score: ')[1]
  assert float(difference.split()[0]) < 1e-5


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
  assert tuned_blocks.shares([whole]) == (4, 1, 1, 1, 1)
  assert tuned_blocks.shares([other]) == (4, 0, 0, 0, 0)
  assert tuned_blocks.table([whole, other]).splitlines()[2] == (
      '| int8 x int8 on v6e, 1 | 4 | 100 % | 100 % | 100 % | 100 % |')
  for text in ('x = {', 'T = {1: 2}'):
    with pytest.raises(UserError, match='no table of blocks'):
      tuned_blocks.entries(text)


def test_a_table_of_grouped_tiles():
  row = {'tpu': 'tpu7x', 'kind': 'dlhs', 'm': 128, 'k': 128, 'n': 256,
         'groups': 1, 'winner': [128, 256, 128], 'ms': 1.0}
  # The gradient sums over n: 128 rows, 128 or 256 of n, 128 of k.
  assert tuned_blocks.grouped_table([row]).splitlines()[2].startswith(
      '| dlhs on v7x, 1 | 2 | 100 % | 100 % | 0.00 |')
