"""Files by paths or URLs, which fsspec reads.

Most protocols (gs://, s3://, hdfs://) need one more package, which fsspec
names if it is missing (gcsfs, s3fs, pyarrow).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import (
  UserError,
  how_to_install,
  reason_of,
  shortened,
)

AT_ONCE = 4  # Files that are read at a time.


@dataclasses.dataclass(frozen=True)
class Found:
  """A file that was found.

  Attributes:
    name: for people; relative if the path that was given is.
    path: absolute path or URL.
    stamp: a text that changes with the file.
  """
  name: str
  path: str
  stamp: str


def is_url(path: str) -> bool:
  return '://' in path


def full(path: str) -> str:
  """The absolute path, or the URL as it is."""
  return path if is_url(path) else files.full_path(path)


def opened(path: str) -> tuple[Any, str, bool]:
  """(file system of fsspec, the path in it, whether it is this machine's).

  Raises:
    UserError: fsspec is missing, or the package for this protocol; or there
      is no such protocol.
  """
  try:
    import fsspec
    from fsspec.implementations import local
  except ImportError as error:
    raise UserError(f'{path}: many files are read by fsspec, which is not '
                    f'installed; {how_to_install("scale")}') from error
  try:
    system, inner = fsspec.core.url_to_fs(full(path))
  except ImportError as error:  # Names the package, such as gcsfs.
    raise UserError(f'{path}: {reason_of(error)}; install that package too'
                    ) from error
  except ValueError as error:
    known = sorted(fsspec.available_protocols())
    raise UserError(f'{path}: {reason_of(error)}; fsspec knows '
                    f'{shortened(known, 100)}') from error
  return system, inner, isinstance(system, local.LocalFileSystem)


@contextlib.contextmanager
def user_errors(path: str, what: str) -> Iterator[None]:
  """Turns whatever a file system raises into a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:  # Each package has errors of its own.
    raise UserError(f'{path}: cannot be {what} '
                    f'({type(error).__name__}: {reason_of(error)})') from error


def find(given: str, endings: tuple[str, ...]) -> list[Found]:
  """Files of a folder, of a pattern, or one file; sorted by their names.

  Args:
    given: path or URL of a folder or a file, or a pattern with `*`, `?` or
      `[...]`, and `**` for folders of any depth.
    endings: of files in a folder; deeper folders are not searched. A file or a
      pattern may have others.

  Raises:
    UserError: there is none.
  """
  system, path, _ = opened(given)
  with user_errors(given, 'read'):
    if system.isdir(path):
      infos = [info for info in system.ls(path, detail=True, refresh=True)
               if info['name'].endswith(endings)]
      advice = (f'has no file that ends with {" or ".join(endings)}; name '
                'others by a pattern, as in "DIR/*.txt"')
    elif system.exists(path) or not any(sign in given for sign in '*?['):
      infos = [system.info(path)] if system.exists(path) else []
      advice = 'no such file or folder'
    else:
      infos = list(system.glob(path, detail=True).values())
      advice = ('no file has such a name; quote the pattern, and use ** for '
                'folders of any depth')
    found = [_found(given, system, info) for info in infos
             if info['type'] != 'directory']
  if not found:
    raise UserError(f'{given}: {advice}')
  return sorted(found, key=lambda file: file.name)


def _found(given: str, system: Any, info: dict[str, Any]) -> Found:
  path = info['name']
  if is_url(given):
    url = system.unstrip_protocol(path)
    return Found(url, url, repr(sorted(info.items())))
  name = (path if os.path.isabs(os.path.expanduser(given))
          else os.path.relpath(path))
  try:
    stat = os.stat(path)  # Of the file behind a link.
  except OSError:  # It has a row that says so.
    return Found(name, path, '')
  return Found(name, path, f'{stat.st_size} {stat.st_mtime_ns} '
               f'{stat.st_ctime_ns} {stat.st_ino}')


def local_copies(
    found: Sequence[Found]) -> Iterator[tuple[Found, str, str]]:
  """(file, path on this machine, why there is none), in order.

  Files that are elsewhere are copied, ahead of use, until the last is used.
  """
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    def local(numbered: tuple[int, Found]) -> tuple[str, str]:
      number, file = numbered
      try:
        system, path, is_local = opened(file.path)
        if is_local:
          return path, ''
        # Two files of different folders may have the same name.
        copy = os.path.join(folder, str(number), posixpath.basename(path))
        os.mkdir(os.path.dirname(copy))
        with user_errors(file.name, 'read'):
          system.get_file(path, copy)
        return copy, ''
      except UserError as error:
        return '', str(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
      for file, (path, fault) in zip(found, pool.map(local, enumerate(found))):
        yield file, path, fault


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
  """A file to fill, which then replaces the file of that name.

  Raises:
    UserError: it cannot be written.
  """
  system, inner, is_local = opened(path)
  if is_local:
    with files.new_file(inner) as file:
      yield file
    return
  with tempfile.NamedTemporaryFile(prefix='tpu_graphs_ext') as file:
    yield file
    file.flush()
    with user_errors(path, 'written'):
      system.makedirs(posixpath.dirname(inner), exist_ok=True)
      system.put_file(file.name, inner)
