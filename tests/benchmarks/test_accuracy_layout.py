"""The accuracy benchmark of the layout task, on tiny data, and its tables."""

import csv
import pathlib
import shutil
import sys

import pytest

from support import eager_training, tiny_layout_models
from support.places import BENCHMARKS
from tpu_graphs_ext.engine import evaluate
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.tasks.layout_settings import LayoutLoadSettings

sys.path.insert(0, str(BENCHMARKS))

import accuracy
import accuracy_layout
import accuracy_layout_table
import accuracy_table
import accuracy_work

DATA = 'real:xla:random'


def row(**changes):
  """A finished run, measured on two validation programs."""
  return {
      'data': DATA, 'model': 'NetA', 'kwargs': '{}', 'seed': 0, 'epochs': 3,
      'name': 'NetA', 'status': 'ok', 'content': 'c0ffee', 'parameters': 1234,
      'seconds_an_epoch': 0.5, 'best_epoch': 2.0, 'valid_programs': 2,
      'valid_kendall': 0.4, 'valid_most_kendall': 0.57, 'valid_random1': 0.02,
      'date': '2026-01-02', 'protocol': 'layout splits', **changes}


def cells_of(text, label):
  """Cells of the last row of that label."""
  rows = [line for line in text.splitlines() if line.startswith(f'| {label} ')]
  return [cell.strip() for cell in rows[-1].split('|')[1:-1]]


@pytest.fixture
def results(tmp_path):
  return accuracy_table.Results(
      str(tmp_path / 'accuracy_layout.csv'), accuracy_layout_table.COLUMNS,
      accuracy_layout_table.markdown)


def test_table_has_means_over_seeds_and_what_bounds_them(results):
  # tau 0.4, 0.5: mean 0.45, squares 2 * 0.0025, over 1, root 0.071.
  results.put(row(seed=0, valid_top10=0.01, valid_opa=None))
  results.put(row(seed=1, valid_kendall=0.5, valid_top10=0.01))
  results.put(row(seed=2, status='failed', error='a | b', valid_programs=None))
  text = results.tables(results.rows())
  assert '| NetA | real:xla:random | 2 | 3 | a \\| b |' in text
  table = text.split('### Validation split')[1].split('## Failed')[0]
  assert table.splitlines()[0].endswith('(2 programs)')
  assert cells_of(table, 'NetA') == [
      'NetA', '2 of 3', '0.450 ± 0.071', '-', '-', '1.00 ± 0.00', '-',
      '1,234', '0.50 ± 0.00', '2 ± 0']
  assert cells_of(table, 'a perfect order')[2:5] == ['0.570', '1.000', '0.00']
  assert cells_of(table, 'a blind choice')[2:5] == ['0.000', '0.500', '2.00']
  summary = text.split('## Summary')[1].split('## real')[0]
  assert cells_of(summary, 'NetA') == ['NetA', '0.450 ± 0.071']


@pytest.mark.parametrize('flags, message', [
    (['--data', DATA], "no data set 'real:xla:random'; choose from sample:xla"),
    (['--models', 'NoModel', '--data', DATA, '--real', '{real}'], 'NoModel'),
    (['--changed', 'x=LayoutGCN{1}', '--data', DATA, '--real', '{real}'],
     'must be NAME=MODEL{JSON}'),
])
def test_wrong_flags_are_named(flags, message, tmp_path, layout_run, capsys):
  flags = [flag.format(real=layout_run[1]) if flag == '{real}' else flag
           for flag in flags]
  assert accuracy.main([
      '--task', 'layout', *flags, '--work_dir', str(tmp_path),
      '--results', str(tmp_path / 'a.csv')]) == 1
  assert message in capsys.readouterr().err


def test_every_model_that_is_compared_is_there():
  from tpu_graphs_ext import load_models
  path = accuracy_layout.parser().parse_args([]).models_py
  assert set(accuracy_layout.MODELS) == set(load_models.model_names(path))


def test_models_of_sample_data_are_measured_on_real_files(tmp_path):
  args = accuracy_layout.parser().parse_args([
      '--real', str(tmp_path), '--work_dir', str(tmp_path), '--changed',
      'narrow=ResModel{"hidden_dim": 8}', '--seeds', '0'])
  sets = [accuracy_work.DataSet(name, f'/x/{name}', 'layout splits', '', '')
          for name in ('sample:xla:default', DATA)]
  specs = [spec for spec, _ in accuracy_layout.run_list(
      args, sets, args.models_py)]
  assert len({spec.folder for spec in specs}) == len(specs) == 2 * 6
  assert {spec.data: spec.real for spec in specs} == {
      'sample:xla:default': str(tmp_path / 'xla' / 'default'), DATA: ''}
  assert {(spec.name, spec.model, spec.kwargs) for spec in specs} >= {
      ('narrow', 'ResModel', '{"hidden_dim": 8}'),
      ('LayoutGAT', 'LayoutGAT', '{}')}


