"""The time of a grouped product as a Pallas kernel, by the size of its tiles.

`jax.lax.ragged_dot` and its two gradients: rows are in groups, as tokens sorted
by their expert, and each group has weights of its own. The grid is (n / tn,
visits, k / tk), the last innermost, as in the public kernels of JAX (megablox)
and tokamax. A visit is a tile of rows and one of its groups: a tile in which a
group ends and another begins is visited once for each, and computes all its
rows each time. Weights come in when the group changes, or with each step if tk
is less than k. For the gradient of the weights, [groups, k, n], rows are what
is summed over: the grid is (n / tn, k / tk, visits).

Who knows no more than the number of groups knows no more of their borders than
that nearly all of them lie inside a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.analytic import blocks as plain
from tpu_graphs_ext.analytic.machines import Machine
from tpu_graphs_ext.analytic.products import GroupedProduct

# Chosen with the measured winners of a v5e and a v7x in view; see
# benchmarks/grouped_blocks.py.
STEP_NS = 200.0  # Overhead of a step of the grid.
INSIDE = 0.9  # Share of the groups' borders that lie inside a tile.
# Weights that the gradient of the rows multiplies as their transpose.
TRANSPOSED_PER_NS = 4e3
_ROWS = (128, 256, 512, 1024)
_PARTS = (1, 2, 4, 8, 16, 32)


def vmem_bytes(product: GroupedProduct, blocks: np.ndarray,
               machine: Machine) -> np.ndarray:
  """On-chip memory of int64 [blocks, 3] (tm, tk, tn): float64 [blocks].

  Two buffers of each operand and result, float32 sums if a result takes several
  steps, and what the compiler keeps of the rows.
  """
  x, w, out = _block_bytes(product, blocks)
  return 2 * (x + w + out) + np.where(
      product.sums_rows | (blocks[:, 1] < product.k),
      4 * out / product.out_bytes, 0
  ) + plain.stack_bytes(x, blocks[:, 2], machine, product.narrow)


def times_ns(product: GroupedProduct, blocks: np.ndarray,
             machine: Machine) -> np.ndarray:
  """Times in ns of int64 [blocks, 3] (tm, tk, tn): float64 [blocks]."""
  tm, _, _ = blocks.T.astype(float)
  inner, columns = np.ceil([product.k, product.n] / blocks[:, 1:]).T
  visits = product.m / tm + (product.groups - 1) * INSIDE
  x, w, out = (part / machine.bytes_per_ns
               for part in _block_bytes(product, blocks))
  compute = _compute_ns(product, blocks, machine)
  if product.sums_rows:
    results = product.groups * inner * columns
    steps = np.maximum(visits * inner * columns - results, 0)
    total = (steps * np.maximum(compute, x + w)
             + results * np.maximum(compute, x + w + out))
  else:
    changes = product.groups * columns  # Steps that need other weights.
    steps = np.maximum(visits * columns - changes, 0)
    whole = (steps * np.maximum(compute, x + out)
             + changes * np.maximum(compute, x + w + out))
    parts = visits * inner * columns * np.maximum(compute, x + w + out / inner)
    total = np.where(inner > 1, parts, whole)
  return x + w + total + out


def _compute_ns(product, blocks, machine) -> np.ndarray:
  tm, tk, tn = blocks.T.astype(float)
  unit = machine.matrix_unit
  flops = 2 * tm * (np.ceil(tk / unit) * unit) * (np.ceil(tn / unit) * unit)
  in_parts = product.sums_rows | (tk < product.k)
  sums = 8 * tn * (tk if product.sums_rows else tm)
  return (STEP_NS + flops / machine.rate(product.narrow)
          + (tk * tn / TRANSPOSED_PER_NS if product.kind == 'dlhs' else 0)
          + np.where(in_parts & (not machine.accumulates),
                     sums / plain.ACCUMULATED_BYTES_PER_NS, 0))


def _block_bytes(product, blocks) -> tuple:
  """Of the first operand, the second, and the result."""
  tm, tk, tn = blocks.T.astype(float)
  second, out = (tm * tn, tk * tn) if product.sums_rows else (
      tk * tn, tm * tn)
  return (tm * tk * product.x_bytes, second * product.w_bytes,
          out * product.out_bytes)


def usual_blocks(product: GroupedProduct, machine: Machine,
                 limit_bytes: float) -> np.ndarray:
  """Tiles that a tuner would try: int64 [blocks, 3], tm, tk, tn in elements.

  Rows: 128 to 1,024. k and n: powers of two from 128, and the whole, its half,
  ... its 32nd, rounded up to 128 lanes, as in tokamax; the kernel masks what
  exceeds the whole. Only those that take at most `limit_bytes`.
  """
  most = plain.rounded_up(product.m, product.sublanes)
  sizes = [{min(rows, most) for rows in _ROWS}]
  for size in product.k, product.n:
    whole = plain.rounded_up(size, plain.LANES)
    powers = {plain.LANES << power for power in range(32)}
    sizes.append({power for power in powers if power <= whole} | {
        plain.rounded_up(-(-size // part), plain.LANES) for part in _PARTS})
  blocks = plain.combinations(*sizes)
  return blocks[vmem_bytes(product, blocks, machine) <= limit_bytes]


def fault_of(product: GroupedProduct, block: Sequence[int], machine: Machine,
             limit_bytes: float) -> str:
  """Why a Pallas kernel cannot have a tile; '' if it can."""
  return plain.size_fault(
      block, (product.m, product.k, product.n), product.sublanes
  ) or plain.memory_fault(
      vmem_bytes(product, np.array([block]), machine)[0], limit_bytes)
