"""Proof that what lies in a folder was written by this package.

A command that may replace a folder keeps the sums of all files that it wrote
there. What is in the folder and has no such sum belongs to somebody else, and
stops the command.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

_BLOCK_BYTES = 1 << 20


def sums(folder: str, passed_over: Collection[str] = ()) -> dict[str, str]:
  """Path in the folder -> sum of the file's content, in the paths' order.

  Args:
    folder: a folder; one that is missing has no files.
    passed_over: names of folders that do not count, nor what is in them.

  Returns:
    Paths with '/'. An empty folder has the sum 'empty'; links, pipes and the
    like have '', which is never known.
  """
  found = {}
  for parent, folders, names in os.walk(folder):
    folders[:] = sorted(set(folders) - set(passed_over))
    links = [name for name in folders
             if os.path.islink(os.path.join(parent, name))]
    for name in [*names, *links]:
      path = os.path.join(parent, name)
      found[_relative(path, folder)] = _sum(path)
    if not folders and not names and parent != folder:
      found[_relative(parent, folder)] = 'empty'
  return dict(sorted(found.items()))


def foreign(folder: str, *known: Mapping[str, str],
            passed_over: Collection[str] = ()) -> list[str]:
  """The paths of `sums` that have none of the sums known for them."""
  return [path for path, content in sums(folder, passed_over).items()
          if not content
          or content not in [sums_of.get(path) for sums_of in known]]


def require_file(path: str, start: bytes, what: str) -> None:
  """Raises a UserError where writing a file would destroy another one.

  Args:
    path: to be written. A file that is missing or empty is nobody's.
    start: how files of the kind begin.
    what: the kind, for the message.
  """
  files.require_replaceable(path)
  try:
    if not os.path.isfile(path):  # What else it may be cannot be replaced.
      return
    with open(path, 'rb') as file:
      found = file.read(len(start))
  except OSError as error:
    raise UserError(f'{path}: cannot be replaced ({error}); name another '
                    'file') from error
  if found and found != start:
    raise UserError(f'{path}: is no {what}, so it is not replaced; move it '
                    'away, or name another file')


def _relative(path: str, folder: str) -> str:
  return os.path.relpath(path, folder).replace(os.sep, '/')


def _sum(path: str) -> str:
  """Of an ordinary file; '' of anything else."""
  if os.path.islink(path) or not os.path.isfile(path):
    return ''
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK_BYTES):
      digest.update(block)
  return digest.hexdigest()[:32]
