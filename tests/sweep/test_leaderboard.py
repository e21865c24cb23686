"""Tables of trials, with numbers worked out by hand."""

import csv
import io

import pytest

from tpu_graphs_ext.sweep import grid, study
from tpu_graphs_ext.sweep.leaderboard import Leaderboard


def row(width, seed, opa=None, state=study.FINISHED, **more):
  key = f'{width}-{seed}'
  return {'key': key, 'model': 'MLP', 'kwargs': {'width': width},
          'settings': {'epochs': 2, 'cache_dir': '/c'}, 'seed': seed,
          'data_root': '/data', 'state': state, 'error': '', 'attempts': 1,
          'epochs': 2, 'best_epoch': 1, 'parameters': 9,
          'seconds': 10 * seed + 5, 'run': key * (opa is not None),
          'values': {} if opa is None else {'opa': opa, 'top5': 1 - opa},
          **more}


def board(rows, goal='opa'):
  return Leaderboard(grid.Grid('/x/g.json', 'tile', (), goal=goal), rows)


def rows_of(text):
  return list(csv.DictReader(io.StringIO(text)))


ROWS = [
    row(8, 1, 0.7), row(8, 0, 0.5), row(16, 0, 0.9),
    row(16, 1, state=study.FAILED, error='out of\nmemory | lost'),
    row(32, 0, 0.8, study.STOPPED), row(64, 0, state=study.FAILED)]


def widths(found):
  return [kwargs['width'] for kwargs in found.groups['kwargs']]


def test_the_best_mean_comes_first_and_failures_last():
  found = board(ROWS)
  assert widths(found) == [16, 32, 8, 64]
  assert (found.best['key'], found.best['opa']) == ('16-0', 0.9)
  assert found.counts() == '6 trials: 3 finished, 1 stopped early, 2 failed'
  assert widths(board([*ROWS, row(4, 0, 0.95)], 'top5'))[:2] == [4, 16]


def test_spread_of_seeds():
  found = board([row(8, seed, 0.1 * (seed + 1)) for seed in range(3)] + [
      row(9, 0, 0.01), row(9, 1, 0.03), row(10, 0, 0.001)])
  groups = found.groups
  # Half of the interval: 4.302653 * 0.1 / sqrt(3) = 0.248414.
  assert groups[['opa_mean', 'opa_deviation', 'opa_low', 'opa_high']].iloc[
      0].tolist() == pytest.approx([0.2, 0.1, -0.048414, 0.448414], abs=1e-6)
  assert groups['opa_deviation'].iloc[1] == pytest.approx(0.02 / 2 ** 0.5)
  assert '| 0.2000 ± 0.1000 (-0.0484 to 0.4484) |' in found.markdown()
  assert groups['opa_low'].isna().tolist() == [False, True, True]
  assert groups['opa_deviation'].isna().tolist() == [False, False, True]


def test_the_table_for_people():
  text = board(ROWS).markdown()
  lines = text.splitlines()
  assert lines[4].split(' | ')[:5] == ['| ', 'model', 'width', 'seeds', 'OPA']
  assert lines[6] == ('| 1 | MLP | 16 | 1 of 2 | 0.9000 |  | 10.00 |  | 5 |  '
                      '| 1 | [16-0](model_16-0) |')
  assert '| 3 | MLP | 8 | 2 of 2 | 0.6000 ± 0.1414 |' in lines[8]
  assert lines[9].startswith('|  | MLP | 64 | 0 of 1 |')
  assert 'Best model: [model_16-0](model_16-0), seed 0, OPA 0.9000.' in text
  assert 'All with epochs=2.' in text
  assert ('- `16-1` MLP width=16 epochs=2 seed=1: '
          'out of memory \\| lost') in text


def test_tables_for_programs():
  found = board(ROWS)
  rows = rows_of(found.csv())
  assert list(rows[0]) == [
      'rank', 'model', 'width', 'seeds', 'trials', 'stopped', 'failed', *(
          f'{name}_{part}' for name in ('opa', 'top1', 'top5', 'top10')
          for part in ('mean', 'deviation', 'low', 'high')),
      'seconds', 'best_seed', 'best_run']
  assert [row['width'] for row in rows] == ['16', '32', '8', '64']
  assert rows[2]['opa_mean'] == '0.6' and rows[0]['top1_mean'] == ''
  assert rows[2]['seconds'] == '10.0'
  assert rows[2]['best_seed'] == '1' and rows[3]['rank'] == ''
  rows = rows_of(found.trials_csv())
  assert len(rows) == 6 and rows[1]['error'] == 'out of\nmemory | lost'
  assert rows[0]['seed'] == '0' and rows[0]['opa'] == '0.9'
  assert rows[3]['key'] == '8-0' and rows[0]['kwargs'] == '{"width": 16}'


def test_drawn_numbers_are_rounded_for_people_alone():
  found = board([row(0.00123456789, 0, 0.5), row(2, 0, 0.4)])
  assert found.table()['width'].tolist() == ['0.001235', '2']
  assert rows_of(found.csv())[0]['width'] == '0.00123456789'


def test_nothing_was_measured():
  found = board([row(8, 0, state=study.FAILED, error='=boom')])
  assert found.best is None and 'Best model' not in found.markdown()
  assert rows_of(found.trials_csv())[0]['error'] == "'=boom"
  assert board([]).counts() == '0 trials: 0 finished'
