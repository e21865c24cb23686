"""The matrix product that a function computes, for who ranks its blocks.

One product of two arguments with what follows it element by element (bias,
activation, residual, scale), several products of the same rows that meet there
(a gate, as in SwiGLU), or one grouped product (`jax.lax.ragged_dot`).
"""

from __future__ import annotations

import dataclasses
import math

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
  root = _Values(module).root
  while root.node.opcode == 'tuple' and len(root.node.operand_ids) == 1:
    root, = root.operands()
  epilogue = _Epilogue(module.name, root)
  grouped = [dot for dot in epilogue.dots if dot.node.opcode == 'ragged-dot']
  if epilogue.others or not epilogue.dots or (grouped and (
      len(epilogue.dots) > 1 or epilogue.operations)):
    raise _refusal(module.name, epilogue)
  if any(0 in value.dims for dot in epilogue.dots for value in dot.operands()):
    raise UserError(f'{module.name}: multiplies a tensor without elements')
  if grouped:
    return _grouped(module.name, grouped[0], root)
  return _plain(module.name, epilogue, root)


class _Values:
  """The values of a module with its calls inlined, as JAX calls functions."""

  def __init__(self, module: protos.HloModuleProto):
    self.nodes = {node.id: node for node in protos.nodes(module)}
    self.roots = {c.id: c.root_id for c in module.computations}
    self.root = self.made(self.roots[module.entry_computation_id], ())

  def made(self, number: int, calls: tuple) -> _Value:
    """A value of a computation that `calls` lead to, behind calls, tuples."""
    node = self.nodes[number]
    if node.opcode == 'call':
      return self.made(self.roots[node.called_computation_ids[0]],
                       (*calls, number))
    if node.opcode == 'parameter' and calls:
      caller = self.nodes[calls[-1]]
      return self.made(caller.operand_ids[node.parameter_number], calls[:-1])
    if node.opcode == 'get-tuple-element':
      parts = self.made(node.operand_ids[0], calls)
      if parts.node.opcode == 'tuple':  # Else of a loop, a sort and the like.
        return self.made(parts.node.operand_ids[node.tuple_index], parts.calls)
    return _Value(self, node, calls)


class _Value:
  """What an instruction makes, where certain calls lead to it."""

  def __init__(self, values, node, calls):
    self._values, self.node, self.calls = values, node, calls
    self.key = node.id, calls
    self.dims = list(node.shape.dimensions)

  def operands(self) -> list[_Value]:
    return [self._values.made(number, self.calls)
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


def _refusal(name: str, epilogue: _Epilogue) -> UserError:
  reasons = epilogue.others or epilogue.operations
  if len(epilogue.dots) != 1 and 'several results' not in reasons:
    reasons = [*reasons, f'{len(epilogue.dots)} products']
  return UserError(
      f'{name}: blocks are ranked for a function that is one matrix product, '
      'such as jnp.matmul or jnp.einsum of its two arguments, with what '
      'follows it element by element, or for one jax.lax.ragged_dot alone; '
      f'this one has {shortened(reasons)}')


def _plain(name: str, epilogue: _Epilogue, root: _Value) -> Product:
  dots = [_Dot(name, dot) for dot in epilogue.dots]
  shared = set.intersection(*({dot.left.key, dot.right.key} for dot in dots))
  if len(dots) > 1:
    for dot in dots:
      if dot.left.key not in shared:
        dot.turn()
    if len(shared) != 1 or len({dot.sizes for dot in dots}) > 1:
      raise UserError(f'{name}: has {len(dots)} products of different rows or '
                      'sizes; blocks are ranked for products that share one '
                      'argument, as those of a gate do')
  batch, rows, inner, columns = dots[0].sizes
  results = batch * rows * columns
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
      batch, rows, inner, columns, _bytes(name, dots[0].left),
      _bytes(name, dots[0].right), _bytes(name, root), dots[0].narrow,
      len(dots), extra_bytes, tuple(ignored))


class _Dot:
  """A product of two parameters; rows are of the lower number."""

  def __init__(self, name: str, dot: _Value):
    numbers, operands = dot.node.dot_dimension_numbers, dot.operands()
    batch, inner, rows = _sizes(operands[0], numbers.lhs_batch_dimensions,
                                numbers.lhs_contracting_dimensions)
    *_, columns = _sizes(operands[1], numbers.rhs_batch_dimensions,
                         numbers.rhs_contracting_dimensions)
    self.sizes = batch, rows, inner, columns
    self.narrow = _narrow(operands)
    self.left, self.right = (operand.stored() for operand in operands)
    for operand in self.left, self.right:
      opcode = operand.node.opcode
      if opcode != 'parameter':
        raise UserError(
            f'{name}: {opcode} computes an operand of its product; blocks are '
            'ranked for products of arguments, which may be transposed, '
            'reshaped and converted first' + (
                '. A JAX before 0.6 lowers jax.lax.ragged_dot like this; name '
                'the Python of a later one with --jax_python'
                if opcode == 'select' else ''))
    if self.left.key == self.right.key:
      raise UserError(f'{name}: multiplies an argument by itself; blocks are '
                      'ranked for products of two arguments')
    if self.left.node.parameter_number > self.right.node.parameter_number:
      self.turn()  # einsum may swap them.

  def turn(self) -> None:
    """Makes rows of the columns."""
    self.left, self.right = self.right, self.left
    batch, rows, inner, columns = self.sizes
    self.sizes = batch, columns, inner, rows


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


def _sizes(value, batch, contracted) -> tuple[int, int, int]:
  """(batch, contracted, other) elements of an operand."""
  others = [size for dim, size in enumerate(value.dims)
            if dim not in batch and dim not in contracted]
  return (math.prod(value.dims[dim] for dim in batch),
          math.prod(value.dims[dim] for dim in contracted), math.prod(others))


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
