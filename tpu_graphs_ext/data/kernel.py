"""Kernels of the tile collection, which may be views of memory-mapped files.

The base classes are of programs too.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache, rules, schema
from tpu_graphs_ext.errors import UserError

# Attribute of `Kernel` -> key in the .npz file. The file's names carry no unit.
STORED_NAMES = {name: field.name for name, field in rules.TILE.arrays.items()}
_AXES = ('nodes', 'edges', 'configs')
# Of an entry of the cache: the arrays of all kernels, one after the other, and
# the rows that each has there.
_DTYPES = {**{name: field.dtype for name, field in rules.TILE.arrays.items()},
           **{f'num_{axis}': 'int64' for axis in _AXES}}


class Problem:
  """A graph whose configurations are ranked: a `Kernel` or a `Program`.

  Both also have a `name`, `num_configs`, `node_feat`, `node_opcode`,
  `runtime_ns` and `runtime_rel`.
  """

  @property
  def num_nodes(self) -> int:
    return len(self.node_feat)

  @property
  def num_edges(self) -> int:
    return len(self.edge_index)

  @property
  def is_labelled(self) -> bool:
    """Whether there are runtimes; public test splits have none."""
    return bool(self.runtime_ns.any())

  @property
  def is_rankable(self) -> bool:
    """Whether there are configurations to choose from."""
    return self.num_configs > 1

  def details(self, config: int) -> dict[str, list[int]]:
    """Further fields of the `Choice` of a configuration."""
    return {}


class Problems(list):
  """Kernels or programs, in order."""

  @property
  def names(self) -> list[str]:
    return [problem.name for problem in self]

  @property
  def num_configs(self) -> np.ndarray:
    """int64 [problems]."""
    return np.array([problem.num_configs for problem in self], np.int64)

  @functools.cached_property
  def opcodes(self) -> list[int]:
    """The opcodes of all nodes, each once, ascending."""
    return np.unique(np.concatenate([np.zeros(0, np.uint8), *(
        problem.node_opcode for problem in self)])).tolist()

  @property
  def max_opcode(self) -> int:
    """The largest opcode of any node; -1 without nodes."""
    return max(self.opcodes, default=-1)

  def select(self, chosen: Sequence[int] | np.ndarray):
    """The problems with these numbers, or where a mask is true, in order."""
    return type(self)(self[i] for i in np.arange(len(self))[chosen])

  def with_opcodes_below(self, number: int):
    """The same problems, but other opcodes are 0, the unknown one."""
    return type(self)(dataclasses.replace(problem, node_opcode=np.where(
        problem.node_opcode < number, problem.node_opcode, np.uint8(0)))
                      for problem in self)


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel(Problem):
  """A kernel and its measured tile-size configurations.

  Attributes:
    tile_id: `<program>_<hash>`, the file name without its ending. Hidden test
      kernels have the hash alone.
    node_feat: float32 [nodes, 140], one row an instruction; columns
      `schema.NODE_FEATURES`.
    node_opcode: uint8 [nodes], numbers of `schema.OPCODES`.
    edge_index: int64 [edges, 2], rows (consumer, producer), counted from 0:
      the first node takes the output of the second.
    config_feat: float32 [configs, 24], one row a tile; columns
      `schema.CONFIG_FEATURES`.
    runtime_ns: int64 [configs], measured; 0 where the label is withheld.
    normalizer_ns: int64 [configs], of the default tile on the machine that
      measured this configuration; 1 where withheld.
  """
  tile_id: str
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray
  config_feat: np.ndarray
  runtime_ns: np.ndarray
  normalizer_ns: np.ndarray

  @property
  def num_configs(self) -> int:
    """Number of tile configurations."""
    return len(self.config_feat)

  @property
  def runtime_rel(self) -> np.ndarray:
    """float64 [configs]: runtime over the default tile's; has no unit."""
    return self.runtime_ns / self.normalizer_ns

  @property
  def is_rankable(self) -> bool:
    """Whether any two configurations differ in their features."""
    return bool((self.config_feat != self.config_feat[:1]).any())

  @property
  def name(self) -> str:
    """`tile_id`, as programs have a name too."""
    return self.tile_id

  @property
  def program(self) -> str:
    """The program that the kernel was cut from: `tile_id` without its hash."""
    return self.tile_id.rsplit('_', 1)[0]

  def details(self, config: int) -> dict[str, list[int]]:
    """The tile of a configuration; see `bounds_of`."""
    return {group: bounds_of(self.config_feat[config], group)
            for group in ('output_bounds', 'kernel_bounds')}

  @classmethod
  def load(cls, path: str) -> Kernel:
    """Reads one .npz file, or a UserError; see `readable`."""
    stored = rules.TILE.read(files.require_path('path', path))
    return cls(tile_id=tile_id_of(path), **{
        name: stored[key] for name, key in STORED_NAMES.items()})

  def save(self, folder: str) -> str:
    """Writes `<folder>/<tile_id>.npz`, the same bytes each time; its path."""
    path = os.path.join(
        files.require_path('folder', folder), self.tile_id + '.npz')
    content = io.BytesIO()
    np.savez_compressed(content, **self.stored())
    files.write_file(path, content.getvalue())
    return path

  def stored(self) -> dict[str, np.ndarray]:
    """The arrays under the names that they have in a file."""
    return {key: np.asarray(getattr(self, name))
            for name, key in STORED_NAMES.items()}


