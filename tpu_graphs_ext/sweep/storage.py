"""Files by paths or URLs, which fsspec reads.

Most protocols (gs://, s3://, hdfs://) need one more package, which fsspec
names where it is missing (gcsfs, s3fs, pyarrow).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import (
  UserError,
  how_to_install,
  reason_of,
  shortened,
)

_AT_ONCE = 4  # Files that are read at a time.
# What changes with a file's content, among what file systems say of it.
_STAMPS = ('size', 'etag', 'ETag', 'md5Hash', 'crc32c', 'checksum',
           'generation', 'VersionId', 'ino', 'mtime', 'created', 'updated',
           'modified', 'LastModified', 'last_modified', 'modification_time')


@dataclasses.dataclass(frozen=True)
class Found:
  """A file that was found.

  Attributes:
    name: for people, relative if what was given is.
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


def join(folder: str, name: str) -> str:
  return f'{folder.rstrip("/")}/{name}'


def opened(path: str) -> tuple[Any, str, bool]:
  """(file system of fsspec, the path in it, whether it is this machine's).

  Raises:
    UserError: fsspec is missing, or what it needs for this protocol; or there
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
def _user_errors(path: str, what: str) -> Iterator[None]:
  """Makes a UserError of whatever a file system raises."""
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
  with _user_errors(given, 'read'):
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
      advice = ('no file has such a name; quote the pattern, and give ** for '
                'folders of any depth')
    found = [_found(given, system, info) for info in infos
             if info['type'] != 'directory']
  if not found:
    raise UserError(f'{given}: {advice}')
  return sorted(found, key=lambda file: file.name)


def _found(given: str, system: Any, info: dict[str, Any]) -> Found:
  if info.get('islink'):  # Else a change behind the link would not be seen.
    with contextlib.suppress(OSError):
      info = {**system.info(os.path.realpath(info['name'])),
              'name': info['name']}
  stamp = ' '.join(f'{name}={info[name]}' for name in _STAMPS
                   if info.get(name) is not None)
  if is_url(given):
    url = system.unstrip_protocol(info['name'])
    return Found(url, url, stamp)
  path = info['name']
  is_absolute = os.path.isabs(os.path.expanduser(given))
  return Found(path if is_absolute else os.path.relpath(path), path, stamp)


def local_copies(
    found_files: Iterable[Found]) -> Iterator[tuple[Found, str, str]]:
  """(file, path on this machine, why there is none), in order.

  Files of elsewhere are copied, a few ahead of use, and a copy goes when the
  next file is asked for.
  """
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    for (_, file), copy in ahead(lambda numbered: _local(*numbered, folder),
                                 enumerate(found_files)):
      try:
        path, fault = copy.result(), ''
      except UserError as error:
        path, fault = '', str(error)
      yield file, path, fault
      if path.startswith(folder):
        os.remove(path)


def _local(number: int, file: Found, folder: str) -> str:
  system, path, is_local = opened(file.path)
  if is_local:
    return path
  # Two files of different folders may have one name.
  copy = os.path.join(folder, str(number), posixpath.basename(path))
  os.mkdir(os.path.dirname(copy))
  with _user_errors(file.name, 'read'):
    system.get_file(path, copy)
  return copy


def ahead(function: Callable[[Any], Any],
          items: Iterable[Any]) -> Iterator[tuple[Any, Future]]:
  """(item, its result to come), in order, a few at a time and ahead of use."""
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    waiting, rest = collections.deque(), iter(items)
    while True:
      for item in itertools.islice(rest, 2 * _AT_ONCE - len(waiting)):
        waiting.append((item, pool.submit(function, item)))
      if not waiting:
        return
      yield waiting.popleft()


def read(path: str, size: int = -1) -> bytes:
  """The content of a file, or its first bytes; none if there is no file.

  Raises:
    UserError: it cannot be read.
  """
  system, inner, _ = opened(path)
  with _user_errors(path, 'read'):
    try:
      with system.open(inner, 'rb') as file:
        return file.read(size)
    except FileNotFoundError:
      return b''


def names_in(folder: str) -> list[str]:
  """Sorted names of what is in a folder; none if there is no folder."""
  system, inner, _ = opened(folder)
  system.invalidate_cache()
  with _user_errors(folder, 'read'):
    try:
      listed = system.ls(inner, detail=False)
    except FileNotFoundError:
      return []
  return sorted(posixpath.basename(name.rstrip('/')) for name in listed)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
  """A file to fill, which then replaces what has its name.

  Elsewhere than on this machine it is uploaded then.

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
    with _user_errors(path, 'written'):
      system.makedirs(posixpath.dirname(inner), exist_ok=True)
      system.put_file(file.name, inner)


def remove(folder: str, names: Iterable[str]) -> None:
  """Removes files of a folder, and the folder if it is empty then."""
  system, inner, _ = opened(folder)
  paths = [join(inner, name) for name in names]
  with _user_errors(folder, 'written'):
    if paths:
      system.rm(paths)
    with contextlib.suppress(Exception):  # Of buckets that have no folders.
      system.rmdir(inner)
