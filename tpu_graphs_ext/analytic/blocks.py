"""The time of a matrix product as a Pallas kernel, by the size of its blocks.

A kernel of `pl.pallas_call` with the grid (batch, m / bm, n / bn, k / bk), the
last one innermost. While a step computes, the next step's blocks come in and
the previous result goes out; a block that the next step needs stays on chip.

    time = first blocks in + sum over steps of
           max(matrix unit + accumulation + overhead, blocks of the next step
               in + result of the previous step out) + last block out

Nothing hides the first blocks in and the last one out, which makes the largest
blocks expensive. Transfers hide a step's overhead as they hide computing, so
small blocks cost no more where memory is the bottleneck.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

LANES = 128
STEP_NS = 800.0  # Overhead of a step of the grid.
# Share of the on-chip memory that blocks may take; the compiler needs some.
_USABLE = 0.75
# Accumulators that pass the vector unit: 8 bytes read and written, per ns.
_ACCUMULATED_BYTES_PER_NS = 1e4
_MOST_ROWS = 4096  # Of a block in the usual grid.
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
  """One core of a TPU generation, from the chip's public figures."""
  bytes_per_ns: float  # Bandwidth of main memory.
  flops_per_ns: float  # bfloat16 operations, two for each multiply-add.
  int8_speedup: float  # 1 if 8-bit numbers have no public figure.
  fp8_speedup: float
  matrix_unit: int  # Its rows and columns; fewer rows of input cost the same.
  vmem_bytes: int  # On-chip memory.
  # Whether the matrix unit adds to its last result itself, as JAX's table of
  # generations says.
  accumulates: bool = False

  @property
  def usable_bytes(self) -> int:
    """On-chip memory that blocks may take."""
    return int(_USABLE * self.vmem_bytes)


MACHINES = {
    'v2': Machine(300, 22.5e3, 1, 1, 128, 16 * _MIB),
    'v3': Machine(450, 61.5e3, 1, 1, 128, 16 * _MIB),
    'v4': Machine(614, 137.5e3, 1, 1, 128, 16 * _MIB),
    'v5e': Machine(819, 197e3, 2, 1, 128, 128 * _MIB),
    'v5p': Machine(1382, 229.5e3, 2, 1, 128, 64 * _MIB),
    'v6e': Machine(1640, 918e3, 2, 1, 256, 128 * _MIB),
    'v7x': Machine(3690, 1153e3, 1, 2, 256, 64 * _MIB, accumulates=True),
}


@dataclasses.dataclass(frozen=True)
class Product:
  """out[b, m, n] = sum over k of x[b, m, k] w[b, k, n]."""
  batch: int  # 1 for plain matrices.
  m: int
  k: int
  n: int
  x_bytes: int  # Of an element in main memory, as the next two.
  w_bytes: int
  out_bytes: int
  narrow: str = ''  # 'int8' or 'fp8' if it multiplies such numbers.

  @property
  def sublanes(self) -> int:
    """An output block's rows are a multiple of this."""
    return 8 * 4 // min(4, self.x_bytes, self.out_bytes)


def vmem_bytes(product: Product, blocks: np.ndarray) -> np.ndarray:
  """On-chip memory of int64 [blocks, 3] (bm, bk, bn): float64 [blocks].

  Two blocks of each operand and of the result, and float32 sums if a result
  takes several steps.
  """
  x, w, out = _block_bytes(product, blocks)
  bm, bk, bn = blocks.T.astype(float)
  return 2 * (x + w + out) + np.where(bk < product.k, 4 * bm * bn, 0)


def times_ns(product: Product, blocks: np.ndarray,
             machine: Machine) -> np.ndarray:
  """Times in ns of int64 [blocks, 3] (bm, bk, bn): float64 [blocks]."""
  bm, bk, bn = blocks.T.astype(float)
  rows, inner, columns = (
      np.ceil(size / block) for size, block in zip(
          (product.m, product.k, product.n), (bm, bk, bn)))
  rows = product.batch * rows
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
  per_ns = machine.flops_per_ns * {
      'int8': machine.int8_speedup, 'fp8': machine.fp8_speedup}.get(
          product.narrow, 1)
  flops = 2 * np.maximum(bm, unit) * (
      np.ceil(bk / unit) * unit) * (np.ceil(bn / unit) * unit)
  compute = STEP_NS + flops / per_ns
  if machine.accumulates:
    return compute
  return compute + np.where(
      in_parts, 8 * bm * bn / _ACCUMULATED_BYTES_PER_NS, 0)


def _block_bytes(product, blocks) -> tuple:
  bm, bk, bn = blocks.T.astype(float)
  return (bm * bk * product.x_bytes, bk * bn * product.w_bytes,
          bm * bn * product.out_bytes)


def usual_blocks(product: Product, machine: Machine) -> np.ndarray:
  """Blocks that a tuner would try: int64 [blocks, 3], bm, bk, bn in elements.

  Rows: powers of two from 128, or all if there are fewer. k and n: divisors
  that are multiples of 128 lanes, and the whole; powers of two for an n without
  such divisors. Only blocks that fit on-chip memory.
  """
  most = min(_MOST_ROWS, _rounded_up(product.m, product.sublanes))
  sizes = [sorted({min(rows, most) for rows in _powers(LANES, _MOST_ROWS)}),
           _divisors(product.k),
           _divisors(product.n) if product.n % LANES == 0
           else _powers(LANES, product.n)]
  grid = np.stack(np.meshgrid(*sizes, indexing='ij'), -1).reshape(-1, 3)
  return grid[vmem_bytes(product, grid) <= machine.usable_bytes]


def _powers(first: int, size: int) -> list[int]:
  """first, 2 first, ... below `size`, and `size` itself."""
  count = max(0, math.ceil(math.log2(max(1, size / first))))
  return [first * 2**power for power in range(count)] + [size]


def _divisors(size: int) -> list[int]:
  """Multiples of 128 that divide `size`, and `size` itself."""
  found = [part for part in range(LANES, size, LANES) if size % part == 0]
  return [*found, size]


def _rounded_up(size: int, unit: int) -> int:
  return -(-size // unit) * unit


def fault_of(product: Product, block: Sequence[int],
             machine: Machine) -> str:
  """Why a Pallas kernel cannot have a block; '' if it can."""
  bm, bk, bn = block
  for name, size, whole, unit in (
      ('bm', bm, product.m, product.sublanes), ('bk', bk, product.k, LANES),
      ('bn', bn, product.n, LANES)):
    if size % unit and size != whole:
      return f'{name} is neither a multiple of {unit} nor the whole {whole:,}'
    if size > _rounded_up(whole, unit):
      return f'{name} is larger than the whole {whole:,}'
  if product.k % bk:
    return (f'bk does not divide {product.k:,}, so the last block would have '
            'undefined values')
  needed = float(vmem_bytes(product, np.array([block]))[0])
  if needed > machine.usable_bytes:
    return (f'takes {needed / _MIB:,.1f} MiB; blocks may take '
            f'{machine.usable_bytes / _MIB:,.0f} MiB of on-chip memory')
  return ''
