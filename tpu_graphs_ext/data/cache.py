"""Arrays of input files kept on disk between runs, mapped into memory.

A cache entry is a folder `<cache_dir>/<key>/` with one raw file an array, and
`meta.json` with their shapes and a checksum of each block. The key is a hash
of the input files' *content*, so a changed, added or removed file makes
another entry, and a moved or renamed folder finds its own again. An entry
appears under its name only when complete; two processes that build the same
one at once end up sharing the first. A damaged entry is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz
from tpu_graphs_ext.data.kernel import Kernel, tile_id_of, unreadable
from tpu_graphs_ext.data.partition import (
  AXES,
  FLAT_ARRAYS,
  Partition,
  readable,
)
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext cache 4'
META_FILE = 'meta.json'
BLOCK_BYTES = 1 << 20  # With a checksum of its own; fits a processor's cache.

_log = logging.getLogger(__name__)
_T = TypeVar('_T')


def content_key(paths: list[str], salt: str = FORMAT) -> str:
  """Hash over name, size and the checksums of all arrays of each file.

  A .npz is a zip archive, whose directory at the end holds the CRC-32 of
  each array: the content is known without decompressing it.

  Raises:
    UserError: a file is not a zip archive.
  """
  digest = hashlib.sha256(salt.encode())
  for path in paths:
    try:
      with npz.opened(path) as archive:
        members = [(member.filename, member.file_size, member.CRC)
                   for member in archive.infolist()]
    except npz.DamagedError as error:
      raise unreadable(path, error) from error
    digest.update(repr((os.path.basename(path), members)).encode())
  return digest.hexdigest()[:32]


def open_or_build(entry: str, names: Iterable[str],
                  build: Callable[[str], None],
                  read: Callable[[Entry], _T]) -> _T:
  """What `read` makes of an entry, built first if missing or damaged.

  Args:
    entry: its folder, which need not be there.
    names: its files, besides `META_FILE`; others keep it from being built.
    build: fills a folder by `write`.
    read: raises OSError, ValueError, KeyError, TypeError or UserError where
      the entry is damaged.

  Raises:
    UserError: a source file is damaged, the cache cannot be written, or the
      entry holds files of somebody else.
  """
  if os.path.isdir(entry):
    try:
      return read(Entry(entry))
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
      _log.warning('%s: the cache is damaged (%s) and will be built again',
                   entry, str(error))
    others = sorted(set(os.listdir(entry)) - {META_FILE, *names})
    if others or os.path.islink(entry):
      raise UserError(
          f'{entry}: a cache entry goes there, but it holds '
          f'{(others or ["a link"])[0]!r}, which does not belong to one; move '
          'it away, or name another --cache_dir')
    shutil.rmtree(entry, ignore_errors=True)
  try:
    with files.new_folder(entry, replace=False) as temporary:
      build(temporary)
    return read(Entry(entry))
  except (OSError, ValueError) as error:
    raise UserError(
        f'{os.path.dirname(entry)}: the cache cannot be written ({error}); '
        'free some space, name another --cache_dir, or give an empty one to '
        'do without a cache') from error


@contextlib.contextmanager
def write(entry: str, names: Iterable[str], **more: Any) -> Iterator[
    dict[str, Writer]]:
  """Writers of the arrays of an entry, an empty folder; then its `META_FILE`.

  `more` also goes into that; it may change in the `with` block.
  """
  with contextlib.ExitStack() as stack:
    writers = {name: Writer(stack.enter_context(
        open(os.path.join(entry, name), 'wb'))) for name in names}
    yield writers
  text = json.dumps({**more, 'arrays': {
      name: {'shape': [writer.rows, *writer.row_shape],
             'crc32s': writer.crc32s} for name, writer in writers.items()}})
  with open(os.path.join(entry, META_FILE), 'w', encoding='utf-8') as file:
    json.dump({'crc32': zlib.crc32(text.encode()), 'meta': text}, file)


class Writer:
  """Appends rows to one array, and keeps a checksum of each block."""

  def __init__(self, file: Any):
    self._file, self._size = file, 0
    self.rows, self.row_shape, self.crc32s = 0, (), []

  def append(self, array: np.ndarray, dtype: Any) -> None:
    array = np.ascontiguousarray(array, dtype)
    self.rows, self.row_shape = self.rows + len(array), array.shape[1:]
    content = memoryview(array.reshape(-1).view(np.uint8))
    while content:
      part = content[:BLOCK_BYTES - self._size % BLOCK_BYTES]
      if self._size % BLOCK_BYTES == 0:
        self.crc32s.append(0)
      self.crc32s[-1] = zlib.crc32(part, self.crc32s[-1])
      self._size += self._file.write(part)
      content = content[len(part):]


class Entry:
  """An entry that is there.

  Raises:
    OSError, ValueError, KeyError, TypeError, UserError: it is damaged.
  """

  def __init__(self, folder: str):
    self.folder = folder
    with files.open_ordinary(os.path.join(folder, META_FILE)) as file:
      stored = files.parse_json(file.read(), META_FILE)
    text = stored['meta'] if isinstance(stored['meta'], str) else ''
    if stored['crc32'] != zlib.crc32(text.encode()):
      raise ValueError(f'{META_FILE} does not have its checksum')
    self.meta = files.parse_json(text, META_FILE)

  def mapped(self, name: str, dtype: Any) -> tuple[
      np.ndarray, Callable[[int, int], None]]:
    """An array on disk, and what checks a range of its bytes when called."""
    stored, path = self.meta['arrays'][name], os.path.join(self.folder, name)
    shape, crc32s = stored['shape'], stored['crc32s']
    size = os.path.getsize(path)
    if not all(type(length) is int and length >= 0 for length in shape) or (
        math.prod(shape) * np.dtype(dtype).itemsize != size) or (
            len(crc32s) != -(-size // BLOCK_BYTES)):
      raise ValueError(f'{name} has {size} bytes')
    raw = np.memmap(path, np.uint8, 'r') if size else np.zeros(0, np.uint8)
    array = raw.view(dtype).reshape(shape)
    array.setflags(write=False)
    checked = set()

    def check(start: int, stop: int) -> None:
      for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
        first = block * BLOCK_BYTES
        if block not in checked and crc32s[block] != zlib.crc32(
            raw[first:first + BLOCK_BYTES]):
          raise ValueError(f'{name} does not have its checksum')
        checked.add(block)

    return array, check

  def array(self, name: str, dtype: Any) -> np.ndarray:
    """The same, checked as a whole."""
    array, check = self.mapped(name, dtype)
    check(0, array.nbytes)
    return array


# -------------------------------------------------------------------- kernels

_COUNTS = ['num_' + axis for axis in AXES]


def open_files(paths: list[str], cache_dir: str | None = None) -> Partition:
  """The kernels in these files, in this order.

  Args:
    paths: at least one .npz file, all of one folder.
    cache_dir: folder of the cache, made if missing; None reads every file
      into memory.

  Raises:
    UserError: a file is damaged, or the cache cannot be written.
  """
  folder = os.path.dirname(paths[0])
  loaded = map(Kernel.load, tqdm.tqdm(
      paths, desc=os.path.basename(folder), unit='kernel', disable=None))
  if not cache_dir:
    return Partition.from_kernels(loaded, folder)
  return open_or_build(
      os.path.join(cache_dir, content_key(paths)), (*FLAT_ARRAYS, *_COUNTS),
      lambda entry: _build(readable(loaded, folder), entry),
      lambda entry: _read(entry, [tile_id_of(path) for path in paths]))


def _build(kernels: Iterable[Kernel], entry: str) -> None:
  """Copies kernels, of which one at a time is in memory."""
  with write(entry, (*FLAT_ARRAYS, *_COUNTS)) as writers:
    for kernel in kernels:
      for name, field in FLAT_ARRAYS.items():
        writers[name].append(getattr(kernel, name), field.dtype)
      for name in _COUNTS:
        writers[name].append(np.array([getattr(kernel, name)]), np.int64)


def _read(entry: Entry, tile_ids: list[str]) -> Partition:
  arrays = {name: entry.array(name, field.dtype)
            for name, field in FLAT_ARRAYS.items()}
  counts = {axis: entry.array('num_' + axis, np.int64) for axis in AXES}
  for name, field in FLAT_ARRAYS.items():
    number = counts[field.axes[0]]
    if (number.shape != (len(tile_ids),) or number.sum() != len(arrays[name])
        or arrays[name].ndim != len(field.axes)):
      raise ValueError(f'{name} has the shape {arrays[name].shape}')
  return Partition.of_flat(tile_ids, counts, arrays)
