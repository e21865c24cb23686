"""The page, from runs that were trained to its last section."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from support import (
  eager_training,
  tiny_handin,
  tiny_kernels,
  tiny_models,
)
from support.tiny_runs import Page, run_info, write_run
from tpu_graphs_ext import cli
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import evaluate
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import measure, report, runs

SECTIONS = ['Slowdown by program', 'Slowdown by kind of kernel',
            'Distribution over kernels', 'Differences between runs',
            'Learning curves', 'Single kernels', 'Runs']
UNMEASURED = ['Learning curves', 'Runs']


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder of three runs in two groups, and their data."""
  folder = tmp_path_factory.mktemp('runs')
  root = tiny_kernels.write_data_root(
      folder / 'data', num_train=12, num_valid=7, num_test=3)
  # Programs and kinds that differ, so that both sections are there.
  kernel = tiny_kernels.learnable_kernel(
      'other_net_0', np.random.default_rng(1), 14)
  kernel.node_opcode[:] = 13
  kernel.save(str(root / 'valid'))
  result = eager_training.trained(root, folder / 'out', epochs=1, seed=1)
  # The same again, as if of another seed, and of another flag.
  for name, changes in (('seed2', {'run_id': 'seed2'}),
                        ('other', {'learning_rate': 0.5})):
    copied = tiny_handin.copy_run(result.model_dir, folder / 'out' / name)
    tiny_handin.change_run(
        copied, lambda run, changes=changes: run['args'].update(changes))
  return folder


@pytest.fixture(scope='module')
def path(trained):
  return made([trained / 'out'], trained / 'report.html', num_kernels=1)


@pytest.fixture(scope='module')
def content(path):
  return path.read_text(encoding='utf-8')


def made(paths, out, **changes):
  loading = LoadSettings(models_py=tiny_models.__file__, cache_dir='')
  path = report.report([str(path) for path in paths], out=str(out),
                       loading=loading, **changes)
  assert path == str(out)
  return pathlib.Path(out)


def titles(content):
  return re.findall(r'<h2>(.*?)</h2>', content)


def test_every_section_is_there(content):
  assert titles(content) == SECTIONS  # No model of these has constants.
  page = Page(content)
  assert not page.unclosed
  assert len(page.ids) == len(set(page.ids))
  assert {target[1:] for target in page.targets} <= set(page.ids)
  assert 'role="note"' not in content  # Nothing was left out.


def test_it_needs_nothing_else(content):
  page = Page(content)
  assert all(name.startswith('data:') for name in page.outside)
  assert 'script' not in page.counts
  assert not re.search(r'url\((?!#)|@import|https?://', content)


def test_figures_have_words_and_kernels_are_folded(content):
  page = Page(content)
  assert page.counts['img'] == content.count(' alt="') > 15
  assert '<details class="fold" open' not in content
  assert content.count('tabindex="0"') == content.count('role="region"')


def test_numbers_are_those_of_evaluate(trained, content):
  found, problems = runs.find([str(trained / 'out')])
  assert not problems
  group, = (group for group in runs.grouped(found) if len(group.runs) == 2)
  top5 = 100 * evaluate.evaluate(
      group.runs[0].model_dir, str(trained / 'data' / 'valid'),
      loading=LoadSettings(models_py=tiny_models.__file__)).micro['slowdown_5']
  shown = f'{top5:.2f} ± 0.00'
  assert group.name in content and shown in content


def test_the_command(tmp_path, capsys):
  write_run(tmp_path / 'runs', run_info())
  out = tmp_path / 'r.html'
  flags = ['--cache_dir=', '--kernels=0', f'--out={out}']
  assert cli.main(['report', str(tmp_path / 'runs'), *flags]) == 0
  said = capsys.readouterr()
  assert said.out == f'{out}\n'
  assert titles(out.read_text(encoding='utf-8')) == UNMEASURED
  (tmp_path / 'empty').mkdir()
  assert cli.main(['report', str(tmp_path / 'empty'), *flags]) == 1
  said = capsys.readouterr().err
  assert said.startswith('error: there is no run to report:\n')
  assert said.count('\n') == 2


# ----------------------------------------------------------------- bad input


def test_kernels_without_labels_are_left_out_and_named():
  kernels = [tiny_kernels.chain(), tiny_kernels.diamond()]
  kernels[0] = dataclasses.replace(
      kernels[0], runtime_ns=0 * kernels[0].runtime_ns)
  problems = []
  left = measure._labelled(Partition.from_kernels(kernels), 'here', problems)
  assert left.tile_ids == ['diamond_0']
  assert problems == ['here: 1 of 2 kernels have no labels (runtimes above 0), '
                      'first chain_0; they are left out']


def test_without_labelled_kernels_the_rest_is_made(trained, tmp_path, caplog):
  content = made([trained / 'out'], tmp_path / 'r.html',
                 data=str(trained / 'data' / 'test')).read_text()
  assert titles(content) == UNMEASURED
  said = 'test: none of its 3 kernels has labels'
  assert content.count(said) == caplog.text.count(said) == 1


def test_data_that_are_not_there_get_one_message():
  problems = []
  found = measure.measure([], 'no_such_folder', LoadSettings(), problems)
  assert found.kernels is None
  problem, = problems
  assert problem.startswith('no_such_folder: no such file or folder. Without')


def test_a_run_that_cannot_be_loaded_is_named_and_its_curves_are_shown(
    trained, tmp_path):
  columns = {'minimum': [0.0], 'maximum': [1.0]}
  write_run(tmp_path, {
      **run_info('NoSuchModel'), 'num_ops': 9,
      'feature_stats': {'node': columns, 'config': columns}}, with_model=True)
  write_run(tmp_path, run_info('OfOtherData'), with_model=True)
  write_run(tmp_path, run_info('Gone', epochs=7))
  content = made([tmp_path], tmp_path / 'r.html',
                 data=str(trained / 'data' / 'valid')).read_text()
  assert titles(content) == UNMEASURED
  page = Page(content)
  assert page.text.count("there is no model 'NoSuchModel' in models.py") == 1
  assert page.text.count('its model folder is not beside it') == 1
  # Its run file keeps no normalisation, and its data are gone.
  assert page.text.count('somewhere: does not exist') == 1
  assert 'Loss of Gone by epoch' in page.text
  assert 'Loss of NoSuchModel by epoch' in page.text


def test_another_file_is_not_replaced(tmp_path):
  path = tmp_path / 'mine.html'
  path.write_text('<html>mine</html>')
  with pytest.raises(UserError, match='is no report of this package'):
    made([tmp_path], path)
  assert path.read_text() == '<html>mine</html>'
