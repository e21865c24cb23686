"""The assignment in the environment that quickstart.sh makes.

It lacks the tests' own packages. It is built in a temporary folder for the
Python and the stack that run the tests, which takes minutes and 2.5 GB;
TPU_GRAPHS_EXT_PLAIN_PYTHON names the Python of an existing one, on either
stack.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.places import PROJECT
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.stacks import versions

pytestmark = pytest.mark.slow

VARIABLE = 'TPU_GRAPHS_EXT_PLAIN_PYTHON'
SCRIPTS = PROJECT / 'run_scripts'
# What would let a test's own packages or settings in.
NOT_HANDED_ON = ('PYTHONPATH', 'VIRTUAL_ENV', 'TF_USE_LEGACY_KERAS', 'PYTHON',
                 checkout.ROOT_VARIABLE)
STACK_VARIABLE = 'TPU_GRAPHS_EXT_STACK'
EXTRAS = ('pytest', 'xdist', 'ruff', 'lightgbm')
# Rows of a competition with as few kernels as the sample data.
LAYOUT_ROWS = {'layout:xla:random:net': [0, 1], 'layout:nlp:default:net': [0]}
# Few and small steps, whatever host takes them.
QUICKLY = ('--epochs=1', '--batch=2', '--configs=4')


class Student:
  """Somebody with a home folder, an environment and sample data."""

  def __init__(self, home: pathlib.Path, venv: pathlib.Path):
    self.home, self.venv = home, venv
    self.variables = {key: value for key, value in os.environ.items()
                      if key not in NOT_HANDED_ON}
    self.variables.update({'VENV': str(venv), STACK_VARIABLE:
                           versions.stack_name()})

  def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
    """Runs a command; returns what it prints."""
    done = subprocess.run(command, cwd=self.home, env=self.variables, text=True,
                          capture_output=True, check=False)
    assert done.returncode in codes, (
        f'{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}')
    return done.stdout

  def python(self, code: str) -> str:
    return self.run(f'{self.venv}/bin/python', '-c', code).strip()

  def verb(self, *arguments: str, **how) -> str:
    return self.run(f'{self.venv}/bin/tpu-graphs-ext', *arguments, **how)


@pytest.fixture(scope='module')
def student(tmp_path_factory) -> Iterator[Student]:
  home = tmp_path_factory.mktemp('student')
  there = os.environ.get(VARIABLE)
  student = Student(home, pathlib.Path(there).parent.parent if there
                    else home / 'venv')
  if not there:
    student.variables['PYTHON'] = sys.executable
    student.run('bash', '-euo', 'pipefail', '-c',
                'source "$0"; make_environment', f'{SCRIPTS}/environment.sh')
    del student.variables['PYTHON']
  # From here on the default folders lie in a home of their own.
  student.variables.update({'HOME': str(home), 'DATA_ROOT': str(home / 'data'),
                            'OUT_DIR': str(home / 'out')})
  student.variables[STACK_VARIABLE] = student.python(
      'from tpu_graphs_ext.stacks import versions\n'
      'print(versions.stack_name())')
  student.verb('sample-data', f'--out={home}/data', '--kernels=24')
  yield student
  shutil.rmtree(home / 'venv', ignore_errors=True)  # Pytest keeps the rest.


def write_sample(student: Student, path: pathlib.Path) -> None:
  """A sample_submission.csv of the test kernels and some layout graphs."""
  predictions_csv.write(str(path), {
      **{f'tile:xla:{kernel.stem}': [0, 1, 2, 3, 4] for kernel in sorted(
          (student.home / 'data/test').glob('*.npz'))}, **LAYOUT_ROWS}, '')


def test_by_the_packages_own_commands(student):
  """From doctor to the file for Kaggle, without a checkout."""
  assert student.python(
      'import importlib.util\n'
      f'print([name for name in {EXTRAS} if importlib.util.find_spec(name)])'
  ) == '[]'
  # It may find fault with the machine; here packages matter alone.
  diagnosis = student.verb(
      'doctor', '--json', f'--data_root={student.home}/data', codes=(0, 1))
  states = {finding['what']: finding['state']
            for finding in json.loads(diagnosis)['findings']}
  stack = student.variables[STACK_VARIABLE]
  for package in ('Python', *versions.STACKS[stack].requirements):
    assert states[package] == 'fine', diagnosis
  data, out = f'--data_root={student.home}/data', student.home / 'own'
  student.verb('train', '--model=MyEarlyJoinSAGE', *QUICKLY, data,
               f'--out_dir={out}')
  (model_dir,) = out.glob('model_*')
  student.verb('predict', f'--dir={model_dir}', '--stats=all', data,
               f'--out={out}/predictions.csv')
  assert 'this hand-in works' in student.verb(
      'package', f'--model_dir={model_dir}', data, f'--out={out}/hand_in.zip')
  assert 'this hand-in works' in student.verb(
      'verify', f'--package={out}/hand_in.zip', data)
  write_sample(student, out / 'sample.csv')
  student.verb('kaggle-csv', f'--tile={out}/predictions.csv', data,
               f'--sample={out}/sample.csv', f'--out={out}/kaggle.csv')
  assert predictions_csv.read(f'{out}/kaggle.csv') == {
      **predictions_csv.read(f'{out}/predictions.csv'), **LAYOUT_ROWS}


def test_step_by_step_in_a_checkout(checkout_root, student):
  """The scripts of the assignment."""
  scripts = checkout.course_scripts(checkout_root)
  if scripts is None:
    pytest.skip('needs the course\'s scripts in the checkout or in a folder '
                f'{checkout.COURSE_FOLDER} beside it')
  root = student.home / 'tpu_graphs'
  subprocess.run(['git', 'clone', '--quiet', checkout_root, root], check=True)
  beside = student.home / checkout.COURSE_FOLDER
  beside.mkdir()
  for name in checkout.COURSE_FILES:
    shutil.copy(os.path.join(scripts, name), beside)
  write_sample(student, beside / 'sample_submission.csv')
  student.run(f'{SCRIPTS}/assignment_train.sh', *QUICKLY)
  assert 'tiles_gen_predictions_csv.py ranked' in student.run(
      f'{SCRIPTS}/assignment_hand_in.sh')
  student.run(f'{SCRIPTS}/assignment_kaggle.sh')
  written = predictions_csv.read(f'{student.home}/out/kaggle.csv')
  assert set(written) == set(
      predictions_csv.read(f'{beside}/sample_submission.csv'))
  student.run(f'{SCRIPTS}/assignment_clean_up.sh')
  assert student.run('git', '-C', str(root), 'status', '--porcelain') == ''
