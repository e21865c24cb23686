"""The page, from runs that were trained to its last section."""

import pathlib
import re
import shutil

import numpy as np
import pytest

from support import (
  eager_training,
  tiny_handin,
  tiny_kernels,
  tiny_layout_models,
  tiny_models,
)
from support.tiny_runs import Page, run_info, write_run
from tpu_graphs_ext import cli
from tpu_graphs_ext.data import read
from tpu_graphs_ext.engine import evaluate, predictions_csv
from tpu_graphs_ext.report import page, report, runs
from tpu_graphs_ext.tasks import LAYOUT, TILE, api
from tpu_graphs_ext.tasks.tile import LoadSettings

UNMEASURED = ['Learning curves', 'Runs']


def copies_of(model_dir, folder):
  """The same run again, as if of another seed, and of another flag."""
  for name, changes in (('seed2', {'run_id': 'seed2'}),
                        ('other', {'learning_rate': 0.5})):
    copied = tiny_handin.copy_run(model_dir, folder / name)
    tiny_handin.change_run(
        copied, lambda run, changes=changes: run['args'].update(changes))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder of three runs in two groups, and their data."""
  folder = tmp_path_factory.mktemp('runs')
  root = tiny_kernels.write_data_root(
      folder / 'data', num_train=12, num_valid=9, num_test=3)
  # Programs and kinds that differ, so that both sections are there.
  kernel = tiny_kernels.learnable_kernel(
      'other_net_0', np.random.default_rng(1), 14)
  kernel.node_opcode[:] = 13
  kernel.save(str(root / 'valid'))
  result = eager_training.trained(root, folder / 'out', epochs=1, seed=1)
  copies_of(result.model_dir, folder / 'out')
  return folder


def made(paths, out, models=tiny_models, **changes):
  loading = LoadSettings(models_py=models.__file__, cache_dir='')
  path = report.report([str(path) for path in paths], out=str(out),
                       loading=loading, **changes)
  assert path == str(out)
  return pathlib.Path(out).read_text(encoding='utf-8')


def titles(content):
  return re.findall(r'<h2[^>]*>(.*?)</h2>', content)


def check_page(content):
  """Well-formed, and needs nothing else."""
  shown = Page(content)
  assert not shown.unclosed and len(shown.ids) == len(set(shown.ids))
  assert all(name.startswith('data:') for name in shown.outside)
  assert not re.search(r'<script|url\((?!#)|@import|https?://', content)
  assert shown.counts['img'] == content.count(' alt="')
  return shown


def test_every_section_and_the_numbers_of_evaluate(trained, tmp_path):
  content = made([trained / 'out'], tmp_path / 'report.html', num_kernels=1)
  assert titles(content) == [
      'Slowdown by program', 'Slowdown by kind of kernel',
      'Distribution over kernels', 'Differences between runs',
      'Learning curves', 'Single kernels', 'Runs']
  assert check_page(content).counts['img'] > 12
  assert 'role="note"' not in content  # Nothing was left out.
  runs_there, _ = runs.find([str(trained / 'out')])
  group, = (group for group in runs.grouped(runs_there) if len(group.runs) == 2)
  top5 = api.evaluate(
      group.runs[0].model_dir, str(trained / 'data' / 'valid'),
      loading=LoadSettings(models_py=tiny_models.__file__)).micro['slowdown_5']
  assert group.name in content
  assert f'<td class="n">{page.spread(100 * top5, 0.0)}</td>' in content


def test_scores_of_one_name_take_no_other_ones_place(
    trained, tmp_path, undrawn):
  group, _ = runs.grouped(runs.find([str(trained / 'out')])[0])
  scores = {kernel.name: kernel.runtime_ns for kernel in read.read_kernels(
      str(trained / 'data' / 'valid'))}
  content = made(
      [trained / 'out'], tmp_path / 'report.html', num_kernels=0, foreign=[
          lambda _, name=name: evaluate.ForeignRanker(name, TILE, scores)
          for name in (
              f'{group.name}.npz', 'a/s.npz', 'b/s.npz', 'mine.npz',
              'default tile.npz', 'random tiles')])
  check_page(content)
  for name in (group.name, f'{group.name}.npz', 'a/s.npz', 'b/s.npz', 'mine',
               'default tile', 'default tile.npz', 'random tiles',
               './random tiles'):
    assert f'>{name}</' in content, name


def test_runs_on_different_data_are_not_compared(trained, tmp_path, undrawn):
  shutil.copytree(trained / 'data', tmp_path / 'data')
  shutil.copytree(trained / 'out', tmp_path / 'out')
  runs_there, _ = runs.find([str(tmp_path / 'out' / 'other')])
  tiny_handin.change_run(
      pathlib.Path(runs_there[0].model_dir),
      lambda run: run['settings'].update(data_root=str(tmp_path / 'data')))
  # The first run's data are compared; a folder's runs come in any order.
  first = [*(tmp_path / 'out').glob('model_*'), tmp_path / 'out' / 'seed2']
  text = check_page(made([*first, tmp_path / 'out' / 'other'],
                         tmp_path / 'r.html', num_kernels=0)).text
  assert text.count('measure all of them on one --data') == 1
  assert f'{tmp_path}/data/valid' in text and f'{trained}/data/valid' in text


def test_layout_runs(layout_run, tmp_path):
  layouts, root = layout_run
  tiny_handin.copy_run(layouts.model_dir, tmp_path / 'one')
  copies_of(layouts.model_dir, tmp_path)
  programs = LAYOUT.read(f'{root}/xla/random/valid', LAYOUT.loading())
  np.savez(tmp_path / 'mine.npz', **{
      program.name: program.runtime_ns for program in programs})
  predictions_csv.write(tmp_path / 'first.csv', [
      (f'layout:xla:{search}:{program.name}', range(program.num_configs))
      for program in programs for search in ('random', 'default')])
  read = check_page(made(
      [tmp_path], tmp_path / 'r.html', tiny_layout_models, foreign=[
          lambda loading: evaluate.read_scores(
              str(tmp_path / 'mine.npz'), loading),
          lambda loading: evaluate.read_predictions(
              str(tmp_path / 'first.csv'), loading)]))
  for text in ('Mine wins: ', 'mine \u2212 first',
               f'{root}/xla/random/valid', 'xla/random', 'valid_1',
               'learning_rate=0.5', ' \u2212 ', 'random layouts'):
    assert text in read.text, text
  tau = f'{abs(layouts.run_info["final_kendall"]["val"]):.3f}'
  assert tau in read.text  # The same weights: of all three runs.
  assert 'Not everything could be read' not in read.text


def test_the_command(tmp_path, capsys):
  write_run(tmp_path / 'runs', run_info())
  out = tmp_path / 'r.html'
  flags = ['--cache_dir=', '--kernels=0', f'--out={out}']
  assert cli.main(['report', str(tmp_path / 'runs'), *flags]) == 0
  assert capsys.readouterr().out == f'{out}\n'
  assert titles(out.read_text(encoding='utf-8')) == UNMEASURED
  (tmp_path / 'empty').mkdir()
  assert cli.main(['report', str(tmp_path / 'empty'), *flags]) == 1
  assert 'error: there is no run to report;' in capsys.readouterr().err


# ----------------------------------------------------------------- bad input


def test_without_labelled_kernels_the_rest_is_made(trained, tmp_path, caplog):
  content = made([trained / 'out'], tmp_path / 'r.html',
                 data=str(trained / 'data' / 'test'))
  assert titles(content) == UNMEASURED
  said = 'test: 3 of 3 kernels have no labels'
  assert content.count(said) == 1 and said in caplog.text  # Not once a run.


def test_what_cannot_be_loaded_is_named_and_the_rest_is_made(tmp_path):
  columns = {'minimum': [0.0], 'maximum': [1.0]}
  write_run(tmp_path, {
      **run_info('NoSuchModel'), 'num_ops': 9,
      'feature_stats': {'node': columns, 'config': columns}}, with_model=True)
  write_run(tmp_path, run_info('OfOtherData'), with_model=True)
  write_run(tmp_path, run_info('Gone'))
  data = tiny_kernels.write_data_root(
      tmp_path / 'data', num_train=1, num_valid=1, num_test=1)
  read = check_page(made([tmp_path], tmp_path / 'r.html',
                         data=str(data / 'valid')))
  for said in ("there is no model 'NoSuchModel' in tiny_models.py",
               'its model folder is not beside it',
               # It keeps no normalisation, and its data are gone.
               'somewhere/train: does not exist'):
    assert read.text.count(said) == 1
  assert 'Loss of Gone by epoch' in read.text
