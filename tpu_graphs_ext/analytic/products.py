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

  ignored = ()

  @property
  def sums_rows(self) -> bool:
    return self.kind == 'drhs'

  @property
  def sublanes(self) -> int:
    """A tile's rows are a multiple of this."""
    return 8 * 4 // min(4, self.x_bytes, self.out_bytes)

  def text(self) -> str:
    """Its sizes."""
    name = {'forward': 'grouped product',
            'dlhs': "a grouped product's gradient of the rows",
            'drhs': "a grouped product's gradient of the weights"}[self.kind]
    return (f'{name}: m {self.m:,} in {self.groups:,} groups x k {self.k:,} x '
            f'n {self.n:,}')


def product_of(
    module: protos.HloModuleProto) -> Product | GroupedProduct:
  """The product that a module, as it was lowered, computes of its parameters.

  Rows are the first parameter's, columns the second's. Element types are those
  in main memory, before and after any conversion. Raises UserError, which names
  what is in the way, if it computes anything else, or with other types.
  """
  values = _Values(module)
  root = values.made(values.roots[module.entry_computation_id])
  while root.opcode == 'tuple' and len(root.operand_ids) == 1:
    root = values.made(root.operand_ids[0])
  epilogue = _Epilogue(values, root)
  kinds = {dot.opcode for dot in epilogue.dots}
  if epilogue.others or len(kinds) != 1 or (
      kinds == {'ragged-dot'} and (
          len(epilogue.dots) > 1 or epilogue.operations)):
    raise _refusal(module.name, epilogue)
  if kinds == {'ragged-dot'}:
    return _grouped(module.name, values, epilogue.dots[0], root)
  return _plain(module.name, values, epilogue, root)


class _Epilogue:
  """What leads from products to the result, and is done by element."""

  def __init__(self, values: _Values, root: protos.HloInstructionProto):
    self.dots, self.parameters = [], []
    self.operations, self.others = [], []  # Names of opcodes, each once.
    waiting, seen = [root], set()
    while waiting:
      node = waiting.pop()
      if node.id in seen:
        continue
      seen.add(node.id)
      if node.opcode in ('dot', 'ragged-dot'):
        self.dots.append(node)
      elif node.opcode == 'parameter':
        self.parameters.append(node)
      else:
        if node.opcode in _ELEMENTWISE:
          self.operations.append(node.opcode)
        elif node.opcode not in _MOVES | _MADE or node.opcode == 'tuple':
          self.others.append(node.opcode)
        waiting.extend(map(values.made, node.operand_ids))
    self.operations = sorted(set(self.operations))
    self.others = sorted(set(self.others))


def _refusal(name: str, epilogue: _Epilogue) -> UserError:
  what = ['several results' if opcode == 'tuple' else opcode
          for opcode in epilogue.others or epilogue.operations]
  counted = [] if 'tuple' in epilogue.others or len(epilogue.dots) == 1 else [
      f'{len(epilogue.dots)} products']
  return UserError(
      f'{name}: blocks are ranked for a function that is one matrix product, '
      'such as jnp.matmul or jnp.einsum of its two arguments, with what '
      'follows it element by element, or for one jax.lax.ragged_dot alone; '
      'this one has '
      f'{shortened([*what, *counted])}')


def _plain(name, values, epilogue, root) -> Product:
  found = [_Dot(name, values, dot) for dot in epilogue.dots]
  first = found[0]
  shared = set.intersection(*({dot.left.id, dot.right.id} for dot in found))
  if len(found) > 1:
    if len(shared) != 1 or len({dot.sizes_from(shared) for dot in found}) > 1:
      raise UserError(
          f'{name}: has {len(found)} products of different rows or sizes; '
          'blocks are ranked for products that share one argument, as those of '
          'a gate do')
    first = first.turned_to(shared)
  results = first.batch * first.rows * first.columns
  if math.prod(root.shape.dimensions) != results or root.opcode == 'tuple':
    raise UserError(
        f'{name}: its result has not the {results:,} elements of its product; '
        'blocks are ranked for one result of that size')
  operands = {side.id for dot in found for side in (dot.left, dot.right)}
  extra_bytes, ignored = _read_by_epilogue(
      name, epilogue, operands, results)
  return Product(
      first.batch, first.rows, first.inner, first.columns,
      _bytes(name, first.left), _bytes(name, first.right), _bytes(name, root),
      narrow=first.narrow, weights=len(found), extra_bytes=extra_bytes,
      ignored=ignored)


