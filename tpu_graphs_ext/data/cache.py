"""Arrays of input files kept on disk between runs, mapped into memory.

A cache entry is a folder `<cache_dir>/<key>/` with one raw file an array, and
`meta.json` with their shapes and a checksum of each block. The key is a
cryptographic sum of the input files' names and bytes: an entry is only used
for files that it was made of. It appears when complete; of two processes that
build it at once, the first one's stays. A damaged entry is built again; one
that somebody has changed together with its checksums is believed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext cache 6'
META_FILE = 'meta.json'
BLOCK_BYTES = 1 << 20  # With a checksum of its own; fits a processor's cache.
DAMAGE = OSError, ValueError, KeyError, TypeError, UserError

_log = logging.getLogger(__name__)
_T = TypeVar('_T')


def content_key(paths: Iterable[str], salt: str = FORMAT) -> str:
  """SHA-256 sum over the name and the bytes of each file, in hex.

  Nobody can make another file with the sum of a given one, as is done with the
  CRC-32s of a zip archive. Raises UserError if a file cannot be read.
  """
  digest = hashlib.sha256(salt.encode())
  for path in paths:
    digest.update(repr((os.path.basename(path), files.sha256(path))).encode())
  return digest.hexdigest()[:32]


def data_key(folder: str) -> str:
  """`content_key` of all .npz files below a folder, and where they are there.

  Raises UserError if there is none, or one cannot be read.
  """
  paths = sorted(glob.glob(
      os.path.join(glob.escape(folder), '**', '*.npz'), recursive=True))
  if not paths:
    raise UserError(f'{folder}: has no .npz files, so nothing can be trained; '
                    'name another data root')
  return content_key(
      paths, ' '.join(os.path.relpath(path, folder) for path in paths))


def open_or_build(entry: str, dtypes: Mapping[str, Any],
                  blocks: Callable[[], Iterable[Mapping[str, np.ndarray]]],
                  read: Callable[[Entry], _T]) -> _T:
  """Applies `read` to an entry, which is built first if missing or damaged.

  Raises UserError if a source file is damaged, the cache cannot be written, or
  the entry holds files of somebody else.

  Args:
    entry: its folder, which need not be there.
    dtypes: array -> its type here.
    blocks: yields {array: its next rows}.
    read: raises one of `DAMAGE` where the entry is damaged.
  """
  if os.path.isdir(entry):
    try:
      return read(Entry(entry))
    except DAMAGE as error:
      # As text: whoever keeps the record would keep the files open.
      _log.warning('%s: the cache is damaged (%s) and will be built again',
                   entry, str(error))
    files.require_own(entry, {}, [META_FILE, *dtypes])
    shutil.rmtree(entry, ignore_errors=True)
  try:
    with files.new_folder(entry) as temporary:
      _build(temporary, dtypes, blocks)
    return read(Entry(entry))
  except (OSError, ValueError) as error:
    raise UserError(f'{os.path.dirname(entry)}: the cache cannot be written '
                    f'({error}); free some space, name another --cache_dir, or '
                    'give an empty one to do without a cache') from error


def _build(entry: str, dtypes: Mapping[str, Any], blocks: Callable) -> None:
  """Writes the arrays and the `META_FILE` of an entry into an empty folder."""
  shapes = {name: [0] for name in dtypes}
  paths = {name: os.path.join(entry, name) for name in dtypes}
  with contextlib.ExitStack() as stack:
    opened = {name: stack.enter_context(open(path, 'wb'))
              for name, path in paths.items()}
    for block in blocks():
      for name, rows in block.items():
        opened[name].write(np.ascontiguousarray(rows, dtypes[name]))
        shapes[name] = [shapes[name][0] + len(rows), *rows.shape[1:]]
  arrays = {}
  for name, path in paths.items():
    with open(path, 'rb') as file:
      arrays[name] = {'shape': shapes[name], 'crc32s': [
          zlib.crc32(block)
          for block in iter(lambda: file.read(BLOCK_BYTES), b'')]}
  text = json.dumps(arrays)
  with open(os.path.join(entry, META_FILE), 'w', encoding='utf-8') as file:
    json.dump({'crc32': zlib.crc32(text.encode()), 'meta': text}, file)


class Entry:
  """An entry that is there; raises one of `DAMAGE` if it is damaged."""

  def __init__(self, folder: str):
    self.folder = folder
    with files.open_ordinary(os.path.join(folder, META_FILE)) as file:
      stored = files.parse_json(file.read(), META_FILE)
    text = stored['meta'] if isinstance(stored['meta'], str) else ''
    if stored['crc32'] != zlib.crc32(text.encode()):
      raise ValueError(f'{META_FILE} does not have its checksum')
    self._arrays = files.parse_json(text, META_FILE)

  def mapped(self, name: str, dtype: Any) -> tuple[
      np.ndarray, Callable[[int, int], None]]:
    """An array on disk, and what checks a range of its bytes when called."""
    stored, path = self._arrays[name], os.path.join(self.folder, name)
    shape, crc32s = stored['shape'], stored['crc32s']
    size = os.path.getsize(path)
    if (math.prod(shape) * np.dtype(dtype).itemsize != size
        or len(crc32s) != -(-size // BLOCK_BYTES)):
      raise ValueError(f'{name} has {size} bytes')
    raw = np.asarray(np.memmap(path, np.uint8, 'r') if size else [], np.uint8)
    array = raw.view(dtype).reshape(shape)
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
