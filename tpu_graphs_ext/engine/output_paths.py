"""Checks that files can be written, before the work that fills them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Union

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import (
  TEMPORARY,
  require_path,
  require_replaceable,
  write_file,
)


def require_file(path: str, start: Union[str, bytes], what: str) -> None:
  """Raises UserError if writing a file would destroy one of another kind.

  Files of the kind `what` begin with `start`. A missing or empty file may be
  replaced.
  """
  require_replaceable(path)
  start = start.encode() if isinstance(start, str) else start
  try:
    if not os.path.isfile(path):  # Anything else cannot be replaced.
      return
    with open(path, 'rb') as file:
      found = file.read(len(start))
  except OSError as error:
    raise UserError(f'{path}: cannot be replaced ({error}); name another '
                    'file') from error
  if found and found != start:
    raise UserError(f'{path}: is not a {what}, so it is not replaced; move it '
                    'away, or name another file')


def check_file(flag: str, path: str, start: Union[str, bytes],
               what: str) -> str:
  """The path of a file that can be written, ~ expanded; makes its folder.

  Raises UserError, with the flag, if not; the rest is as in `require_file`.
  """
  expanded = require_path(flag, path)
  full = os.path.abspath(expanded)
  if os.path.exists(full) and not os.path.isfile(full):
    raise UserError(f'{flag}={path}: is a folder, a device or a pipe; name a '
                    'file')
  require_file(full, start, what)
  check_folder(flag, os.path.dirname(full), path)
  return expanded


def check_folder(flag: str, path: str, given: str = '') -> str:
  """The path of a folder in which files can be written, made where missing.

  Raises UserError if they cannot; `given` stands in the message if not empty.
  """
  folder = require_path(flag, path)
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=TEMPORARY) as file:
      file.write(b'x')
  except OSError as error:
    raise UserError(f'{flag}={given or path}: cannot be written ({error}); '
                    'choose another place') from error
  return folder


@dataclasses.dataclass(frozen=True)
class Text:
  """A kind of file that a verb writes where its flag says; see `check_file`."""
  flag: str
  start: str
  what: str

  def check(self, path: str) -> str:
    """The path, ~ expanded; raises UserError unless `write` may write it."""
    return check_file(self.flag, path, self.start, self.what)

  def write(self, path: str, text: str) -> None:
    """Writes the file, which appears when complete; errors as of `check`."""
    write_file(self.check(path), text.encode())
