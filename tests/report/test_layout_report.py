"""The page of runs of the layout task."""

import os
import shutil

import pytest

from support import tiny_handin, tiny_layout_models
from support.tiny_runs import Page, run_info, write_run
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import report, runs

LOADING = LoadSettings(models_py=tiny_layout_models.__file__)


@pytest.fixture(scope='module')
def folder(layout_run, tmp_path_factory):
  """Three runs in two groups."""
  trained, _ = layout_run
  folder = tmp_path_factory.mktemp('runs')
  for name, changes in (('one', {}), ('seed2', {'run_id': 'seed2'}),
                        ('other', {'learning_rate': 0.5})):
    copied = tiny_handin.copy_run(trained.model_dir, folder / name)
    tiny_handin.change_run(
        copied, lambda run, changes=changes: run['args'].update(changes))
  return folder


def test_a_page_of_layout_runs(folder, layout_run):
  pytest.importorskip('matplotlib')
  pytest.importorskip('grandalf')
  trained, root = layout_run
  path = report.report(
      [str(folder)], out=str(folder / 'r.html'), loading=LOADING)
  with open(path, encoding='utf-8') as file:
    page = Page(file.read())
  assert page.counts['h2'] == 4 and not page.unclosed
  assert set(page.targets) <= {f'#{name}' for name in page.ids}
  for text in (f'{root}/xla/random/valid', 'xla/random', 'valid_1',
               'learning_rate=0.5', ' \u2212 '):
    assert text in page.text, text
  tau = f'{abs(trained.run_info["final_kendall"]["val"]):.3f}'
  assert tau in page.text  # The same weights: of all three runs.
  assert 'Not everything could be read' not in page.text


def test_runs_whose_data_are_gone_keep_their_curves(folder, tmp_path):
  pytest.importorskip('matplotlib')
  pytest.importorskip('grandalf')
  copied = tiny_handin.copy_run(
      next(str(path) for path in (folder / 'one').iterdir()
           if path.name.startswith('model_')), tmp_path)
  tiny_handin.change_run(copied, lambda run: run['settings'].update(
      data_root=str(tmp_path / 'none')))
  path = report.report(
      [str(tmp_path)], out=str(tmp_path / 'r.html'), loading=LOADING)
  with open(path, encoding='utf-8') as file:
    page = Page(file.read())
  assert page.counts['h2'] == 2 and 'none could be read' in page.text
  assert 'does not exist' in page.text


def test_runs_of_both_tasks_do_not_compare(folder, tmp_path):
  shutil.copytree(folder / 'one', tmp_path / 'layout')
  write_run(tmp_path, run_info())
  found, _ = runs.find([str(tmp_path)])
  with pytest.raises(UserError, match='choose by --task tile or --task layout'):
    runs.of_one_task(found, '')
  chosen, task = runs.of_one_task(found, 'layout')
  assert task == 'layout' and [run.model for run in chosen] == [
      'TinyLayoutRanker']
  with pytest.raises(UserError, match='none of the 1 runs is of the tile task'):
    runs.of_one_task(chosen, 'tile')
  assert os.path.isdir(tmp_path / 'layout')
