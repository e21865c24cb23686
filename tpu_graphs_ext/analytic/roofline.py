"""Embedding tables on a GPU: time = max(bytes / bandwidth, operations / rate).

The formulas and the V100's figures are those of a public notebook on DLRM
training. Memory moves in sectors of 32 bytes; values are float32.
"""

from __future__ import annotations

import math

SECTOR_BYTES = 32
DRAM_BYTES_PER_NS = 809.0
L2_BYTES_PER_NS = 2888.0
L2_BYTES = 24 * 2**20
MULTIPROCESSORS = 80
MULTIPLY_ADDS_PER_NS = 12200.0
_OFFSET_BYTES = 2 * SECTOR_BYTES  # Where a bag starts, and where its table.


def _sectors(values: float) -> int:
  """Bytes of 4-byte values in whole sectors."""
  return math.ceil(4 * values / SECTOR_BYTES) * SECTOR_BYTES


def hit_rate(cached: int, rows: int, draws: int) -> float:
  """Probability that the cache holds all rows that a table's lookups read.

      C(cached, draws) / C(rows, draws), draws without repetition
  """
  draws = min(draws, rows)
  if cached < draws:  # At least one factor is 0.
    return 0.0
  # Logarithms of n * (n - 1) * ..., with `draws` factors.
  reached, possible = (math.lgamma(n + 1) - math.lgamma(n - draws + 1)
                       for n in (cached, rows))
  return math.exp(reached - possible)


def embedding_forward_us(bags: int, rows: int, tables: int, bag_size: int,
                         width: int, rows_per_block: int) -> float:
  """Time of looking up `bags` sums of `bag_size` rows in each table.

  Tables have `rows` rows of `width` values. A thread block sums
  `rows_per_block` bags, with their indices in shared memory. Rows that hit come
  from the cache, everything else from main memory.
  """
  at_once = -(-MULTIPROCESSORS * rows_per_block // bags)  # Tables.
  cached_bytes = min(L2_BYTES // at_once, 4 * rows * width)
  rate = hit_rate(cached_bytes // 4 // width, rows, bags)
  row_bytes = _sectors(width)
  others = bags * bag_size * row_bytes - cached_bytes
  l2_bytes = tables * (_OFFSET_BYTES * bags + rate * others)
  dram_bytes = tables * (bags * (_sectors(bag_size) + row_bytes)
                         + (1 - rate) * others + cached_bytes)
  return max(dram_bytes / DRAM_BYTES_PER_NS, l2_bytes / L2_BYTES_PER_NS) / 1000


def embedding_backward_sgd_us(bags: int, tables: int, bag_size: int,
                              width: int, shared_memory: bool) -> float:
  """Time of a gradient step, which reads and writes every row of a bag.

  Without shared memory each row has its own index sector, and reads the
  gradient of the result twice instead of once for the bag.
  """
  rows_bytes = bag_size * _sectors(width)
  read = (_sectors(bag_size) + _sectors(width) if shared_memory
          else bag_size * SECTOR_BYTES + 2 * rows_bytes)
  traffic = bags * tables * (_OFFSET_BYTES + read + 2 * rows_bytes)
  multiply_adds = bags * tables * bag_size * 4 * (width // 4)
  return max(traffic / DRAM_BYTES_PER_NS,
             multiply_adds / MULTIPLY_ADDS_PER_NS) / 1000
