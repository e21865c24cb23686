"""The accuracy benchmark on tiny data."""

import pytest

import accuracy
import tables
from support import eager_training, inline_pool, tiny_kernels, tiny_models
from tpu_graphs_ext import load_models
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.tasks import TASKS, api
from tpu_graphs_ext.tasks.tile import LoadSettings


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
  """Runs the benchmark of a model of tiny data with two seeds."""
  tiny_kernels.write_data_root(tmp_path / 'data')
  results = tmp_path / 'results'
  results.mkdir()
  (results / 'numbers.csv').write_text(','.join(tables.COLUMNS) + '\n')
  monkeypatch.setattr(tables, 'RESULTS', results)
  monkeypatch.setattr(pool, 'run', inline_pool.InlinePool())
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(accuracy.TABLES, 'tiny', accuracy.Table(
      {'one': {'model': 'TinyRanker'}}, ('valid', 'test'), settings={
          'epochs': 1, 'models_py': tiny_models.__file__, 'cache_dir': ''}))
  with eager_training.eager_steps():
    yield lambda: accuracy.main(['tiny', '--data', 'data', '--seeds', '0,1'])


@pytest.mark.slow
def test_the_numbers_are_those_of_evaluate(
    benchmark, tmp_path, monkeypatch, capsys):
  with monkeypatch.context() as patched:
    patched.setattr(pool, 'run', lambda _, items, **unused: (
        pool.Outcome(key, None, 'bad luck') for key, _ in items))
    assert benchmark() == 1
  assert 'error: bad luck bad luck' in capsys.readouterr().err
  assert not tables.of_numbers('tiny')
  assert benchmark() == 0  # What failed is trained now.
  cells = tables.of_numbers('tiny')
  assert set(cells) == {'one', 'default', 'random'}
  models = sorted(map(str, (tmp_path / 'out' / 'accuracy' / 'tiny').glob(
      'model_*')))
  assert len(models) == 2
  loading = LoadSettings(cache_dir='', models_py=tiny_models.__file__)
  for split, folder in (('valid', 'valid'), ('test', 'test_labelled')):
    means = [api.evaluate(model, str(tmp_path / 'data' / folder),
                          loading=loading).micro for model in models]
    for column, name, scale in (('top5', 'slowdown_5', 100), ('opa', 'opa', 1)):
      values = [scale * mean[name] for mean in means]
      assert cells['one'][f'{split}_{column}'].value == pytest.approx(
          sum(values) / 2, rel=1e-5)
    assert cells['default'][f'{split}_top1'].value == pytest.approx(
        100 * means[0]['default'], rel=1e-5)
    assert cells['random'][f'{split}_opa'].value == .5


def test_code_that_changes_meanwhile_writes_no_row(
    benchmark, capsys, monkeypatch):
  hashes = iter('ab')
  monkeypatch.setattr(tables, 'code_hash', lambda _: next(hashes))
  monkeypatch.setattr(accuracy, 'measured', lambda *_: {})
  assert benchmark() == 1
  assert 'changed meanwhile' in capsys.readouterr().err


def test_the_rows_of_pages_are_models_that_there_are():
  for table in accuracy.TABLES.values():
    task = TASKS[table.task]
    for name, row in table.rows.items():
      if name != accuracy.booster.NAME:
        load_models.class_taking(
            row.get('model', name), row.get('kwargs', ()), task.models_file)
        task.training(**{**table.settings, **row.get('settings', {})})


@pytest.mark.parametrize('flags, error', [
    ([], '--data: name the data root'),
    (['--data=d', '--rows=MLP'], 'gpu_tiles has no row MLP; choose from My')])
def test_flags_that_cannot_be_used(flags, error, capsys):
  assert accuracy.main(['gpu_tiles', *flags]) == 1
  assert error in capsys.readouterr().err
