"""Checks that files can be written, before the work that fills them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import (
  TEMPORARY,
  require_path,
  require_replaceable,
  write_file,
)


def require_file(path: str, start: bytes, what: str) -> None:
  """Raises UserError if writing a file would destroy one of another kind.

  Args:
    path: to be written. A missing or empty file may be replaced.
    start: the first bytes of files of this kind.
    what: the kind, for the message.
  """
  require_replaceable(path)
  try:
    if not os.path.isfile(path):  # Anything else cannot be replaced.
      return
    with open(path, 'rb') as file:
      found = file.read(len(start))
  except OSError as error:
    raise UserError(f'{path}: cannot be replaced ({error}); name another '
                    'file') from error
  if found and found != start:
    raise UserError(f'{path}: is no {what}, so it is not replaced; move it '
                    'away, or name another file')


def check_file(flag: str, path: str, start: str | bytes, what: str) -> str:
  """The path of a file that can be written, ~ expanded; makes its folder.

  `flag` names it in errors; `start` and `what` are as in `require_file`.

  Raises:
    UserError: it cannot be written, or is not such a file.
  """
  expanded = require_path(flag, path)
  full = os.path.abspath(expanded)
  if os.path.isdir(full):
    raise UserError(f'{flag}={path}: is a folder; name a file')
  if os.path.exists(full) and not os.path.isfile(full):
    raise UserError(f'{flag}={path}: is a device or a pipe, which would be '
                    'replaced; name a file')
  require_file(full, start.encode() if isinstance(start, str) else start, what)
  check_folder(flag, os.path.dirname(full), path)
  return expanded


@dataclasses.dataclass(frozen=True)
class Text:
  """A kind of text file that a verb writes where its flag says.

  Attributes:
    flag: names the path in errors.
    start: the beginning of files of this kind; another file is not replaced.
    what: the kind.
  """
  flag: str
  start: str
  what: str

  def check(self, path: str) -> str:
    """The path, ~ expanded; raises UserError unless `write` may write it."""
    return check_file(self.flag, path, self.start, self.what)

  def write(self, path: str, text: str) -> None:
    """Writes the file, which appears when complete; errors as of `check`."""
    write_file(self.check(path), text.encode())


def check_folder(flag: str, path: str, given: str = '') -> str:
  """The path of a folder in which files can be written, made where missing.

  Raises:
    UserError: they cannot; `given` stands in the message if not empty.
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


def check_all(outputs: Mapping[str, Sequence[Any]]) -> None:
  """Raises UserError unless all outputs can be written.

  Args:
    outputs: flag -> a folder, which is made where missing; or the arguments
      of `check_file` after the flag. An empty path is skipped.
  """
  for flag, (path, *kind) in outputs.items():
    if path:
      check_file(flag, path, *kind) if kind else check_folder(flag, path)