def _read_by_epilogue(name, epilogue, operands, results) -> tuple:
  """(bytes for each element of the result, what the time leaves out)."""
  extra_bytes, ignored = 0, []
  for node in epilogue.parameters:
    # An operand that the epilogue reads too comes in a second time.
    if math.prod(node.shape.dimensions) >= results:
      extra_bytes += _bytes(name, node)
    elif node.shape.dimensions:
      sizes = ','.join(map(str, node.shape.dimensions))
      again = ' again' if node.id in operands else ''
      ignored.append(f'reading {node.name}[{sizes}]{again}')
  if epilogue.operations:
    ignored.append('computing ' + ', '.join(epilogue.operations))
  return extra_bytes, tuple(ignored)


class _Dot:
  """A product of two parameters; rows are of the lower number."""

  def __init__(self, name, values, dot):
    numbers = dot.dot_dimension_numbers
    first, second = map(values.nodes.__getitem__, dot.operand_ids)
    self.batch, self.inner, self.rows = _sizes(
        first, numbers.lhs_batch_dimensions,
        numbers.lhs_contracting_dimensions)
    _, _, self.columns = _sizes(
        second, numbers.rhs_batch_dimensions,
        numbers.rhs_contracting_dimensions)
    self.left, self.right = (
        values.parameter(name, operand) for operand in dot.operand_ids)
    if self.left.id == self.right.id:
      raise UserError(f'{name}: multiplies an argument by itself; blocks are '
                      'ranked for products of two arguments')
    narrow = {_NARROW.get(_type(node), '') for node in (first, second)}
    self.narrow = narrow.pop() if len(narrow) == 1 else ''
    if self.left.parameter_number > self.right.parameter_number:
      self._turn()  # einsum may swap them.

  def _turn(self) -> None:
    self.left, self.right = self.right, self.left
    self.rows, self.columns = self.columns, self.rows

  def turned_to(self, shared: set) -> _Dot:
    """Itself, with the shared argument on the left."""
    if self.left.id not in shared:
      self._turn()
    return self

  def sizes_from(self, shared: set) -> tuple:
    dot = self.turned_to(shared)
    return dot.batch, dot.rows, dot.inner, dot.columns


def _grouped(name, values, dot, root) -> GroupedProduct:
  ragged = protos.RaggedDot.FromString(
      dot.SerializeToString()).ragged_dot_dimension_numbers
  x, w, sizes = (values.made(number) for number in dot.operand_ids)
  contracted = list(ragged.dot_dimension_numbers.rhs_contracting_dimensions)
  if ragged.dot_dimension_numbers.lhs_batch_dimensions or len(
      sizes.shape.dimensions) != 1 or len(x.shape.dimensions) != 2:
    raise UserError(f'{name}: is a batch of grouped products; blocks are '
                    'ranked for one, of rows [m, k]')
  if len(w.shape.dimensions) == 2:  # Rows are what is summed over.
    kind, (m, k), n = 'drhs', x.shape.dimensions, w.shape.dimensions[1]
  else:
    kind = 'forward' if contracted == [1] else 'dlhs'
    m, k = x.shape.dimensions
    n = w.shape.dimensions[2 if kind == 'forward' else 1]
  narrow = {_NARROW.get(_type(node), '') for node in (x, w)}
  return GroupedProduct(
      kind, sizes.shape.dimensions[0], m, k, n,
      _bytes(name, values.stored(x)), _bytes(name, values.stored(w)),
      _bytes(name, root),
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

  def parameter(self, name: str, number: int) -> protos.HloInstructionProto:
    """The function's parameter that an operand is, moved and rounded at most.

    Raises UserError if something computes the operand.
    """
    node = self.stored(self.made(number))
    if node.opcode != 'parameter':
      raise UserError(
          f'{name}: {node.opcode} computes an operand of its product; blocks '
          'are ranked for products of arguments, which may be transposed, '
          'reshaped and converted first')
    return node

  def stored(self, node) -> protos.HloInstructionProto:
    """A value before it was moved or rounded."""
    while node.opcode in _MOVES and node.operand_ids:
      node = self.made(node.operand_ids[0])
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
