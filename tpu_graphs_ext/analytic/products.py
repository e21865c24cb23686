"""A function's HLO module -> the one matrix product that it is."""

from __future__ import annotations

import math

from tpu_graphs_ext.analytic.blocks import Product
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import fusions, protos

# Beside the product, what moves or rounds numbers but computes nothing.
_MOVES = frozenset({'parameter', 'transpose', 'reshape', 'copy', 'bitcast',
                    'bitcast-convert', 'convert', 'tuple'})
_NARROW = {'S8': 'int8', 'U8': 'int8', 'F8E4M3FN': 'fp8', 'F8E5M2': 'fp8'}
_BYTES = {'F32': 4, 'BF16': 2, 'F16': 2, 'S32': 4, **dict.fromkeys(_NARROW, 1)}


def product_of(module: protos.HloModuleProto) -> Product:
  """The product that a module computes of its two parameters.

  Its rows are those of the first parameter, its columns those of the second.
  Elements have the types that they have in main memory, before and after any
  conversion.

  Args:
    module: not optimised, as a function was lowered.

  Raises:
    UserError: it computes anything else, or of other types.
  """
  module = fusions.inlined(module)
  entry = next(c for c in module.computations
               if c.id == module.entry_computation_id)
  nodes = {node.id: node for node in entry.instructions}
  dots = [node for node in nodes.values() if node.opcode == 'dot']
  others = sorted({node.opcode for node in nodes.values()
                   if node.opcode not in _MOVES} - {'dot'})
  if len(dots) != 1 or others:
    found = [*others, *(['dot'] if len(dots) == 1 else
                        [f'{len(dots)} dots'] if dots else [])]
    raise UserError(
        f'{module.name}: blocks are ranked for a function that is one matrix '
        'product, such as jnp.matmul or jnp.einsum of its two arguments; this '
        f'one has {shortened(found) or "no product"}')
  return _product(module.name, dots[0], nodes, nodes[entry.root_id])


def _product(name, dot, nodes, root) -> Product:
  left, right = (_source(nodes, number) for number in dot.operand_ids)
  numbers = dot.dot_dimension_numbers
  batch, inner, rows = _sizes(
      nodes[dot.operand_ids[0]], numbers.lhs_batch_dimensions,
      numbers.lhs_contracting_dimensions)
  columns = _sizes(nodes[dot.operand_ids[1]], numbers.rhs_batch_dimensions,
                   numbers.rhs_contracting_dimensions)[2]
  if left.id == right.id:
    raise UserError(f'{name}: multiplies an argument by itself; blocks are '
                    'ranked for products of two arguments')
  if left.parameter_number > right.parameter_number:  # einsum may swap them.
    left, right, rows, columns = right, left, columns, rows
  while root.opcode == 'tuple' and len(root.operand_ids) == 1:
    root = nodes[root.operand_ids[0]]
  return Product(
      batch, rows, inner, columns, *(
          _bytes(name, node) for node in (left, right, root)),
      narrow=_narrow([nodes[number] for number in dot.operand_ids]))


def _narrow(operands) -> str:
  """As `Product.narrow`: both operands must be of such a type."""
  left, right = (_NARROW.get(_type(node), '') for node in operands)
  return left if left == right else ''


def _source(nodes, number):
  """The parameter that an operand is made of."""
  node = nodes[number]
  while node.operand_ids:
    node = nodes[node.operand_ids[0]]
  return node


def _sizes(node, batch, contracted) -> tuple[int, int, int]:
  """(batch, contracted, free) elements of an operand."""
  sizes = list(node.shape.dimensions)
  free = [size for dim, size in enumerate(sizes)
          if dim not in batch and dim not in contracted]
  return (math.prod(sizes[dim] for dim in batch),
          math.prod(sizes[dim] for dim in contracted), math.prod(free))


def _type(node) -> str:
  return protos.PrimitiveType.Name(node.shape.element_type)


def _bytes(name, node) -> int:
  kind = _type(node)
  if kind not in _BYTES:
    raise UserError(f'{name}: {node.name} has elements of the type '
                    f'{kind.lower()}; blocks are ranked for '
                    f'{", ".join(_BYTES).lower()}')
  return _BYTES[kind]
