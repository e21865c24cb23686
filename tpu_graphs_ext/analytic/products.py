"""A function's HLO module -> the one matrix product that it computes."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping

from tpu_graphs_ext.analytic.blocks import Product
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import protos

# Allowed beside the product: they move or round numbers.
_MOVES = frozenset({'parameter', 'transpose', 'reshape', 'copy', 'bitcast',
                    'bitcast-convert', 'convert', 'tuple'})
_NARROW = {'S8': 'int8', 'U8': 'int8', 'F8E4M3FN': 'fp8', 'F8E5M2': 'fp8'}
_BYTES = {'F32': 4, 'BF16': 2, 'F16': 2, 'S32': 4, **dict.fromkeys(_NARROW, 1)}


def product_of(module: protos.HloModuleProto) -> Product:
  """The product that a module computes of its two parameters.

  Rows are the first parameter's, columns the second's. Element types are those
  in main memory, before and after any conversion.

  Args:
    module: as the function was lowered, not optimised.

  Raises:
    UserError: it computes anything else, or with other types.
  """
  nodes, root = _inlined(module)
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
  return _product(module.name, dots[0], nodes, root)


def _inlined(module) -> tuple[dict, protos.HloInstructionProto]:
  """(instructions by id, result) without calls: JAX calls jitted functions."""
  computations = {c.id: c for c in module.computations}
  nodes, new_ids = {}, itertools.count()

  def add(number: int, arguments: Mapping[int, int]) -> int:
    """Adds a computation; returns the id of its result.

    `arguments`: parameter number -> id of the argument; none for the entry.
    """
    renamed = {}
    for node in computations[number].instructions:
      operands = [renamed[operand] for operand in node.operand_ids]
      if node.opcode == 'parameter' and arguments:
        renamed[node.id] = arguments[node.parameter_number]
      elif node.opcode == 'call':
        renamed[node.id] = add(
            node.called_computation_ids[0], dict(enumerate(operands)))
      elif node.opcode == 'get-tuple-element' and (
          nodes[operands[0]].opcode == 'tuple'):
        renamed[node.id] = nodes[operands[0]].operand_ids[node.tuple_index]
      else:
        written = copy.deepcopy(node)
        written.id = renamed[node.id] = next(new_ids)
        written.operand_ids[:] = operands
        nodes[written.id] = written
    return renamed[computations[number].root_id]

  return nodes, nodes[add(module.entry_computation_id, {})]


def _product(name, dot, nodes, root) -> Product:
  operands = [nodes[number] for number in dot.operand_ids]
  numbers = dot.dot_dimension_numbers
  batch, inner, rows = _sizes(operands[0], numbers.lhs_batch_dimensions,
                              numbers.lhs_contracting_dimensions)
  columns = _sizes(operands[1], numbers.rhs_batch_dimensions,
                   numbers.rhs_contracting_dimensions)[2]
  left, right = (_parameter(nodes, node) for node in operands)
  if left.id == right.id:
    raise UserError(f'{name}: multiplies an argument by itself; blocks are '
                    'ranked for products of two arguments')
  if left.parameter_number > right.parameter_number:  # einsum may swap them.
    left, right, rows, columns = right, left, columns, rows
  while root.opcode == 'tuple' and len(root.operand_ids) == 1:
    root = nodes[root.operand_ids[0]]
  narrow = {_NARROW.get(_type(node), '') for node in operands}
  return Product(
      batch, rows, inner, columns, *(
          _bytes(name, node) for node in (left, right, root)),
      narrow=narrow.pop() if len(narrow) == 1 else '')


def _parameter(nodes, node):
  """The parameter that an operand is computed from."""
  while node.operand_ids:
    node = nodes[node.operand_ids[0]]
  return node


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
