"""Proof that the files in a folder were written by this package.

A command that may replace a folder keeps the checksums of all files that it
wrote there. A file with another checksum belongs to somebody else, and stops
the command.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

_BLOCK_BYTES = 1 << 20


def sums(folder: str) -> dict[str, str]:
  """Path in the folder, with '/' -> checksum of the file, sorted by path.

  An empty folder has the checksum 'empty'; links, pipes and the like have '',
  which is never known. A missing folder has no files.
  """
  found = {}
  for parent, folders, names in os.walk(folder):
    folders.sort()
    links = [name for name in folders
             if os.path.islink(os.path.join(parent, name))]
    for name in [*names, *links]:
      path = os.path.join(parent, name)
      found[path] = _sum(path)
    if not folders and not names and parent != folder:
      found[parent] = 'empty'
  return {os.path.relpath(path, folder).replace(os.sep, '/'): content
          for path, content in sorted(found.items())}


def foreign(folder: str, *known: Mapping[str, str]) -> list[str]:
  """The paths of `sums` whose checksum is not a known one."""
  return [path for path, content in sums(folder).items()
          if not content
          or content not in [sums_of.get(path) for sums_of in known]]


def _sum(path: str) -> str:
  """The checksum of an ordinary file; '' for anything else."""
  if os.path.islink(path) or not os.path.isfile(path):
    return ''
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK_BYTES):
      digest.update(block)
  return digest.hexdigest()[:32]
