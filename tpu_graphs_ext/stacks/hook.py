"""The opt-in hook that lets `python tiles_train.py` run on the current stack.

It is two small files beside the installed packages, of this environment only:
`tpu_graphs_ext_hook.pth`, one line that Python runs when it starts, and the
module that the line imports, a copy of `startup_hook`.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import startup_hook, versions

MODULE = 'tpu_graphs_ext_hook'


def paths() -> tuple[str, str]:
  """Where the .pth file and the module are, or would be."""
  folder = sysconfig.get_path('purelib')
  return tuple(os.path.join(folder, MODULE + end) for end in ('.pth', '.py'))


def is_installed() -> bool:
  return os.path.isfile(paths()[0])


def install() -> str:
  """Puts the hook in place; returns what was done.

  On the classic stack nothing is written: scripts run there as they are.

  Raises:
    UserError: the folder cannot be written.
  """
  if versions.stack_name() == 'classic':
    return ('Nothing to install: ' + versions.describe().why + ', so the '
            'baseline\'s scripts run as they are.')
  pth, module = paths()
  with open(startup_hook.__file__, encoding='utf-8') as file:
    code = file.read()
  # The module first: without it the .pth file would be an error at each start.
  _write(module, code)
  _write(pth, f'import {MODULE}\n')
  return f'Installed {pth}; `tpu-graphs-ext hook remove` takes it away.'


def remove() -> str:
  """Takes the hook away; returns what was done.

  Raises:
    UserError: the files cannot be removed.
  """
  if not is_installed():
    return 'Nothing to remove: the hook is not installed.'
  for path in paths():
    try:
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    except OSError as error:
      raise UserError(f'{path}: cannot be removed ({error}); remove it by '
                      'hand') from error
  return f'Removed {paths()[0]}.'


def status() -> str:
  """Whether the hook is installed, and the stack in use."""
  state = f'installed, {paths()[0]}' if is_installed() else 'not installed'
  return f'hook: {state}\n{versions.describe().text()}'


def _write(path: str, text: str) -> None:
  try:
    files.write_file(path, text.encode())
  except UserError as error:
    raise UserError(
        f'{error}; use an environment of your own (python -m venv), or start '
        'scripts by `tpu-graphs-ext run`') from error
