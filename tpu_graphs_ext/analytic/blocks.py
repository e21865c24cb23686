"""The time of a matrix product as a Pallas kernel, by the size of its blocks.

A kernel of `pl.pallas_call` with the grid (batch, m / bm, n / bn, k / bk), the
last one innermost. While a step computes, the next step's blocks come in and
the previous result goes out; a block that the next step needs stays on chip.

    time = first blocks in + sum over steps of
           max(matrix unit + accumulation + overhead, blocks of the next step
               in + result of the previous step out) + last block out

Nothing hides the first blocks in and the last one out, so the largest blocks
are expensive. Small ones cost no more where memory is the bottleneck.

What an epilogue reads with each block of the result, such as a residual,
travels as the result does; what it computes is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.analytic.machines import Machine
from tpu_graphs_ext.analytic.products import Product

LANES = 128
STEP_NS = 800.0  # Overhead of a step of the grid.
# Accumulators that pass the vector unit: 8 bytes read and written, per ns.
ACCUMULATED_BYTES_PER_NS = 1e4
_MOST_ROWS = 4096  # Of a block in the usual grid.
# What the compiler keeps besides: at most .46 MiB in 20 kernels, and .83 MiB in
# four of 8-bit numbers.
_STACK_BYTES, _NARROW_STACK_BYTES = 512 * 1024, 1024 * 1024
_MIB = 2**20


def vmem_bytes(product: Product, blocks: np.ndarray,
               machine: Machine) -> np.ndarray:
  """On-chip memory of int64 [blocks, 3] (bm, bk, bn): float64 [blocks].

  Two buffers for each operand and result, float32 sums if a result takes
  several steps, and `stack_bytes`.
  """
  x, w, out = _block_bytes(product, blocks)
  bm, bk, bn = blocks.T.astype(float)
  return 2 * (x + w + out) + np.where(
      bk < product.k, 4 * bm * bn * product.weights, 0
  ) + stack_bytes(x, bn, machine, product.narrow)


def stack_bytes(rows_bytes: np.ndarray, columns: np.ndarray,
                machine: Machine, narrow: str) -> np.ndarray:
  """What the compiler keeps of a block of rows, of so many bytes: [blocks].

  Rows that meet more columns than the matrix unit has are kept a second time,
  but not those of 8-bit numbers, nor by a machine whose matrix unit adds to its
  last result. As libtpu 0.0.50.1 says when it refuses such kernels.
  """
  if machine.accumulates:
    return np.zeros_like(rows_bytes)
  if narrow:
    return np.full_like(rows_bytes, _NARROW_STACK_BYTES)
  return _STACK_BYTES + np.where(
      columns > machine.matrix_unit, rows_bytes, 0)


def times_ns(product: Product, blocks: np.ndarray,
             machine: Machine) -> np.ndarray:
  """Times in ns of int64 [blocks, 3] (bm, bk, bn): float64 [blocks]."""
  rows, inner, columns = np.ceil(
      [product.m, product.k, product.n] / blocks.astype(float)).T
  rows *= product.batch
  x, w, out = (part / machine.bytes_per_ns
               for part in _block_bytes(product, blocks))
  compute = _compute_ns(product, blocks, machine, inner > 1)
  # A step to the next columns, and one to the next rows, which needs no new
  # weights if one block holds them all.
  many_weights = (inner * columns > 1) | (product.batch > 1)
  next_columns = np.maximum(compute, w + out)
  next_rows = np.maximum(compute, x + np.where(many_weights, w, 0) + out)
  whole = rows * (columns - 1) * next_columns + (rows - 1) * next_rows
  # In parts of k, each step takes another block of both.
  parts = (rows * inner * columns - 1) * np.maximum(
      compute, x + w + out / inner)
  return x + w + np.where(inner == 1, whole, parts) + compute + out


def _compute_ns(product, blocks, machine, in_parts) -> np.ndarray:
  bm, bk, bn = blocks.T.astype(float)
  unit = machine.matrix_unit
  flops = 2 * np.maximum(bm, unit) * (
      np.ceil(bk / unit) * unit) * (np.ceil(bn / unit) * unit)
  sums = 8 * bm * bn / ACCUMULATED_BYTES_PER_NS
  return STEP_NS + product.weights * (
      flops / machine.rate(product.narrow)
      + np.where(in_parts & (not machine.accumulates), sums, 0))


def _block_bytes(product, blocks) -> tuple:
  """Of x, of all weights, and of the result with what its epilogue reads."""
  bm, bk, bn = blocks.T.astype(float)
  return (bm * bk * product.x_bytes,
          bk * bn * product.w_bytes * product.weights,
          bm * bn * (product.out_bytes + product.extra_bytes))


def usual_blocks(product: Product, machine: Machine,
                 limit_bytes: float) -> np.ndarray:
  """Blocks that a tuner would try: int64 [blocks, 3], bm, bk, bn in elements.

  Rows: powers of two from 128, or all if there are fewer. k and n: divisors
  that are multiples of 128 lanes, and the whole. For n, whose last block may be
  a part, also each power of two that is more than twice or less than half of
  every such divisor. Only blocks that take at most `limit_bytes` of on-chip
  memory.
  """
  most = min(_MOST_ROWS, rounded_up(product.m, product.sublanes))
  powers = [LANES << power for power in range(32)]
  divisors = [{size, *(part for part in range(LANES, size, LANES)
                       if size % part == 0)} for size in (product.k, product.n)]
  columns = divisors[1] | {
      power for power in powers if power < product.n and not any(
          part % LANES == 0 and abs(math.log2(power / part)) <= 1
          for part in divisors[1])}
  blocks = combinations({min(rows, most) for rows in powers}, divisors[0],
                        columns)
  return blocks[vmem_bytes(product, blocks, machine) <= limit_bytes]


def combinations(*sizes: set) -> np.ndarray:
  """int64 [blocks, 3]: one of each set of sizes, in order."""
  return np.stack(np.meshgrid(*map(sorted, sizes), indexing='ij'),
                  -1).reshape(-1, 3)


def rounded_up(size: int, unit: int) -> int:
  return -(-size // unit) * unit


def fault_of(product: Product, block: Sequence[int], machine: Machine,
             limit_bytes: float) -> str:
  """Why a Pallas kernel cannot have a block; '' if it can."""
  fault = size_fault(block, (product.m, product.k, product.n),
                     product.sublanes)
  if fault:
    return fault
  if product.k % block[1]:
    return (f'bk does not divide {product.k:,}, so the last block would have '
            'undefined values')
  return memory_fault(
      vmem_bytes(product, np.array([block]), machine)[0], limit_bytes)


def size_fault(block: Sequence[int], wholes: Sequence[int],
               sublanes: int) -> str:
  """Why (bm, bk, bn) cannot be blocks of (m, k, n); '' if they can."""
  for name, size, whole, unit in zip(
      ('bm', 'bk', 'bn'), block, wholes, (sublanes, LANES, LANES)):
    if size % unit and size != whole:
      return f'{name} is neither a multiple of {unit} nor the whole {whole:,}'
    if size > rounded_up(whole, unit):
      return f'{name} is larger than the whole {whole:,}'
  return ''


def memory_fault(needed_bytes: float, limit_bytes: float) -> str:
  """Why blocks that take so much on-chip memory are too large, or ''."""
  return '' if needed_bytes <= limit_bytes else (
      f'takes {needed_bytes / _MIB:,.1f} MiB; vmem_limit is '
      f'{limit_bytes / _MIB:,.0f} MiB')
