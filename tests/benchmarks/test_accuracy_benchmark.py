"""The accuracy benchmark on tiny data."""

import pathlib
import sys

import pandas as pd
import pytest

from support import eager_training, tiny_kernels, tiny_models
from support.places import BENCHMARKS
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.tasks import api
from tpu_graphs_ext.tasks.tile import LoadSettings

sys.path.insert(0, str(BENCHMARKS))

import accuracy
import accuracy_rows
import accuracy_run


def row(**changes):
  """A finished run; top-5 of the validation split is 10 %."""
  model = changes.get('model', 'NetA')
  return {
      'data': 'tiny', 'model': model, 'kwargs': '{}', 'seed': 0, 'epochs': 3,
      'name': model, 'status': 'ok', 'content': 'c0ffee', 'parameters': 1234,
      'seconds_an_epoch': 0.5, 'best_epoch': 2.0, 'valid_kernels': 12,
      'valid_micro_top5': 0.1, 'date': '2026-01-02', 'protocol': 'splits',
      **changes}


@pytest.fixture
def results(tmp_path):
  return accuracy_rows.Results(str(tmp_path / 'new' / 'accuracy.csv'))


def test_a_row_of_the_same_run_is_replaced_in_its_place(results, tmp_path):
  results.put(row(seed=0, status='failed', error='no luck'))
  results.put(row(seed=1, valid_micro_kendall=None, valid_micro_opa=1 / 3))
  results.put(row(seed=0))
  rows = results.rows()
  assert [(r['seed'], r['status'], r['error']) for r in rows] == [
      ('0', 'ok', ''), ('1', 'ok', '')]
  assert rows[1]['valid_micro_kendall'] == ''
  assert rows[1]['valid_micro_opa'] == '0.333333'
  foreign = tmp_path / 'accuracy.csv'
  foreign.write_text('model,score\nx,1\n')
  with pytest.raises(UserError, match='columns are not those'):
    accuracy_rows.Results(str(foreign)).put(row())
  assert foreign.read_text() == 'model,score\nx,1\n'


def test_the_list_of_runs():
  def runs(*flags):
    args = accuracy.parsed(flags)
    data = accuracy.DataSet('tiny', '/x/tiny', '', '')
    return [spec for spec, _ in accuracy.run_list(
        args, [data], args.models_py)]

  assert len({spec.folder for spec in runs()}) == len(runs()) > 3 * 10
  run, = runs('--models=', '--seeds=1', '--changed', 'one=MLP{"width": 3}')
  assert (run.name, run.model, run.kwargs) == ('one', 'MLP', '{"width": 3}')
  run, = runs('--models=MLP:best', '--seeds=1')
  assert run.name == run.model == 'MLP:best'


@pytest.mark.parametrize('model, epochs', [('MLP', 7), ('MLP:quick', 18)])
def test_a_recipe_decides_its_epochs(monkeypatch, tmp_path, model, epochs):
  class StopError(Exception):
    pass

  def stop(settings):
    raise StopError(settings.model, settings.epochs)

  monkeypatch.setattr('tpu_graphs_ext.engine.train.train', stop)
  with pytest.raises(StopError) as stopped:
    accuracy_run.run(accuracy_run.RunSpec(
        'tile', 'tiny', '/x', model, model, '{}', 0, 7, '', accuracy.parsed(
            []).models_py, str(tmp_path / 'run'), '', 1))
  assert stopped.value.args == ('MLP', epochs)


# ------------------------------------------------------------ a whole benchmark


def inline(function, items, *, workers):
  """Takes the place of `pool.run`: in this process, steps untraced."""
  assert workers == 2
  for key, item in items:
    with eager_training.eager_steps():
      yield pool.Outcome(key, *pool.called(function, item))


NO_RANKER = '''

class NoRanker(TinyRanker):
  """Refuses to be made."""

  def __init__(self, num_configs, num_ops):
    raise ValueError('will not | be made')
'''


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """Benchmarks a model that trains and one that is refused.

  Returns (folder, flags, model -> row).
  """
  folder = tmp_path_factory.mktemp('accuracy')
  tiny_kernels.write_data_root(folder / 'data')
  (folder / 'models.py').write_text(
      pathlib.Path(tiny_models.__file__).read_text() + NO_RANKER)
  flags = [
      '--extra_data', f'tiny={folder / "data"}', '--data', 'tiny',
      '--models_py', str(folder / 'models.py'), '--models',
      'TinyRanker,NoRanker', '--seeds', '0', '--epochs', '1', '--jobs', '2',
      '--work_dir', str(folder / 'work'), '--results',
      str(folder / 'accuracy.csv')]
  with pytest.MonkeyPatch.context() as patched:
    patched.delenv('TPU_GRAPHS_ROOT', raising=False)  # No real kernels.
    patched.setattr(pool, 'run', inline)
    assert accuracy.main(flags) == 1
  return folder, flags, rows_of(folder)


def rows_of(folder):
  rows = pd.read_csv(folder / 'accuracy.csv', dtype=str).fillna('')
  return {row['name']: row for row in rows.to_dict('records')}


def test_the_numbers_are_those_of_evaluate(finished):
  folder, _, rows = finished
  assert rows['NoRanker']['status'] == 'failed'
  assert 'will not | be made' in rows['NoRanker']['error']
  good = rows['TinyRanker']
  assert good['status'] == 'ok' and good['real_kernels'] == ''
  assert (good['valid_kernels'], good['test_kernels']) == ('12', '6')
  assert (good['best_epoch'], good['epochs_done']) == ('1', '1')
  (model_dir,) = (folder / 'work' / 'runs').glob('tiny_TinyRanker*/model_*')
  again = api.evaluate(
      str(model_dir), str(folder / 'data' / 'test_labelled'),
      loading=LoadSettings(
          cache_dir='', models_py=str(folder / 'models.py'))).micro
  for column, measure in (('top1', 'slowdown_1'), ('opa', 'opa')):
    assert float(good[f'test_micro_{column}']) == pytest.approx(
        again[measure], rel=1e-5)


def test_the_same_command_runs_only_what_failed(finished, monkeypatch):
  folder, flags, before = finished
  started = []

  def run(unused_function, items, *, workers):
    for key, spec in items:
      started.append(spec.name)
      yield pool.Outcome(key, {'parameters': 7})

  def trained(*more):
    del started[:]
    assert accuracy.main([*flags, *more]) == 0
    return sorted(started)

  monkeypatch.setattr(pool, 'run', run)
  monkeypatch.delenv('TPU_GRAPHS_ROOT', raising=False)
  assert trained() == ['NoRanker']
  after = rows_of(folder)
  assert after['TinyRanker'] == before['TinyRanker']
  assert (after['NoRanker']['status'], after['NoRanker']['error']) == ('ok', '')
  # Another models.py: only if asked for. Other data: always.
  with open(folder / 'models.py', 'a') as file:
    file.write('# Changed.\n')
  assert trained() == []
  assert trained('--rerun_changed') == ['NoRanker', 'TinyRanker']
  tiny_kernels.make_kernel('new_net_0').save(str(folder / 'data' / 'train'))
  assert trained() == ['NoRanker', 'TinyRanker']
