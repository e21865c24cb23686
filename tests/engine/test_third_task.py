"""The engine with a task that the package does not have."""

import csv

import numpy as np
import pytest

from support import eager_training, row_task
from support.places import PROJECT
from tpu_graphs_ext.engine import evaluate, train
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE, api, of_run

RowLoading = row_task.RowLoading


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
  """Tables of 12 rows a, b, ns: time rises with a and falls with b."""
  root = tmp_path_factory.mktemp('tables')
  chance = np.random.default_rng(0)
  for split, tables in (('train', 8), ('valid', 4), ('test', 2)):
    (root / split).mkdir()
    for number in range(tables):
      rows = chance.integers(0, 100, (12, 2))
      time = 1000 + 8 * rows[:, :1] - 5 * rows[:, 1:]
      np.savetxt(root / split / f'{split}_{number}.csv',
                 np.hstack([rows, time]), '%d', ',')
  return str(root)


@pytest.fixture(scope='module')
def run(data_root, tmp_path_factory):
  with eager_training.eager_steps():
    return train.train(row_task.RowTraining(
        model='TinyRanker', epochs=8, batch=4, configs=8, lr=.3, clip_norm=9.0,
        data_root=data_root, out_dir=str(tmp_path_factory.mktemp('runs')),
        seed=1))


def test_it_trains_evaluates_predicts_and_ranks(run, data_root, tmp_path):
  assert run.run_info['task'] == 'row'
  assert run.run_info['final_error']['val'].keys() == {'1', '5', '10'}
  loading = RowLoading(data_root=data_root)
  evaluation = api.evaluate(run.model_dir, loading=loading)
  assert list(evaluation.rows['name']) == [
      f'valid_{number}' for number in range(4)]
  assert run.run_info['final_error']['val']['1'] == (
      evaluation.mean['slowdown_1'])
  assert evaluation.mean['opa'] > 0.9 and 'OPA' in evaluation.text()
  ranking, *_ = api.rank(run.model_dir, loading=loading, top_k=2)
  times = row_task.TASK.read(f'{data_root}/test', loading)[0].runtime_ns
  assert ranking.tile_id == 'test_0' and len(ranking.choices) == 2
  assert times[ranking.choices[0].index] == times.min()
  path = api.predict(run.model_dir, loading=loading,
                     out=str(tmp_path / 'rows.csv'))
  with open(path) as file:
    (_, first), (name, order), _ = csv.reader(file)
  assert (first, name) == ('TopConfigs', 'test_0')
  order = [int(index) for index in order.split(';')]
  assert order[:2] == [choice.index for choice in ranking.choices]
  assert sorted(order) == list(range(12))
  ours, rows = api.evaluate_all(
      [run.model_dir], f'{data_root}/test', loading=loading,
      foreign=[evaluate.read_predictions(path, loading)])
  assert ours.mean['slowdown_5'] == rows.mean['slowdown_5']


def test_its_models_are_no_tile_models_and_the_other_way(
    run, saved_model_dir, data_root):
  with pytest.raises(UserError, match='a model of the row task; give --task'):
    api.rank(run.model_dir)
  with pytest.raises(UserError, match='another task than row'):
    api.rank(saved_model_dir, loading=RowLoading(data_root=data_root))
  assert not TILE.owns(run.run_info)
  with pytest.raises(UserError, match="x: its task 'row' is not one of this"):
    of_run(run.run_info, 'x')


def test_the_statistics_of_train_give_the_same_scores(run, data_root):
  by_run, by_train = (api.rank(run.model_dir, loading=RowLoading(
      data_root=data_root, stats=stats)) for stats in ('run', 'train'))
  assert by_run == by_train


def test_the_engine_hides_no_import_of_a_task():
  """import-linter sees every `import`, but not importlib."""
  for path in (PROJECT / 'tpu_graphs_ext' / 'engine').glob('*.py'):
    source = path.read_text()
    assert 'importlib' not in source and '__import__' not in source, path
