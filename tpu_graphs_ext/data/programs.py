"""Programs of the layout collections, their files in the cache.

The layouts of a file take gigabytes as float32. They are small whole numbers,
kept as int8, and a block of them is checked when it is first read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tqdm

from tpu_graphs_ext.data import cache, npz, read, rules, schema
from tpu_graphs_ext.data.kernel import Problem, Problems, tile_id_of
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError

# Part of every key: a change of the format makes old entries unreachable.
FORMAT = 'tpu_graphs_ext layout cache 4'
# How many files of each split `toy_data` reads, as in the baseline.
TOY_FILES = 5
# Of an entry of the cache: the attributes of `Program`, the layouts, and least
# and largest values of their columns, [2, 18].
_RANGES = 'layout_ranges'
_DTYPES = {**{name: field.dtype for name, field in rules.LAYOUT.arrays.items()},
           rules.LAYOUTS: 'int8', _RANGES: 'int8'}
_READ_BYTES = 1 << 25  # Of layouts that are read from a file at once.


@dataclasses.dataclass(frozen=True, eq=False)
class Program(Problem):
  """A program and its measured configurations."""
  name: str  # The file name without its ending.
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
  def num_configurable(self) -> int:
    return len(self.node_config_ids)

  @property
  def num_configs(self) -> int:
    return len(self.runtime_ns)

  @property
  def runtime_rel(self) -> np.ndarray:
    """float64 [configs]: what runtimes are compared by, here also in ns."""
    return self.runtime_ns.astype(np.float64)

  @functools.cached_property
  def fastest_first(self) -> np.ndarray:
    """int64 [configs], in the order of their runtimes."""
    return np.argsort(self.runtime_ns, kind='stable')

  def layouts(self, configs: np.ndarray) -> np.ndarray:
    """float32 [n, configurable, 18] of int64 [n] configurations, read now.

    Raises UserError if the cache is damaged there.
    """
    return self.read_layouts(
        configs if self.rows is None else self.rows[configs])

  def at_most(self, number: int, rng: np.random.Generator) -> Program:
    """The baseline's --max_configs: `number` configurations; -1 keeps all.

    The fastest third, the slowest third, and a draw from those between.
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

  `cache_dir` is made if missing; empty: a folder that goes with the process.
  Raises UserError if the file is damaged, of the tile task or breaks a rule.
  """
  cache_dir = os.path.expanduser(cache_dir) or _temporary_folder().name
  return cache.open_or_build(
      os.path.join(cache_dir, cache.content_key([path], FORMAT)),
      _DTYPES, functools.partial(_blocks, path),
      functools.partial(_of_entry, path))


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix='tpu_graphs_ext_layouts_')


def _blocks(path: str) -> Iterator[dict[str, np.ndarray]]:
  """The rows of a file in the arrays of `_DTYPES`, checked."""
  arrays = rules.LAYOUT.read(path)
  try:
    shape = npz.shape_of(path, rules.LAYOUTS)
    # The layouts' shape without their numbers.
    rules.LAYOUT.require({**arrays, rules.LAYOUTS: np.broadcast_to(
        np.float32(0), shape)}, path)
    yield {name: arrays[field.name]
           for name, field in rules.LAYOUT.arrays.items()}
    sides, first = [], 0
    rows = max(1, _READ_BYTES // (4 * shape[1] * shape[2]))
    for block in npz.blocks(path, rules.LAYOUTS, rows):
      for message in rules.NO_LAYOUT.faults(block, first=first):
        raise rules.LAYOUT.bad(path, f'{rules.LAYOUTS} {message}')
      first += len(block)
      numbers = block.astype(np.int8)
      flat = numbers.reshape(-1, shape[-1])
      sides += [flat.min(axis=0), flat.max(axis=0)]
      yield {rules.LAYOUTS: numbers}
  except npz.DamagedError as error:
    raise rules.LAYOUT.bad(
        path, f'{rules.LAYOUTS} cannot be read ({error})') from error
  yield {_RANGES: np.stack([np.min(sides, axis=0), np.max(sides, axis=0)])}


def _of_entry(path: str, entry: cache.Entry) -> Program:
  arrays = {name: entry.array(name, field.dtype)
            for name, field in rules.LAYOUT.arrays.items()}
  layouts, check = entry.mapped(rules.LAYOUTS, np.int8)
  if layouts.shape != (len(arrays['runtime_ns']),
                       len(arrays['node_config_ids']), 18):
    raise ValueError(f'{rules.LAYOUTS} has the shape {layouts.shape}')
  size = layouts[0].nbytes

  def rows(configs: np.ndarray) -> np.ndarray:
    try:
      for config in configs.tolist():
        check(config * size, (config + 1) * size)
    except ValueError as error:
      # The next run would not notice before it reads this block.
      with contextlib.suppress(OSError):
        os.remove(os.path.join(entry.folder, cache.META_FILE))
      raise UserError(f'{entry.folder}: {error}, so the cache is damaged; run '
                      'the command again, which builds it anew') from error
    return layouts[configs].astype(np.float32)

  return Program(
      name=tile_id_of(path),
      bounds=FeatureStats(
          ColumnStats.of([arrays['node_feat']]),
          ColumnStats(*np.float32(entry.array(_RANGES, np.int8)))),
      read_layouts=rows, **arrays)


class Programs(Problems):
  """Programs of a collection."""

  @property
  def stats(self) -> FeatureStats:
    """Least and largest value of each column over all of them."""
    return FeatureStats(*(
        ColumnStats.joined(getattr(program.bounds, table) for program in self)
        for table in ('node', 'config')))

  def to_train_on(self, where: str, min_configs: int, max_configs: int,
                  seed: Sequence[int]) -> Programs:
    """Those with enough configurations, `Program.at_most` max_configs each."""
    rng = np.random.default_rng(seed)
    return Programs(
        program.at_most(max_configs, rng) for program in
        read.with_enough_configs(self, where, min_configs, 'program'))


def read_collection(data_root: str, source: str, search: str, *,
                    min_configs: int, max_configs: int = -1,
                    cache_dir: str = '', toy_data: bool = False,
                    seed: int = 0) -> read.Dataset:
  """Reads `<data_root>/<source>/<search>/{train,valid,test}`.

  `min_configs`, `max_configs` and `seed` are those of `Programs.to_train_on`;
  `toy_data`: only 5 files of each split. See `read_programs`.
  """
  folders = read.split_folders(data_root, (source, search))
  train, valid, test = (
      read_programs(folders[split], cache_dir=cache_dir,
                    limit=TOY_FILES if toy_data else None)
      for split in schema.SPLITS)
  return read.Dataset(
      train.to_train_on(folders['train'], min_configs, max_configs, [
          seed, schema.SPLITS.index('train')]), train, valid, test)


def read_programs(path: str, *, cache_dir: str = '',
                  limit: int | None = None) -> Programs:
  """Reads the programs of one folder, sorted by file name, or of one file.

  See `read.find_npz` and `open_program`.
  """
  programs = Programs(
      open_program(file, cache_dir) for file in tqdm.tqdm(
          read.find_npz(path, limit), unit='program', disable=None,
          desc=os.path.basename(os.path.normpath(path)), leave=False))
  read.warn_of_columns(programs, path, 'program')
  return programs
