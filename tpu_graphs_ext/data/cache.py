"""Many .npz files as one partition, kept on disk as raw arrays between runs.

A cache entry is a folder `<cache_dir>/<key>/` with one raw file an array and
`meta.json`; opening it maps the files into memory and copies nothing. The key
is a hash of the kernels' *content*, so a changed, added or removed file makes
another entry, and a moved or renamed folder finds its own again. An entry
appears under its name only when complete; two processes that build the same
one at once end up sharing the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import zipfile
from typing import BinaryIO

import numpy as np
import tqdm

from tpu_graphs_ext.data import kernel as kernel_lib
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import (
  AXES,
  FLAT_ARRAYS,
  Partition,
  require_readable,
  require_same_widths,
)
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext tile cache 1'
META_FILE = 'meta.json'

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
  cached = _open_entry(entry)
  if cached is None:
    try:
      _build_entry(paths, entry)
    except OSError as error:
      raise UserError(
          f'{cache_dir}: the cache cannot be written ({error}); free some '
          'space, name another --cache_dir, or give an empty one to read '
          'without a cache') from error
    cached = _open_entry(entry)
    if cached is None:
      raise UserError(f'{entry}: was written but cannot be read back; check '
                      'the disk, or name another --cache_dir')
  return cached


def content_key(paths: list[str]) -> str:
  """Hash over name, size and the checksums of all arrays of each file.

  A .npz is a zip archive, whose directory at the end holds the CRC-32 of
  each array: the content is known without decompressing it.

  Raises:
    UserError: a file is no zip archive.
  """
  digest = hashlib.sha256(FORMAT.encode())
  for path in paths:
    try:
      with zipfile.ZipFile(path) as archive:
        members = [(member.filename, member.file_size, member.CRC)
                   for member in archive.infolist()]
    except kernel_lib.READ_ERRORS as error:
      raise UserError(
          f'{path}: cannot be read as a tile kernel ({error}); copy the file '
          'again, or run `tpu-graphs-ext check-data` on its folder to see '
          'every fault') from error
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


def _open_entry(entry: str) -> Partition | None:
  """Maps a cache entry into memory; None if missing or damaged."""
  if not os.path.isdir(entry):
    return None
  try:
    with open(os.path.join(entry, META_FILE), encoding='utf-8') as file:
      meta = json.load(file)
    buffers = {}
    for name in FLAT_ARRAYS:
      path = os.path.join(entry, name)
      # An empty file cannot be mapped (a split may have no edges).
      buffers[name] = (np.memmap(path, np.uint8, 'r')
                       if os.path.getsize(path) else b'')
    return _partition(meta, buffers)
  except (OSError, ValueError, KeyError, TypeError) as error:
    _log.warning('%s: the cache is damaged (%s) and will be built again',
                 entry, error)
    return None


def _build_entry(paths: list[str], entry: str) -> None:
  """Writes a cache entry under a temporary name, then gives it its name."""
  cache_dir = os.path.dirname(entry)
  os.makedirs(cache_dir, exist_ok=True)
  temporary = tempfile.mkdtemp(
      prefix=os.path.basename(entry) + '.', suffix='.tmp', dir=cache_dir)
  try:
    with contextlib.ExitStack() as files:
      meta = _stream(paths, {
          name: files.enter_context(open(os.path.join(temporary, name), 'wb'))
          for name in FLAT_ARRAYS})
    with open(os.path.join(temporary, META_FILE), 'w',
              encoding='utf-8') as file:
      json.dump(meta, file)
    os.chmod(temporary, 0o755)  # mkdtemp makes it private to this user.
    _publish(temporary, entry)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: str, entry: str) -> None:
  """Renames a complete entry, unless another process was faster."""
  try:
    os.rename(temporary, entry)
  except OSError:
    if not os.path.isdir(entry):
      raise
    if _open_entry(entry) is None:  # It is damaged: move it out of the way.
      os.rename(entry, temporary + '.damaged')
      os.rename(temporary, entry)
      shutil.rmtree(temporary + '.damaged', ignore_errors=True)
