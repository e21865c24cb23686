"""Tables of trials, with numbers worked out by hand."""

import csv
import dataclasses
import io

import pytest

from tpu_graphs_ext.sweep import grid, trials
from tpu_graphs_ext.sweep.leaderboard import Leaderboard, Spread, t_quantile

NUMBER = iter(range(1000))


def record(width, seed, opa=None, state=trials.FINISHED, **more):
  key = f'{next(NUMBER):016x}'
  values = {} if opa is None else {'opa': opa, 'top5': 1 - opa}
  return trials.Record(key, 'MLP', {'width': width},
                       {'epochs': 2, 'cache_dir': '/c'}, seed,
                       '/data', state, run=key if values else '',
                       values=values,
                       seconds=10 * seed + 5, **more)


def board(records, goal='opa'):
  return Leaderboard(grid.Grid('/x/g.json', 'tile', (), (0,), ('/data',),
                               grid.Search(), None, goal), records)


def test_spread_of_seeds():
  spread = Spread.of([0.1, 0.2, 0.3])
  # Half of the interval: 4.302653 * 0.1 / sqrt(3) = 0.248414.
  assert spread.mean == pytest.approx(0.2)
  assert spread.deviation == pytest.approx(0.1)
  assert spread.interval == pytest.approx((-0.048414, 0.448414), abs=1e-6)
  assert Spread.of([1.0, 3.0]) == Spread(2.0, pytest.approx(2 ** 0.5), None)
  assert Spread.of([1.0]) == Spread(1.0, None, None)
  assert Spread.of([]) is None


def test_students_t():
  assert t_quantile(2) == pytest.approx(4.303, abs=5e-4)
  assert t_quantile(30) == pytest.approx(2.042, abs=5e-4)
  # Tables: 2.021 of 40, 1.980 of 120.
  assert t_quantile(40) == pytest.approx(2.021, abs=5e-4)
  assert t_quantile(120) == pytest.approx(1.980, abs=5e-4)


RECORDS = [
    record(8, 0, 0.5), record(8, 1, 0.7), record(16, 0, 0.9),
    record(16, 1, state=trials.FAILED, error='out of\nmemory | lost'),
    record(32, 0, 0.8, trials.STOPPED), record(64, 0, state=trials.FAILED)]


def test_the_best_mean_comes_first_and_failures_last():
  found = board(RECORDS)
  assert [group.first.kwargs['width'] for group in found.groups] == [
      16, 32, 8, 64]
  assert found.best.best is RECORDS[2]
  assert found.counts() == ('6 trials: 3 finished, 1 stopped early, 2 failed')


def test_the_lowest_slowdown_comes_first():
  found = board(RECORDS + [record(4, 0, 0.95)], 'top5')
  assert [group.first.kwargs['width'] for group in found.groups] == [
      4, 16, 32, 8, 64]
  assert found.groups[3].best is RECORDS[1]


def test_the_table_for_people():
  text = board(RECORDS).markdown()
  lines = text.splitlines()
  run = RECORDS[2].run
  assert lines[4].split(' | ')[:5] == ['| ', 'model', 'width', 'seeds', 'OPA']
  assert lines[6] == ('| 1 | MLP | 16 | 1 of 2 | 0.9000 |  | 10.00 |  | 5 |  '
                      f'| 1 | [{run[:8]}](model_{run}) |')
  assert '| 3 | MLP | 8 | 2 of 2 | 0.6000 ± 0.1414 |' in lines[8]
  assert lines[9].startswith('|  | MLP | 64 | 0 of 1 |')
  assert f'Best model: [model_{run}](model_{run}), seed 0, OPA 0.9000.' in text
  assert 'All with epochs=2.' in text
  assert (f'- `{RECORDS[3].key}` MLP width=16 epochs=2 seed=1: '
          'out of memory \\| lost') in text


def test_the_interval_stands_beside_the_mean():
  text = board([record(8, seed, 0.1 * (seed + 1)) for seed in range(3)]
               ).markdown()
  assert '| 0.2000 ± 0.1000 (-0.0484 to 0.4484) |' in text


def test_tables_for_programs():
  found = board(RECORDS)
  rows = list(csv.DictReader(io.StringIO(found.csv())))
  assert [row['width'] for row in rows] == ['16', '32', '8', '64']
  assert rows[2]['opa_mean'] == repr(RECORDS[0].values['opa'] + 0.1)[:3]
  assert rows[2]['seconds'] == '10.0'
  assert rows[2]['best_seed'] == '1' and rows[3]['rank'] == ''
  rows = list(csv.DictReader(io.StringIO(found.trials_csv())))
  assert len(rows) == 6 and rows[1]['error'] == 'out of\nmemory | lost'
  assert rows[0]['seed'] == '0' and rows[0]['opa'] == '0.9'


def test_numbers_that_were_drawn_are_rounded_for_people_alone():
  found = board([record(0.00123456789, 0, 0.5), record(2, 0, 0.4)])
  assert found.rows()[1][2] == '0.001235'
  rows = list(csv.DictReader(io.StringIO(found.csv())))
  assert rows[0]['width'] == '0.00123456789'


def test_data_roots_are_groups_of_their_own():
  other = dataclasses.replace(record(8, 0, 0.6), data_root='/other')
  found = board([record(8, 0, 0.5), other])
  assert [group.first.data_root for group in found.groups] == [
      '/other', '/data']
  assert found.rows()[0][2] == 'data_root'
