"""Tables of trials, with numbers worked out by hand."""

import pandas as pd
import pytest

from tpu_graphs_ext.sweep import grid, trials
from tpu_graphs_ext.sweep.sweep import Leaderboard


def row(width, seed, opa=None, state=trials.FINISHED, **more):
  key = f'{width}-{seed}'
  return {'key': key, 'model': 'MLP', 'kwargs': {'width': width},
          'settings': {'epochs': 2, 'cache_dir': '/c'}, 'seed': seed,
          'data_root': '/data', 'state': state, 'error': '', 'attempts': 1,
          'epochs': 2, 'best_epoch': 1, 'parameters': 9,
          'seconds': 10 * seed + 5, 'run': '' if opa is None else key,
          'values': {} if opa is None else {'opa': opa, 'top5': 1 - opa},
          **more}


def board(rows, goal='opa'):
  return Leaderboard(grid.Grid(['MLP'], goal=goal), rows)


ROWS = [
    row(8, 1, 0.7), row(8, 0, 0.5), row(16, 0, 0.9),
    row(16, 1, state=trials.FAILED, error='out of\nmemory | lost'),
    row(32, 0, 0.8, trials.STOPPED), row(64, 0, state=trials.FAILED)]


def widths(ranked):
  return [kwargs['width'] for kwargs in ranked.groups['kwargs']]


def test_the_best_mean_comes_first_and_failures_last():
  leaders = board(ROWS)
  assert widths(leaders) == [16, 32, 8, 64]
  assert (leaders.best['key'], leaders.best['opa']) == ('16-0', 0.9)
  said = leaders.text('my out')
  assert '6 trials: 3 finished, 2 failed, 1 stopped' in said
  assert 'trials.csv (has errors; --retry_failed repeats)\n' in said
  assert 'retry' not in board([row(8, 0, 0.1)]).text('out')
  assert said.endswith("  tpu-graphs-ext report 'my out'")  # To be pasted.
  assert widths(board([*ROWS, row(4, 0, 0.95)], 'top5'))[:2] == [4, 16]


def test_spread_of_seeds():
  leaders = board([row(8, seed, 0.1 * (seed + 1)) for seed in range(3)] + [
      row(0.123456789, 0, 0.01), row(0.123456789, 1, 0.03), row(10, 0, 0.001)])
  groups = leaders.groups
  # Half of the interval: 4.302653 * 0.1 / sqrt(3) = 0.248414.
  assert groups[['opa_mean', 'opa_deviation', 'opa_low', 'opa_high']].iloc[
      0].tolist() == pytest.approx([0.2, 0.1, -0.048414, 0.448414], abs=1e-6)
  assert groups['opa_deviation'].iloc[1] == pytest.approx(0.02 / 2 ** 0.5)
  assert groups['opa_low'].isna().tolist() == [False, True, True]
  assert groups['opa_deviation'].isna().tolist() == [False, False, True]
  assert leaders.text('out').splitlines()[1].split()[7:] == [
      '0.2', '0.1', '-0.04841', '0.4484']
  # Drawn numbers are rounded for people alone.
  assert ' 0.1235 ' in leaders.text('out')
  assert leaders.table()['width'].tolist() == [8, 0.123456789, 10]


def test_tables_for_programs(tmp_path):
  board(ROWS).write(tmp_path)
  rows = pd.read_csv(tmp_path / 'leaderboard.csv', dtype=str).fillna('')
  assert list(rows) == [
      'rank', 'model', 'width', 'seeds', 'trials', 'stopped', 'failed', *(
          f'{name}_{part}' for name in ('opa', 'top1', 'top5', 'top10')
          for part in ('mean', 'deviation', 'low', 'high')),
      'seconds', 'best_seed', 'best_run']
  assert rows['width'].tolist() == ['16', '32', '8', '64']
  third = rows.iloc[2]
  assert third['opa_mean'] == '0.6' and third['top1_mean'] == ''
  assert (third['seconds'], third['best_seed']) == ('10.0', '1')
  assert rows['rank'].tolist() == ['1', '2', '3', '']
  rows = pd.read_csv(tmp_path / 'trials.csv', dtype=str).fillna('')
  assert rows['error'][1] == 'out of\nmemory | lost'
  assert rows[['kwargs', 'seed', 'opa', 'key']].values[0].tolist() == [
      '{"width": 16}', '0', '0.9', '16-0']


def test_nothing_was_measured(tmp_path):
  leaders = board([row(8, 0, state=trials.FAILED, error='=boom')])
  assert leaders.best is None and 'best model' not in leaders.text('out')
  leaders.write(tmp_path)
  assert ",'=boom," in (tmp_path / 'trials.csv').read_text()
