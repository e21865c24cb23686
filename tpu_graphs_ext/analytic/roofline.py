"""Roofline times of the operators of a recommendation model on a GPU.

    time = the larger of  bytes / bandwidth  and  operations / throughput

The formulas come from a public notebook on DLRM training on a V100, the default
GPU. Memory moves in sectors of 32 bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping

import numpy as np

from tpu_graphs_ext.errors import UserError

SECTOR_BYTES = 32
VALUE_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Gpu:
  """Bandwidths in GB/s (1e9 bytes), and 1e9 multiply-adds in a second."""
  dram_gb_s: float = 809.0
  l2_gb_s: float = 2888.0
  l2_bytes: int = 24 * 2**20
  multiprocessors: int = 80
  gflop_s: float = 12200.0


@dataclasses.dataclass(frozen=True)
class EmbeddingBags:
  """Lookups in embedding tables, summed over bags."""
  batch_size: int  # Bags a table.
  rows: int  # Rows a table.
  tables: int
  bag_size: float  # Rows in the sum of a bag; a mean may be a fraction.
  width: int  # Values a row.
  rows_per_block: int = 32  # Warps of a thread block, a bag each.
  shared_memory: bool = True  # Whether the multiprocessor keeps the indices.
  value_bytes: int = VALUE_BYTES
  index_bytes_each: int = VALUE_BYTES

  def __post_init__(self):
    if self.bag_size <= 0:
      raise UserError(f'bag_size is {self.bag_size}; it must be above 0')
    for name, value in vars(self).items():
      if value < 1 and name not in ('shared_memory', 'bag_size'):
        raise UserError(f'{name} is {value}; it must be at least 1')

  @property
  def bags(self) -> int:
    return self.batch_size * self.tables

  @property
  def row_bytes(self) -> int:
    return _sectors(self.width * self.value_bytes)

  @property
  def index_bytes(self) -> int:
    """Bytes of the indices of one bag."""
    return _sectors(self.bag_size * self.index_bytes_each)


def _sectors(size: float) -> int:
  """Bytes in whole sectors."""
  return int(-(-size // SECTOR_BYTES)) * SECTOR_BYTES


def _us(amount: float, giga_per_second: float) -> float:
  return amount / giga_per_second / 1000


# Where a bag starts, and where its table does: a sector each.
_OFFSET_BYTES = 2 * SECTOR_BYTES


def cached_table_bytes(bags: EmbeddingBags, gpu: Gpu) -> int:
  """Bytes of the cache for each table in use at the same time."""
  warps = gpu.multiprocessors * bags.rows_per_block
  tables = -(-warps // bags.batch_size)
  return min(gpu.l2_bytes // tables,
             bags.rows * bags.width * bags.value_bytes)


def hit_rate(bags: EmbeddingBags, gpu: Gpu) -> float:
  """Probability that the cache holds all rows that a table's lookups read.

      C(x, b) / C(n, b), x of n rows cached, b = batch_size draws without
      repetition; close to 0 unless almost the whole table is cached.
  """
  held = cached_table_bytes(bags, gpu)
  if not bags.shared_memory:
    held -= bags.index_bytes
  cached = held // bags.value_bytes // bags.width
  draws = min(bags.batch_size, bags.rows)
  if cached < draws:  # At least one factor is 0.
    return 0.0
  # Logarithms of n * (n - 1) * ..., with `draws` factors.
  reached, possible = (math.lgamma(n + 1) - math.lgamma(n - draws + 1)
                       for n in (cached, bags.rows))
  return math.exp(reached - possible)


def embedding_forward_us(bags: EmbeddingBags, gpu: Gpu = Gpu()) -> float:
  """Time of the lookup: the larger of main memory's and the cache's.

  Rows that hit come from the cache, everything else from main memory.
  """
  rate = hit_rate(bags, gpu)
  cached = cached_table_bytes(bags, gpu)
  row_traffic = bags.bag_size * bags.row_bytes * bags.batch_size - cached
  indices_from_l2 = 0
  if not bags.shared_memory:  # Each group of threads reads them again.
    threads = max(bags.width / 4, 1024 / bags.rows_per_block)
    indices_from_l2 = bags.width // (4 * threads) * bags.index_bytes
  l2_bytes = bags.tables * (
      (_OFFSET_BYTES + indices_from_l2) * bags.batch_size
      + rate * row_traffic)
  dram_bytes = bags.tables * (
      (bags.index_bytes + bags.row_bytes) * bags.batch_size
      + (1 - rate) * row_traffic + cached)
  return max(_us(dram_bytes, gpu.dram_gb_s), _us(l2_bytes, gpu.l2_gb_s))


def embedding_backward_sgd_us(bags: EmbeddingBags, gpu: Gpu = Gpu()) -> float:
  """Time of a gradient step, which reads and writes every row of a bag.

  Without shared memory each row has its own index sector, and reads the
  gradient of the result twice instead of once for the bag.
  """
  if bags.shared_memory:
    indices, gradients = bags.index_bytes, bags.row_bytes
  else:
    indices = bags.bag_size * SECTOR_BYTES
    gradients = 2 * bags.bag_size * bags.row_bytes
  traffic = bags.bags * (_OFFSET_BYTES + indices + gradients
                         + 2 * bags.bag_size * bags.row_bytes)
  multiply_adds = bags.bags * bags.bag_size * 4 * (bags.width // 4)
  return max(_us(traffic, gpu.dram_gb_s), _us(multiply_adds, gpu.gflop_s))


def embedding_backward_rowwise_adagrad_us(bags: EmbeddingBags,
                                          gpu: Gpu = Gpu()) -> float:
  """Time of a step of Adagrad with one accumulator a row.

  It reads indices twice, and moves rows three times: for the gradient's square,
  to read and to write them; and the gradient of the result once more.
  """
  rows = 3 * bags.bag_size + 1
  return _us(bags.bags * (_OFFSET_BYTES + 2 * bags.index_bytes
                          + rows * bags.row_bytes), gpu.dram_gb_s)


def fully_connected_us(size: tuple, gpu: Gpu = Gpu(),
                       measured_us: Mapping[tuple, float] | None = None
                       ) -> float:
  """Time of `batch` products of m x k and k x n matrices.

  Throughput and bandwidth are interpolated linearly in each size between
  measured ones, and constant beyond them; without measurements both are the
  machine's peak. (The notebook gives a neighbour the other one's weight, and
  tends to the peak beyond them.)

  Args:
    size: (batch, m, n, k).
    measured_us: (batch, m, n, k) -> time, a full grid.

  Raises:
    UserError: a size is below 1, or the grid has a gap.
  """
  if len(size) != 4 or min(size) < 1:
    raise UserError(f'size is {size}; it must be (batch, m, n, k), each at '
                    'least 1')
  throughput, bandwidth = gpu.gflop_s, gpu.dram_gb_s
  if measured_us:
    throughput = bandwidth = 0.0
    for corner, weight in _corners(size, measured_us):
      if corner not in measured_us:
        raise UserError(f'measured_us lacks {corner}; it must hold every '
                        'combination of its sizes')
      operations, moved = _product(corner)
      throughput += weight * _us(operations, measured_us[corner])
      bandwidth += weight * _us(moved, measured_us[corner])
  operations, moved = _product(size)
  return max(_us(operations, throughput), _us(moved, bandwidth))


def _product(size: tuple) -> tuple[int, int]:
  """(multiply-adds, bytes) of a batch of matrix products."""
  batch, m, n, k = size
  return (batch * m * n * k,
          batch * (m * k + k * n + m * n) * VALUE_BYTES)


def _corners(size, measured) -> list:
  """Measured sizes around `size`, with weights that add up to 1."""
  sides = []
  for value, values in zip(size, zip(*measured)):
    known = np.unique(values)
    # A weight is 1 at its known value, 0 at the others, linear between.
    weights = [np.interp(value, known, row) for row in np.eye(len(known))]
    sides.append([(int(one), weight) for one, weight in zip(known, weights)
                  if weight > 0])
  return [(tuple(value for value, _ in corner),
           float(np.prod([weight for _, weight in corner])))
          for corner in itertools.product(*sides)]
