"""The opt-in hook that lets `python tiles_train.py` run on the current stack.

It is two small files beside the installed packages, of this environment only:
`tpu_graphs_ext_hook.pth`, one line that Python runs when it starts, and the
module that the line imports, a copy of `startup_hook`. Files of these names
that are not the hook's are never replaced or removed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sysconfig

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import startup_hook, versions

MODULE = 'tpu_graphs_ext_hook'
_LINE = f'import {MODULE}'
# In the module of every version.
_MARKS = ('class _Startup:', 'sys.meta_path.insert(0, _Startup)',
          'from tpu_graphs_ext.stacks import imports')


def paths() -> tuple[str, str]:
  """Where the .pth file and the module are, or would be."""
  folder = sysconfig.get_path('purelib')
  return tuple(os.path.join(folder, MODULE + end) for end in ('.pth', '.py'))


def is_installed() -> bool:
  """Whether both files are there, of this or an earlier version."""
  return all(map(_is_ours, paths()))


def install() -> str:
  """Puts the hook in place; returns what was done.

  On the classic stack nothing is written: scripts run there as they are.

  Raises:
    UserError: the folder cannot be written, or has a file of another's under
      the name of one of the hook's.
  """
  if versions.stack_name() == 'classic':
    return ('Nothing to install: ' + versions.describe().why + ', so the '
            'baseline\'s scripts run as they are.')
  pth, module = paths()
  foreign = _foreign()
  if foreign:
    raise UserError(f'{", ".join(foreign)}: is not the hook\'s and would be '
                    'lost; move it away, and install again')
  with open(startup_hook.__file__, encoding='utf-8') as file:
    code = file.read()
  # The module first: without it the .pth file would be an error at each start.
  _write(module, code)
  _write(pth, _LINE + '\n')
  return f'Installed {pth}; `tpu-graphs-ext hook remove` takes it away.'


def remove() -> str:
  """Takes away what there is of the hook; returns what was done.

  Raises:
    UserError: the files cannot be removed.
  """
  pth, module = paths()
  # The .pth file first: without the module it would be an error at each start.
  found = [path for path in (pth, module) if _is_ours(path)]
  if not os.path.lexists(module) or module in found:
    found += _compiled(module)
  for path in found:
    try:
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    except OSError as error:
      raise UserError(f'{path}: cannot be removed ({error}); remove it by '
                      'hand') from error
  lines = [f'Removed {path}.' for path in found]
  lines += [f'Left {path}: it is not the hook\'s.' for path in _foreign()]
  return '\n'.join(lines or ['Nothing to remove: the hook is not installed.'])


def status() -> str:
  """Whether the hook is installed, and the stack in use."""
  pth, _ = paths()
  there = [path for path in paths() if _is_ours(path)]
  state = 'not installed'
  if is_installed():
    state = f'installed, {pth}'
  elif there:
    state = (f'half installed: only {there[0]}; install it again, or remove '
             'it')
  lines = [f'hook: {state}', *(
      f'{path}: is not the hook\'s' for path in _foreign())]
  return '\n'.join([*lines, versions.describe().text()])


def _is_ours(path: str) -> bool:
  """Whether a file is of the hook, by what is in it."""
  try:
    with files.open_ordinary(path) as file:
      text = file.read(1 << 16).decode('utf-8', 'replace')
  except OSError:
    return False
  if path.endswith('.pth'):
    return text.strip() == _LINE
  return all(mark in text for mark in _MARKS)


def _foreign() -> list[str]:
  """What has a name of the hook's and is not its."""
  return [path for path in paths()
          if os.path.lexists(path) and not _is_ours(path)]


def _compiled(module: str) -> list[str]:
  """What Python has compiled of the module."""
  folder, name = os.path.split(module)
  return sorted(glob.glob(os.path.join(
      glob.escape(folder), '__pycache__',
      os.path.splitext(name)[0] + '.*.pyc')))


def _write(path: str, text: str) -> None:
  try:
    files.write_file(path, text.encode())
  except UserError as error:
    raise UserError(
        f'{error}; use an environment of your own (python -m venv), or start '
        'scripts by `tpu-graphs-ext run`') from error
