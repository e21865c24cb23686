"""Files of the layout task in the cache, mapped into memory.

An entry holds one file. Layouts are small whole numbers and are kept as int8,
a quarter of their size. The other arrays are checked when the entry is opened,
a block of layouts when it is first read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from tpu_graphs_ext.data import cache, npz, rules
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext layout cache 2'
# Attribute of `Program` -> field of the file.
ARRAYS = {'node_feat': 'node_feat', 'node_opcode': 'node_opcode',
          'edge_index': 'edge_index', 'node_config_ids': rules.IDS,
          'runtime_ns': rules.RUNTIME}
_READ_BYTES = 1 << 25  # Of layouts that are read from a file at once.


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """The arrays of one file, mapped; see `programs.Program`."""
  arrays: dict[str, np.ndarray]
  bounds: FeatureStats
  layouts: Callable[[np.ndarray], np.ndarray]


def open_file(path: str, cache_dir: str = '') -> Program:
  """The arrays of an .npz file of the layout task.

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


def _fault(path: str, key: str, message: str) -> UserError:
  return UserError(
      f'{path}: {key} {message}; copy the file again, or run `tpu-graphs-ext '
      'check-data --task layout` on its folder to see every fault')


def _build(path: str, folder: str) -> None:
  arrays, shape = _checked(path)
  bounds = {}
  with cache.write(folder, (*ARRAYS, rules.LAYOUTS), bounds=bounds) as writers:
    for name, key in ARRAYS.items():
      writers[name].append(arrays[key], rules.LAYOUT.fields[key].dtype)
    sides = []
    for block in _blocks(path, shape):
      numbers = block.astype(np.int8)
      writers[rules.LAYOUTS].append(numbers, np.int8)
      flat = numbers.reshape(-1, shape[-1])
      sides += [flat.min(axis=0), flat.max(axis=0)]
    bounds.update(FeatureStats(
        ColumnStats.of([arrays['node_feat']], 'node_feat'),
        ColumnStats.of([np.float32(sides)], rules.LAYOUTS)).to_json())


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
  for key, message in rules.LAYOUT.faults({**arrays, **layouts}):
    raise _fault(path, key, message)
  return arrays, shape


def _blocks(path: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
  """The layouts float32 [some, configurable, 18] of a file, checked."""
  first = 0
  rows = max(1, _READ_BYTES // (4 * shape[1] * shape[2]))
  try:
    for block in npz.blocks(path, rules.LAYOUTS, rows, rules.LAYOUT.max_bytes):
      for message in rules.not_permutations({rules.LAYOUTS: block}, first):
        raise _fault(path, rules.LAYOUTS, message)
      first += len(block)
      yield block
  except npz.DamagedError as error:
    raise _fault(path, rules.LAYOUTS, f'cannot be read ({error})') from error


def _read(entry: cache.Entry) -> Program:
  arrays = {name: entry.array(name, rules.LAYOUT.fields[key].dtype)
            for name, key in ARRAYS.items()}
  layouts, check = entry.mapped(rules.LAYOUTS, np.int8)
  if layouts.shape != (len(arrays['runtime_ns']),
                       len(arrays['node_config_ids']), 18):
    raise ValueError(f'{rules.LAYOUTS} has the shape {layouts.shape}')
  size = layouts[0].nbytes

  def rows(configs: np.ndarray) -> np.ndarray:
    """float32 [n, configurable, 18] of int64 [n] configurations."""
    try:
      for config in configs.tolist():
        check(config * size, (config + 1) * size)
    except ValueError as error:
      # The next run would not notice before it reads this block.
      with contextlib.suppress(OSError):
        os.remove(os.path.join(entry.folder, cache.META_FILE))
      raise UserError(
          f'{entry.folder}: {error}, so the cache is damaged; run the command '
          'again, which builds it anew, or name another --cache_dir') from error
    return layouts[configs].astype(np.float32)

  return Program(arrays, FeatureStats.from_json(entry.meta['bounds']), rows)
