"""Input files by paths and URLs, which fsspec reads.

Most protocols need one more package (gcsfs, s3fs), which fsspec names.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of


class Found(NamedTuple):
  """An input file."""
  name: str  # Relative if the given path is.
  path: str  # Absolute path or URL.
  stamp: str  # Changes with the file.


def find(given: str, endings: tuple[str, ...]) -> list[Found]:
  """Files of a folder, of a pattern, or one file; sorted by their names.

  Args:
    given: path or URL of a folder or a file, or a pattern with `*`, `?` or
      `[...]`, and `**` for folders of any depth.
    endings: of the files to take from a folder; its subfolders are not
      searched. A file or a pattern may have others.

  Raises:
    UserError: there is none, or it cannot be read.
  """
  with _opened(given) as (system, path):
    if system.isdir(path):
      infos = [info for info in system.ls(path, detail=True, refresh=True)
               if info['name'].endswith(endings)]
    else:
      infos = ([system.info(path)] if system.exists(path)
               else system.glob(path, detail=True).values())
    found = sorted(_found(given, system, info) for info in infos
                   if info['type'] != 'directory')
  if not found:
    raise UserError(f'{given}: no such file, or no file in this folder that '
                    f'ends with {" or ".join(endings)}; others are named by a '
                    'quoted pattern, as in "DIR/**/*.txt"')
  return found


def _found(given: str, system: Any, info: dict[str, Any]) -> Found:
  path = info['name']
  if '://' in given:
    url = system.unstrip_protocol(path)
    return Found(url, url, repr(sorted(info.items())))
  stamp = ()
  with contextlib.suppress(OSError):  # Ranking it says so in its row.
    stat = os.stat(path)  # Of the file behind a link.
    stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
  is_absolute = os.path.isabs(os.path.expanduser(given))
  return Found(path if is_absolute else os.path.relpath(path), path,
               repr(stamp))


@contextlib.contextmanager
def local_copy(file: Found) -> Iterator[str]:
  """The path on this machine of a file, or of a copy for the `with` block."""
  if '://' not in file.path:
    yield file.path
    return
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    copy = os.path.join(folder, posixpath.basename(file.path))
    with _opened(file.path) as (system, path):
      system.get_file(path, copy)
    yield copy


@contextlib.contextmanager
def _opened(given: str) -> Iterator[tuple[Any, str]]:
  """(file system of fsspec, the path in it); all its errors are UserErrors."""
  try:
    import fsspec
  except ImportError as error:
    raise UserError(f'{given}: many files are read by fsspec, which is not '
                    f'installed; {how_to_install("scale")}') from error
  try:
    yield fsspec.core.url_to_fs(
        given if '://' in given else files.full_path(given))
  except Exception as error:  # Each package has errors of its own.
    raise UserError(
        f'{given}: cannot be read ({reason_of(error)})') from error
