"""The tpu_graphs baseline: finding a checkout and running its scripts.

A script runs unchanged on either stack: `script_command` is what plain `python
SCRIPT ARGS...` would be, but TensorFlow comes with Keras 2 (see
`stacks.imports`).
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tpu_graphs_ext import children, files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.load_models import ROOT_VARIABLE
from tpu_graphs_ext.stacks import imports
from tpu_graphs_ext.tasks import TILE

URL = 'https://github.com/google-research-datasets/tpu_graphs'
COURSE_URL = 'https://github.com/ADAPT-uiuc/tpu_graphs_scripts'
# The commit that this package was tested with.
COMMIT = 'ddd187c'

MODELS_PY = TILE.baseline_models
# A folder with these is a checkout.
_CHECKOUT_FILES = ('tiles_train.py', MODELS_PY)
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
  if not _has(root, _CHECKOUT_FILES):
    raise UserError(
        f'{root} is not a checkout of the tpu_graphs baseline: it lacks '
        f'{" or ".join(_CHECKOUT_FILES)}; set {ROOT_VARIABLE} to the folder '
        f'that `git clone {URL}` made')
  return root


def _has(folder: str, names: Sequence[str]) -> bool:
  return all(os.path.isfile(os.path.join(folder, name)) for name in names)


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
  return shown_path(f'{os.path.dirname(sys.executable)}/tpu-graphs-ext')


def course_folders(root: str) -> tuple[str, str]:
  """Where the course's scripts may be: in the checkout, or beside it."""
  return root, os.path.join(os.path.dirname(root), COURSE_FOLDER)


def course_scripts(root: str) -> str | None:
  """The folder that has all of the course's scripts, if there is one."""
  return next((folder for folder in course_folders(root)
               if _has(folder, COURSE_FILES)), None)


def working_copy(root: str, folder: str, models_py: str | None = None) -> str:
  """Copies the checkout and the course's scripts into a new folder.

  Not environments, data, models, linked folders and pipes. `models_py`, if
  given, takes the place of the tile task's. Returns the folder.
  """
  def not_copied(place: str, names: list[str]) -> set[str]:
    return shutil.ignore_patterns(*_NOT_COPIED)(place, names) | {
        entry.name for entry in os.scandir(place)
        if not (entry.is_file() or entry.is_dir(follow_symlinks=False))}

  shutil.copytree(root, folder, ignore=not_copied)
  scripts = course_scripts(root)
  if scripts and scripts != root:
    for name in COURSE_FILES:
      shutil.copy(os.path.join(scripts, name), folder)
  if models_py:
    shutil.copyfile(models_py, os.path.join(folder, MODELS_PY))
  return folder


def find_script(script: str, root: str | None = None) -> tuple[str, str]:
  """Full path of a script, and of the checkout that it may import from or ''.

  Looks in the checkout `root` and the course's folder beside it. Without `root`
  looks in the working folder first, and in the checkout that this is, or that
  TPU_GRAPHS_ROOT names. Raises UserError for a script that is not there.
  """
  here = os.getcwd()
  is_here = not root and _has(here, _CHECKOUT_FILES)
  checkout = find(here if is_here else root)
  folders = [*([] if root else [here]),
             *(course_folders(checkout) if checkout else ())]
  for folder in folders:
    path = os.path.join(folder, os.path.expanduser(script))
    if os.path.isfile(path):
      return path, checkout or ''
  raise UserError(
      f'run: there is no script {script} in {" or ".join(folders)}; name the '
      f'checkout of the baseline that has it with --root or {ROOT_VARIABLE}')


def script_command(arguments: Sequence[str], root: str = '') -> list[str]:
  """Command of a script and its arguments; it may import from `root` too."""
  return children.command('from tpu_graphs_ext.course import checkout; '
                          'checkout.become_script()', root, *arguments)


def become_script() -> None:
  """Becomes the script that `script_command` names."""
  root, path, *arguments = sys.argv[1:]
  sys.argv = [path, *arguments]
  # As Python does it for a script.
  sys.path[:0] = filter(None, [os.path.dirname(os.path.abspath(path)), root])
  imports.ignore_saving_warning()
  runpy.run_path(path, run_name='__main__')


def run_to_end(script: str, command: Sequence[str], log: str,
               seconds: float | None = None, **options: Any) -> None:
  """Runs the command of a script, to its end.

  With the option start_new_session, whatever it leaves running ends too.
  Raises TimeoutExpired after so many seconds, and UserError, with the end of
  its output, if it fails. All of that is in `log`; `options` are Popen's.
  """
  # A file: a pipe may be held open by what outlives the program.
  with open(log, 'wb') as output:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, **options)
    try:
      process.wait(seconds)
    finally:
      # Without a session of its own, a terminal ends what it started.
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
      process.kill()
      process.wait()
  if process.returncode:
    with open(log, 'rb') as output:
      output.seek(max(0, os.path.getsize(log) - 4000))
      lines = output.read().decode(errors='replace').splitlines()[-3:]
    raise UserError(f'{os.path.basename(script)} stopped with exit code '
                    f'{process.returncode}: {" | ".join(lines)[-600:]}')
