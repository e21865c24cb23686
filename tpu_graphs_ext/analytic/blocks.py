"""The time of a matrix product as a Pallas kernel, by the size of its blocks.

A kernel of `pl.pallas_call` with the grid (batch, m / bm, n / bn, k / bk), the
last one innermost. While a step computes, the next step's blocks come in and
the previous result goes out; a block that the next step needs stays on chip.

    time = first blocks in + sum over steps of
           max(matrix unit + accumulation + overhead, blocks of the next step
               in + result of the previous step out) + last block out

Nothing hides the first blocks in and the last one out, so the largest blocks
are expensive. Small ones cost no more where memory is the bottleneck.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import protos

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
  narrow: str  # The 8-bit type that it multiplies twice as fast, or ''.
  matrix_unit: int  # Its rows and columns; fewer rows of input cost the same.
  vmem_bytes: int  # On-chip memory.
  accumulates: bool = False  # The matrix unit adds to its last result itself.


MACHINES = {
    'v2': Machine(300, 22.5e3, '', 128, 16 * _MIB),
    'v3': Machine(450, 61.5e3, '', 128, 16 * _MIB),
    'v4': Machine(614, 137.5e3, '', 128, 16 * _MIB),
    'v5e': Machine(819, 197e3, 'int8', 128, 128 * _MIB),
    'v5p': Machine(1382, 229.5e3, 'int8', 128, 64 * _MIB),
    'v6e': Machine(1640, 918e3, 'int8', 256, 128 * _MIB),
    'v7x': Machine(3690, 1153e3, 'fp8', 256, 64 * _MIB, accumulates=True),
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
  """On-chip memory of int64 [blocks, 3] (bm, bk, bn): float64 [blocks]."""
  x, w, out = _block_bytes(product, blocks)
  bm, bk, bn = blocks.T.astype(float)
  # Float32 sums if a result takes several steps.
  return 2 * (x + w + out) + np.where(bk < product.k, 4 * bm * bn, 0)


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
  is_fast = product.narrow and product.narrow == machine.narrow
  per_ns = machine.flops_per_ns * (2 if is_fast else 1)
  flops = 2 * np.maximum(bm, unit) * (
      np.ceil(bk / unit) * unit) * (np.ceil(bn / unit) * unit)
  return STEP_NS + flops / per_ns + np.where(
      in_parts & (not machine.accumulates),
      8 * bm * bn / _ACCUMULATED_BYTES_PER_NS, 0)


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
  powers = [LANES << power for power in range(32)]
  sizes = [{min(rows, most) for rows in powers}]
  for size in product.k, product.n:
    sizes.append({size, *(part for part in range(LANES, size, LANES)
                          if size % part == 0)})
  if product.n % LANES:
    sizes[2].update(power for power in powers if power < product.n)
  grid = np.stack(np.meshgrid(*map(sorted, sizes), indexing='ij'), -1)
  grid = grid.reshape(-1, 3)
  return grid[vmem_bytes(product, grid) <= _USABLE * machine.vmem_bytes]


def _rounded_up(size: int, unit: int) -> int:
  return -(-size // unit) * unit


def fault_of(product: Product, block: Sequence[int],
             machine: Machine) -> str:
  """Why a Pallas kernel cannot have a block; '' if it can."""
  for name, size, whole, unit in zip(
      ('bm', 'bk', 'bn'), block, (product.m, product.k, product.n),
      (product.sublanes, LANES, LANES)):
    if size % unit and size != whole:
      return f'{name} is neither a multiple of {unit} nor the whole {whole:,}'
    if size > _rounded_up(whole, unit):
      return f'{name} is larger than the whole {whole:,}'
  if product.k % block[1]:
    return (f'bk does not divide {product.k:,}, so the last block would have '
            'undefined values')
  needed = float(vmem_bytes(product, np.array([block]))[0])
  usable = _USABLE * machine.vmem_bytes
  return '' if needed <= usable else (
      f'takes {needed / _MIB:,.1f} MiB; blocks may take {usable / _MIB:,.0f} '
      'MiB of on-chip memory')


# --- The product of a function ------------------------------------------------

# Allowed beside the product: they move or round numbers.
_MOVES = frozenset({'parameter', 'transpose', 'reshape', 'copy', 'bitcast',
                    'bitcast-convert', 'convert', 'tuple', 'call',
                    'get-tuple-element'})
_NARROW = {'S8': 'int8', 'U8': 'int8', 'F8E4M3FN': 'fp8', 'F8E5M2': 'fp8'}
_BYTES = {'F32': 4, 'BF16': 2, 'F16': 2, 'S32': 4, **dict.fromkeys(_NARROW, 1)}


def product_of(module: protos.HloModuleProto) -> Product:
  """The product that a module, as it was lowered, computes of its parameters.

  Rows are the first parameter's, columns the second's. Element types are those
  in main memory, before and after any conversion. Raises UserError if it
  computes anything else, or with other types.
  """
  opcodes = collections.Counter(node.opcode for node in protos.nodes(module))
  others = sorted(set(opcodes) - _MOVES - {'dot'})
  if opcodes['dot'] != 1 or others:
    found = shortened([*others, f'{opcodes["dot"]} dots'])
    raise UserError(
        f'{module.name}: blocks are ranked for a function that is one matrix '
        'product, such as jnp.matmul or jnp.einsum of its two arguments; this '
        f'one has {found}')
  dot = next(node for node in protos.nodes(module) if node.opcode == 'dot')
  values, numbers = _Values(module), dot.dot_dimension_numbers
  first, second = map(values.nodes.__getitem__, dot.operand_ids)
  batch, inner, rows = _sizes(first, numbers.lhs_batch_dimensions,
                              numbers.lhs_contracting_dimensions)
  _, _, columns = _sizes(second, numbers.rhs_batch_dimensions,
                         numbers.rhs_contracting_dimensions)
  left, right = map(values.parameter, dot.operand_ids)
  if left.id == right.id:
    raise UserError(f'{module.name}: multiplies an argument by itself; blocks '
                    'are ranked for products of two arguments')
  if left.parameter_number > right.parameter_number:  # einsum may swap them.
    left, right, rows, columns = right, left, columns, rows
  result = values.made(values.roots[module.entry_computation_id])
  while result.opcode == 'tuple' and len(result.operand_ids) == 1:
    result = values.made(result.operand_ids[0])
  narrow = {_NARROW.get(_type(node), '') for node in (first, second)}
  return Product(
      batch, rows, inner, columns, *(
          _bytes(module.name, node) for node in (left, right, result)),
      narrow=narrow.pop() if len(narrow) == 1 else '')


class _Values:
  """Where values come from; JAX calls jitted functions."""

  def __init__(self, module: protos.HloModuleProto):
    self.nodes = {node.id: node for node in protos.nodes(module)}
    self.roots = {c.id: c.root_id for c in module.computations}
    self._callers = {called: node for node in self.nodes.values()
                     for called in node.called_computation_ids}
    self._homes = {node.id: c.id for c in module.computations
                   for node in c.instructions}

  def made(self, number: int) -> protos.HloInstructionProto:
    """The instruction that makes a value, behind calls and tuples."""
    node = self.nodes[number]
    if node.opcode == 'call':
      return self.made(self.roots[node.called_computation_ids[0]])
    caller = self._callers.get(self._homes[number])
    if node.opcode == 'parameter' and caller is not None:
      return self.made(caller.operand_ids[node.parameter_number])
    if node.opcode == 'get-tuple-element':
      parts = self.made(node.operand_ids[0]).operand_ids
      return self.made(parts[node.tuple_index])
    return node

  def parameter(self, number: int) -> protos.HloInstructionProto:
    """The function's parameter that a value is computed from."""
    node = self.made(number)
    return self.parameter(node.operand_ids[0]) if node.operand_ids else node


def _sizes(node, batch, contracted) -> tuple[int, int, int]:
  """(batch, contracted, other) elements of an operand."""
  sizes = list(node.shape.dimensions)
  others = [size for dim, size in enumerate(sizes)
            if dim not in batch and dim not in contracted]
  return (math.prod(sizes[dim] for dim in batch),
          math.prod(sizes[dim] for dim in contracted), math.prod(others))


def _type(node) -> str:
  return protos.PrimitiveType.Name(node.shape.element_type)


def _bytes(name, node) -> int:
  kind = _type(node)
  if kind not in _BYTES:
    raise UserError(f'{name}: {node.name} has elements of the type '
                    f'{kind.lower()}; blocks are ranked for '
                    f'{", ".join(_BYTES).lower()}')
  return _BYTES[kind]
