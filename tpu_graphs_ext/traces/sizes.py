"""What a kernel computes and moves, by the shapes of its operator.

`record_shapes=True` writes `Input Dims`, `Input type` and `Concrete Inputs`, in
the order of the operators' schemas.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tpu_graphs_ext.traces import kinds
from tpu_graphs_ext.traces.kineto import Event, is_number

SIZES = 'multiply_adds', 'bytes', 'threads'
_BYTES = {name: size for size, names in (  # Of a value.
    (1, 'char,signed char,unsigned char,bool,Float8_e4m3fn,Float8_e5m2'),
    (2, 'Half,BFloat16,short'), (4, 'float,int'), (16, 'complex<double>'),
    (8, 'double,long,long int,long long,complex<float>')
) for name in names.split(',')}
# Of a size; of a block or a grid; and of calls that may tell a kernel's sizes.
_MOST, _MOST_SIDE, _MOST_OUTER = 1e30, 2**32, 16
# What formulas raise if arguments are missing or others.
_UNKNOWN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError,
            StopIteration)


class Tensor(NamedTuple):
  shape: tuple  # Of a single value ().
  value_bytes: int

  @property
  def values(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    return self.values * self.value_bytes


def sizes_of(work: Event) -> dict[str, float]:
  """Size by name (of `SIZES`) that a duration may depend on."""
  blocks, threads = (math.prod(sides) if isinstance(sides, list) and all(
      type(side) is int and 0 < side < _MOST_SIDE for side in sides) else 0
                     for sides in map(work.args.get, ('grid', 'block')))
  kind, moved = kinds.kind_of(work.name), work.args.get('bytes')
  sizes: dict[str, Any] = {}
  if is_number(moved) and moved > 0:  # By copies and fills.
    sizes['bytes'] = moved
  # A launch of these does a part of the operator, which only its grid tells.
  elif kind not in (kinds.LAYOUT, kinds.OPTIMIZER):
    sizes = _sizes_of_operator(work, kind, blocks)
  if blocks and threads:
    sizes.setdefault('threads', blocks * threads)
  return {name: float(size) for name, size in sizes.items()
          if 0 < size < _MOST}


def _sizes_of_operator(work: Event, kind: str,
                       blocks: int) -> dict[str, Any]:
  """From the innermost operator around a kernel that has shapes."""
  call, outer = work.launch, 0
  while call and (outer := outer + 1) <= _MOST_OUTER:
    name = call.name.removeprefix('aten::')
    formula = _FORMULAS.get(name)
    if 'cudnn_rnn' in name or 'miopen_rnn' in name:
      formula = functools.partial(_recurrent, work, kind, blocks)
    elif kind == kinds.SORT:  # What others sort is not their first argument.
      formula = _sorted if call.name != name else None
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
  _require(isinstance(dims, list) and len(types) == len(dims))
  return [_argument(sides, re.sub('c10::|at::', '', str(kind)))
          for sides, kind in zip(dims, types)]


def _argument(dims: Any, kind: str) -> Any:
  if kind == 'TensorList':  # Their types are not recorded.
    return [_argument(sides, 'float') for sides in dims]
  if kind not in _BYTES:
    return None
  _require(isinstance(dims, list)
           and all(type(side) is int and side >= 0 for side in dims))
  return Tensor(tuple(dims), _BYTES[kind])


def _product(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  name = call.name.removeprefix('aten::')
  first = int('add' in name)  # After what is added.
  left, right = inputs[first].shape, inputs[first + 1].shape
  if name == 'linear':  # [..., k] and [n, k]
    left, right = (math.prod(left[:-1]), left[-1]), right[::-1]
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


def _attention(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Two products forward, five backward; half of each if it is causal."""
  backward = 'backward' in call.name
  query, key, value = inputs[backward:][:3]
  _require(len(query.shape) == len(key.shape) == 4)
  length = key.shape[2 if 'cudnn' in call.name else 1]  # [b, h, s, d] there.
  # After the dropout's probability, the first fraction.
  causal = re.match(r'([^.]*,)?\d\.\d*,True', ','.join(
      map(str, call.args.get('Concrete Inputs', []))))
  return {'multiply_adds': query.values * length * (5 if backward else 2)
                           // (2 if causal else 1),
          'bytes': (2 * query.bytes + key.bytes + value.bytes) << backward}


