"""Paths as people write them, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import os

from tpu_graphs_ext.errors import UserError


def full_path(path: str) -> str:
  """The absolute path of '~/a' or 'a'."""
  return os.path.abspath(os.path.expanduser(path))


def write_file(path: str, content: bytes) -> None:
  """Writes a file that appears under its name only when complete.

  Raises:
    UserError: the file cannot be written.
  """
  temporary = f'{path}.{os.getpid()}.tmp'
  try:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
      with open(temporary, 'wb') as file:
        file.write(content)
      os.replace(temporary, path)
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(temporary)
  except OSError as error:
    raise UserError(f'{path}: cannot be written ({error})') from error
