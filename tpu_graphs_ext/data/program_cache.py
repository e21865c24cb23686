"""Files of the layout task in the cache, mapped into memory.

An entry holds one file. Layouts are small whole numbers and are kept as int8,
a quarter of their size, in blocks of configurations. The other arrays are
checked when the entry is opened, a block of layouts when it is first read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tpu_graphs_ext.data import cache, npz, rules, schema
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext layout cache 1'
# Attribute of `Program` -> field of the file.
ARRAYS = {'node_feat': 'node_feat', 'node_opcode': 'node_opcode',
          'edge_index': 'edge_index', 'node_config_ids': rules.IDS,
          'runtime_ns': rules.RUNTIME}
_BLOCK_BYTES = 1 << 18  # Of layouts that are checked at once.
_READ_BYTES = 1 << 25  # Of layouts that are read from a file at once.


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
  """One file, mapped.

  Attributes:
    arrays: name of `ARRAYS` -> its array.
    bounds: least and largest value of each column.
    layouts: int64 [n] -> float32 [n, configurable, 18], of n configurations.
  """
  arrays: dict[str, np.ndarray]
  bounds: FeatureStats
  layouts: Callable[[np.ndarray], np.ndarray]


def open_file(path: str, cache_dir: str = '') -> Entry:
  """The entry of an .npz file of the layout task.

  Args:
    path: the file.
    cache_dir: folder of the cache, made if missing; empty: a folder that goes
      with the process.

  Raises:
    UserError: the file is damaged, of the tile task or breaks a rule, or the
      cache cannot be written.
  """
  return cache.open_or_build(
      os.path.join(cache_dir or _temporary_folder().name,
                   cache.content_key([path], FORMAT)),
      (*ARRAYS, rules.LAYOUTS), lambda folder: _build(path, folder), _read)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix='tpu_graphs_ext_layouts_')


# ------------------------------------------------------------------- building


def _build(path: str, entry: str) -> None:
  arrays, shape = _checked(path)
  meta = {'format': FORMAT, 'arrays': {}}
  for name, key in ARRAYS.items():
    content = np.ascontiguousarray(arrays[key]).tobytes()
    with open(os.path.join(entry, name), 'wb') as file:
      file.write(content)
    meta['arrays'][name] = {
        'shape': arrays[key].shape, 'crc32': zlib.crc32(content)}
  meta['layouts'] = _write_layouts(
      path, shape, os.path.join(entry, rules.LAYOUTS))
  node = ColumnStats.of([arrays['node_feat']], 'node_feat')
  sides = (np.float32(meta['layouts'].pop(side))
           for side in ('minimum', 'maximum'))
  meta['bounds'] = FeatureStats(node, ColumnStats(*sides)).to_json()
  cache.write_meta(entry, meta)


def _checked(path: str) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
  """All arrays but the layouts, and the shape of those.

  Raises:
    UserError: names the field, the rule and the value found.
  """
  if other := rules.belongs_to_other_task(path, 'layout'):
    raise UserError(f'{path}: {other}')
  try:
    arrays, faults = npz.read_arrays(
        path, list(ARRAYS.values()), rules.LAYOUT.max_bytes)
    if rules.LAYOUTS not in npz.array_names(path):
      faults[rules.LAYOUTS] = 'is missing'
    for key, fault in faults.items():
      raise _fault(path, key, fault)
    shape = npz.shape_of(path, rules.LAYOUTS)
  except npz.DamagedError as error:
    raise UserError(
        f'{path}: cannot be read as a file of the layout task ({error}); copy '
        'the file again') from error
  # Its shape without its numbers.
  layouts = {rules.LAYOUTS: np.broadcast_to(np.float32(0), shape)}
  for key, message in _faults({**arrays, **layouts}):
    raise _fault(path, key, message)
  return arrays, shape


def _faults(arrays: rules.Arrays) -> Iterator[tuple[str, str]]:
  """(field, message); after the first, the later rules may not apply."""
  for key, array in arrays.items():
    for rule in (rules.wrong_shape, rules.wrong_dtype):
      yield from ((key, message)
                  for message in rule(array, rules.LAYOUT.fields[key]))
  yield from rules.LAYOUT.unequal_counts(arrays)
  for key, _, rule in (*rules.LAYOUT.read_rules, rules.READ_RUNTIMES):
    yield from ((key, message) for message in rule(arrays))


def _fault(path: str, key: str, message: str) -> UserError:
  return UserError(
      f'{path}: {key} {message}; copy the file again, or run `tpu-graphs-ext '
      'check-data --task layout` on its folder to see every fault')


def _write_layouts(path: str, shape: tuple[int, ...],
                   target: str) -> dict[str, Any]:
  """Copies the layouts as int8, a part at a time; what `meta` says of them."""
  _, configurable, columns = shape
  row = configurable * columns
  at_once = max(1, _BLOCK_BYTES // row)
  rows = at_once * max(1, _READ_BYTES // (4 * row * at_once))
  minimum, maximum = np.full(columns, 127), np.full(columns, -128)
  crc32s, done = [], 0
  with open(target, 'wb') as file:
    try:
      for block in npz.blocks(
          path, rules.LAYOUTS, rows, rules.LAYOUT.max_bytes):
        _require_layouts(path, block, done)
        numbers = block.astype(np.int8)
        flat = numbers.reshape(-1, columns)
        minimum = np.minimum(minimum, flat.min(axis=0))
        maximum = np.maximum(maximum, flat.max(axis=0))
        for start in range(0, len(numbers), at_once):
          content = numbers[start:start + at_once].tobytes()
          crc32s.append(zlib.crc32(content))
          file.write(content)
        done += len(block)
    except npz.DamagedError as error:
      raise _fault(path, rules.LAYOUTS, f'cannot be read ({error})') from error
  return {'shape': list(shape), 'at_once': at_once, 'crc32s': crc32s,
          'minimum': minimum.tolist(), 'maximum': maximum.tolist()}


def _require_layouts(path: str, block: np.ndarray, first: int) -> None:
  """Raises UserError unless all rows [configs, configurable, 18] are layouts.

  `first` is the number of the first configuration.
  """
  configurable = block.shape[1]
  for group, columns in schema.LAYOUT_CONFIG_GROUPS.items():
    layouts = block[..., columns]
    bad = rules.is_no_layout(
        layouts.reshape(-1, layouts.shape[-1])).reshape(-1, configurable)
    if bad.any():
      config = int(np.argmax(bad.any(axis=1)))
      raise _fault(path, rules.LAYOUTS, rules.no_permutation(
          group, first + config, layouts[config], bad[config]))


# -------------------------------------------------------------------- reading


def _read(entry: str) -> Entry:
  """Checks an entry and maps it into memory; see `cache.open_or_build`."""
  meta = cache.read_meta(entry)
  arrays = {}
  for name, key in ARRAYS.items():
    raw, stored = cache.mapped(os.path.join(entry, name)), meta['arrays'][name]
    if zlib.crc32(raw) != stored['crc32']:
      raise ValueError(f'{name} does not have its checksum')
    arrays[name] = raw.view(np.dtype(rules.LAYOUT.fields[key].dtype)).reshape(
        tuple(stored['shape']))
    arrays[name].setflags(write=False)
  layouts = _Layouts(entry, meta['layouts'])
  if layouts.shape != (len(arrays['runtime_ns']),
                       len(arrays['node_config_ids']), 18):
    raise ValueError(f'{rules.LAYOUTS} has the shape {layouts.shape}')
  return Entry(arrays, FeatureStats.from_json(meta['bounds']), layouts.rows)


class _Layouts:
  """The layouts of an entry, each block of them checked when first read.

  Raises:
    OSError, ValueError, KeyError, TypeError: `meta` or the file is not right.
  """

  def __init__(self, entry: str, meta: dict[str, Any]):
    self.shape = tuple(meta['shape'])
    self._at_once, self._crc32s = meta['at_once'], meta['crc32s']
    self._entry = entry
    path = os.path.join(entry, rules.LAYOUTS)
    if os.path.getsize(path) != math.prod(self.shape):
      raise ValueError(f'{rules.LAYOUTS} has {os.path.getsize(path)} bytes')
    blocks = -(-self.shape[0] // self._at_once)
    if len(self._crc32s) != blocks:
      raise ValueError(f'{rules.LAYOUTS} has {len(self._crc32s)} checksums')
    self._map = np.memmap(path, np.int8, 'r', shape=self.shape)
    self._is_checked = np.zeros(blocks, bool)

  def rows(self, configs: np.ndarray) -> np.ndarray:
    """float32 [n, configurable, 18] of int64 [n] configurations.

    Raises:
      UserError: the cache is damaged there.
    """
    for block in np.unique(configs // self._at_once):
      start = block * self._at_once
      if not self._is_checked[block] and self._crc32s[block] != zlib.crc32(
          self._map[start:start + self._at_once]):
        # The next run would not notice before it reads this block.
        with contextlib.suppress(OSError):
          os.remove(os.path.join(self._entry, cache.META_FILE))
        raise UserError(
            f'{self._entry}: {rules.LAYOUTS} does not have its checksum, so '
            'the cache is damaged; run the command again, which builds it '
            'anew, or name another --cache_dir')
      self._is_checked[block] = True
    return self._map[configs].astype(np.float32)
