"""The matrix product that a function computes, for who ranks its blocks.

One product of two arguments with what follows it element by element (bias,
activation, residual, scale), several products of the same rows that meet there
(a gate, as in SwiGLU), or one grouped product (`jax.lax.ragged_dot`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.hlo import protos

# They move or round numbers.
_MOVES = frozenset({'parameter', 'transpose', 'reshape', 'copy', 'bitcast',
                    'bitcast-convert', 'convert', 'tuple', 'call',
                    'get-tuple-element'})
# Made on the chip, from nothing or little.
_MADE = frozenset({'constant', 'broadcast', 'iota'})
_ELEMENTWISE = frozenset({
    'abs', 'add', 'and', 'cbrt', 'ceil', 'clamp', 'compare', 'cosine',
    'divide', 'erf', 'exponential', 'exponential-minus-one', 'floor', 'log',
    'log-plus-one', 'logistic', 'maximum', 'minimum', 'multiply', 'negate',
    'not', 'or', 'power', 'reduce-precision', 'round-nearest-afz',
    'round-nearest-even', 'rsqrt', 'select', 'sign', 'sine', 'sqrt',
    'subtract', 'tanh'})
_NARROW = {'S8': 'int8', 'U8': 'int8', 'F8E4M3FN': 'fp8', 'F8E5M2': 'fp8'}
_MOST_VALUES = 10_000  # Of an epilogue, calls inlined.
_BYTES = {'F32': 4, 'BF16': 2, 'F16': 2, 'S32': 4, **dict.fromkeys(_NARROW, 1)}


@dataclasses.dataclass(frozen=True)
class Product:
  """out[b, m, n] = f(sum over k of x[b, m, k] w[b, k, n])."""
  batch: int  # 1 for plain matrices.
  m: int
  k: int
  n: int
  x_bytes: int  # Of an element in main memory, as the next two.
  w_bytes: int
  out_bytes: int
  narrow: str = ''  # 'int8' or 'fp8' if it multiplies such numbers.
  weights: int = 1  # Products of the same rows, as of a gate: 2.
  extra_bytes: int = 0  # That the epilogue reads for an element of the result.
  ignored: tuple[str, ...] = ()  # What of the epilogue the time leaves out.

  @property
  def sublanes(self) -> int:
    """An output block's rows are a multiple of this."""
    return 8 * 4 // min(4, self.x_bytes, self.out_bytes)

  def text(self) -> str:
    """Its sizes."""
    sizes = f'm {self.m:,} x k {self.k:,} x n {self.n:,}'
    if self.weights > 1:
      sizes += f', {self.weights} products of the same rows'
    return sizes + (f', {self.batch:,} times' if self.batch > 1 else '')


@dataclasses.dataclass(frozen=True)
class GroupedProduct:
  """A product whose rows come in groups, each with weights of its own.

  forward  out[r, n] = sum over k of x[r, k] w[group of r, k, n]
  dlhs     the same with w[group of r, n, k]: the gradient of the rows
  drhs     out[g, k, n] = sum over the rows r of group g of x[r, k] w[r, n]: the
           gradient of the weights
  """
  kind: str
  groups: int
  m: int  # Rows of all groups.
  k: int
  n: int
  x_bytes: int  # Of an element of the first operand, the second, the result.
  w_bytes: int
  out_bytes: int
  narrow: str = ''  # As of `Product`.

  ignored, sublanes = (), Product.sublanes

  @property
  def sums_rows(self) -> bool:
    return self.kind == 'drhs'

  def text(self) -> str:
    """Its sizes."""
    name = {'forward': 'grouped product',
            'dlhs': "a grouped product's gradient of the rows",
            'drhs': "a grouped product's gradient of the weights"}[self.kind]
    return (f'{name}: m {self.m:,} in {self.groups:,} groups x k {self.k:,} x '
            f'n {self.n:,}')