@pytest.fixture(scope='module')
def finished(tmp_path_factory, layout_run):
  """A benchmark of one model that trains and one that is refused."""
  folder = tmp_path_factory.mktemp('accuracy_layout')
  root = folder / 'npz'
  shutil.copytree(layout_run[1], root)
  shutil.copytree(root / 'xla' / 'random' / 'valid',
                  root / 'xla' / 'random' / 'test_labelled')
  models = pathlib.Path(tiny_layout_models.__file__).read_text() + '''

class NoRanker(TinyLayoutRanker):
  """Refuses to be made."""

  def __init__(self, num_configs, num_ops):
    raise ValueError('will not | be made')
'''
  (folder / 'models.py').write_text(models)
  flags = [
      '--task', 'layout', '--real', str(root), '--models_py',
      str(folder / 'models.py'), '--models', 'TinyLayoutRanker,NoRanker',
      '--seeds', '0', '--epochs', '1', '--jobs', '1', '--work_dir',
      str(folder / 'work'), '--results', str(folder / 'accuracy_layout.csv'),
      '--data', DATA]

  def run(function, items, *, workers):
    """What its processes do, with steps that need no tracing."""
    del workers
    for key, spec in items:
      with eager_training.eager_steps():
        yield pool.Outcome(key, *pool.called(function, spec))

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(accuracy_work.pool, 'run', run)
    # The tiny programs have 12 configurations, fewer than a step draws.
    patched.setattr('tpu_graphs_ext.tasks.layout_settings.LayoutTrainSettings',
                    _with_few_configs())
    code = accuracy.main(flags)
  return folder, flags, code, rows_of(folder)


def _with_few_configs():
  from tpu_graphs_ext.tasks import layout_settings
  original = layout_settings.LayoutTrainSettings
  return lambda **given: original(configs=6, **given)


def rows_of(folder):
  with open(folder / 'accuracy_layout.csv', newline='') as file:
    return {row['name']: row for row in csv.DictReader(file)}


def test_a_run_is_measured_and_a_failed_one_recorded(finished):
  folder, _, code, rows = finished
  assert code == 1
  assert 'will not | be made' in rows['NoRanker']['error']
  good = rows['TinyLayoutRanker']
  assert good['status'] == 'ok'
  assert (good['valid_programs'], good['test_programs']) == ('2', '2')
  assert (good['best_epoch'], good['epochs_done']) == ('1', '1')
  assert '4/2/2 for train/valid/test' in good['recipe']
  # The numbers are those of the host's own evaluation of the saved model.
  (model_dir,) = (folder / 'work' / 'runs').glob('*TinyLayoutRanker*/model_*')
  again, = evaluate.evaluate_all([str(model_dir)], loading=LayoutLoadSettings(
      data_root=str(folder / 'npz'), cache_dir='',
      models_py=str(folder / 'models.py')))
  assert float(good['valid_kendall']) == pytest.approx(
      again.mean['kendall'], rel=1e-5)
  assert float(good['valid_random10']) == pytest.approx(
      again.mean['random_10'], rel=1e-5)
  # All their runtimes are unlike. The labelled test programs are those of
  # valid.
  assert good['valid_most_kendall'] == '1'
  assert good['test_top1'] == good['valid_top1']
  text = (folder / 'accuracy_layout.md').read_text()
  assert '### Labelled test split (2 programs)' in text
  assert 'will not \\| be made' in text


def test_the_same_command_runs_only_what_failed(finished, monkeypatch):
  folder, flags, _, before = finished
  started = []

  def run(unused_function, items, *, workers):
    for key, spec in items:
      started.append((spec.name, spec.data))
      yield pool.Outcome(key, {'parameters': 7})

  monkeypatch.setattr(accuracy_work.pool, 'run', run)
  assert accuracy.main(flags) == 0
  assert started == [('NoRanker', DATA)]
  after = rows_of(folder)
  assert after['TinyLayoutRanker'] == before['TinyLayoutRanker']
  assert (after['NoRanker']['status'], after['NoRanker']['error']) == ('ok', '')


