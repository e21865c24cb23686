"""Many kernels as a few flat arrays, with the place of each kernel in them.

Flat arrays can be memory-mapped, selected from without a copy, and cut into
batches by NumPy indexing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tqdm

from tpu_graphs_ext.data import cache, rules
from tpu_graphs_ext.data.kernel import Kernel, require_readable, tile_id_of
from tpu_graphs_ext.data.problem import Problems, opcodes_below
from tpu_graphs_ext.errors import UserError

_AXES = ('nodes', 'edges', 'configs')
# The arrays of kernels, one after the other, and the rows that each has there.
_DTYPES = {**{name: field.dtype for name, field in rules.TILE.arrays.items()},
           **{f'num_{axis}': 'int64' for axis in _AXES}}


@dataclasses.dataclass(frozen=True, eq=False)
class Partition(Problems):
  """Kernels in order, their rows in flat arrays that may be memory maps.

  A kernel's rows are contiguous in every array, but the arrays may hold rows
  of kernels that a selection left out: read them through `kernel`, `blocks`
  or the `*_start` and `num_*` arrays.
  """
  tile_ids: Sequence[str]
  # The arrays of `Kernel`, with the rows of all kernels one after the other.
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray  # Nodes are numbered inside the kernel, from 0.
  config_feat: np.ndarray
  runtime_ns: np.ndarray
  normalizer_ns: np.ndarray
  # int64 [kernels]: the first row of each kernel, and its number of rows.
  node_start: np.ndarray
  edge_start: np.ndarray
  config_start: np.ndarray
  num_nodes: np.ndarray
  num_edges: np.ndarray
  num_configs: np.ndarray

  @classmethod
  def of_flat(cls, tile_ids: Sequence[str],
              arrays: Mapping[str, np.ndarray]) -> Partition:
    """Kernels whose rows follow one another, without gaps.

    `arrays` are flat arrays and the numbers of rows, but no starts.
    """
    for array in arrays.values():
      array.setflags(write=False)
    counts = {axis[:-1]: arrays[f'num_{axis}'] for axis in _AXES}
    return cls(tile_ids=list(tile_ids), **arrays, **{
        f'{axis}_start': np.cumsum(count) - count
        for axis, count in counts.items()})

  @classmethod
  def from_kernels(cls, kernels: Iterable[Kernel],
                   folder: str = '') -> Partition:
    """Copies kernels, perhaps of a folder's files, into flat arrays.

    Raises:
      UserError: there are no kernels, one makes no sense, or their feature
        widths differ.
    """
    buffers = {name: bytearray() for name in _DTYPES}
    shapes, tile_ids = {}, []
    for kernel in _readable(kernels, folder):
      for name, rows in _rows_of(kernel).items():
        rows = np.ascontiguousarray(rows, _DTYPES[name])
        buffers[name].extend(memoryview(rows.reshape(-1).view(np.uint8)))
        shapes[name] = (shapes.get(name, (0,))[0] + len(rows), *rows.shape[1:])
      tile_ids.append(kernel.tile_id)
    if not tile_ids:
      raise UserError('there are no kernels to work on')
    return cls.of_flat(tile_ids, {
        name: np.frombuffer(buffers[name], dtype).reshape(shapes[name])
        for name, dtype in _DTYPES.items()})

  def __len__(self) -> int:
    return len(self.tile_ids)

  def __iter__(self) -> Iterator[Kernel]:
    return (self.kernel(i) for i in range(len(self)))

  @property
  def names(self) -> Sequence[str]:
    """`tile_ids`; problems of both tasks have `names`."""
    return self.tile_ids

  def with_opcodes_below(self, number: int) -> Partition:
    """The same kernels, in which other opcodes are 0, the unknown opcode."""
    return dataclasses.replace(
        self, node_opcode=opcodes_below(number, self.node_opcode))

  def kernel(self, index: int) -> Kernel:
    """Kernel number `index`; its arrays are views, nothing is copied."""
    rows = {}
    for axis in _AXES:
      start = getattr(self, axis[:-1] + '_start')[index]
      rows[axis] = slice(start, start + getattr(self, 'num_' + axis)[index])
    return Kernel(self.tile_ids[index], **{
        name: getattr(self, name)[rows[field.axes[0]]]
        for name, field in rules.TILE.arrays.items()})

  def select(self, kernels: Sequence[int] | np.ndarray) -> Partition:
    """The kernels with these numbers, or where a mask is true, in that order.

    The result shares this partition's arrays.
    """
    chosen = np.asarray(kernels)
    if chosen.dtype == bool:
      chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64)  # An empty list comes as float64.
    return dataclasses.replace(
        self, tile_ids=[self.tile_ids[i] for i in chosen],
        **{name: getattr(self, name)[chosen] for axis in _AXES
           for name in (f'{axis[:-1]}_start', f'num_{axis}')})

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    """The rows of array `name` of each kernel, as views."""
    array, axis = getattr(self, name), rules.TILE.arrays[name].axes[0]
    for start, number in zip(getattr(self, axis[:-1] + '_start'),
                             getattr(self, 'num_' + axis)):
      yield array[start:start + number]


def open_files(paths: list[str], cache_dir: str | None = None) -> Partition:
  """The kernels in these files, in this order.

  Args:
    paths: at least one .npz file, all of one folder.
    cache_dir: folder of the cache, made if missing; None reads every file
      into memory.

  Raises:
    UserError: a file is damaged, or the cache cannot be written.
  """
  folder = os.path.dirname(paths[0])
  loaded = map(Kernel.load, tqdm.tqdm(
      paths, desc=os.path.basename(folder), unit='kernel', disable=None))
  if not cache_dir:
    return Partition.from_kernels(loaded, folder)
  return cache.open_or_build(
      os.path.join(cache_dir, cache.content_key(paths)), _DTYPES,
      lambda unused_more: map(_rows_of, _readable(loaded, folder)),
      lambda entry: _of_entry(entry, [tile_id_of(path) for path in paths]))


def _of_entry(entry: cache.Entry, tile_ids: list[str]) -> Partition:
  arrays = {name: entry.array(name, dtype) for name, dtype in _DTYPES.items()}
  for name, field in rules.TILE.arrays.items():
    count = arrays[f'num_{field.axes[0]}']
    if (count.shape != (len(tile_ids),) or count.sum() != len(arrays[name])
        or arrays[name].ndim != len(field.axes)):
      raise ValueError(f'{name} has the shape {arrays[name].shape}')
  return Partition.of_flat(tile_ids, arrays)


def _rows_of(kernel: Kernel) -> dict[str, np.ndarray]:
  """The rows of a kernel in each array of `_DTYPES`."""
  return {name: np.array([getattr(kernel, name)])
          if name.startswith('num_') else getattr(kernel, name)
          for name in _DTYPES}


def _readable(kernels: Iterable[Kernel], folder: str) -> Iterator[Kernel]:
  """The kernels, each checked when its turn comes.

  Raises:
    UserError: a kernel makes no sense, or has other feature widths than the
      first; names it by its file if they come from a `folder`.
  """
  first = None
  for kernel in kernels:
    where = os.path.join(folder, kernel.tile_id + '.npz') if folder else ''
    require_readable(kernel, where)
    first = first or kernel
    for name in ('node_feat', 'config_feat'):
      width, expected = (getattr(one, name).shape[1] for one in (kernel, first))
      if width != expected:
        raise UserError(
            f'{where or kernel.tile_id}: {name} has {width} columns, but in '
            f'{first.tile_id} it has {expected}; kernels read together must '
            'have the same columns')
    yield kernel