def product_of(module: protos.HloModuleProto) -> Product | GroupedProduct:
  """The product that a module, as it was lowered, computes of its parameters.

  Rows are the first parameter's, columns the second's. Element types are those
  in main memory, before and after any conversion. Raises UserError, which names
  what is in the way, if it computes anything else, or with other types.
  """
  tables = protos.by_id(protos.nodes(module)), {
      each.id: each.root_id for each in module.computations}
  root = _value(tables, tables[1][module.entry_computation_id])
  while root.node.opcode == 'tuple' and len(root.node.operand_ids) == 1:
    root, = root.operands()
  epilogue = _Epilogue(module.name, root)
  dots, reasons = epilogue.dots, epilogue.others or epilogue.operations
  is_grouped = 'ragged-dot' in {dot.node.opcode for dot in dots}
  if epilogue.others or not dots or (
      is_grouped and (len(dots) > 1 or epilogue.operations)):
    if len(dots) != 1 and 'several results' not in reasons:
      reasons = [*reasons, f'{len(dots)} products']
    raise UserError(
        f'{module.name}: blocks are ranked for a function that is one matrix '
        'product, such as jnp.matmul or jnp.einsum of its two arguments, with '
        'what follows it element by element, or for one jax.lax.ragged_dot '
        f'alone; this one has {shortened(reasons)}')
  if any(0 in value.dims for dot in dots for value in dot.operands()):
    raise UserError(f'{module.name}: multiplies a tensor without elements')
  if is_grouped:
    return _grouped(module.name, dots[0], root)
  return _plain(module.name, epilogue, root)


def _value(tables: tuple[dict, dict], number: int,
           calls: tuple = ()) -> _Value:
  """A value of a computation that `calls` lead to, behind calls and tuples.

  Inlines calls, as JAX calls functions. `tables` are instructions, and roots of
  computations, by their ids.
  """
  nodes, roots = tables
  node = nodes[number]
  if node.opcode == 'call':
    return _value(tables, roots[node.called_computation_ids[0]],
                  (*calls, number))
  if node.opcode == 'parameter' and calls:
    caller = nodes[calls[-1]]
    return _value(
        tables, caller.operand_ids[node.parameter_number], calls[:-1])
  if node.opcode == 'get-tuple-element':
    parts = _value(tables, node.operand_ids[0], calls)
    if parts.node.opcode == 'tuple':  # Else of a loop, a sort and the like.
      return _value(
          tables, parts.node.operand_ids[node.tuple_index], parts.calls)
  return _Value(tables, node, calls)


class _Value:
  """What an instruction makes, where certain calls lead to it."""

  def __init__(self, tables, node, calls):
    self._tables, self.node, self.calls = tables, node, calls
    self.key = node.id, calls
    self.dims = list(node.shape.dimensions)

  def operands(self) -> list[_Value]:
    return [_value(self._tables, number, self.calls)
            for number in self.node.operand_ids]

  def stored(self) -> _Value:
    """Itself before it was moved or rounded."""
    value = self
    while value.node.opcode in _MOVES and value.node.operand_ids:
      value = value.operands()[0]
    return value

  @property
  def type(self) -> str:
    return protos.TYPE_NAMES.get(self.node.shape.element_type, 'new type')


class _Epilogue:
  """What leads from products to the result, and is done by element."""

  def __init__(self, name: str, root: _Value):
    self.dots, self.parameters, operations, others = [], [], set(), set()
    waiting, seen = [root], set()
    while waiting:
      value = waiting.pop()
      if value.key in seen:
        continue
      seen.add(value.key)
      if len(seen) > _MOST_VALUES:
        raise UserError(f'{name}: has more than {_MOST_VALUES:,} operations '
                        'after its product; blocks are ranked for fewer')
      opcode = value.node.opcode
      if opcode in ('dot', 'ragged-dot'):
        self.dots.append(value)
        continue
      if opcode == 'parameter':
        self.parameters.append(value)
      elif opcode in _ELEMENTWISE:
        operations.add(opcode)
      elif opcode == 'tuple' and value is root:
        others.add('several results')
      elif opcode not in _MOVES | _MADE:
        others.add(opcode)
      waiting.extend(value.operands())
    self.operations, self.others = sorted(operations), sorted(others)