def _recurrent(work: Event, kind: str, blocks: int, call: Event,
               inputs: Sequence[Any]) -> dict[str, Any]:
  """One of the products that a recurrent layer launches, or its cells.

  Blocks and the tile in the kernel's name tell the size of the result, and so
  which product it is: of a time step or of all, for a layer or its weights.
  """
  gates, hidden = next(each for each in inputs if isinstance(each, list)
                       and each)[1].shape
  # Input, which may have the batch first, and state.
  (*rows, width), (_, batch, _), *_ = (each.shape for each in inputs if (
      isinstance(each, Tensor) and len(each.shape) == 3))
  tile = re.search(r'(\d+)x(\d+)[x_]', work.name)
  if kind != kinds.PRODUCT or not tile or not blocks:
    return {'bytes': 4 * batch * (gates + 2 * hidden)}
  every, result = math.prod(rows), blocks * int(tile[1]) * int(tile[2])
  forms = [(batch, gates, hidden), (every, gates, width)]
  if re.search(r'_nt(_|\b)', work.name) and 'backward' in call.name:
    forms = [(gates, hidden, every), (gates, width, every)]  # Of the weights.
  elif 'backward' in call.name:
    forms = [(batch, hidden, gates), (every, width, gates)]
  m, n, k = min(forms, key=lambda form: abs(
      math.log(result / (form[0] * form[1]))))
  return {'multiply_adds': m * n * k, 'bytes': 4 * (m * n + m * k + n * k)}


def _moved(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Others read their inputs and write as much as the largest of them."""
  parts = [sum(part.bytes for part in each) if isinstance(each, list)
           else each.bytes for each in inputs if each is not None]
  return {'bytes': sum(parts) + max(parts, default=0)}


def _reduced(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """The fewer results, the more blocks share each: they count as well."""
  sizes, shape = _moved(call, inputs), inputs[0].shape
  with contextlib.suppress(*_UNKNOWN):  # Older traces do not name the axes.
    axes = {int(axis) % len(shape) for axis in re.findall(
        r'(?<=[\[ ])-?\d+', call.args['Concrete Inputs'][1])}
    sizes['multiply_adds'] = math.prod(
        side for axis, side in enumerate(shape) if axes and axis not in axes)
  return sizes


def _sorted(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Keys and places are read and written."""
  return {'bytes': 32 * inputs['embedding' in call.name].values}


def _indexed(_: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """The last tensor is read, changed and written, by its rows."""
  last = [each for each in inputs if isinstance(each, Tensor)][-1]
  return {'multiply_adds': last.shape[0], 'bytes': 12 * last.values}


def _embedding(call: Event, inputs: Sequence[Any]) -> dict[str, Any]:
  """Of lookups in a table, or of the gradient of its rows.

  The indices, the results and each row that occurs move once; of n draws from
  r rows r * (1 - exp(-n / r)) are expected to occur. `multiply_adds` counts the
  lookups; of a forward kernel, whose warps read 32 values of a row and whose
  grid has a limit, the values read, and `threads` the results. The arguments
  are weight or gradient, indices and, for bags, offsets.
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
    (_product, 'addmm addmm_ _addmm_activation mm bmm baddbmm linear'),
    (_convolution, 'cudnn_convolution miopen_convolution convolution_backward'),
    (_attention, '_cudnn_attention_forward _cudnn_attention_backward '
                 '_flash_attention_forward _flash_attention_backward '
                 '_efficient_attention_forward _efficient_attention_backward'),
    (_reduced, 'sum mean amax amin'),
    (_indexed, '_index_put_impl_ index_add_ gather scatter_add_ scatter_'),
    (_embedding, 'embedding embedding_dense_backward _embedding_bag '
                 '_embedding_bag_forward_only _embedding_bag_dense_backward'))
             for name in names.split()}
