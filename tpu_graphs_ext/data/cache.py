"""Many .npz files as one partition, kept on disk as raw arrays between runs.

A cache entry is a folder `<cache_dir>/<key>/` with one raw file an array and
`meta.json`; opening it checks the files and maps them into memory, and copies
nothing. The key is a hash of the kernels' *content*, so a changed, added or
removed file makes another entry, and a moved or renamed folder finds its own
again. An entry appears under its name only when complete; two processes that
build the same one at once end up sharing the first. What does not have its
checksum, or breaks a rule that the .npz files have to keep, is built again.
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
from collections.abc import Iterable
from typing import BinaryIO

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


def open_files(paths: list[str], cache_dir: str | None = None) -> Partition:
  """The kernels of these files, in this order.

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
  entry = os.path.join(cache_dir, content_key(paths))
  tile_ids = [tile_id_of(path) for path in paths]
  cached = _open_entry(entry, tile_ids)
  if cached is None:
    remove_damaged(entry, FLAT_ARRAYS)
    try:
      _build_entry(paths, entry)
    except OSError as error:
      raise UserError(
          f'{cache_dir}: the cache cannot be written ({error}); free some '
          'space, name another --cache_dir, or give an empty one to read '
          'without a cache') from error
    cached = _open_entry(entry, tile_ids)
    if cached is None:
      raise UserError(f'{entry}: was written but cannot be read back; check '
                      'the disk, or name another --cache_dir')
  return cached


def remove_damaged(entry: str, names: Iterable[str]) -> None:
  """Removes an entry's own files; others keep it from being built.

  Args:
    entry: its folder, which need not be there.
    names: of its files, besides `META_FILE`.

  Raises:
    UserError: there are others.
  """
  if not os.path.isdir(entry):
    return
  others = sorted(set(os.listdir(entry)) - {META_FILE, *names})
  if others or os.path.islink(entry):
    raise UserError(
        f'{entry}: a cache entry goes there, but it holds '
        f'{(others or ["a link"])[0]!r}, which is no part of one; move it '
        'away, or name another --cache_dir')
  shutil.rmtree(entry, ignore_errors=True)


def content_key(paths: list[str], salt: str | None = None) -> str:
  """Hash over name, size and the checksums of all arrays of each file.

  Args:
    paths: the files.
    salt: also in the hash; the format of the cache if None.

  A .npz is a zip archive, whose directory at the end holds the CRC-32 of
  each array: the content is known without decompressing it.

  Raises:
    UserError: a file is no zip archive.
  """
  digest = hashlib.sha256((FORMAT if salt is None else salt).encode())
  for path in paths:
    try:
      with npz.opened(path) as archive:
        members = [(member.filename, member.file_size, member.CRC)
                   for member in archive.infolist()]
    except npz.DamagedError as error:
      raise unreadable(path, error) from error
    digest.update(repr((os.path.basename(path), members)).encode())
  return digest.hexdigest()[:32]


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


def _open_entry(entry: str, tile_ids: list[str]) -> Partition | None:
  """Checks an entry and maps it into memory; None if missing or damaged."""
  if not os.path.isdir(entry):
    return None
  try:
    meta = read_meta(os.path.join(entry, META_FILE))
    _require_sizes(meta)
    if meta['tile_ids'] != tile_ids:
      raise ValueError(f'{META_FILE} names other kernels')
    buffers = {}
    for name in FLAT_ARRAYS:
      path = os.path.join(entry, name)
      _check_file(path, name, meta)
      # An empty file cannot be mapped (a split may have no edges).
      buffers[name] = (np.memmap(path, np.uint8, 'r')
                       if os.path.getsize(path) else b'')
    partition = _partition(meta, buffers)
    _check_counts(partition)
    return partition
  except (OSError, ValueError, KeyError, TypeError, UserError) as error:
    _log.warning('%s: the cache is damaged (%s) and will be built again',
                 entry, str(error))
    return None


def read_meta(path: str) -> dict:
  """What `meta.json` holds, where its own checksum is right.

  Raises:
    OSError, ValueError, KeyError, TypeError, UserError: it is damaged.
  """
  with files.open_ordinary(path) as file:
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
  for axis, sizes in rows.items():
    if len(sizes) != len(meta['tile_ids']):
      raise ValueError(f'{META_FILE}: {axis} are not of as many kernels')


def _check_file(path: str, name: str, meta: dict) -> None:
  """Reads an array once: its checksum, and the rules of its values.

  Block by block, so that the values are looked at while they are in the
  processor's cache and the process does not grow.

  Raises:
    ValueError: the file does not hold what was written, or never could have.
  """
  field = FLAT_ARRAYS[name]
  value_rules = [rule for _, needed, rule in rules.READ_RULES
                 if needed == (STORED_NAMES[name],)]
  row = np.dtype(field.dtype).itemsize * math.prod(meta['widths'][name])
  crc32, block = 0, bytearray(max(1, BLOCK_BYTES // row) * row)
  with open(path, 'rb') as file:
    while size := file.readinto(block):
      view = memoryview(block)[:size]
      crc32 = zlib.crc32(view, crc32)
      rows = np.frombuffer(view, field.dtype).reshape(
          -1, *meta['widths'][name])
      for rule in value_rules:
        for fault in rule({STORED_NAMES[name]: rows}):
          raise ValueError(f'{name} {fault}')
  if crc32 != meta['crc32'][name]:
    raise ValueError(f'{name} does not have its checksum')


def _check_counts(partition: Partition) -> None:
  """Every kernel has nodes and configurations, and edges between its nodes.

  Raises:
    ValueError: one has not.
  """
  if not len(partition) or min(
      partition.num_nodes.min(), partition.num_configs.min()) < 1:
    raise ValueError('there is a kernel without nodes or configurations')
  nodes = np.repeat(partition.num_nodes, partition.num_edges)[:, np.newaxis]
  edges = partition.edge_index
  if ((edges < 0) | (edges >= nodes)).any():
    raise ValueError('edge_index names nodes that are not there')


def _build_entry(paths: list[str], entry: str) -> None:
  """Writes a cache entry under a temporary name, then gives it its name."""
  with files.new_folder(entry, replace=False) as temporary:
    with contextlib.ExitStack() as stack:
      sinks = {name: _Sink(stack.enter_context(
          open(os.path.join(temporary, name), 'wb'))) for name in FLAT_ARRAYS}
      meta = _stream(paths, sinks)
    meta['crc32'] = {name: sink.crc32 for name, sink in sinks.items()}
    write_meta(temporary, meta)


class _Sink:
  """A file that knows the checksum of what was written to it."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.crc32 = 0

  def write(self, content) -> None:
    self.crc32 = zlib.crc32(content, self.crc32)
    self._file.write(content)
