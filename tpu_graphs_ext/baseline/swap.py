"""Puts a models.py into a checkout of the baseline, and takes it out again.

Beside the file in the checkout two more appear, and go with `uninstall`:

  models.py.original    the checkout's own file
  models.py.installed   the SHA-256 sum of what was put in place, as JSON

A file that neither the checkout nor this module put there is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.baseline import allowed_imports
from tpu_graphs_ext.baseline import checkout as checkout_lib
from tpu_graphs_ext.errors import UserError

ORIGINAL, RECORD = '.original', '.installed'
# SHA-256 of the baseline's own models.py -> commit that has it.
RELEASED = {
    '1b6b492e5e25a7f30eae64e7c8678125adbba43b13bdb4ac84bc1e989e2263f6':
        'ddd187c',
}
# Who wrote the file that is in place.
THEIRS, COMMITTED, OURS, INSTALLED, OTHER = (
    "the baseline's", 'as committed', "this project's", 'installed',
    'changed by hand')


def install(root: str = '', models_py: str = '') -> str:
  """Puts models.py in place; a second call changes nothing.

  Args:
    root: the checkout; empty: what TPU_GRAPHS_ROOT names.
    models_py: the file to put there; empty: the package's.

  Returns:
    What was done, for the user.

  Raises:
    UserError: there is no checkout, the new file cannot run there, or the
      file in place has changes that would be lost.
  """
  target = _target(root)
  source = os.path.abspath(os.path.expanduser(
      models_py or load_models.models_path()))
  faults = allowed_imports.faults_of(source)
  if faults:
    raise UserError('\n  '.join(faults))
  new = _content(source)
  kind = state(target)
  if kind == OTHER and _content(target) != new:
    raise UserError(
        f'{target}: has changes that install did not make and would lose; to '
        f'keep them copy the file away, for example `cp {target} '
        'my_models.py`, and give the copy as --models_py')
  if kind in (THEIRS, COMMITTED) and _content(target) != new:
    _require_own(target + ORIGINAL, _is_original(target))
    files.write_file(target + ORIGINAL, _content(target))
  _require_own(target + RECORD, bool(_recorded(target)))
  record = {'sha256': _sum(new), 'source': source}
  files.write_file(target + RECORD,
                       (json.dumps(record, indent=2) + '\n').encode())
  if _content(target) == new:
    return f'already in place: {target}'
  files.write_file(target, new)
  return f'installed {source}\nas        {target}'


def uninstall(root: str = '') -> str:
  """Puts the checkout's own models.py back; a second call changes nothing.

  Returns:
    What was done, for the user.

  Raises:
    UserError: there is no checkout, the file in place has changes that would
      be lost, or the original is nowhere.
  """
  target = _target(root)
  kind = state(target)
  if kind == OTHER:
    raise UserError(
        f'{target}: has changes that install did not make and would lose; copy '
        f'the file away, for example `cp {target} my_models.py`, run '
        '`tpu-graphs-ext install --models_py my_models.py`, and uninstall '
        'again')
  done = f'already the checkout\'s own: {target}'
  if kind in (OURS, INSTALLED):
    files.write_file(target, _original(target))
    done = f'restored {target}'
  if _is_original(target):
    os.remove(target + ORIGINAL)
  if _recorded(target):
    os.remove(target + RECORD)
  return done


def state(target: str) -> str:
  """Who wrote the models.py in place: THEIRS, COMMITTED, OURS and so on."""
  content = _content(target)
  if _sum(content) in RELEASED:
    return THEIRS
  if content == _content(load_models.models_path()):
    return OURS
  if _sum(content) == _recorded(target):
    return INSTALLED
  if content == _committed(target):
    return COMMITTED
  return OTHER


def _target(root: str) -> str:
  checkout = checkout_lib.checkout(root or None)
  if checkout is None:
    raise UserError(
        '--root: no checkout of the tpu_graphs baseline is named; give --root '
        f'or set {checkout_lib.ROOT_VARIABLE} to the folder that `git clone '
        f'{checkout_lib.URL}` made')
  return os.path.join(checkout, checkout_lib.MODELS_PY)


def _original(target: str) -> bytes:
  """The checkout's own file: kept beside, or as git has it."""
  if os.path.exists(target + ORIGINAL):
    return _content(target + ORIGINAL)
  committed = _committed(target)
  if committed is None or committed == _content(target):
    raise UserError(
        f'{target}: the original is neither in {target + ORIGINAL} nor in git; '
        'clone the baseline again')
  return committed


def _is_original(target: str) -> bool:
  """Whether models.py.original is a file that the checkout had."""
  if not os.path.isfile(target + ORIGINAL):
    return False
  kept = _content(target + ORIGINAL)
  return (_sum(kept) in RELEASED or kept == _committed(target)
          or kept == _content(target))


def _require_own(path: str, is_own: bool) -> None:
  if os.path.lexists(path) and not is_own:
    raise UserError(f'{path}: is a file that install did not write, and would '
                    'replace; move it away first')


def _committed(target: str) -> bytes | None:
  """The file as the checkout's last commit has it; None without git."""
  folder, name = os.path.split(target)
  try:
    done = subprocess.run(
        ['git', '-C', folder, 'show', f'HEAD:./{name}'],
        capture_output=True, check=False)
  except OSError:
    return None
  return done.stdout if done.returncode == 0 else None


def _recorded(target: str) -> str:
  """The sum of what install put in place, or ''."""
  try:
    recorded = files.parse_json(_content(target + RECORD), RECORD)['sha256']
    return recorded if isinstance(recorded, str) else ''
  except (OSError, UserError, KeyError, TypeError):
    return ''


def _content(path: str) -> bytes:
  with open(path, 'rb') as file:
    return file.read()


def _sum(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
