"""Files kept on disk as raw arrays between runs, and many kernels as one entry.

A cache entry is a folder `<cache_dir>/<key>/` with one raw file an array and
`meta.json`; opening it checks the files and maps them into memory, and copies
nothing. The key is a hash of the files' *content*, so a changed, added or
removed file makes another entry, and a moved or renamed folder finds its own
again. An entry appears under its name only when complete; two processes that
build the same one at once end up sharing the first. An entry whose checksum
is wrong, or which breaks a rule that the .npz files must keep, is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from typing import BinaryIO, TypeVar

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz, rules
from tpu_graphs_ext.data.kernel import (
  STORED_NAMES,
  Kernel,
  tile_id_of,
  unreadable,
)
from tpu_graphs_ext.data.partition import (
  AXES,
  FLAT_ARRAYS,
  Partition,
  require_readable,
  require_same_widths,
)
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext tile cache 3'
META_FILE = 'meta.json'
BLOCK_BYTES = 1 << 20  # Read at once by a check; fits a processor's cache.
# Of a kernel, and of a row: more than any has.
_MOST_ROWS, _MOST_COLUMNS = 1 << 31, 1 << 16

_log = logging.getLogger(__name__)
_T = TypeVar('_T')


# ------------------------------------------------------------ any cache entry


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
                  read: Callable[[str], _T]) -> _T:
  """What `read` makes of an entry, built first if missing or damaged.

  Args:
    entry: its folder, which need not be there.
    names: its files, besides `META_FILE`; others keep it from being built.
    build: fills a folder.
    read: reads the folder; raises OSError, ValueError, KeyError, TypeError or
      UserError where it is damaged.

  Raises:
    UserError: a source file is damaged, the cache cannot be written, or the
      entry holds files of somebody else.
  """
  for is_new in (False, True):
    try:
      if os.path.isdir(entry):
        return read(entry)
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
      if not is_new:
        _log.warning('%s: the cache is damaged (%s) and will be built again',
                     entry, str(error))
    if is_new:
      break
    _remove(entry, names)
    try:
      with files.new_folder(entry, replace=False) as temporary:
        build(temporary)
    except OSError as error:
      raise UserError(
          f'{os.path.dirname(entry)}: the cache cannot be written ({error}); '
          'free some space, name another --cache_dir, or give an empty one to '
          'do without a cache') from error
  raise UserError(f'{entry}: was written but cannot be read back; check the '
                  'disk, or name another --cache_dir')


def _remove(entry: str, names: Iterable[str]) -> None:
  if not os.path.isdir(entry):
    return
  others = sorted(set(os.listdir(entry)) - {META_FILE, *names})
  if others or os.path.islink(entry):
    raise UserError(
        f'{entry}: a cache entry goes there, but it holds '
        f'{(others or ["a link"])[0]!r}, which does not belong to one; move '
        'it away, or name another --cache_dir')
  shutil.rmtree(entry, ignore_errors=True)


def read_meta(entry: str) -> dict:
  """The content of `META_FILE`, if its own checksum is right.

  Raises:
    OSError, ValueError, KeyError, TypeError, UserError: it is damaged.
  """
  with files.open_ordinary(os.path.join(entry, META_FILE)) as file:
    stored = files.parse_json(file.read(), META_FILE)
  text = stored['meta'] if isinstance(stored['meta'], str) else ''
  if stored['crc32'] != zlib.crc32(text.encode()):
    raise ValueError(f'{META_FILE} does not have its checksum')
  return files.parse_json(text, META_FILE)


def write_meta(entry: str, meta: dict) -> None:
  """Writes `META_FILE` of an entry, with its own checksum."""
  text = json.dumps(meta)
  with open(os.path.join(entry, META_FILE), 'w', encoding='utf-8') as file:
    json.dump({'crc32': zlib.crc32(text.encode()), 'meta': text}, file)


def mapped(path: str) -> np.ndarray:
  """uint8 [bytes] of a file, which stays on disk; an empty one has no map."""
  return (np.memmap(path, np.uint8, 'r') if os.path.getsize(path)
          else np.zeros(0, np.uint8))


# -------------------------------------------------------------------- kernels


def open_files(paths: list[str], cache_dir: str | None = None) -> Partition:
  """The kernels in these files, in this order.

  Args:
    paths: at least one .npz file.
    cache_dir: folder of the cache, made if missing; None reads every file
      into memory.

  Raises:
    UserError: a file is damaged, or the cache cannot be written.
  """
  if not cache_dir:
    buffers = {name: io.BytesIO() for name in FLAT_ARRAYS}
    meta = _stream(paths, buffers)
    return _partition(meta, {
        name: buffer.getbuffer() for name, buffer in buffers.items()})
  tile_ids = [tile_id_of(path) for path in paths]
  return open_or_build(
      os.path.join(cache_dir, content_key(paths)), FLAT_ARRAYS,
      lambda folder: _build(paths, folder),
      lambda entry: _read(entry, tile_ids))


def _stream(paths: list[str], sinks: dict[str, BinaryIO]) -> dict:
  """Appends each file's arrays to the sinks; returns what `meta.json` holds.

  Only one kernel at a time is in memory.
  """
  counts = {axis: [] for axis in AXES}
  tile_ids = []
  first = None
  split = os.path.basename(os.path.dirname(paths[0]))
  for path in tqdm.tqdm(paths, desc=split, unit='kernel', disable=None):
    kernel = Kernel.load(path)
    require_readable(kernel, path)
    first = first or kernel
    require_same_widths(kernel, first, path)
    for name, field in FLAT_ARRAYS.items():
      array = np.ascontiguousarray(getattr(kernel, name), field.dtype)
      sinks[name].write(array.data if array.size else b'')
    for axis in AXES:
      counts[axis].append(getattr(kernel, 'num_' + axis))
    tile_ids.append(kernel.tile_id)
  return {
      'format': FORMAT, 'tile_ids': tile_ids, 'counts': counts,
      'widths': {name: getattr(first, name).shape[1:] for name in FLAT_ARRAYS},
  }


class _Sink:
  """A file that knows the checksum of what was written to it."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.crc32 = 0

  def write(self, content) -> None:
    self.crc32 = zlib.crc32(content, self.crc32)
    self._file.write(content)


