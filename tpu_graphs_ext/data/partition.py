"""Many kernels as a few flat arrays, with the place of each kernel in them.

A split of the real collection has thousands of kernels and millions of
configurations; as flat arrays it can be memory-mapped, selected from without
a copy, and cut into batches by NumPy indexing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tpu_graphs_ext.data import rules
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError

# Rows handed out at once by `Partition.blocks`: 24 columns of float32 make
# 6 MB, small enough to stay in cache and large enough to hide Python's cost.
BLOCK_ROWS = 1 << 16


# Attribute of `Kernel` and of `Partition` -> the field as stored.
FLAT_ARRAYS = {name: rules.FIELDS[key]
               for name, key in STORED_NAMES.items()}
AXES = ('nodes', 'edges', 'configs')


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
  """Kernels in order, their rows in flat arrays that may be memory maps.

  A kernel's rows are contiguous in every array, but the arrays may hold rows
  of kernels that a selection left out: read them through `kernel`, `blocks`
  or the `*_start` and `num_*` arrays.

  Attributes:
    tile_ids: name of each kernel.
    node_feat: float32 [rows, node columns].
    node_opcode: uint8 [rows], same rows as `node_feat`.
    edge_index: int64 [rows, 2], (consumer, producer), numbered inside the
      kernel from 0.
    config_feat: float32 [rows, config columns].
    runtime_ns: int64 [rows], same rows as `config_feat`; nanoseconds.
    normalizer_ns: int64 [rows], same rows as `config_feat`; nanoseconds.
    node_start: int64 [kernels], first row of each kernel's nodes.
    edge_start: int64 [kernels].
    config_start: int64 [kernels].
    num_nodes: int64 [kernels], rows of each kernel's nodes.
    num_edges: int64 [kernels].
    num_configs: int64 [kernels].
  """
  tile_ids: Sequence[str]
  node_feat: np.ndarray
  node_opcode: np.ndarray
  edge_index: np.ndarray
  config_feat: np.ndarray
  runtime_ns: np.ndarray
  normalizer_ns: np.ndarray
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

    Args:
      tile_ids: name of each kernel.
      counts: for each of `AXES`, the number of rows of each kernel.
      arrays: the flat arrays, one for each of `FLAT_ARRAYS`.
    """
    number = {axis: np.asarray(counts[axis], np.int64) for axis in AXES}
    start = {axis: np.cumsum(n) - n for axis, n in number.items()}
    return cls(
        tile_ids=list(tile_ids), **arrays,
        node_start=start['nodes'], edge_start=start['edges'],
        config_start=start['configs'], num_nodes=number['nodes'],
        num_edges=number['edges'], num_configs=number['configs'])

  @classmethod
  def from_kernels(cls, kernels: Iterable[Kernel]) -> Partition:
    """Copies kernels, all of the same feature widths, into flat arrays.

    Raises:
      UserError: there are no kernels, or their feature widths differ.
    """
    kernels = list(kernels)
    if not kernels:
      raise UserError('there are no kernels to work on')
    for kernel in kernels:
      require_readable(kernel)
      require_same_widths(kernel, kernels[0])
    arrays = {}
    for name, field in FLAT_ARRAYS.items():
      arrays[name] = np.concatenate(
          [getattr(kernel, name) for kernel in kernels],
          dtype=field.dtype, casting='safe')
      arrays[name].setflags(write=False)
    counts = {axis: [getattr(kernel, 'num_' + axis) for kernel in kernels]
              for axis in AXES}
    return cls.of_flat([k.tile_id for k in kernels], counts, arrays)

  def __len__(self) -> int:
    return len(self.tile_ids)

  def __iter__(self) -> Iterator[Kernel]:
    return (self.kernel(i) for i in range(len(self)))

  @property
  def programs(self) -> list[str]:
    """The program that each kernel was cut from."""
    return [tile_id.rsplit('_', 1)[0] for tile_id in self.tile_ids]

  @functools.cached_property
  def max_opcode(self) -> int:
    """The largest opcode of any node; -1 without nodes."""
    return max((int(block.max()) for block in self.blocks('node_opcode')),
               default=-1)

  @functools.cached_property
  def opcodes(self) -> list[int]:
    """The opcodes that some node has, in rising order."""
    return sorted({opcode for block in self.blocks('node_opcode')
                   for opcode in np.unique(block).tolist()})

  def unlabelled(self) -> list[str]:
    """Names of the kernels without runtimes, as in a public test split."""
    return [tile_id for tile_id, start, number in zip(
        self.tile_ids, self.config_start, self.num_configs)
            if not self.runtime_ns[start:start + number].any()]

  def with_opcodes_below(self, number: int) -> Partition:
    """The same kernels, in which other opcodes are 0, the unknown opcode."""
    opcode = self.node_opcode
    return dataclasses.replace(self, node_opcode=np.where(
        opcode < number, opcode, 0).astype(opcode.dtype))

  def kernel(self, index: int) -> Kernel:
    """Kernel number `index`; its arrays are views, nothing is copied."""
    rows = {}
    for axis, start, number in (
        ('nodes', self.node_start, self.num_nodes),
        ('edges', self.edge_start, self.num_edges),
        ('configs', self.config_start, self.num_configs)):
      rows[axis] = slice(start[index], start[index] + number[index])
    return Kernel(
        tile_id=self.tile_ids[index],
        **{name: getattr(self, name)[rows[field.axes[0]]]
           for name, field in FLAT_ARRAYS.items()})

  def select(self, kernels: Sequence[int] | np.ndarray) -> Partition:
    """The kernels of these numbers, or where a mask is true, in that order.

    The result shares this partition's arrays.
    """
    chosen = np.asarray(kernels)
    if chosen.dtype == bool:
      if chosen.shape != (len(self),):
        raise ValueError(f'the mask has shape {chosen.shape}; it must be '
                         f'({len(self)},), one entry a kernel')
      chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64)  # An empty list comes as float64.
    return dataclasses.replace(
        self, tile_ids=[self.tile_ids[i] for i in chosen],
        **{name: getattr(self, name)[chosen] for name in (
            'node_start', 'edge_start', 'config_start',
            'num_nodes', 'num_edges', 'num_configs')})

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    """Views that together hold the rows of array `name` of these kernels.

    At most `BLOCK_ROWS` rows each, so that a pass over them needs no memory.
    """
    array = getattr(self, name)
    axis = FLAT_ARRAYS[name].axes[0]
    number = getattr(self, 'num_' + axis)
    start = getattr(self, axis[:-1] + '_start')  # nodes -> node_start
    end = start + number
    # A run ends where the next kernel does not begin at this one's end.
    breaks = np.flatnonzero(start[1:] != end[:-1])
    run_starts = start[np.concatenate([[0], breaks + 1])] if len(self) else []
    run_ends = end[np.concatenate([breaks, [-1]])] if len(self) else []
    for run_start, run_end in zip(run_starts, run_ends):
      for row in range(run_start, run_end, BLOCK_ROWS):
        yield array[row:min(row + BLOCK_ROWS, run_end)]


