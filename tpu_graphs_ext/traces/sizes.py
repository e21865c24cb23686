"""What a kernel computes and moves, by the inputs of its operator, in order."""

from __future__ import annotations

import collections
import contextlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tpu_graphs_ext.traces import kinds
from tpu_graphs_ext.traces.kineto import Event, Trace, is_number

# What ran at the same time slows small kernels, copies more than kernels.
_BESIDE = 'beside_kernels', 'beside_copies'  # 1 for most of its time.
SIZES = 'multiply_adds', 'bytes', 'threads', *_BESIDE
_BYTES = {name: size for size, names in (  # Of a value.
    (1, 'char,signed char,unsigned char,bool,Float8_e4m3fn,Float8_e5m2'),
    (2, 'Half,BFloat16,short'), (4, 'float,int'), (16, 'complex<double>'),
    (8, 'double,long,long int,long long,complex<float>')
) for name in names.split(',')}
_MOST, _MOST_OUTER = 1e30, 16  # Of a size; of calls that may tell it.
# What formulas raise if arguments are missing or others.
_UNKNOWN = ValueError, TypeError, AttributeError, LookupError, ArithmeticError


class Tensor(NamedTuple):
  shape: tuple  # Of a single value ().
  value_bytes: int

  @property
  def values(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    return self.values * self.value_bytes


def all_sizes(trace: Trace) -> list[dict[str, float]]:
  """Of a trace's work, and what ran beside it on its GPU half of its time."""
  borders = sorted(((time, sign, each) for each in trace.all_work
                    for time, sign in ((each.start, 1), (each.end, -1))),
                   key=lambda border: border[0])
  running, spent, beside_us, last = (collections.Counter() for _ in range(4))
  for time, sign, each in borders:
    gpu = each.place[0]
    for kind in _BESIDE:
      spent[gpu, kind] += running[gpu, kind] * (time - last[gpu])
      beside_us[each, kind] -= sign * spent[gpu, kind]
    kind = _BESIDE[kinds.kind_of(each.name).startswith('copy')]
    beside_us[each, kind] -= each.duration_us / 2  # Twice: not itself.
    running[gpu, kind] += sign
    last[gpu] = time
  return [{**sizes_of(each), **{
      kind: 1.0 for kind in _BESIDE
      if beside_us[each, kind] > each.duration_us / 2}} for each in trace.work]


def sizes_of(work: Event) -> dict[str, float]:
  """Size by name (of `SIZES`) that a duration may depend on."""
  kind, moved = kinds.kind_of(work.name), work.args.get('bytes')
  sizes: dict[str, Any] = {}
  if is_number(moved) and moved > 0:  # By copies and fills.
    sizes['bytes'] = moved
  # A launch of these does a part of the operator, which only its grid tells.
  elif kind not in (kinds.LAYOUT, kinds.OPTIMIZER):
    sizes = _sizes_of_operator(work, kind)
  with contextlib.suppress(*_UNKNOWN):
    grid, block = (_shape(work.args[key]) for key in ('grid', 'block'))
    sizes.setdefault('threads', math.prod(grid + block))
  return {name: float(size) for name, size in sizes.items()
          if 0 < size < _MOST}


def _sizes_of_operator(work: Event, kind: str) -> dict[str, Any]:
  """From the innermost operator around a kernel that has shapes."""
  call, outer = work.launch, 0
  while call and (outer := outer + 1) <= _MOST_OUTER:
    name = call.name.removeprefix('aten::')
    formula = _FORMULAS.get(name)
    if 'cudnn_rnn' in name or 'miopen_rnn' in name:
      break  # Which of its products this is the grid tells.
    if kind == kinds.SORT:
      formula = _sorted
    elif formula is None and call.name.startswith(('aten::', 'nccl:')) and (
        # A lookup reads only some rows of its inputs.
        kind not in (kinds.EMBEDDING, kinds.INDEXING)):
      formula = _moved
    with contextlib.suppress(*_UNKNOWN):
      if formula:
        return formula(call, _arguments(call))
    call = call.parent
  return {}


def _require(condition: bool) -> None:
  if not condition:
    raise ValueError


def _arguments(call: Event) -> list[Any]:
  """Tensors, lists of tensors, and None for other arguments."""
  dims, types = call.args['Input Dims'], call.args['Input type']
  _require(len(types) == len(dims))
  return [_argument(sides, re.sub('c10::|at::', '', str(kind)))
          for sides, kind in zip(dims, types)]


def _argument(dims: Any, kind: str) -> Any:
  if kind == 'TensorList':  # Their types are not recorded.
    return [_argument(sides, 'float') for sides in dims]
  if kind not in _BYTES:
    return None
  return Tensor(_shape(dims), _BYTES[kind])


def _shape(sides: Any) -> tuple:
  _require(all(type(side) is int and side >= 0 for side in sides))
  return tuple(sides)


def _product(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  first = int('add' in call.name)  # After what is added.
  left, right = inputs[first].shape, inputs[first + 1].shape
  _require(2 <= len(left) == len(right) <= 3)
  (*batch, m, k), (*_, inner, n) = left, right
  _require(inner == k)
  batch, each = math.prod(batch), inputs[first].value_bytes
  return {'multiply_adds': batch * m * n * k,
          'bytes': batch * (m * k + k * n + m * n) * each}


def _convolution(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Of input and weight, or of the output's gradient, input and weight."""
  if 'backward' in call.name:
    output, image, weight = inputs[:3]
  else:
    image, weight = inputs[:2]
    options = (map(int, re.findall(r'\d+', text)) for text in call.args[
        'Concrete Inputs'][2 + ('miopen' in call.name):][:3])
    output = Tensor((image.shape[0], weight.shape[0], *(
        (side + 2 * pad - gap * (tap - 1) - 1) // step + 1
        for side, tap, pad, step, gap in zip(
            image.shape[2:], weight.shape[2:], *options))), image.value_bytes)
  _require(len(output.shape) == len(image.shape) == len(weight.shape) > 2)
  return {'multiply_adds': output.values * math.prod(weight.shape[1:]),
          'bytes': output.bytes + image.bytes + weight.bytes}


def _moved(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Others read their inputs and write as much as the largest of them."""
  parts = [sum(part.bytes for part in each) if isinstance(each, list)
           else each.bytes for each in inputs if each is not None]
  return {'bytes': sum(parts) + max(parts, default=0)}


def _sorted(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Keys and places are read and written."""
  return {'bytes': 32 * inputs['embedding' in call.name].values}


def _indexed(_: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """The last tensor is read, changed and written, by its rows."""
  last = [each for each in inputs if isinstance(each, Tensor)][-1]
  return {'multiply_adds': last.shape[0], 'bytes': 12 * last.values}


def _embedding(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Indices, results and each row that occurs move once: of n draws from r
  rows r * (1 - exp(-n / r)). `multiply_adds` are lookups; forward, where warps
  read 32 values of a row and the grid has a limit, values; `threads` results.
  """
  rows, indices = inputs[:2]
  bags, draws = 'bag' in call.name, indices.values
  lanes = -(-rows.shape[-1] // 32) * 32
  if 'backward' in call.name:
    results = rows.shape[0] if bags else draws
    height = int(call.args['Concrete Inputs'][5 if bags else 2])
    sizes = {'multiply_adds': draws}
  else:
    results, height = inputs[2].values if bags else draws, rows.shape[0]
    sizes = {'multiply_adds': draws * lanes, 'threads': results * lanes}
  _require(results > 0 and draws > 0 and height > 0 and len(rows.shape) > 1)
  row_bytes = rows.shape[-1] * rows.value_bytes
  each = draws / results * indices.value_bytes + row_bytes
  return {**sizes, 'bytes': results * each
                            + row_bytes * height * -math.expm1(-draws / height)}


_FORMULAS = {name: formula for formula, names in (
    (_product, 'addmm addmm_ _addmm_activation mm bmm baddbmm'),
    (_convolution, 'cudnn_convolution miopen_convolution convolution_backward'),
    (_indexed, '_index_put_impl_ index_add_ gather scatter_add_ scatter_'),
    (_embedding, 'embedding embedding_dense_backward _embedding_bag '
                 '_embedding_bag_forward_only _embedding_bag_dense_backward'))
             for name in names.split()}