def _build(paths: list[str], folder: str) -> None:
  with contextlib.ExitStack() as stack:
    sinks = {name: _Sink(stack.enter_context(
        open(os.path.join(folder, name), 'wb'))) for name in FLAT_ARRAYS}
    meta = _stream(paths, sinks)
  meta['crc32'] = {name: sink.crc32 for name, sink in sinks.items()}
  write_meta(folder, meta)


def _partition(meta: dict, buffers: dict[str, BinaryIO]) -> Partition:
  """Lays the arrays of `meta` over raw bytes.

  Raises:
    ValueError: the bytes are more or fewer than `meta` says.
  """
  arrays = {}
  for name, field in FLAT_ARRAYS.items():
    shape = (sum(meta['counts'][field.axes[0]]), *meta['widths'][name])
    array = np.frombuffer(buffers[name], field.dtype).reshape(shape)
    array.setflags(write=False)
    arrays[name] = array
  return Partition.of_flat(meta['tile_ids'], meta['counts'], arrays)


def _read(entry: str, tile_ids: list[str]) -> Partition:
  """Checks an entry and maps it into memory; see `open_or_build`."""
  meta = read_meta(entry)
  _require_sizes(meta)
  if meta['tile_ids'] != tile_ids:
    raise ValueError(f'{META_FILE} names other kernels')
  buffers = {}
  for name in FLAT_ARRAYS:
    path = os.path.join(entry, name)
    _check_file(path, name, meta)
    buffers[name] = mapped(path)
  partition = _partition(meta, buffers)
  if not len(partition) or min(
      partition.num_nodes.min(), partition.num_configs.min()) < 1:
    raise ValueError('there is a kernel without nodes or configurations')
  nodes = np.repeat(partition.num_nodes, partition.num_edges)[:, np.newaxis]
  if ((partition.edge_index < 0) | (partition.edge_index >= nodes)).any():
    raise ValueError('edge_index names nodes that are not there')
  return partition


def _require_sizes(meta: dict) -> None:
  """Raises a ValueError unless its numbers can be sizes of arrays."""
  columns = {name: meta['widths'][name] for name in FLAT_ARRAYS}
  rows = {axis: meta['counts'][axis] for axis in AXES}
  for name, sizes in {**columns, **rows}.items():
    if not isinstance(sizes, list) or not all(
        type(size) is int and 0 <= size <= _MOST_ROWS for size in sizes):
      raise ValueError(f'{META_FILE}: {name} has no list of sizes')
  for name, sizes in columns.items():
    if not 1 <= math.prod(sizes) <= _MOST_COLUMNS:
      raise ValueError(f'{META_FILE}: {name} has rows of {sizes} numbers')
  if {len(sizes) for sizes in rows.values()} != {len(meta['tile_ids'])}:
    raise ValueError(f'{META_FILE}: sizes and kernels differ in number')


def _check_file(path: str, name: str, meta: dict) -> None:
  """Reads an array once: its checksum, and the rules for its values.

  Block by block, so that the values are checked while they are in the
  processor's cache and the process does not grow.

  Raises:
    ValueError: the file does not hold what was written, or never could have.
  """
  field, key = FLAT_ARRAYS[name], STORED_NAMES[name]
  value_rules = [rule for _, needed, rule in rules.TILE.read_rules
                 if needed == (key,)]
  width = meta['widths'][name]
  row = np.dtype(field.dtype).itemsize * math.prod(width)
  crc32, block = 0, bytearray(max(1, BLOCK_BYTES // row) * row)
  with open(path, 'rb') as file:
    while size := file.readinto(block):
      view = memoryview(block)[:size]
      crc32 = zlib.crc32(view, crc32)
      rows = np.frombuffer(view, field.dtype).reshape(-1, *width)
      for rule in value_rules:
        for fault in rule({key: rows}):
          raise ValueError(f'{name} {fault}')
  if crc32 != meta['crc32'][name]:
    raise ValueError(f'{name} does not have its checksum')
