"""What a kernel computes and moves, by the shapes of its operator.

`record_shapes=True` writes `Input Dims` and `Input type`, in the order of the
operators' schemas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

from tpu_graphs_ext.analytic.roofline import SECTOR_BYTES
from tpu_graphs_ext.traces import calibrate
from tpu_graphs_ext.traces.kineto import Event, is_number

# Bytes of a value.
_BYTES = {
    'double': 8, 'float': 4, 'Half': 2, 'BFloat16': 2, 'long': 8,
    'long int': 8, 'long long': 8, 'int': 4, 'short': 2, 'char': 1,
    'signed char': 1, 'unsigned char': 1, 'bool': 1, 'Float8_e4m3fn': 1,
    'Float8_e5m2': 1, 'complex<float>': 8, 'complex<double>': 16}
_MOST, _MOST_SIDE = 1e30, 2**32  # Of a size, and of a block or a grid.


class Tensor(NamedTuple):
  """Of a single value the shape is ()."""
  shape: tuple
  value_bytes: int

  @property
  def values(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    return self.values * self.value_bytes


Argument = Union[Tensor, list, None]  # A list of tensors; None: others.


def sizes_of(work: Event) -> dict[str, float]:
  """Size by name that a duration may depend on; see `calibrate`."""
  moved = work.args.get('bytes')  # By copies and fills.
  found = ({'bytes': moved} if is_number(moved) and moved > 0
           else _sizes_of_operator(work))
  sides = [work.args.get(name) for name in ('block', 'grid')]
  if all(isinstance(three, list) and len(three) == 3 and all(
      type(side) is int and 0 < side < _MOST_SIDE for side in three)
         for three in sides):
    found['threads'] = math.prod(sides[0] + sides[1])
  return {name: float(size) for name, size in found.items()
          if 0 < size < _MOST}


def _sizes_of_operator(work: Event) -> dict[str, float]:
  """From the innermost operator around a kernel that has shapes."""
  kind = calibrate.kind_of(work.name)
  for call in work.caller.upward() if work.caller else ():
    formula = _FORMULAS.get(call.name.removeprefix('aten::'))
    if formula is None:
      # A lookup reads only some rows of its inputs.
      if call.name.startswith('aten::') and kind not in calibrate.LOOKING_UP:
        formula = _moved
    elif kind == calibrate.SORT:
      return {}  # It sorts indices, only a step of the operator.
    try:
      if formula and (found := formula(call, _arguments(call))):
        return found
    except _UNKNOWN:
      pass
  return {}


# What formulas raise for arguments that are missing or of other kinds.
_UNKNOWN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def _require(condition: bool) -> None:
  if not condition:
    raise ValueError


def _arguments(call: Event) -> list[Argument]:
  dims, types = call.args['Input Dims'], call.args['Input type']
  _require(isinstance(dims, list) and len(types) == len(dims))
  return [_argument(one, str(kind)) for one, kind in zip(dims, types)]


def _argument(dims: Any, kind: str) -> Argument:
  kind = kind.replace('c10::', '').replace('at::', '')
  if kind == 'TensorList':  # Their types are not recorded.
    return [_argument(one, 'float') for one in dims]
  if kind not in _BYTES:
    return None
  _require(isinstance(dims, list)
           and all(type(side) is int and side >= 0 for side in dims))
  return Tensor(tuple(dims), _BYTES[kind])


def _product(call: Event, given: Sequence[Argument]) -> dict[str, float]:
  name = call.name.removeprefix('aten::')
  first = int('add' in name)  # After what is added.
  left, right = given[first].shape, given[first + 1].shape
  if name == 'linear':  # [..., k] and [n, k]
    _require(len(left) >= 2 == len(right))
    *rows, k = left
    batch, m, (n, inner) = [], math.prod(rows), right
  else:
    _require(2 <= len(left) == len(right) <= 3)
    *batch, m, k = left
    *_, inner, n = right
  _require(inner == k)
  batch, each = math.prod(batch), given[first].value_bytes
  return {'multiply_adds': batch * m * n * k,
          'bytes': batch * (m * k + k * n + m * n) * each}


def _moved(_: Event, given: Sequence[Argument]) -> dict[str, float]:
  """Others read their inputs and write as much as the largest of them."""
  inputs = [sum(part.bytes for part in one) if isinstance(one, list)
            else one.bytes for one in given if one is not None]
  return {'bytes': sum(inputs) + max(inputs)} if inputs else {}


def _embedding(call: Event, given: Sequence[Argument]) -> dict[str, float]:
  """Bytes of lookups in a table, or of a gradient step of its rows.

  Of each bag: its indices, the row of the result and its rows, in sectors. A
  step also reads two offsets, and reads and writes each row. These are the
  formulas of `analytic.roofline` without a cache. The arguments are weight or
  gradient, indices and, for bags, offsets.
  """
  rows, indices = given[:2]
  is_step, count = 'backward' in call.name, indices.values
  _require(len(rows.shape) == 2 or (is_step and len(rows.shape) > 2))
  if 'bag' in call.name:
    count = rows.shape[0] if is_step else given[2].values
  _require(count > 0 and indices.values > 0 and rows.values > 0)
  bag_size = indices.values / count
  row_bytes = _in_sectors(rows.shape[-1] * rows.value_bytes)
  each = row_bytes + _in_sectors(bag_size * indices.value_bytes)
  if is_step:
    each += 2 * SECTOR_BYTES + bag_size * row_bytes
  return {'bytes': count * (each + bag_size * row_bytes)}


def _in_sectors(size: float) -> int:
  """Bytes in whole sectors."""
  return math.ceil(size / SECTOR_BYTES) * SECTOR_BYTES


_FORMULAS = {
    **dict.fromkeys(('addmm', 'addmm_', '_addmm_activation', 'mm', 'bmm',
                     'baddbmm', 'linear'), _product),
    **dict.fromkeys(('embedding', '_embedding_bag',
                     '_embedding_bag_forward_only',
                     '_embedding_bag_dense_backward',
                     'embedding_dense_backward'), _embedding)}
