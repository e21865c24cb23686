"""Puts a models.py into a clone of the baseline, and takes it out again.

Git keeps the clone's own file. Beside models.py lies, until `uninstall`,

  models.py.installed   SHA-256 sums of all that was put in place, a line each

A file that neither git nor this module knows is never replaced or removed.
Every file is whole or absent, and the next call finishes what was interrupted
between two of them.
"""

from __future__ import annotations

import hashlib
import os
import re

from tpu_graphs_ext import files
from tpu_graphs_ext.course import allowed_imports, checkout
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TASKS, TILE, ShippedTask

RECORD = '.installed'
# Who wrote the file that is in place.
THEIRS, INSTALLED, OTHER = "the baseline's", 'installed', 'changed by hand'


def install(root: str = '', models_py: str = '',
            task: ShippedTask = TILE) -> str:
  """Puts models.py in place; a second call changes nothing.

  Args:
    root: the checkout; empty: what TPU_GRAPHS_ROOT names.
    models_py: the file to put there; empty: the package's.
    task: whose models.

  Returns what was done, for the user. Raises UserError if there is no clone,
  the new file cannot run there, or the one in place has changes of its own.
  """
  target = _target(root, task)
  source = files.full_path(models_py or task.models_file)
  if faults := allowed_imports.faults_of(source):
    raise UserError('\n  '.join(faults))
  new, old = files.read_file(source), files.read_file(target)
  # Of the file itself there may be no other copy.
  if old != new or os.path.samefile(source, target):
    _require_known(target, task)
  # First, so that what is in place is known at any moment.
  files.write_file(target + RECORD, '\n'.join(
      sorted({*_recorded(target), hashlib.sha256(new).hexdigest()})).encode())
  if old == new:
    return f'already in place: {target}'
  files.write_file(target, new)
  return f'installed {source}\nas        {target}'


def uninstall(root: str = '', task: ShippedTask = TILE) -> str:
  """Puts the checkout's own models.py back; see `install`."""
  target = _target(root, task)
  _require_known(target, task)
  done = f'already the checkout\'s own: {target}'
  if state(target) == INSTALLED:
    files.write_file(target, committed(target))
    done = f'restored {target}'
  if _recorded(target):
    os.remove(target + RECORD)
  return done


def state(target: str) -> str:
  """Who wrote the models.py in place: THEIRS, INSTALLED or OTHER.

  Raises UserError if it or its record cannot be read.
  """
  content, recorded = files.read_file(target), _recorded(target)
  if content == committed(target):
    return THEIRS
  ours = {*recorded, *(files.sha256(task.models_file)
                       for task in TASKS.values())}
  return INSTALLED if hashlib.sha256(content).hexdigest() in ours else OTHER


def _require_known(target: str, task: ShippedTask) -> None:
  if state(target) == OTHER:
    root = checkout.shown_path(target[:-len(task.baseline_models) - 1])
    raise UserError(
        f'{target}: has changes that install did not make and would lose; `cp '
        f'{checkout.shown_path(target)} my_models.py`, and give the copy to '
        f'`{checkout.own_command()} install --task {task.name} --root {root} '
        '--models_py my_models.py`')


def _target(root: str, task: ShippedTask) -> str:
  root = checkout.find(root)
  if root is None:
    raise UserError('--root: names no checkout of the tpu_graphs baseline; '
                    f'give --root or set {checkout.ROOT_VARIABLE} to the '
                    f'folder that `git clone {checkout.URL}` made')
  target = os.path.join(root, task.baseline_models)
  if committed(target) is None:
    raise UserError(f'{target}: git, which keeps the original, does not have '
                    f'it; use the folder that `git clone {checkout.URL}` made')
  return target


def committed(target: str) -> bytes | None:
  """The file as the clone's last commit has it; None without git."""
  folder, name = os.path.split(target)
  return checkout.git(folder, 'show', f'HEAD:./{name}')


def _recorded(target: str) -> list[str]:
  """The sums that install noted, or a UserError if the record is damaged."""
  path = target + RECORD
  if not os.path.lexists(path):
    return []
  sums = files.read_file(path).decode(errors='replace').split('\n')
  if not all(re.fullmatch('[0-9a-f]{64}', line) for line in sums):
    raise UserError(f'{path}: was not written by install; remove it')
  return sums
