"""Programs of the layout collections, of which little is in memory.

A `Program` is what one .npz file holds: a graph of up to tens of thousands of
nodes, up to a hundred thousand configurations, and for each of those the
layouts of tens to hundreds of nodes, gigabytes as float32. They lie in the
cache, see `stored`, and only the configurations that are asked for are read.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from tpu_graphs_ext.data import read, stored_programs
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError, shortened

SPLITS = ('train', 'valid', 'test')
# How many files of each split `toy_data` reads, as in the baseline.
TOY_FILES = 5
# A single configuration leaves nothing to rank.
MIN_CONFIGS = 2

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A program and its measured configurations.

  Attributes:
    name: the file name without its ending.
    path: the file.
    node_feat: float32 [nodes, 140], columns `schema.NODE_FEATURES`.
    node_opcode: uint8 [nodes], numbers of `schema.OPCODES`.
    edge_index: int64 [edges, 2], rows (consumer, producer), counted from 0.
    node_config_ids: int64 [configurable], the nodes that have layouts.
    runtime_ns: int64 [configs], of the whole program; 0 where withheld.
    bounds: least and largest value of each column, over all configurations of
      the file.
    read_layouts: int64 [n] -> float32 [n, configurable, 18], configurations by
      their rows in the file.
    rows: int64 [configs], those of the file that are used; None: all.
  """
  name: str
  path: str
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray
  node_config_ids: np.ndarray
  runtime_ns: np.ndarray
  bounds: FeatureStats
  read_layouts: Callable[[np.ndarray], np.ndarray] = dataclasses.field(
      repr=False)
  rows: np.ndarray | None = None

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
    """Whether there are runtimes, which public test files are without."""
    return bool(self.runtime_ns.any())

  @property
  def runtime_rel(self) -> np.ndarray:
    """float64 [configs]: what runtimes are compared by, the same in ns."""
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
    """float32 [n, configurable, 18] of n configurations, read now.

    Columns are `schema.LAYOUT_CONFIG_FEATURES`.

    Raises:
      UserError: the cache is damaged there.
    """
    return self.read_layouts(
        configs if self.rows is None else self.rows[configs])

  def at_most(self, number: int, rng: np.random.Generator) -> Program:
    """So many of the configurations, as the baseline's --max_configs has them.

    A third are the fastest, a third the slowest, the rest is drawn from those
    between.

    Args:
      number: how many; -1: all.
      rng: draws.
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


class Programs(Sequence):
  """Programs in order.

  Attributes:
    where: what they were read from, for messages.
  """

  def __init__(self, members: Sequence[Program], where: str):
    self._members, self.where = list(members), where

  def __len__(self) -> int:
    return len(self._members)

  def __getitem__(self, index: int) -> Program:
    return self._members[index]

  @property
  def names(self) -> list[str]:
    return [program.name for program in self]

  @property
  def max_opcode(self) -> int:
    return max(int(program.node_opcode.max()) for program in self)

  @property
  def opcodes(self) -> list[int]:
    """The opcodes of all nodes, each once, ascending."""
    return sorted({int(opcode) for program in self
                   for opcode in np.unique(program.node_opcode)})

  @property
  def stats(self) -> FeatureStats:
    """Least and largest value of each column over all of them.

    Raises:
      UserError: all are the same everywhere, so a model would see nothing.
    """
    stats = FeatureStats(*(
        ColumnStats(np.min([of.minimum for of in sides], axis=0),
                    np.max([of.maximum for of in sides], axis=0))
        for sides in zip(*((program.bounds.node, program.bounds.config)
                           for program in self))))
    for field, columns in (('node_feat', stats.node),
                           ('node_config_feat', stats.config)):
      if not columns.num_used:
        raise UserError(
            f'{self.where}: {field} is the same in all rows of all '
            f'{len(self)} programs; train on data in which it varies')
    return stats

  def select(self, mask: Sequence[bool]) -> Programs:
    """Those for which `mask` is true."""
    return Programs([program for program, kept in zip(self, mask) if kept],
                    self.where)

  def with_opcodes_below(self, number: int) -> Programs:
    """The same programs, in which other opcodes are 0."""
    return Programs([dataclasses.replace(program, node_opcode=np.where(
        program.node_opcode < number, program.node_opcode, 0))
                     for program in self], self.where)


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
  """The splits of a collection, such as xla/random.

  Attributes:
    train: programs with enough configurations to train on.
    valid: the same, to look at while training.
    every_valid: with two configurations or more, and all of them.
    test: the same.
  """
  train: Programs
  valid: Programs
  every_valid: Programs
  test: Programs

  @property
  def num_ops(self) -> int:
    """One more than the largest opcode in any split: rows of an embedding."""
    return 1 + max(split.max_opcode for split in (
        self.train, self.every_valid, self.test))


def folder_of(data_root: str, source: str, search: str, split: str) -> str:
  """<data_root>/<source>/<search>/<split>."""
  return os.path.join(data_root, source, search, split)


def read_collection(data_root: str, source: str, search: str, *,
                    min_configs: int, max_configs: int = -1,
                    cache_dir: str = '', toy_data: bool = False,
                    seed: int = 0) -> Collection:
  """Reads `<data_root>/<source>/<search>/{train,valid,test}`.

  Args:
    data_root: folder of the layout collections; `~` is expanded.
    source: 'xla' or 'nlp'.
    search: 'random' or 'default'.
    min_configs: programs with fewer are not trained on.
    max_configs: see `Program.at_most`, of the programs to train on.
    cache_dir: see `read_folder`.
    toy_data: only 5 files of each split.
    seed: of what `max_configs` draws.

  Raises:
    UserError: a folder is missing or empty, or a file is damaged or of the
      other task.
  """
  root = os.path.join(os.path.expanduser(data_root), source, search)
  missing = [split for split in SPLITS
             if not os.path.isdir(os.path.join(root, split))]
  if missing:
    raise UserError(_no_collection(data_root, source, search, missing))
  limit = TOY_FILES if toy_data else None
  every = {split: read_folder(folder_of(data_root, source, search, split),
                              cache_dir=cache_dir, limit=limit)
           for split in SPLITS}

  def to_train_on(split: str) -> Programs:
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    chosen = _with_enough(every[split], min_configs)
    return Programs([program.at_most(max_configs, rng) for program in chosen],
                    chosen.where)

  return Collection(to_train_on('train'), to_train_on('valid'),
                    every['valid'], every['test'])


def _no_collection(data_root: str, source: str, search: str,
                   missing: Sequence[str]) -> str:
  root = os.path.expanduser(data_root)
  there = sorted(os.listdir(root)) if os.path.isdir(root) else []
  advice = ''
  if set(SPLITS) & set(there):
    advice = (f'; {data_root} has {shortened(there)} itself: name the folder '
              'that xla/ or nlp/ is in')
  elif not os.path.isdir(root):
    advice = '; it does not exist'
  return (f'--data_root={data_root}: a data root of the layout task has the '
          f'folders {source}/{search}/train, valid and test; '
          f'{", ".join(missing)} not found{advice}. Other collections are '
          'named by --source xla|nlp and --search random|default')


def read_folder(folder: str, *, cache_dir: str = '',
                limit: int | None = None) -> Programs:
  """Reads the programs of one folder, sorted by file name.

  Args:
    folder: folder with .npz files; `~` is expanded.
    cache_dir: keeps what is read for the next run; empty: a temporary folder
      does, until the process ends.
    limit: only this many files; which ones, see `data.read.find_npz`.

  Raises:
    UserError: the folder is missing or empty, or a file is damaged, of the
      tile task, or breaks a rule of its fields.
  """
  paths = read.find_npz(folder, limit)
  name = os.path.basename(os.path.normpath(folder))
  return Programs([
      open_program(path, cache_dir)
      for path in tqdm.tqdm(paths, desc=name, unit='program', disable=None,
                            leave=False)], folder)


def read_programs(path: str, *, cache_dir: str = '',
                  limit: int | None = None) -> Programs:
  """Reads a folder of .npz files or a single one; else as `read_folder`."""
  full = os.path.expanduser(path)
  if os.path.isdir(full):
    return read_folder(path, cache_dir=cache_dir, limit=limit)
  if not os.path.exists(full):
    raise UserError(f'{path}: no such file or folder')
  if not full.endswith('.npz'):
    raise UserError(f'{path}: expected a folder of .npz files, or one .npz '
                    'file of the layout task')
  return Programs([open_program(full, cache_dir)], path)


def open_program(path: str, cache_dir: str = '') -> Program:
  """The program of one file; see `read_folder`."""
  entry = stored_programs.open_file(path, os.path.expanduser(cache_dir or ''))
  return Program(
      name=os.path.splitext(os.path.basename(path))[0], path=path,
      bounds=entry.bounds, read_layouts=entry.layouts, **entry.arrays)


def _with_enough(programs: Programs, min_configs: int) -> Programs:
  """The programs with enough configurations; says which are left out."""
  enough = [program.num_configs >= min_configs for program in programs]
  if not any(enough):
    most = max(program.num_configs for program in programs)
    raise UserError(
        f'{programs.where}: none of {len(programs)} programs has '
        f'--configs={min_configs} or more configurations (the largest has '
        f'{most}); lower --configs, or name other data')
  left_out = [program.name for program, kept in zip(programs, enough)
              if not kept]
  if left_out:
    _log.warning(
        '%s: left out %d of %d programs with fewer than %d configurations: %s',
        programs.where, len(left_out), len(programs), min_configs,
        shortened(left_out))
  return programs.select(enough)


def blocks_of(number: int, at_once: int) -> Iterator[np.ndarray]:
  """int64 [at most at_once], numbers below `number` in order."""
  for start in range(0, number, at_once):
    yield np.arange(start, min(start + at_once, number))
