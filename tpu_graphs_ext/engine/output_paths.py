"""Whether files can be written, tried before the work that fills them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_graphs_ext import file_ownership
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import TEMPORARY, require_path, write_file


def check_file(flag: str, path: str, start: str | bytes, what: str) -> str:
  """The path of a file that can be written, ~ expanded; makes its folder.

  Args:
    flag: names it in errors.
    path: as given.
    start: how files of its kind begin; another one is not replaced.
    what: the kind.

  Raises:
    UserError: it cannot, or is something else than such a file.
  """
  expanded = require_path(flag, path)
  full = os.path.abspath(expanded)
  if os.path.isdir(full):
    raise UserError(f'{flag}={path}: is a folder; name a file')
  if os.path.exists(full) and not os.path.isfile(full):
    raise UserError(f'{flag}={path}: is a device or a pipe, which would be '
                    'replaced; name a file')
  file_ownership.require_file(
      full, start.encode() if isinstance(start, str) else start, what)
  _try(flag, path, os.path.dirname(full))
  return expanded


@dataclasses.dataclass(frozen=True)
class Text:
  """A file of text that a verb writes where its flag says.

  Attributes:
    flag: names it in errors.
    start: how files of its kind begin; another one is not replaced.
    what: the kind.
  """
  flag: str
  start: str
  what: str

  def check(self, path: str) -> str:
    """The path, ~ expanded; raises a UserError unless `write` may write it."""
    return check_file(self.flag, path, self.start, self.what)

  def write(self, path: str, text: str) -> None:
    """Writes the file, which appears when complete.

    Raises:
      UserError: it cannot be written, or replaces a file of another kind.
    """
    write_file(self.check(path), text.encode())


def check_folder(flag: str, path: str) -> str:
  """The path of a folder that files can be put into, made where missing.

  Raises:
    UserError: they cannot.
  """
  expanded = require_path(flag, path)
  _try(flag, path, expanded)
  return expanded


def check_all(places: Mapping[str, Sequence[Any]]) -> None:
  """Raises a UserError unless all that is given can be written.

  Args:
    places: flag -> a folder, which is made where missing; or what `check_file`
      takes after the flag. '' is not given.
  """
  for flag, (path, *kind) in places.items():
    if path and kind:
      check_file(flag, path, *kind)
    elif path:
      _try(flag, path, os.path.expanduser(path))


def _try(flag: str, path: str, folder: str) -> None:
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=TEMPORARY) as file:
      file.write(b'x')
  except OSError as error:
    raise UserError(f'{flag}={path}: cannot be written ({error}); choose '
                    'another place') from error
