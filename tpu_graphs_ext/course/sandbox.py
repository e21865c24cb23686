"""A temporary folder where a hand-in is run as the graders would run it.

It holds copies of the model folder and its run file, and of the baseline's
checkout with models.py swapped, or models.py alone. What runs there is another
process, without this package (`without_package`), for a limited time, and as
far as the system lets it without your files, network and other processes.
SECURITY.md says what that guards against.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError, reason_of

_HERE = os.path.dirname(os.path.abspath(__file__))
# What TensorFlow, Python and the linker read; nothing else is passed on.
_PASSED = frozenset((
    'PATH', 'LANG', 'LC_ALL', 'TZ', 'SYSTEMROOT',
    'LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'VIRTUAL_ENV', 'PYTHONHASHSEED',
    'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'XLA_FLAGS',
    'TF_USE_LEGACY_KERAS', 'TF_ENABLE_ONEDNN_OPTS', 'TF_NUM_INTRAOP_THREADS',
    'TF_NUM_INTEROP_THREADS', 'TF_FORCE_GPU_ALLOW_GROWTH'))
MOST_BYTES = 1 << 30  # Of a model folder; it has a few MB.
# With the root folder to make, one to keep, and others to keep read-only.
_NEW_ROOT = '''set -e; at=$PWD root=$1 kept=$2; shift 2
mount -t tmpfs none "$root"
while [ "$1" != -- ]; do
  if [ -e "$1" ]; then
    mkdir -p "$root$1"; mount --rbind "$1" "$root$1"
    mount -o remount,ro,bind "$root$1"
  fi; shift
done; shift
mkdir -p "$root$kept" "$root/dev" "$root/proc"
mount --bind "$kept" "$root$kept"
for path in /dev/null /dev/zero /dev/random /dev/urandom; do
  : > "$root$path"; mount --bind $path "$root$path"
done
mount -t proc proc "$root/proc" || true
cd "$root"; pivot_root . .; umount -l .; cd "$at"; exec "$@"'''
# What Python and TensorFlow need, without its own folders.
_SYSTEM = ('/usr', '/bin', '/sbin', '/lib', '/lib64', '/etc')


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
               root: str | None, minutes: float, data_root: str = ''):
    """Copies what is handed in to `temporary`, which the caller throws away.

    The model folder or its run file may be missing. All programs together may
    take some `minutes`; `root` is the baseline's checkout. Raises UserError if
    a link or a pipe is handed in, or too much.
    """
    self._temporary, self._root = temporary, root
    self._readable = _folders_of(data_root)
    self._deadline = time.monotonic() + 60 * minutes
    self._home = self.new_folder()
    parent, name = os.path.split(model_dir)
    run_file = name.replace('model_', 'run_', 1) + '.jsonz'
    handed_in = self.new_folder()
    self.model_dir = os.path.join(handed_in, name)
    copied = [f'{name}/{path}' for path in files.ordinary_files(
        model_dir, MOST_BYTES)]
    run = os.path.join(parent, run_file)
    if os.path.isfile(run) and not os.path.islink(run):
      copied.append(run_file)
    elif os.path.lexists(run):
      raise UserError(f'{run}: is a link, a folder or a pipe, which is not '
                      'followed; put the file itself there')
    for path in copied:
      _copy(os.path.join(parent, path), os.path.join(handed_in, path))
    self.folder = os.path.join(temporary, 'place')  # Where programs run.
    if root:
      checkout.working_copy(root, self.folder)
    _copy(models_py, os.path.join(
        self.folder, checkout.MODELS_PY if root else 'models.py'))

  def new_folder(self) -> str:
    return tempfile.mkdtemp(dir=self._temporary)

  def has(self, script: str) -> bool:
    """Whether the checkout, or the folder beside it, has a script."""
    return os.path.isfile(os.path.join(self.folder, script))

  def ask(self, request: dict[str, Any]) -> Answer:
    """Runs `steps` with the hand-in; `request` has args, graphs and num_ops.

    Raises UserError if it died, damaged its answer, or took too long.
    """
    folder = self.new_folder()
    request = {
        **request, 'model_dir': self.model_dir,
        'module': ('tpu_graphs.baselines.tiles.models' if self._root
                   else 'models'), 'answer': f'{folder}/answer.json'}
    with open(f'{folder}/request.json', 'w', encoding='utf-8') as file:
      json.dump(request, file)
    self.run([os.path.join(_HERE, 'steps.py'), f'{folder}/request.json'])
    return read_answer(request['answer'])

  def run(self, arguments: list[str]) -> None:
    """Runs a script to its end, and ends whatever it leaves running.

    Raises UserError, with its last lines, if it failed or took too long.
    """
    # -I drops PYTHONPATH and the user's own packages; TensorFlow may be there.
    command = [sys.executable, '-I', os.path.join(_HERE, 'without_package.py'),
               os.pathsep.join(_packages()), *arguments]
    if confines():
      command = _prefix(self._temporary, self._readable) + command
    try:
      checkout.run_to_end(
          arguments[0], command, os.path.join(self._temporary, 'output.log'),
          max(0, self._deadline - time.monotonic()), cwd=self.folder,
          start_new_session=True,
          env={**{name: os.environ[name]
                  for name in _PASSED & os.environ.keys()}, 'HOME': self._home,
               'TMPDIR': self._home, 'TF_CPP_MIN_LOG_LEVEL': '2'})
    except subprocess.TimeoutExpired as error:
      raise UserError(
          'the hand-in has taken more time than --time_limit allows and was '
          'stopped; look for a loop without end, or allow more') from error


@functools.cache
def confines() -> bool:
  """Whether this system can confine a program to its folder."""
  with contextlib.suppress(OSError, subprocess.SubprocessError), (
      tempfile.TemporaryDirectory(prefix='hand_in_')) as folder:
    subprocess.run(
        [*_prefix(folder, ()), sys.executable, '-I', '-c', ''], cwd=folder,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True)
    return True
  return False


def _prefix(temporary: str, readable: Iterable[str]) -> list[str]:
  """Begins a command that may only change its temporary folder."""
  root = os.path.join(temporary, 'root')
  os.makedirs(root, exist_ok=True)
  # They die with this process, and their children with them.
  return ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--map-root-user',
          '--net', '--mount', '--pid', '--fork', '--kill-child', '--',
          'sh', '-c', _NEW_ROOT, 'sh', root, temporary,
          *_SYSTEM, sys.prefix, sys.base_prefix,
          os.path.dirname(os.path.realpath(sys.executable)),
          *_packages(), os.path.dirname(_HERE), *readable, '--']


def _packages() -> list[str]:
  return [folder for folder in sys.path if os.path.basename(folder) in (
      'site-packages', 'dist-packages')]


def _folders_of(data_root: str) -> set[str]:
  """Where the splits of a data root and their files are, which may be links."""
  return {place for split in schema.SPLITS for path in glob.iglob(
      os.path.join(glob.escape(data_root), split, '*'))
          for place in (os.path.dirname(path),
                        os.path.dirname(os.path.realpath(path)))}


def _copy(source: str, target: str) -> None:
  os.makedirs(os.path.dirname(target), exist_ok=True)
  with files.open_ordinary(source) as old, open(target, 'wb') as new:
    shutil.copyfileobj(old, new)


def read_answer(path: str) -> Answer:
  """The answer of `steps`; UserError if the hand-in has damaged it."""
  try:
    content = files.read_json(path)
    return Answer(
        faults=[str(fault) for fault in content['faults']],
        misfit=str(content['misfit']), state=int(content['state']),
        seconds=float(content['seconds']),
        scores={name: np.asarray(scores, np.float32).reshape(-1)
                for name, scores in content['scores'].items()})
  except Exception as error:  # The code may have written anything.
    raise UserError('grading did not finish: models.py exited Python, or wrote '
                    f'files that it should not ({reason_of(error)})') from error
