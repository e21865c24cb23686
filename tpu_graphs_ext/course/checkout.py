"""The tpu_graphs baseline: finding a checkout and running its scripts.

Scripts run in a `working_copy`; the checkout itself is never written to.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tpu_graphs_ext import children, files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import TILE, ShippedTask

URL = 'https://github.com/google-research-datasets/tpu_graphs'
COURSE_URL = 'https://github.com/ADAPT-uiuc/tpu_graphs_scripts'
# The commit that this package was tested with.
COMMIT = 'ddd187c'

ROOT_VARIABLE = 'TPU_GRAPHS_ROOT'
MODELS_PY = TILE.baseline_models
# A folder with these is a checkout.
_CHECKOUT_FILES = ('tiles_train.py', MODELS_PY)
# Kernels timed on a TPU, which the baseline ships for its own C++ tests.
REAL_KERNELS = TILE.quickstart.real
# The course's scripts lie in the checkout, or in a folder beside it.
COURSE_FOLDER = 'tpu_graphs_scripts'
COURSE_FILES = ('tiles_gen_predictions_csv.py', 'create_kaggle_csv.py',
                'sample_submission.csv')
# What people keep in a checkout that no script needs, and that may be large.
_NOT_COPIED = ('.git', '__pycache__', '.venv', 'venv', 'out', '*.npz', '*.tar',
               '*' + files.TEMPORARY)
# What the code of a hand-in may take in all, unless --time_limit says more.
TIME_LIMIT_MINUTES = 240


def find(root: str | None = None) -> str | None:
  """Full path of the checkout that `root` or TPU_GRAPHS_ROOT names, or None.

  Raises UserError if the path is not a checkout.
  """
  root = root or os.environ.get(ROOT_VARIABLE)
  if not root:
    return None
  root = files.full_path(root)
  if not is_checkout(root):
    raise UserError(
        f'{root} is not a checkout of the tpu_graphs baseline: it lacks '
        f'{" or ".join(_CHECKOUT_FILES)}; set {ROOT_VARIABLE} to the folder '
        f'that `git clone {URL}` made')
  return root


def is_checkout(folder: str) -> bool:
  """Whether a folder is a checkout of the baseline."""
  return all(os.path.isfile(os.path.join(folder, name))
             for name in _CHECKOUT_FILES)


def git(folder: str, *arguments: str) -> bytes | None:
  """What git prints about a folder; None if it fails or is missing."""
  try:
    return subprocess.run(['git', '-C', folder, *arguments], check=True,
                          capture_output=True).stdout
  except (OSError, ValueError, subprocess.CalledProcessError):
    return None


def shown_path(path: str) -> str:
  """A path to be pasted in a shell, relative if it is below this folder."""
  relative = os.path.relpath(path)
  return shlex.quote(path if relative.startswith(os.pardir) else relative)


def own_command() -> str:
  """This package's command in the Python that runs, to be pasted."""
  return shown_path(os.path.join(os.path.dirname(sys.executable),
                                 'tpu-graphs-ext'))


def course_folders(root: str) -> tuple[str, str]:
  """Where the course's scripts may be: in the checkout, or beside it."""
  return root, os.path.join(os.path.dirname(root), COURSE_FOLDER)


def course_scripts(root: str) -> str | None:
  """The folder that has all of the course's scripts, if there is one."""
  for folder in course_folders(root):
    if all(os.path.isfile(os.path.join(folder, name))
           for name in COURSE_FILES):
      return folder
  return None


def working_copy(root: str, folder: str, models_py: str | None = None,
                 task: ShippedTask = TILE) -> str:
  """Copies the checkout and the course's scripts, and swaps models.py there.

  Environments, data and models are not copied.

  Args:
    root: the checkout; stays as it is.
    folder: where the copy goes, which is returned; it must not exist yet.
    models_py: file to put in place; None keeps the baseline's own.
    task: whose models.py that is.
  """
  shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED))
  scripts = course_scripts(root)
  if scripts and scripts != root:
    for name in COURSE_FILES:
      shutil.copy(os.path.join(scripts, name), folder)
  if models_py:
    shutil.copyfile(models_py, os.path.join(folder, task.baseline_models))
  return folder


def script_command(arguments: Sequence[str], root: str = '') -> list[str]:
  """Command of a script in a prepared Python; it may import from `root`."""
  return children.command('from tpu_graphs_ext.course import run_script; '
                          'run_script.main()', root, *arguments)


def run_script(copy: str, arguments: Sequence[str], log: str) -> None:
  """Runs a script with its flags in a working copy, as a student would.

  A UserError shows the last lines of all output, which is in `log`.
  """
  command = ([sys.executable, *arguments]
             if versions.stack_name() == 'classic'
             else script_command(arguments))
  with open(log, 'wb') as output:
    done = subprocess.run(
        command, cwd=copy, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL='2'),
        stdout=output, stderr=subprocess.STDOUT, check=False)
  if done.returncode:
    with open(log, encoding='utf-8', errors='replace') as output:
      last_lines = ''.join(output.readlines()[-15:])
    raise UserError(
        f'{os.path.basename(arguments[0])} ended with exit code '
        f'{done.returncode}; all of its output is in {log}, which ends\n'
        f'{last_lines}')
