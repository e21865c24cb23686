"""Files of the layout task in the cache, mapped into memory.

An entry is a folder `<cache_dir>/<key>/` of one file, named by a hash of its
content, with one raw file an array and `meta.json`. Layouts are small whole
numbers and are kept as int8, a quarter of their size, in blocks of
configurations. The other arrays are checked when the entry is opened, a block
of layouts when it is first read: what is not used costs nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache, layout_rules, npz, rules, task_of_file
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext layout cache 1'
# Attribute of `Program` -> field of the file.
ARRAYS = {'node_feat': 'node_feat', 'node_opcode': 'node_opcode',
          'edge_index': 'edge_index', 'node_config_ids': 'node_config_ids',
          'runtime_ns': 'config_runtime'}
LAYOUTS = layout_rules.FEATURES
_FIELDS = layout_rules.FIELDS
_BLOCK_BYTES = 1 << 18  # Of layouts that are checked at once.
_READ_BYTES = 1 << 25  # Of layouts that are read from a file at once.
# Rules without which reading would give nonsense; `check-data` has all.
_READ_RULES = [
    rule for rule in layout_rules.RULES
    if rule[2] in (rules.no_nodes, rules.edges_out_of_range,
                   layout_rules.ids_out_of_range, layout_rules.repeated_ids)
    or rule[:2] == ('node_feat', ('node_feat',))]
_READ_RULES.append((rules.RUNTIME, (rules.RUNTIME,), rules.bad_runtimes))

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
  """What is kept of one file.

  Attributes:
    arrays: name of `ARRAYS` -> its array, mapped.
    bounds: least and largest value of each column.
    layouts: int64 [n] -> float32 [n, configurable, 18], of n configurations.
  """
  arrays: dict[str, np.ndarray]
  bounds: FeatureStats
  layouts: Any


def open_file(path: str, cache_dir: str = '') -> Entry:
  """The entry of a file, made where it is missing or damaged.

  Args:
    path: an .npz file of the layout task.
    cache_dir: folder of the cache, made if missing; empty: a folder that goes
      with the process.

  Raises:
    UserError: the file is damaged, of the tile task or breaks a rule, or the
      cache cannot be written.
  """
  folder = cache_dir or _temporary_folder()
  entry = os.path.join(folder, cache.content_key([path], FORMAT))
  opened = _opened(entry)
  if opened is None:
    cache.remove_damaged(entry, (*ARRAYS, LAYOUTS))
    try:
      with files.new_folder(entry, replace=False) as temporary:
        _build(path, temporary)
    except OSError as error:
      raise UserError(
          f'{folder}: the cache cannot be written ({error}); free some space, '
          'or name another --cache_dir') from error
    opened = _opened(entry)
    if opened is None:
      raise UserError(f'{entry}: was written but cannot be read back; check '
                      'the disk, or name another --cache_dir')
  return opened


@functools.cache
def _temporary_folder() -> str:
  folder = tempfile.TemporaryDirectory(prefix='tpu_graphs_ext_layouts_')
  _kept.append(folder)  # It removes its folder when it goes.
  return folder.name


_kept: list[tempfile.TemporaryDirectory] = []


# ------------------------------------------------------------------- building


def _build(path: str, entry: str) -> None:
  """Writes the files of an entry.

  Raises:
    UserError: the .npz file cannot be used.
    OSError: the disk is full.
  """
  arrays, shape = _checked(path)
  meta = {'format': FORMAT, 'arrays': {}}
  for name, key in ARRAYS.items():
    array = np.ascontiguousarray(arrays[key])
    content = array.tobytes()
    with open(os.path.join(entry, name), 'wb') as file:
      file.write(content)
    meta['arrays'][name] = {'shape': array.shape, 'crc32': zlib.crc32(content)}
  meta['layouts'] = _write_layouts(path, shape, os.path.join(entry, LAYOUTS))
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
  try:
    other = task_of_file.of_other_task(path, 'layout')
    if other:
      raise UserError(f'{path}: {other}')
    arrays, faults = npz.read_arrays(
        path, list(ARRAYS.values()), layout_rules.MAX_BYTES)
    if LAYOUTS not in npz.array_names(path):
      faults[LAYOUTS] = 'is missing'
    for key, fault in faults.items():
      raise _fault(path, key, fault)
    shape = npz.shape_of(path, LAYOUTS)
  except npz.DamagedError as error:
    raise UserError(
        f'{path}: cannot be read as a file of the layout task ({error}); copy '
        'the file again') from error
  # Its shape without its numbers.
  arrays[LAYOUTS] = np.broadcast_to(np.float32(0), shape)
  for key, message in _faults(arrays):
    raise _fault(path, key, message)
  del arrays[LAYOUTS]
  return arrays, shape


def _faults(arrays: rules.Arrays) -> Iterator[tuple[str, str]]:
  """(field, message) of what is wrong, the simplest first."""
  for key, array in arrays.items():
    for rule in (rules.wrong_shape, rules.wrong_dtype):
      yield from ((key, message) for message in rule(array, _FIELDS[key]))
  yield from layout_rules.unequal_counts(arrays)
  for message in layout_rules.nothing_to_rank(arrays):
    yield LAYOUTS, message
  for key, _, rule in _READ_RULES:
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
  minimum, maximum, crc32s, done = None, None, [], 0
  with open(target, 'wb') as file:
    try:
      for block in npz.blocks(path, LAYOUTS, rows, layout_rules.MAX_BYTES):
        _require_layouts(path, block, done)
        numbers = block.astype(np.int8)
        bounds = [side(numbers.reshape(-1, columns), axis=0)
                  for side in (np.min, np.max)]
        minimum = bounds[0] if not done else np.minimum(minimum, bounds[0])
        maximum = bounds[1] if not done else np.maximum(maximum, bounds[1])
        for start in range(0, len(numbers), at_once):
          content = numbers[start:start + at_once].tobytes()
          crc32s.append(zlib.crc32(content))
          file.write(content)
        done += len(block)
    except npz.DamagedError as error:
      raise _fault(path, LAYOUTS, f'cannot be read ({error})') from error
  return {'shape': list(shape), 'at_once': at_once, 'crc32s': crc32s,
          'minimum': minimum.tolist(), 'maximum': maximum.tolist()}


def _require_layouts(path: str, block: np.ndarray, first: int) -> None:
  """Raises a UserError unless all rows are layouts.

  Args:
    path: of the file.
    block: [configs, configurable, 18].
    first: number of its first configuration.
  """
  configurable = block.shape[1]
  for group, columns in layout_rules.schema.LAYOUT_CONFIG_GROUPS.items():
    layouts = block[..., columns]
    bad = layout_rules.is_no_layout(
        layouts.reshape(-1, layouts.shape[-1])).reshape(-1, configurable)
    if bad.any():
      config = int(np.argmax(bad.any(axis=1)))
      raise _fault(path, LAYOUTS, layout_rules.no_permutation(
          group, first + config, layouts[config], bad[config]))


# -------------------------------------------------------------------- reading


def _opened(entry: str) -> Entry | None:
  """Checks an entry and maps it into memory; None if missing or damaged."""
  if not os.path.isdir(entry):
    return None
  try:
    meta = cache.read_meta(os.path.join(entry, cache.META_FILE))
    arrays = {name: _mapped(entry, name, key, meta['arrays'][name])
              for name, key in ARRAYS.items()}
    layouts = _Layouts(entry, meta['layouts'])
    if layouts.shape != (len(arrays['runtime_ns']),
                         len(arrays['node_config_ids']), 18):
      raise ValueError(f'{LAYOUTS} has the shape {layouts.shape}')
    return Entry(arrays, FeatureStats.from_json(meta['bounds']), layouts.rows)
  except (OSError, ValueError, KeyError, TypeError, UserError) as error:
    _log.warning('%s: the cache is damaged (%s) and will be built again',
                 entry, str(error))
    return None


def _mapped(entry: str, name: str, key: str,
            meta: dict[str, Any]) -> np.ndarray:
  """One array, whose checksum is right.

  Raises:
    OSError, ValueError, KeyError, TypeError: it is damaged.
  """
  path, dtype = os.path.join(entry, name), np.dtype(_FIELDS[key].dtype)
  shape = tuple(meta['shape'])
  # An empty file cannot be mapped (a program may have no edges).
  raw = (np.memmap(path, np.uint8, 'r') if os.path.getsize(path)
         else np.zeros(0, np.uint8))
  if zlib.crc32(raw) != meta['crc32']:
    raise ValueError(f'{name} does not have its checksum')
  array = raw.view(dtype).reshape(shape)
  array.setflags(write=False)
  return array


class _Layouts:
  """The layouts of an entry, each block of them checked when first read.

  Raises:
    OSError, ValueError, KeyError, TypeError: `meta` or the file is not right.
  """

  def __init__(self, entry: str, meta: dict[str, Any]):
    self.shape = tuple(meta['shape'])
    self._at_once, self._crc32s = meta['at_once'], meta['crc32s']
    self._entry = entry
    path = os.path.join(entry, LAYOUTS)
    if os.path.getsize(path) != math.prod(self.shape):
      raise ValueError(f'{LAYOUTS} has {os.path.getsize(path)} bytes')
    blocks = -(-self.shape[0] // self._at_once)
    if len(self._crc32s) != blocks:
      raise ValueError(f'{LAYOUTS} has {len(self._crc32s)} checksums')
    self._map = np.memmap(path, np.int8, 'r', shape=self.shape)
    self._is_checked = np.zeros(blocks, bool)

  def rows(self, configs: np.ndarray) -> np.ndarray:
    """float32 [n, configurable, 18] of int64 [n] configurations.

    Raises:
      UserError: what is read is not what was written.
    """
    for block in np.unique(configs // self._at_once):
      if not self._is_checked[block]:
        start = block * self._at_once
        if zlib.crc32(self._map[start:start + self._at_once]) != (
            self._crc32s[block]):
          # The next run would not see it before it is here again.
          with contextlib.suppress(OSError):
            os.remove(os.path.join(self._entry, cache.META_FILE))
          raise UserError(
              f'{self._entry}: {LAYOUTS} does not have its checksum, so the '
              'cache is damaged; run the command again, which builds it anew, '
              'or name another --cache_dir')
        self._is_checked[block] = True
    return self._map[configs].astype(np.float32)