def require_same_widths(kernel: Kernel, first: Kernel,
                        where: str | None = None) -> None:
  """Raises a UserError where two kernels have unequal feature widths."""
  for name in ('node_feat', 'config_feat'):
    width = getattr(kernel, name).shape[1]
    expected = getattr(first, name).shape[1]
    if width != expected:
      raise UserError(
          f'{where or kernel.tile_id}: {name} has {width} columns, but that '
          f'of {first.tile_id} has {expected}; kernels read together must '
          'have the same columns')


def require_readable(kernel: Kernel, where: str | None = None) -> None:
  """Raises a UserError where the arrays of a kernel make no sense together.

  Feature widths and narrower integers than stored in the real files are let
  through, but no bool, and no features other than float32: sums over int8
  would overflow. `rules.py` has all rules.
  """
  arrays = {key: getattr(kernel, name) for name, key in STORED_NAMES.items()}
  faults = []
  for key, array in arrays.items():
    field = rules.FIELDS[key]
    if (array.dtype.kind != np.dtype(field.dtype).kind
        and array.dtype.kind != 'u') or not np.can_cast(
            array.dtype, field.dtype, 'safe'):
      faults.append((key, f'has dtype {array.dtype}; it must be '
                     f'{field.dtype}'))
    if array.ndim != len(field.axes):
      faults.append((key, f'has {array.ndim} dimensions; it must have '
                     f'{len(field.axes)}'))
  faults = faults or list(rules.unequal_counts(arrays))
  if not faults and arrays['edge_index'].shape[1] != 2:
    faults = [('edge_index', 'has rows of another length than 2')]
  if not faults:
    faults = [(key, message) for key, _, rule in rules.READ_RULES
              for message in rule(arrays)]
  if faults:
    key, message = faults[0]
    raise UserError(
        f'{where or kernel.tile_id}: {key} {message}; copy the file again, '
        'or run `tpu-graphs-ext check-data` on its folder to see every fault')
