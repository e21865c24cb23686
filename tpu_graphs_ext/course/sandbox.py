"""A temporary folder where a hand-in is run as the graders would run it.

It holds copies of the model folder and its run file, and of the baseline's
checkout with models.py swapped, or models.py alone. What runs there is another
process, without this package (`without_package`), secrets and network, for a
limited time. That guards against accidents, not attackers: it runs as you.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

_HERE = os.path.dirname(os.path.abspath(__file__))
# What TensorFlow, Python and the linker read; nothing else is passed on.
_PASSED = frozenset((
    'PATH', 'LANG', 'LC_ALL', 'TZ', 'TMPDIR', 'TEMP', 'TMP', 'SYSTEMROOT',
    'LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'VIRTUAL_ENV', 'PYTHONHASHSEED',
    'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'XLA_FLAGS',
    'TF_USE_LEGACY_KERAS', 'TF_ENABLE_ONEDNN_OPTS', 'TF_NUM_INTRAOP_THREADS',
    'TF_NUM_INTEROP_THREADS', 'TF_FORCE_GPU_ALLOW_GROWTH'))
_WITHOUT_NETWORK = (('unshare', '--net', '--'),
                    ('unshare', '--map-root-user', '--net', '--'))
# Characters of a model's arguments that are shown.
_MOST_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Answer:
  """What `steps` answered."""
  faults: list[str]  # Why the hand-in fails.
  misfit: str  # How the saved variables differ from the class's, or ''.
  state: int  # Number of saved variables that are not trained.
  seconds: float  # Time of ranking.
  scores: dict[str, np.ndarray]  # Kernel -> float32 [configs].

  @property
  def ranked(self) -> bool:
    """There are scores, and all are finite."""
    return bool(self.scores) and all(
        np.isfinite(scores).all() for scores in self.scores.values())


class Sandbox:
  """A temporary folder with the hand-in, and what is run there."""

  def __init__(self, temporary: str, model_dir: str, models_py: str,
               root: str | None, minutes: float):
    """Copies what is handed in.

    Args:
      temporary: a folder that the caller throws away.
      model_dir: the model folder; its run file beside it may be missing.
      models_py: the file to swap in.
      root: the baseline's checkout, or None.
      minutes: what all programs together may take.

    Raises:
      OSError: something cannot be copied, such as a special file.
    """
    self._temporary, self._root = temporary, root
    self._deadline = time.monotonic() + 60 * minutes
    self.model_dir = _copy_model(model_dir, self.new_folder())
    self._home = self.new_folder()
    # The working folder of what runs here.
    self.folder = os.path.join(temporary, 'place')
    if root:
      checkout.working_copy(root, self.folder, models_py)
    else:
      os.mkdir(self.folder)
      shutil.copyfile(models_py, os.path.join(self.folder, 'models.py'))

  def new_folder(self) -> str:
    """An empty folder."""
    return tempfile.mkdtemp(dir=self._temporary)

  def has(self, script: str) -> bool:
    """Whether the checkout, or the folder beside it, has a script."""
    return os.path.isfile(os.path.join(self.folder, script))

  def ask(self, request: dict[str, Any]) -> Answer:
    """Runs `steps` with the hand-in.

    Args:
      request: its `args`, `graphs` and `num_ops`.

    Raises:
      UserError: the process died, damaged its answer, or took too long.
    """
    folder = self.new_folder()
    request = {
        **request, 'model_dir': self.model_dir,
        'module': ('tpu_graphs.baselines.tiles.models' if self._root
                   else 'models'),
        'answer': f'{folder}/answer.json',
        'shown': request['args'] and brief(
            request['args']['model_kwargs_json'])}
    with open(f'{folder}/request.json', 'w', encoding='utf-8') as file:
      json.dump(request, file)
    self.run([os.path.join(_HERE, 'steps.py'), f'{folder}/request.json'])
    return read_answer(request['answer'])

  def run(self, arguments: list[str]) -> None:
    """Runs a script to its end, and ends whatever it leaves running.

    Raises:
      UserError: it failed, which shows its last lines, or took too long.
    """
    # -I drops PYTHONPATH and the user's own packages; TensorFlow may be there.
    packages = [folder for folder in sys.path if os.path.basename(folder) in (
        'site-packages', 'dist-packages')]
    log = os.path.join(self._temporary, 'output.log')
    # A file: a pipe may be held open by what outlives the program.
    with open(log, 'wb') as output:
      process = subprocess.Popen(
          [*without_network(), sys.executable, '-I',
           os.path.join(_HERE, 'without_package.py'),
           os.pathsep.join(packages), *arguments], cwd=self.folder,
          env={**passed(os.environ), 'HOME': self._home,
               'TF_CPP_MIN_LOG_LEVEL': '2'},
          stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
          start_new_session=True)
      try:
        process.wait(max(0, self._deadline - time.monotonic()))
      except subprocess.TimeoutExpired as error:
        raise UserError(
            'the hand-in has taken more time than --time_limit allows and was '
            'stopped; look for a loop without end, or allow more') from error
      finally:
        _kill_group(process)
    if process.returncode:
      raise UserError(f'{os.path.basename(arguments[0])} stopped '
                      f'{_failure(process.returncode)}: {_end_of(log)}')


def check_minutes(minutes: float) -> None:
  """Raises UserError unless a time limit is positive and finite."""
  if not (math.isfinite(minutes) and minutes > 0):
    raise UserError('--time_limit must be a number of minutes above 0; got '
                    f'{minutes}')


def limits_text(minutes: float) -> str:
  """What holds for a program in a sandbox, for the user."""
  network = ('no network' if without_network() else
             'with network (this system does not let a program go without)')
  return (f'{network}, none of your environment variables, at most '
          f'{minutes:g} minutes; your files are not protected')


def passed(environment: dict[str, str]) -> dict[str, str]:
  """The variables that a hand-in may see."""
  return {name: environment[name] for name in _PASSED & environment.keys()}


@functools.cache
def without_network() -> tuple[str, ...]:
  """Prefix of a command that must not reach the network; () if none works."""
  for prefix in _WITHOUT_NETWORK:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
      if subprocess.run([*prefix, 'true'], stdin=subprocess.DEVNULL,
                        capture_output=True, timeout=10,
                        check=False).returncode == 0:
        return prefix
  return ()


def brief(kwargs_json: str) -> str:
  """The arguments of a model; feature statistics are pages of numbers."""
  if len(kwargs_json) <= _MOST_SHOWN:
    return kwargs_json
  return f'{kwargs_json[:_MOST_SHOWN]}... ({len(kwargs_json)} characters)'


def _copy_model(model_dir: str, folder: str) -> str:
  """Copies a model folder, and its run file if there is one."""
  parent, name = os.path.split(model_dir)
  run_path = os.path.join(parent, name.replace('model_', 'run_', 1) + '.jsonz')
  copy = os.path.join(folder, name)
  if os.path.isdir(model_dir):
    shutil.copytree(model_dir, copy)
  if os.path.isfile(run_path):
    shutil.copy(run_path, folder)
  return copy


def _kill_group(process: subprocess.Popen) -> None:
  if hasattr(os, 'killpg'):
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
  if process.poll() is None:
    process.kill()
  process.wait()


def _failure(code: int) -> str:
  if code > 0:
    return f'with exit code {code}'
  name = signal.Signals(-code).name
  return f'by {name}' + (' (out of memory?)' if name == 'SIGKILL' else '')


def _end_of(log: str) -> str:
  """The last lines that were printed, on one line that is not too long."""
  with open(log, 'rb') as file:
    file.seek(max(0, os.path.getsize(log) - 4000))
    lines = file.read().decode(errors='replace').strip().splitlines()[-3:]
  return ' | '.join(lines)[-600:] or 'it printed nothing'


def read_answer(path: str) -> Answer:
  """Reads the answer of `steps`.

  Raises:
    UserError: there is no answer, or the hand-in has changed it.
  """
  try:
    with files.open_ordinary(path) as file:
      content = files.parse_json(file.read(), path)
    return Answer(
        faults=[str(fault) for fault in content['faults']],
        misfit=str(content['misfit']), state=int(content['state']),
        seconds=float(content['seconds']),
        scores={name: np.asarray(scores, np.float32).reshape(-1)
                for name, scores in content['scores'].items()})
  except FileNotFoundError as error:
    raise UserError('the code of models.py ends Python before the steps of '
                    'the grader are done; take its exit out') from error
  except Exception as error:  # The code may have written anything.
    reason = ' '.join(str(error).split())[:200]
    raise UserError('the code of models.py damaged the answer of the '
                    f'grader\'s steps ({reason}); it must write no files'
                    ) from error
