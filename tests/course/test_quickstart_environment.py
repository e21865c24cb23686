"""The assignment in the environment that quickstart.sh makes.

That is one without the tests' own packages. It is built in a temporary folder
for the Python and the stack that run the tests, which takes minutes and 2.5 GB;
TPU_GRAPHS_EXT_PLAIN_PYTHON names the Python of one that is there already, on
either stack.
"""

from __future__ import annotations

import dataclasses
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
EXTRAS = ('pytest', 'xdist', 'ruff', 'lightgbm')
# Rows of a competition with as few kernels as the sample data.
LAYOUT_ROWS = {'layout:xla:random:net': [0, 1], 'layout:nlp:default:net': [0]}
# Few and small steps, whatever host takes them.
QUICKLY = ('--epochs=1', '--batch=2', '--configs=4')


@dataclasses.dataclass(frozen=True)
class Student:
  """Somebody with a home folder, an environment and sample data.

  Attributes:
    home: everything is written here.
    venv: the environment.
    variables: what the environment variables are.
  """
  home: pathlib.Path
  venv: pathlib.Path
  variables: dict[str, str]

  def run(self, *command: str, folder: str = '',
          codes: tuple[int, ...] = (0,)) -> str:
    """Runs a command; returns what it prints."""
    done = subprocess.run(
        command, cwd=folder or self.home, env=self.variables, text=True,
        capture_output=True, check=False)
    assert done.returncode in codes, (
        f'{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}')
    return done.stdout

  def python(self, code: str) -> str:
    return self.run(f'{self.venv}/bin/python', '-c', code)

  def stack(self) -> str:
    return self.python('from tpu_graphs_ext.stacks import versions\n'
                       'print(versions.stack_name())').strip()

  def verb(self, *arguments: str, **how) -> str:
    return self.run(f'{self.venv}/bin/tpu-graphs-ext', *arguments, **how)

  def with_checkout(self, root: str) -> Student:
    return dataclasses.replace(self, variables={
        **self.variables, checkout.ROOT_VARIABLE: root})


@pytest.fixture(scope='module')
def student(tmp_path_factory) -> Iterator[Student]:
  home = tmp_path_factory.mktemp('student')
  venv = home / 'venv'
  if os.environ.get(VARIABLE):
    venv = pathlib.Path(os.environ[VARIABLE]).parent.parent
  variables = {key: value for key, value in os.environ.items()
               if key not in NOT_HANDED_ON}
  variables.update({'VENV': str(venv),
                    'TPU_GRAPHS_EXT_STACK': versions.stack_name()})
  if not venv.exists():
    Student(home, venv, {**variables, 'PYTHON': sys.executable}).run(
        'bash', '-euo', 'pipefail', '-c', 'source "$0"; make_environment',
        f'{SCRIPTS}/environment.sh')
  # From here on the default folders lie in a home of their own.
  variables.update({'HOME': str(home), 'DATA_ROOT': str(home / 'data'),
                    'OUT_DIR': str(home / 'out')})
  made = Student(home, venv, variables)
  variables['TPU_GRAPHS_EXT_STACK'] = made.stack()
  made.verb('sample-data', f'--out={home}/data', '--kernels=24')
  yield made
  shutil.rmtree(home / 'venv', ignore_errors=True)  # Pytest keeps the rest.


def write_sample(student: Student, path: pathlib.Path) -> None:
  """A sample_submission.csv of the test kernels and some layout graphs."""
  sample = {f'tile:xla:{kernel.stem}': [0, 1, 2, 3, 4]
            for kernel in sorted((student.home / 'data/test').glob('*.npz'))}
  assert sample
  lines = [f'{name},{";".join(map(str, indices))}'
           for name, indices in {**sample, **LAYOUT_ROWS}.items()]
  path.write_text('\n'.join(['ID,TopConfigs', *lines]) + '\n')


def rows(path) -> dict[str, list[int]]:
  return predictions_csv.read(str(path))


def test_by_the_packages_own_commands(student):
  """From doctor to the file for Kaggle, without a checkout."""
  check_packages(student)
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
  assert rows(out / 'kaggle.csv') == {
      **rows(out / 'predictions.csv'), **LAYOUT_ROWS}


def check_packages(student: Student) -> None:
  """What the project needs is there, and what only its tests need is not."""
  assert student.python(
      'import importlib.util\n'
      f'print([name for name in {EXTRAS} if importlib.util.find_spec(name)])'
  ) == '[]\n'
  # It may find fault with the machine; here packages matter alone.
  diagnosis = student.verb(
      'doctor', '--json', f'--data_root={student.home}/data', codes=(0, 1))
  findings = {finding['what']: finding
              for finding in json.loads(diagnosis)['findings']}
  for package in ('Python', *versions.STACKS[student.stack()].requirements):
    assert findings[package]['state'] == 'fine', findings[package]


# --------------------------------------------------------- with a checkout


@pytest.fixture(scope='module')
def original(checkout_root) -> str:
  """The checkout to clone, which has the course's scripts."""
  if checkout.course_scripts(checkout_root) is None:
    pytest.skip('needs the course\'s scripts in the checkout or in a folder '
                f'{checkout.COURSE_FOLDER} beside it')
  return checkout_root


def clone(original: str, student: Student) -> str:
  """A clone in the student's home, the course's scripts beside it."""
  root = student.home / 'tpu_graphs'
  subprocess.run(['git', 'clone', '--quiet', original, root], check=True)
  beside = student.home / checkout.COURSE_FOLDER
  beside.mkdir()
  for name in checkout.COURSE_FILES:
    shutil.copy(os.path.join(checkout.course_scripts(original), name), beside)
  write_sample(student, beside / 'sample_submission.csv')
  return str(root)


def test_step_by_step_in_a_checkout(original, student):
  """The scripts of the assignment, then what the graders run."""
  root = clone(original, student)
  student = student.with_checkout(root)
  student.run(f'{SCRIPTS}/assignment_train.sh', *QUICKLY)
  (model_dir,) = (student.home / 'out').glob('model_*')
  assert 'tiles_gen_predictions_csv.py wrote' in student.run(
      f'{SCRIPTS}/assignment_hand_in.sh')
  assert 'this hand-in works' in student.verb(
      'verify', f'--package={student.home}/out/submission.zip',
      f'--data_root={student.home}/data')
  student.run(f'{SCRIPTS}/assignment_kaggle.sh')
  scripts = str(student.home / checkout.COURSE_FOLDER)
  student.verb('run', 'tiles_gen_predictions_csv.py',
               f'--dir={model_dir}', f'--data_root={student.home}/data',
               folder=scripts)
  student.verb('run', 'create_kaggle_csv.py', folder=scripts)
  student.verb(
      'kaggle-csv', f'--tile={scripts}/predictions_model_output.csv',
      f'--sample={scripts}/sample_submission.csv',
      f'--out={student.home}/kaggle.csv')
  assert rows(f'{student.home}/kaggle.csv') == rows(
      f'{scripts}/predictions_kaggle.csv')
  assert set(rows(f'{student.home}/out/kaggle.csv')) == set(
      rows(f'{student.home}/kaggle.csv'))
  student.run(f'{SCRIPTS}/assignment_clean_up.sh')
  assert student.run('git', '-C', root, 'status', '--porcelain') == ''
