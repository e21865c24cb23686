"""What a kernel computes and moves, by the shapes of its operator.

`Input Dims` and `Input type` of `record_shapes=True`; older versions wrote
`Input dims` and `Input Types`. Arguments have the positions of the operators'
schemas. Embeddings use the formulas of `roofline`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

from tpu_graphs_ext.analytic import roofline
from tpu_graphs_ext.analytic.roofline import EmbeddingBags, Gpu
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import calibrate
from tpu_graphs_ext.traces.kineto import Call, Work

# Bytes of a value.
_BYTES = {
    'double': 8, 'float': 4, 'Half': 2, 'BFloat16': 2, 'long': 8,
    'long int': 8, 'long long': 8, 'int': 4, 'short': 2, 'char': 1,
    'signed char': 1, 'unsigned char': 1, 'bool': 1, 'Float8_e4m3fn': 1,
    'Float8_e5m2': 1, 'complex<float>': 8, 'complex<double>': 16}
_MOST = 1e30
# A byte takes a nanosecond; nothing else takes any time.
_BY_BYTES = Gpu(dram_gb_s=1, l2_gb_s=math.inf, l2_bytes=1, gflop_s=math.inf)


class _UnknownError(Exception):
  """The trace does not contain a size."""


class Tensor(NamedTuple):
  """Shape, () for a single value, and bytes of one value."""
  shape: tuple
  value_bytes: int

  @property
  def values(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    return self.values * self.value_bytes


Argument = Union[Tensor, list, None]


def sizes_of(work: Work) -> dict[str, float]:
  """Size by name that a duration may depend on; see `calibrate`."""
  found = ({'bytes': work.moved_bytes} if work.moved_bytes
           else _sizes_of_operator(work))
  return {name: float(size) for name, size in {
      **found, 'threads': work.threads}.items() if 0 < size < _MOST}


def _sizes_of_operator(work: Work) -> dict[str, float]:
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
    except (_UnknownError, OverflowError, UserError):
      pass
  return {}


def _require(condition: bool) -> None:
  if not condition:
    raise _UnknownError


def _arguments(call: Call) -> list[Argument]:
  """A tensor, a list of tensors, or None for anything else."""
  dims, types = (next((call.args[key] for key in keys if call.args.get(key)),
                      None)
                 for keys in (('Input Dims', 'Input dims'),
                              ('Input type', 'Input Types', 'Input types')))
  _require(isinstance(dims, list))
  if not isinstance(types, list):  # Of the oldest traces.
    types = ['float' if one else '' for one in dims]
  _require(len(types) == len(dims))
  return [_argument(one, str(kind)) for one, kind in zip(dims, types)]


def _argument(dims: Any, kind: str) -> Argument:
  kind = kind.replace('c10::', '').replace('at::', '')
  if kind == 'TensorList':  # Taken for floats; older versions lack shapes.
    return [_argument(one, 'float') for one in dims or ()] if isinstance(
        dims, list) else None
  if kind not in _BYTES:
    return None
  _require(isinstance(dims, list) and all(
      type(side) is int and side >= 0 for side in dims))
  return Tensor(tuple(dims), _BYTES[kind])


def _tensor(given: Sequence[Argument], place: int) -> Tensor:
  _require(place < len(given) and isinstance(given[place], Tensor))
  return given[place]


def _product(call: Call, given: Sequence[Argument]) -> dict[str, float]:
  name = call.name.removeprefix('aten::')
  first = int('add' in name)  # After what is added.
  left, right = _tensor(given, first), _tensor(given, first + 1)
  if name == 'linear':  # [..., k] and [n, k]
    _require(len(left.shape) >= 2 == len(right.shape))
    *rows, k = left.shape
    batch, m, (n, inner) = [], math.prod(rows), right.shape
  else:
    _require(2 <= len(left.shape) == len(right.shape) <= 3)
    *batch, m, k = left.shape
    *_, inner, n = right.shape
  _require(inner == k)
  batch = math.prod(batch)
  return {'multiply_adds': batch * m * n * k,
          'bytes': batch * (m * k + k * n + m * n) * left.value_bytes}


def _moved(_: Call, given: Sequence[Argument]) -> dict[str, float]:
  """Other operators read their inputs and write as much as the largest one; a
  constant factor is calibrated away."""
  inputs = [sum(part.bytes for part in one) if isinstance(one, list)
            else one.bytes for one in given if one is not None]
  return {'bytes': sum(inputs) + max(inputs)} if inputs else {}


def _bytes_of(us_of: Callable, bags: int, rows: int, row: Tensor,
              indices: Tensor) -> dict[str, float]:
  """Bytes moved by a formula; `row` has the width of a table's row."""
  return {'bytes': 1000 * us_of(EmbeddingBags(
      batch_size=bags, rows=rows, tables=1, width=row.shape[-1],
      bag_size=indices.values / max(bags, 1), value_bytes=row.value_bytes,
      index_bytes_each=indices.value_bytes), _BY_BYTES)}


def _one_table(call: Call, given: Sequence[Argument]) -> dict[str, float]:
  """weight, indices; for bags also offsets, scale_grad_by_freq, mode, sparse,
  per_sample_weights, include_last_offset."""
  table, indices = _tensor(given, 0), _tensor(given, 1)
  _require(len(table.shape) == 2)
  bags = indices.values  # Each index is one.
  if 'bag' in call.name:
    values = call.args.get('Concrete Inputs')
    last = isinstance(values, list) and [*map(str, values[7:8])] == ['True']
    bags = _tensor(given, 2).values - last
  return _bytes_of(roofline.embedding_forward_us, bags, table.shape[0], table,
                   indices)


def _gradient_rows(call: Call, given: Sequence[Argument]) -> dict[str, float]:
  """gradient, indices: rows of the table's gradient are read and written."""
  gradient, indices = _tensor(given, 0), _tensor(given, 1)
  _require(len(gradient.shape) > 0)
  bags = gradient.shape[0] if 'bag' in call.name else indices.values
  return _bytes_of(roofline.embedding_backward_sgd_us, bags, indices.values,
                   gradient, indices)


_FORMULAS = {
    **dict.fromkeys(('addmm', 'addmm_', '_addmm_activation', 'mm', 'bmm',
                     'baddbmm', 'linear'), _product),
    **dict.fromkeys(('embedding', '_embedding_bag',
                     '_embedding_bag_forward_only'), _one_table),
    **dict.fromkeys(('_embedding_bag_dense_backward',
                     'embedding_dense_backward'), _gradient_rows)}
