"""One program of the layout collections, its file in the cache.

A file holds a graph of up to tens of thousands of nodes, up to a hundred
thousand configurations, and for each of those the layouts of tens to hundreds
of nodes, gigabytes as float32. They are small whole numbers and are kept as
int8. The other arrays are checked when the cache entry is opened, a block of
layouts when it is first read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

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
  """A program and its measured configurations."""
  name: str  # The file name without its ending.
  path: str
  node_feat: np.ndarray  # float32 [nodes, 140], see `schema.NODE_FEATURES`.
  node_opcode: np.ndarray  # uint8 [nodes], numbers of `schema.OPCODES`.
  edge_index: np.ndarray  # int64 [edges, 2], rows (consumer, producer).
  node_config_ids: np.ndarray  # int64 [configurable]: nodes with layouts.
  runtime_ns: np.ndarray  # int64 [configs], whole program; 0 where withheld.
  bounds: FeatureStats  # Over all configurations of the file.
  # int64 [n], rows in the file -> float32 [n, configurable, 18].
  read_layouts: Callable[[np.ndarray], np.ndarray] = dataclasses.field(
      repr=False)
  rows: np.ndarray | None = None  # int64 [configs], used rows; None: all.

  @property
  def num_nodes(self) -> int:
    return len(self.node_opcode)

  @property
  def num_edges(self) -> int:
    return len(self.edge_index)

  @property
  def num_configurable(self) -> int:
    return len(self.node_config_ids)

  @property
  def num_configs(self) -> int:
    return len(self.runtime_ns)

  @property
  def is_labelled(self) -> bool:
    return bool(self.runtime_ns.any())

  @property
  def runtime_rel(self) -> np.ndarray:
    """float64 [configs]: what runtimes are compared by, here also in ns."""
    return self.runtime_ns.astype(np.float64)

  @property
  def is_rankable(self) -> bool:
    """Whether there are configurations to choose from."""
    return self.num_configs > 1

  def details(self, config: int) -> dict[str, Any]:
    """Nothing: a configuration is layouts of many nodes."""
    return {}

  @functools.cached_property
  def fastest_first(self) -> np.ndarray:
    """int64 [configs], in the order of their runtimes."""
    return np.argsort(self.runtime_ns, kind='stable')

  def layouts(self, configs: np.ndarray) -> np.ndarray:
    """float32 [n, configurable, 18] of int64 [n] configurations, read now.

    Raises:
      UserError: the cache is damaged there.
    """
    return self.read_layouts(
        configs if self.rows is None else self.rows[configs])

  def at_most(self, number: int, rng: np.random.Generator) -> Program:
    """A selection of `number` configurations, as the baseline's --max_configs.

    The fastest third, the slowest third, and a draw from those between. -1
    keeps all.
    """
    if not 0 < number < self.num_configs:
      return self
    third, order = number // 3, self.fastest_first
    middle = order[third:len(order) - third]
    kept = np.concatenate([
        order[:third], order[len(order) - third:],
        rng.choice(middle, number - 2 * third, replace=False)])
    return dataclasses.replace(
        self, rows=kept, runtime_ns=self.runtime_ns[kept])


def open_program(path: str, cache_dir: str = '') -> Program:
  """The program of an .npz file.

  Args:
    path: the file.
    cache_dir: folder of the cache, made if missing; `~` is expanded. Empty: a
      folder that goes with the process.

  Raises:
    UserError: the file is damaged, of the tile task or breaks a rule, or the
      cache cannot be written.
  """
  cache_dir = os.path.expanduser(cache_dir) or _temporary_folder().name
  return cache.open_or_build(
      os.path.join(cache_dir, cache.content_key([path], FORMAT)),
      (*ARRAYS, rules.LAYOUTS), lambda folder: _build(path, folder),
      lambda entry: _read(path, entry))


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
        ColumnStats.of([arrays['node_feat']]),
        ColumnStats.of([np.float32(sides)])).to_json())


def _checked(path: str) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
  """All arrays but the layouts, and the shape of those."""
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


def _read(path: str, entry: cache.Entry) -> Program:
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

  return Program(
      name=os.path.splitext(os.path.basename(path))[0], path=path,
      bounds=FeatureStats.from_json(entry.meta['bounds']), read_layouts=rows,
      **arrays)