def _plain(name: str, epilogue: _Epilogue, root: _Value) -> Product:
  dots = epilogue.dots
  sides = [_sides(name, dot) for dot in dots]
  shared = set.intersection(*(
      {side.stored.key for side in both} for both in sides))
  # Rows are of the operand that several products share, else of the first
  # parameter: einsum may swap them.
  for both in sides:
    both.sort(key=lambda side: (
        len(dots) > 1 and side.stored.key not in shared,
        side.stored.node.parameter_number))
  if len(dots) > 1 and (len(shared) != 1 or len({
      (*left[1:], *right[1:]) for left, right in sides}) > 1):
    raise UserError(f'{name}: has {len(dots)} products of different rows or '
                    'sizes; blocks are ranked for products that share one '
                    'argument, as those of a gate do')
  left, right = sides[0]
  results = left.batch * left.others * right.others
  if math.prod(root.dims) != results:
    raise UserError(
        f'{name}: its result has not the {results:,} elements of its product; '
        'blocks are ranked for one result of that size')
  extra_bytes, ignored = 0, []
  for value in epilogue.parameters:
    if math.prod(value.dims) >= results:
      extra_bytes += _bytes(name, value)
    elif value.dims:
      ignored.append(f'reading {value.node.name}{value.dims}')
  if epilogue.operations:
    ignored.append('computing ' + ', '.join(epilogue.operations))
  return Product(
      left.batch, left.others, left.inner, right.others,
      _bytes(name, left.stored), _bytes(name, right.stored),
      _bytes(name, root), _narrow(dots[0].operands()), len(dots), extra_bytes,
      tuple(ignored))


class _Side(NamedTuple):
  """An operand of a product, and its elements along each kind of dimension."""
  stored: _Value  # A parameter.
  batch: int
  inner: int
  others: int


def _sides(name: str, dot: _Value) -> list[_Side]:
  numbers, sides = dot.node.dot_dimension_numbers, []
  for operand, side in zip(dot.operands(), ('lhs', 'rhs')):
    batch, inner = (getattr(numbers, f'{side}_{kind}_dimensions')
                    for kind in ('batch', 'contracting'))
    others = set(range(len(operand.dims))) - {*batch, *inner}
    sides.append(_Side(operand.stored(), *(
        math.prod(operand.dims[dim] for dim in dims)
        for dims in (batch, inner, others))))
    opcode = sides[-1].stored.node.opcode
    if opcode != 'parameter':
      raise UserError(
          f'{name}: {opcode} computes an operand of its product; blocks are '
          'ranked for products of arguments, which may be transposed, '
          'reshaped and converted first' + (
              '. A JAX before 0.6 lowers jax.lax.ragged_dot like this; name '
              'the Python of a later one with --jax_python'
              if opcode == 'select' else ''))
  if sides[0].stored.key == sides[1].stored.key:
    raise UserError(f'{name}: multiplies an argument by itself; blocks are '
                    'ranked for products of two arguments')
  return sides


def _grouped(name: str, dot: _Value, root: _Value) -> GroupedProduct:
  numbers = protos.RaggedDot.FromString(
      dot.node.SerializeToString()
  ).ragged_dot_dimension_numbers.dot_dimension_numbers
  x, w, sizes = dot.operands()
  if numbers.lhs_batch_dimensions or (len(x.dims), len(sizes.dims)) != (2, 1):
    raise UserError(f'{name}: is a batch of grouped products; blocks are '
                    'ranked for one, of rows [m, k]')
  kind = 'drhs' if len(w.dims) == 2 else (
      'forward' if list(numbers.rhs_contracting_dimensions) == [1] else 'dlhs')
  return GroupedProduct(
      kind, *sizes.dims, *x.dims, w.dims[1 if kind == 'dlhs' else -1],
      _bytes(name, x.stored()), _bytes(name, w.stored()), _bytes(name, root),
      _narrow((x, w)))


def _narrow(operands) -> str:
  """The 8-bit type that both are multiplied as, or ''."""
  first, second = (_NARROW.get(operand.type, '') for operand in operands)
  return first if first == second else ''


def _bytes(name: str, value: _Value) -> int:
  if value.type not in _BYTES:
    raise UserError(f'{name}: {value.node.name} has elements of the type '
                    f'{value.type.lower()}; blocks are ranked for '
                    f'{", ".join(_BYTES).lower()}')
  return _BYTES[value.type]
