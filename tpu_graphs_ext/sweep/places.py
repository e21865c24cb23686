"""Files on this machine's disks by their paths, and elsewhere by URLs.

A URL (gs://, s3://, hdfs://, memory://, file://) is given to fsspec, the extra
[scale], and that to the package of its protocol (gcsfs, s3fs, pyarrow). Paths
need neither. What is written is whole or absent in both.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import itertools
import os
import posixpath
import secrets
import shutil
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

_MAGIC = '*?['
_AT_ONCE = 4  # Files that are read at a time.
# Of what fsspec says of a file: what changes when the content does.
_STAMPS = ('size', 'etag', 'ETag', 'md5Hash', 'crc32c', 'checksum',
           'generation', 'VersionId', 'ino', 'mtime', 'created', 'updated',
           'modified', 'LastModified', 'last_modified', 'modification_time')


@dataclasses.dataclass(frozen=True)
class Found:
  """A file that was found.

  Attributes:
    name: as it follows from what was given, for people.
    path: absolute path or URL, by which any process opens it.
    stamp: a text that is another one when the file has changed; 'missing'
      where it went away.
  """
  name: str
  path: str
  stamp: str


def is_url(path: str) -> bool:
  return '://' in path


def full(path: str) -> str:
  """The absolute path, or the URL as it is."""
  return path if is_url(path) else files.full_path(path)


# ------------------------------------------------------------- finding


def find(given: str, endings: tuple[str, ...]) -> list[Found]:
  """Files of a folder, of a pattern, or one file; sorted by their names.

  Args:
    given: path or URL of a folder or a file, or a pattern with `*`, `?` or
      `[...]`, and `**` for folders of any depth.
    endings: of a folder, only files with one of these, and none of the folders
      in it. Not looked at of a file or a pattern.

  Raises:
    UserError: there is none.
  """
  found = (_find_url if is_url(given) else _find_path)(given, endings)
  if not found:
    raise UserError(
        f'{given}: has no file that ends with {" or ".join(endings)}; name '
        'others by a pattern, as in "DIR/*.txt"' if not _is_pattern(given) else
        f'{given}: no file has such a name; quote the pattern, and give ** for '
        'folders of any depth')
  return sorted(found, key=lambda file: file.name)


def _is_pattern(given: str) -> bool:
  return any(sign in given for sign in _MAGIC)


def _find_path(given: str, endings: tuple[str, ...]) -> list[Found]:
  full_path = os.path.expanduser(given)
  if os.path.isdir(full_path):
    try:
      with os.scandir(full_path) as entries:
        return [_found(os.path.join(full_path, entry.name), entry)
                for entry in entries if entry.name.endswith(endings)]
    except OSError as error:
      raise files.cannot_be_read(given, error) from error
  if os.path.exists(full_path):
    return [_found(full_path)]
  if not _is_pattern(given):
    raise UserError(f'{given}: no such file or folder')
  return [_found(path) for path in glob.iglob(full_path, recursive=True)
          if not os.path.isdir(path)]


def _found(path: str, entry: Any = None) -> Found:
  try:
    status = entry.stat() if entry else os.stat(path)
    # The time of the inode tells of a change whose file time was set back.
    stamp = f'{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}'
  except OSError:
    stamp = 'missing'
  return Found(path, os.path.abspath(path), stamp)


def _find_url(given: str, endings: tuple[str, ...]) -> list[Found]:
  system, path = _opened(given)
  with _told_of(given, 'read'):
    if _is_pattern(given):
      details = system.glob(path, detail=True)
    elif system.isdir(path):
      listed = system.ls(path, detail=True, refresh=True)
      details = {info['name']: info for info in listed
                 if info['name'].endswith(endings)}
    elif system.exists(path):
      details = {path: system.info(path)}
    else:
      raise UserError(f'{given}: no such file or folder')
  return [Found(url, url, _stamp_of(info)) for url, info in (
      (system.unstrip_protocol(name), info) for name, info in details.items()
      if info['type'] != 'directory')]


def _stamp_of(info: dict[str, Any]) -> str:
  return ' '.join(f'{name}={info[name]}' for name in _STAMPS
                  if info.get(name) is not None)


# ------------------------------------------------------------- reading


def local_copies(
    found_files: Iterable[Found]) -> Iterator[tuple[Found, str, str]]:
  """(file, path on this machine, why there is none), in order.

  Files of URLs are copied, a few ahead of use, and a copy goes when the next
  file is asked for.
  """
  with tempfile.TemporaryDirectory(prefix='tpu_graphs_ext') as folder:
    for file, copy in ahead(lambda file: _local(file, folder), found_files):
      try:
        path, fault = copy.result(), ''
      except UserError as error:
        path, fault = '', str(error)
      yield file, path, fault
      if path and is_url(file.path):
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


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


def _local(file: Found, folder: str) -> str:
  if not is_url(file.path):
    return file.path
  own = os.path.join(folder, secrets.token_hex(4))
  path = os.path.join(own, posixpath.basename(file.path))
  os.mkdir(own)
  system, place = _opened(file.path)
  with _told_of(file.name, 'read'):
    system.get_file(place, path)
  return path


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
  """A file, opened.

  Raises:
    UserError: it cannot be read.
  """
  with _told_of(path, 'read'):
    if is_url(path):
      system, place = _opened(path)
      file = system.open(place, 'rb')
    else:
      file = files.open_ordinary(path)
  with file:
    yield file


def start_of(url: str, size: int) -> bytes:
  """The first bytes of a file; none where there is no file.

  Raises:
    UserError: nothing can read and write such URLs.
  """
  system, place = _opened(url)
  with _told_of(url, 'read'):
    try:
      with system.open(place, 'rb') as file:
        return file.read(size)
    except FileNotFoundError:
      return b''


def names_in(folder: str) -> set[str]:
  """Names of what is in a folder; none where there is no folder."""
  if not is_url(folder):
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()
  system, place = _opened(folder)
  system.invalidate_cache()
  with _told_of(folder, 'read'):
    try:
      listed = system.ls(place, detail=False)
    except FileNotFoundError:
      return set()
  return {posixpath.basename(name.rstrip('/')) for name in listed}


def join(folder: str, name: str) -> str:
  return f'{folder.rstrip("/")}/{name}' if is_url(folder) else os.path.join(
      folder, name)


# ------------------------------------------------------------- writing


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
  """A file to fill, which then replaces what has its name.

  Raises:
    UserError: it cannot be written.
  """
  if not is_url(path):
    with files.new_file(path) as file:
      yield file
    return
  system, place = _opened(path)
  temporary = f'{place}.{secrets.token_hex(4)}{files.TEMPORARY}'
  with _told_of(path, 'written'):
    system.makedirs(posixpath.dirname(place), exist_ok=True)
    file = system.open(temporary, 'wb')
  try:
    yield file
    with _told_of(path, 'written'):
      file.close()
      _move(system, temporary, place)
  except BaseException:
    with contextlib.suppress(Exception):
      file.close()
    with contextlib.suppress(Exception):
      system.rm_file(temporary)
    raise


def _move(system: Any, temporary: str, place: str) -> None:
  try:
    system.mv(temporary, place)
  except Exception:  # HDFS does not replace files.
    if not system.exists(place) or not system.exists(temporary):
      raise
    system.rm_file(place)
    system.mv(temporary, place)


def remove(folder: str, names: Iterable[str]) -> None:
  """Removes files of a folder, and the folder if it is empty then."""
  if not is_url(folder):
    for name in names:
      with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):
      os.rmdir(folder)
    return
  system, place = _opened(folder)
  paths = [posixpath.join(place, name) for name in names]
  with _told_of(folder, 'written'):
    if paths:
      system.rm(paths)
    with contextlib.suppress(Exception):  # Of buckets that have no folders.
      system.rmdir(place)


# ------------------------------------------------------------- fsspec


def _opened(url: str) -> tuple[Any, str]:
  """(file system, the place in it).

  Raises:
    UserError: fsspec is missing, or what it needs for this protocol; or there
      is no such protocol.
  """
  try:
    import fsspec
  except ImportError as error:
    raise UserError(f'{url}: a URL needs fsspec, which is not installed; '
                    f'{how_to_install("scale")}') from error
  try:
    return fsspec.core.url_to_fs(url)
  except ImportError as error:  # Names the package, such as gcsfs.
    raise UserError(f'{url}: {reason_of(error)}; install that package too'
                    ) from error
  except ValueError as error:
    known = sorted(fsspec.available_protocols())
    raise UserError(f'{url}: {reason_of(error)}; fsspec knows '
                    f'{shortened(known, 100)}') from error


@contextlib.contextmanager
def _told_of(path: str, what: str) -> Iterator[None]:
  """Tells whatever a file system raises as a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:  # Each package has errors of its own.
    raise UserError(f'{path}: cannot be {what} '
                    f'({type(error).__name__}: {reason_of(error)})') from error