def bounds_of(row: np.ndarray, group: str) -> list[int]:
  """The bounds of one configuration, without the zeros that fill the row."""
  columns = schema.CONFIG_GROUPS[group]
  bounds = row[columns][:schema.MAX_DIMS].astype(int).tolist()
  while bounds and not bounds[-1]:  # np.trim_zeros is slow.
    bounds.pop()
  return bounds


def readable(kernel: Kernel, where: str = '') -> Kernel:
  """The kernel with arrays of the dtypes that `Kernel` names.

  Raises UserError if they make no sense together. Any feature widths and
  narrower numbers pass; not so in `check-data`.
  """
  stored = kernel.stored()
  rules.TILE.require(stored, where or kernel.tile_id)
  return dataclasses.replace(kernel, **{
      name: stored[field.name].astype(field.dtype, copy=False)
      for name, field in rules.TILE.arrays.items()})


def tile_id_of(path: str) -> str:
  """The tile id that a file name stands for."""
  return os.path.splitext(os.path.basename(path))[0]


class Partition(Problems):
  """Kernels with equal feature columns."""

  @classmethod
  def from_kernels(cls, kernels: Iterable[Kernel],
                   folder: str = '') -> Partition:
    """Checks kernels, perhaps of a folder's files, whose arrays are kept.

    Raises UserError if there are none, one makes no sense, or their feature
    widths differ.
    """
    partition = cls(_readable(kernels, folder))
    if not partition:
      raise UserError('there are no kernels to work on')
    return partition


def open_files(paths: list[str], cache_dir: str = '') -> Partition:
  """The kernels in .npz files of one folder, in this order, or a UserError.

  `cache_dir` is made if missing; without one every file is read into memory.
  """
  folder = os.path.dirname(paths[0])
  loaded = map(Kernel.load, tqdm.tqdm(
      paths, desc=os.path.basename(folder), unit='kernel', disable=None))
  if not cache_dir:
    return Partition.from_kernels(loaded, folder)
  return cache.open_or_build(
      os.path.join(cache_dir, cache.content_key(paths)), _DTYPES,
      lambda: ({name: np.atleast_1d(getattr(kernel, name)) for name in _DTYPES}
               for kernel in _readable(loaded, folder)),
      lambda entry: _of_entry(entry, [tile_id_of(path) for path in paths]))


def _of_entry(entry: cache.Entry, tile_ids: list[str]) -> Partition:
  ends = {axis: np.cumsum(entry.array(f'num_{axis}', 'int64'))
          for axis in _AXES}
  parts = {}  # Array -> the rows of each kernel.
  for name, field in rules.TILE.arrays.items():
    array, end = entry.array(name, field.dtype), ends[field.axes[0]]
    if (len(end) != len(tile_ids) or end[-1] != len(array)
        or array.ndim != len(field.axes)):
      raise ValueError(f'{name} has the shape {array.shape}')
    stops = end.tolist()
    parts[name] = [array[start:stop] for start, stop in zip([0, *stops], stops)]
  return Partition(
      Kernel(tile_id, **dict(zip(parts, rows)))
      for tile_id, rows in zip(tile_ids, zip(*parts.values())))


def _readable(kernels: Iterable[Kernel], folder: str) -> Iterator[Kernel]:
  """Kernels of equal columns, each `readable` when its turn comes."""
  first = None
  for kernel in kernels if isinstance(kernels, Iterable) else [kernels]:
    if not isinstance(kernel, Kernel):
      raise UserError('kernels must be of the class Kernel, see Kernel.load; '
                      f'got {type(kernel).__name__}')
    where = os.path.join(folder, kernel.tile_id + '.npz') if folder else ''
    kernel = readable(kernel, where)
    first = first or kernel
    for name in ('node_feat', 'config_feat'):
      width, expected = (
          getattr(other, name).shape[1] for other in (kernel, first))
      if width != expected:
        raise UserError(f'{where or kernel.tile_id}: {name} has {width} '
                        f'columns, but in {first.tile_id} it has {expected}; '
                        'kernels read together must have the same columns')
    yield kernel
