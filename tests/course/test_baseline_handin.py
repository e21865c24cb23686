"""The assignment from the first step to the last, in a real checkout.

Run with `TPU_GRAPHS_ROOT=/path/to/tpu_graphs pytest -m baseline`. Everything
happens in clones; the checkout itself stays as it is.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import zipfile

import pytest

from support import baseline_scripts, imported, tiny_kernels
from tpu_graphs_ext import cli
from tpu_graphs_ext.course import allowed_imports, checkout, verify
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.stacks import versions

pytestmark = pytest.mark.baseline


@pytest.fixture(scope='module')
def scripts(checkout_root) -> str:
  """Folder of the course's scripts."""
  folder = checkout.course_scripts(checkout_root)
  if folder is None:
    pytest.skip('needs the course\'s scripts in the checkout or in a folder '
                f'{checkout.COURSE_FOLDER} beside it')
  return folder


def test_what_their_scripts_import_is_installed_by_default(
    checkout_root, scripts):
  theirs = set()
  for folder in (checkout_root, scripts):
    for path in pathlib.Path(folder).rglob('*.py'):
      theirs |= imported.packages(path.read_text(encoding='utf-8'))
  theirs = {name for name in theirs - {''}
            if not allowed_imports.is_standard(name)}
  assert 'tensorflow' in theirs
  for stack in versions.STACKS.values():
    assert theirs - {allowed_imports.BASELINE_PACKAGE} <= {
        'absl' if package == 'absl-py' else package.replace('-', '_')
        for package in stack.requirements}


@pytest.fixture
def clone(checkout_root, scripts):
  """Makes clean clones with the course's scripts beside them."""
  def make(folder) -> str:
    beside = os.path.join(folder, checkout.COURSE_FOLDER)
    os.makedirs(beside)
    root = os.path.join(folder, 'tpu_graphs')
    subprocess.run(['git', 'clone', '--quiet', checkout_root, root], check=True)
    for name in checkout.COURSE_FILES:
      shutil.copy(os.path.join(scripts, name), beside)
    return root

  return make


@pytest.fixture(scope='module')
def data(scripts, tmp_path_factory) -> str:
  """Tiny data whose test kernels are named as the competition's 844."""
  folder = tmp_path_factory.mktemp('data')
  tiny_kernels.write_data_root(folder, num_test=1)
  shutil.rmtree(folder / 'test')
  (folder / 'test').mkdir()
  names = [name for name in predictions_csv.read(
      os.path.join(scripts, 'sample_submission.csv')) if 'tile' in name]
  assert len(names) == 844
  for i, name in enumerate(names):
    tiny_kernels.make_kernel(
        name.rsplit(':', 1)[1], num_configs=3 + i % 5, base=i % 9,
    ).save(str(folder / 'test'))
  return str(folder)


def git_status(root: str) -> bytes:
  return checkout.git(root, 'status', '--porcelain')


def test_the_whole_way(checkout_root, clone, scripts, data, tmp_path, capsys):
  status = git_status(checkout_root)
  root = clone(tmp_path / 'student')
  submission = str(tmp_path / 'submission.zip')
  place = [f'--data_root={data}', '--cache_dir=']

  assert cli.main(['install', '--root', root]) == 0
  model_dir = baseline_scripts.train(
      root, 'tiles_train.py', data, tmp_path, '--batch=5',
      '--model=MyEarlyJoinSAGE')
  assert cli.main(['package', f'--model_dir={model_dir}/', f'--root={root}',
                   f'--out={submission}', *place]) == 0
  output = capsys.readouterr().out
  assert 'tiles_gen_predictions_csv.py ranked 844 kernels' in output
  assert cli.main(['verify', f'--package={submission}', *place]) == 0
  assert 'this package, in a process of its own' in capsys.readouterr().out

  # Sections 5 and 7 of the assignment, command by command.
  theirs, handed_in = clone(tmp_path / 'grader'), tmp_path / 'handed_in'
  with zipfile.ZipFile(submission) as archive:
    archive.extractall(handed_in)
  shutil.copy(handed_in / 'models.py', os.path.join(theirs, checkout.MODELS_PY))
  for name in checkout.COURSE_FILES:
    shutil.copy(os.path.join(scripts, name), theirs)
  (handed_model,) = handed_in.glob('model_*')
  for command in (['tiles_gen_predictions_csv.py', '--dir', str(handed_model),
                   f'--data_root={data}', '--cache_dir='],
                  ['create_kaggle_csv.py']):
    baseline_scripts.run(theirs, command, f'{theirs}.log')
  with zipfile.ZipFile(submission) as archive:
    assert json.loads(archive.read('MANIFEST.json'))['graded_by'] == (
        'tiles_gen_predictions_csv.py')
  mine = str(tmp_path / 'kaggle.csv')
  assert cli.main([
      'kaggle-csv', f'--tile={theirs}/predictions_model_output.csv',
      f'--out={mine}', f'--sample={scripts}/sample_submission.csv']) == 0
  assert capsys.readouterr().out.endswith(f'894 rows: {mine}\n')
  # The course's file, which goes by position, holds the same rows.
  assert predictions_csv.read(mine) == predictions_csv.read(
      f'{theirs}/predictions_kaggle.csv')

  assert cli.main(['uninstall', '--root', root]) == 0
  assert git_status(root) == b''
  assert git_status(checkout_root) == status


def test_the_baselines_own_file_is_a_hand_in_too(clone, tmp_path):
  """It imports the checkout's package, so it takes a checkout to verify."""
  root = clone(tmp_path)
  small_data = str(tiny_kernels.write_data_root(tmp_path / 'small'))
  model_dir = baseline_scripts.train(
      root, 'tiles_train.py', small_data, tmp_path, '--batch=5', '--model=MLP')
  models_py = os.path.join(root, checkout.MODELS_PY)
  flags = {'models_py': models_py, 'data_root': small_data, 'cache_dir': ''}
  verdict = verify.verify(model_dir, root=root, **flags)
  assert verdict.faults == []
  assert verdict.graded_by == 'tiles_gen_predictions_csv.py'
  # This project's class of that name takes the same weights.
  assert verify.verify(
      model_dir, root=root, **{**flags, 'models_py': ''}).faults == []
  (first, *_) = verify.verify(model_dir, **flags).faults
  assert "No module named 'tpu_graphs'" in first
  assert git_status(root) == b''
