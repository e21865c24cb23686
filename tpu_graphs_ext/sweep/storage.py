"""Input files by paths and URLs, which fsspec reads.

Most protocols (gs://, s3://, hdfs://) need one more package, which fsspec
names if it is missing (gcsfs, s3fs, pyarrow).
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
  """An input file.

  Attributes:
    name: for people; relative if the given path is.
    path: absolute path or URL.
    stamp: a text that changes with the file.
  """
  name: str
  path: str
  stamp: str


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
  with _user_errors(given):
    system, path = _opened(given)
    if system.isdir(path):
      infos = [info for info in system.ls(path, detail=True, refresh=True)
               if info['name'].endswith(endings)]
      advice = (f'has no file that ends with {" or ".join(endings)}; name '
                'others by a pattern, as in "DIR/*.txt"')
    else:
      infos = ([system.info(path)] if system.exists(path)
               else system.glob(path, detail=True).values())
      advice = ('no such file or folder; quote a pattern, and use ** for '
                'folders of any depth')
    found = [_found(given, system, info) for info in infos
             if info['type'] != 'directory']
  if not found:
    raise UserError(f'{given}: {advice}')
  return sorted(found)


def _found(given: str, system: Any, info: dict[str, Any]) -> Found:
  path = info['name']
  if '://' in given:
    url = system.unstrip_protocol(path)
    return Found(url, url, repr(sorted(info.items())))
  name = (path if os.path.isabs(os.path.expanduser(given))
          else os.path.relpath(path))
  try:
    stat = os.stat(path)  # Of the file behind a link.
  except OSError:  # Ranking it says so in its row.
    return Found(name, path, '')
  return Found(name, path, f'{stat.st_size} {stat.st_mtime_ns} '
               f'{stat.st_ctime_ns} {stat.st_ino}')


@contextlib.contextmanager
def local_copy(file: Found) -> Iterator[str]:
  """The path on this machine of a file, or of a copy for the `with` block.

  Raises:
    UserError: it cannot be copied.
  """
  if '://' not in file.path:
    yield file.path
    return
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    with _user_errors(file.name):
      system, path = _opened(file.path)
      copy = os.path.join(folder, posixpath.basename(path))
      system.get_file(path, copy)
    yield copy


def _opened(path: str) -> tuple[Any, str]:
  """(file system of fsspec, the path in it)."""
  try:
    import fsspec
  except ImportError as error:
    raise UserError(f'{path}: many files are read by fsspec, which is not '
                    f'installed; {how_to_install("scale")}') from error
  return fsspec.core.url_to_fs(
      path if '://' in path else files.full_path(path))


@contextlib.contextmanager
def _user_errors(path: str) -> Iterator[None]:
  """Turns the errors of all file systems into UserErrors."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:  # Each package has errors of its own.
    raise UserError(f'{path}: cannot be read ({type(error).__name__}: '
                    f'{reason_of(error)})') from error
