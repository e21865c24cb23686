"""Roofline times of embedding tables on a GPU.

    time = the larger of  bytes / bandwidth  and  operations / throughput

The formulas come from a public notebook on DLRM training on a V100, the default
GPU. Memory moves in sectors of 32 bytes.
"""

from __future__ import annotations

import dataclasses
import math

from tpu_graphs_ext.errors import UserError

SECTOR_BYTES = 32
_OFFSET_BYTES = 2 * SECTOR_BYTES  # Where a bag starts, and where its table.


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
  rows: int  # Of a table.
  tables: int
  bag_size: float  # Rows in the sum of a bag; a mean may be a fraction.
  width: int  # Values a row.
  rows_per_block: int = 32  # Warps of a thread block, a bag each.
  shared_memory: bool = True  # Whether the multiprocessor keeps the indices.
  value_bytes: int = 4
  index_bytes_each: int = 4

  def __post_init__(self):
    for name, value in vars(self).items():
      if value <= 0 and name != 'shared_memory':
        raise UserError(f'{name} is {value}; it must be above 0')

  @property
  def row_bytes(self) -> int:
    return _sectors(self.width * self.value_bytes)

  @property
  def index_bytes(self) -> int:
    """Bytes of the indices of one bag."""
    return _sectors(self.bag_size * self.index_bytes_each)


def _sectors(size: float) -> int:
  """Bytes in whole sectors."""
  return math.ceil(size / SECTOR_BYTES) * SECTOR_BYTES


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
  cached = cached_table_bytes(bags, gpu) // bags.value_bytes // bags.width
  draws = min(bags.batch_size, bags.rows)
  if cached < draws:  # At least one factor is 0.
    return 0.0
  # Logarithms of n * (n - 1) * ..., with `draws` factors.
  reached, possible = (math.lgamma(n + 1) - math.lgamma(n - draws + 1)
                       for n in (cached, bags.rows))
  return math.exp(reached - possible)


def embedding_forward_us(bags: EmbeddingBags, gpu: Gpu = Gpu()) -> float:
  """Time of the lookup, with indices in shared memory.

  Rows that hit come from the cache, everything else from main memory.
  """
  rate, cached = hit_rate(bags, gpu), cached_table_bytes(bags, gpu)
  rows = bags.bag_size * bags.row_bytes * bags.batch_size - cached
  l2_bytes = bags.tables * (_OFFSET_BYTES * bags.batch_size + rate * rows)
  dram_bytes = bags.tables * (
      (bags.index_bytes + bags.row_bytes) * bags.batch_size
      + (1 - rate) * rows + cached)
  return max(dram_bytes / gpu.dram_gb_s, l2_bytes / gpu.l2_gb_s) / 1000


def embedding_backward_sgd_us(bags: EmbeddingBags, gpu: Gpu = Gpu()) -> float:
  """Time of a gradient step, which reads and writes every row of a bag.

  Without shared memory each row has its own index sector, and reads the
  gradient of the result twice instead of once for the bag.
  """
  rows = bags.bag_size * bags.row_bytes
  read = (bags.index_bytes + bags.row_bytes if bags.shared_memory
          else bags.bag_size * SECTOR_BYTES + 2 * rows)
  count = bags.batch_size * bags.tables
  traffic = count * (_OFFSET_BYTES + read + 2 * rows)
  multiply_adds = count * bags.bag_size * 4 * (bags.width // 4)
  return max(traffic / gpu.dram_gb_s, multiply_adds / gpu.gflop_s) / 1000
