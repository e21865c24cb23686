"""Checks that files can be written, before the work that fills them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Union

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError


def require_file(path: str, start: Union[str, bytes], what: str) -> None:
  """Raises UserError if writing a file would destroy one of another kind.

  Files of the kind `what` begin with `start`, or are empty.
  """
  files.require_replaceable(path)
  start = start.encode() if isinstance(start, str) else start
  try:
    with open(path, 'rb') as file:
      found = file.read(len(start))
  except FileNotFoundError:
    return
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  if found and found != start:
    raise UserError(f'{path}: is not a {what}, so it is not replaced; move it '
                    'away, or name another file')


def check_file(flag: str, path: str, start: Union[str, bytes],
               what: str) -> str:
  """The path of a file, ~ expanded, or a UserError; makes its folder."""
  expanded = files.require_path(flag, path)
  require_file(expanded, start, what)
  check_folder(flag, os.path.dirname(os.path.abspath(expanded)))
  return expanded


def check_folder(flag: str, path: str) -> str:
  """The path of a folder that can be written, or a UserError; makes it."""
  folder = files.require_path(flag, path)
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=folder, suffix=files.TEMPORARY) as file:
      file.write(b'x')
  except OSError as error:
    raise UserError(f'{flag}={path}: cannot be written ({error}); choose '
                    'another place') from error
  return folder


@dataclasses.dataclass(frozen=True)
class Text:
  """A kind of file that a verb writes where its flag says."""
  flag: str
  start: str
  what: str

  def check(self, path: str) -> str:
    return check_file(self.flag, path, self.start, self.what)

  def write(self, path: str, text: str) -> None:
    """Writes the file, which appears when complete."""
    files.write_file(self.check(path), text.encode())
