"""Many kernels as a few flat arrays, with the place of each kernel in them.

Flat arrays can be memory-mapped, selected from without a copy, and cut into
batches by NumPy indexing.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tpu_graphs_ext.data import rules
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError

# Attribute of `Kernel` and of `Partition` -> the field as stored.
FLAT_ARRAYS = {name: rules.TILE.fields[key]
               for name, key in STORED_NAMES.items()}
AXES = ('nodes', 'edges', 'configs')


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
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
  def of_flat(cls, tile_ids: Sequence[str], counts: dict[str, Sequence[int]],
              arrays: dict[str, np.ndarray]) -> Partition:
    """Kernels whose rows follow one another, without gaps.

    `counts` has the numbers of rows of each kernel by axis, of `AXES`; `arrays`
    those of `FLAT_ARRAYS`.
    """
    for array in arrays.values():
      array.setflags(write=False)
    number = {axis: np.asarray(counts[axis], np.int64) for axis in AXES}
    return cls(
        tile_ids=list(tile_ids), **arrays,
        **{f'num_{axis}': n for axis, n in number.items()},
        **{f'{axis[:-1]}_start': np.cumsum(n) - n
           for axis, n in number.items()})

  @classmethod
  def from_kernels(cls, kernels: Iterable[Kernel],
                   folder: str = '') -> Partition:
    """Copies kernels, perhaps of a folder's files, into flat arrays.

    Raises:
      UserError: there are no kernels, one makes no sense, or their feature
        widths differ.
    """
    buffers = {name: bytearray() for name in FLAT_ARRAYS}
    counts, widths, tile_ids = {axis: [] for axis in AXES}, {}, []
    for kernel in readable(kernels, folder):
      for name, field in FLAT_ARRAYS.items():
        array = np.ascontiguousarray(getattr(kernel, name), field.dtype)
        widths[name] = array.shape[1:]
        buffers[name].extend(memoryview(array.reshape(-1).view(np.uint8)))
      for axis in AXES:
        counts[axis].append(getattr(kernel, 'num_' + axis))
      tile_ids.append(kernel.tile_id)
    if not tile_ids:
      raise UserError('there are no kernels to work on')
    return cls.of_flat(tile_ids, counts, {
        name: np.frombuffer(buffers[name], field.dtype).reshape(
            sum(counts[field.axes[0]]), *widths[name])
        for name, field in FLAT_ARRAYS.items()})

  def __len__(self) -> int:
    return len(self.tile_ids)

  def __iter__(self) -> Iterator[Kernel]:
    return (self.kernel(i) for i in range(len(self)))

  @property
  def names(self) -> Sequence[str]:
    """`tile_ids`; problems of both tasks have `names`."""
    return self.tile_ids

  @functools.cached_property
  def max_opcode(self) -> int:
    """The largest opcode of any node; -1 without nodes."""
    return max((int(block.max()) for block in self.blocks('node_opcode')),
               default=-1)

  @functools.cached_property
  def opcodes(self) -> list[int]:
    """The opcodes of all nodes, each once, ascending."""
    return sorted({opcode for block in self.blocks('node_opcode')
                   for opcode in np.unique(block).tolist()})

  def with_opcodes_below(self, number: int) -> Partition:
    """The same kernels, in which other opcodes are 0, the unknown opcode."""
    opcode = self.node_opcode
    return dataclasses.replace(self, node_opcode=np.where(
        opcode < number, opcode, 0).astype(opcode.dtype))

  def kernel(self, index: int) -> Kernel:
    """Kernel number `index`; its arrays are views, nothing is copied."""
    rows = {}
    for axis in AXES:
      start = getattr(self, axis[:-1] + '_start')[index]
      rows[axis] = slice(start, start + getattr(self, 'num_' + axis)[index])
    return Kernel(
        tile_id=self.tile_ids[index],
        **{name: getattr(self, name)[rows[field.axes[0]]]
           for name, field in FLAT_ARRAYS.items()})

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
        **{name: getattr(self, name)[chosen] for axis in AXES
           for name in (f'{axis[:-1]}_start', f'num_{axis}')})

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    """The rows of array `name` of each kernel, as views."""
    array, axis = getattr(self, name), FLAT_ARRAYS[name].axes[0]
    for start, number in zip(getattr(self, axis[:-1] + '_start'),
                             getattr(self, 'num_' + axis)):
      yield array[start:start + number]


def readable(kernels: Iterable[Kernel], folder: str = '') -> Iterator[Kernel]:
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


def require_readable(kernel: Kernel, where: str = '') -> None:
  """Raises UserError if the arrays of a kernel make no sense together.

  Other feature widths than in the real files and narrower integers pass.
  `check-data` applies all rules.
  """
  arrays = {key: getattr(kernel, name) for name, key in STORED_NAMES.items()}
  for key, message in rules.TILE.faults(arrays):
    raise UserError(
        f'{where or kernel.tile_id}: {key} {message}; copy the file again, '
        'or run `tpu-graphs-ext check-data` on its folder to see every fault')
