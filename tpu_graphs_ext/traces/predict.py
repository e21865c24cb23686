"""Predicted times of operators, by rooflines, and of kernels, calibrated.

An operator of a kind below is priced; what it launched itself, or within calls
that are of no kind, is what its time is compared with. Everything else is left
without a price, and says why.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.analytic import roofline
from tpu_graphs_ext.analytic.roofline import Gpu
from tpu_graphs_ext.traces import calibrate, embeddings, shapes
from tpu_graphs_ext.traces.calibrate import Calibration
from tpu_graphs_ext.traces.calls import KERNEL, MEMCPY, Activity, Call
from tpu_graphs_ext.traces.hardware import Hardware
from tpu_graphs_ext.traces.shapes import Tensor, UnknownError

FULLY_CONNECTED = 'fully connected'
BATCHED = 'batched product'
EMBEDDING = 'embedding'
CONCAT = 'concat'
ELEMENTWISE = 'element-wise'
COPY = 'copy or fill'
KINDS = (EMBEDDING, FULLY_CONNECTED, BATCHED, CONCAT, ELEMENTWISE, COPY)

_PRODUCTS = {'addmm': 1, 'mm': 0, 'bmm': 0, 'baddbmm': 1, 'addmm_': 1,
             '_addmm_activation': 1}
_ELEMENTWISE = frozenset('''
    abs add addcdiv addcmul clamp clamp_min clamp_max copy cos div elu exp
    fill gelu gelu_backward hardtanh leaky_relu lerp log maximum minimum mul
    neg pow reciprocal relu rsqrt rsub sigmoid sigmoid_backward silu
    silu_backward sin sqrt sub tanh tanh_backward threshold
    threshold_backward where zero masked_fill
    _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_div _foreach_mul
    _foreach_sqrt _foreach_zero _foreach_lerp
    '''.split())
# Those that read nothing of what they write to.
_WRITES = frozenset(('fill_', 'zero_', '_foreach_zero_'))
# In names of kernels.
_TENSOR_CORES = re.compile(r'tensorop|tf32|[sh](?:1688|16816|884)|hmma',
                           re.IGNORECASE)
_ON_THE_DEVICE = re.compile(r'DtoD|Device -> Device', re.IGNORECASE)


class Price(NamedTuple):
  """Attributes:
    us: predicted; None where nothing can be.
    bound: 'memory', 'cache', 'arithmetic', 'link' or 'launch'; what takes it.
    sizes: in words.
    reason: why there is no prediction.
  """
  us: Optional[float]
  bound: str = ''
  sizes: str = ''
  reason: str = ''


def kind_of(call: Call) -> str:
  """One of `KINDS`, or '' of an operator that is none."""
  if embeddings.is_lookup(call.name) or embeddings.is_step(call.name):
    return EMBEDDING
  name = call.name.removeprefix('aten::')
  if '::' in name:
    return ''
  if name in _PRODUCTS or name == 'linear':
    return BATCHED if 'bmm' in name else FULLY_CONNECTED
  if name in ('cat', '_cat'):
    return CONCAT
  return ELEMENTWISE if name.rstrip('_') in _ELEMENTWISE else ''


def price(call: Call, work: Sequence[Activity], hardware: Optional[Hardware],
          pair: Optional[Call] = None) -> Price:
  """The time that an operator of a kind should take.

  Args:
    call: the operator.
    work: what it launched; none where there is no GPU.
    hardware: the machine; None: no prediction.
    pair: of an embedding's lookup its backward pass, and the other way round.
  """
  try:
    us_on, sizes, other = _predictor(call, work, pair)
    if hardware is None:
      return Price(None, sizes=sizes, reason='no hardware is known')
    if hardware.gpu is None:
      return _learned(call, sizes, hardware.calibration)
    return _priced(us_on, sizes, other, hardware.gpu)
  except UnknownError as why:
    return Price(None, reason=str(why))
  except OverflowError:
    return Price(None, reason='sizes beyond all measure')


_KERNELS = {FULLY_CONNECTED: 'product', BATCHED: 'product', CONCAT: 'concat',
            ELEMENTWISE: 'element-wise'}


def _learned(call: Call, sizes: str, calibration: Calibration) -> Price:
  """Of an operator whose kernels are not told, as a single one."""
  kind = calibration.kinds.get(_KERNELS.get(kind_of(call)))
  us = kind.us(sizes_of(call)) if kind else None
  reason = '' if us is not None else 'nothing was learned of such operators'
  return Price(us, 'calibration' if kind else '', sizes, reason)


def price_of_kernel(call: Optional[Call], work: Activity,
                    calibration: Calibration) -> Price:
  """The calibrated time of a single kernel, copy or fill."""
  if calibrate.kind_of(work.name) == calibrate.COMMUNICATION:
    return Price(None, reason='communication waits for other machines')
  sizes = sizes_of(call, work)
  us = calibration.us(work.name, sizes)
  if us is None:
    return Price(None, reason='nothing was learned of such kernels')
  return Price(us, 'calibration', ' '.join(
      f'{size:,.0f} {name}' for name, size in sizes.items()))


def sizes_of(call: Optional[Call],
             work: Optional[Activity] = None) -> dict[str, float]:
  """What durations may depend on: sizes by name; see `calibrate`."""
  found = {}
  if call is not None and (work is None or work.kind == KERNEL):
    try:
      if kind_of(call) in (FULLY_CONNECTED, BATCHED):
        (left, _), (batch, m, n, k) = _factors(call)
        found['multiply_adds'] = batch * m * n * k
        found['bytes'] = batch * (m * k + k * n + m * n) * left.value_bytes
      elif kind_of(call) == CONCAT:
        found['bytes'] = _concat(call)[0]
      elif kind_of(call) == ELEMENTWISE:
        found['bytes'] = _elementwise(call)[0]
    except (UnknownError, OverflowError):
      pass
  if work is not None and work.moved_bytes:
    found['bytes'] = work.moved_bytes
  if work is not None and work.threads:
    found['threads'] = work.threads
  return {name: float(size) for name, size in found.items()
          if 0 < size < 1e30}


def price_of_copies(work: Sequence[Activity],
                    hardware: Optional[Hardware]) -> Price:
  """The same of copies and fills, which tell their bytes themselves."""
  if any(one.moved_bytes is None for one in work):
    return Price(None, reason='the trace does not tell the bytes of copies')
  sizes = f'{sum(one.moved_bytes for one in work):,.0f} bytes'
  if hardware is None:
    return Price(None, sizes=sizes, reason='no hardware is known')
  return _priced(lambda gpu: sum(_copy_us(one, gpu) for one in work), sizes,
                 'link', hardware.gpu)


def _priced(us_on: Callable[[Gpu], float], sizes: str, other: str,
            gpu: Gpu) -> Price:
  """A price, and what it is bound by: memory, or the `other` one."""
  us = us_on(gpu)
  if us < gpu.kernel_us:
    return Price(gpu.kernel_us, 'launch', sizes)
  endless = us_on(dataclasses.replace(gpu, dram_gb_s=math.inf))
  return Price(us, 'memory' if endless < us else other, sizes)


def _copy_us(one: Activity, gpu: Gpu) -> float:
  moved = one.moved_bytes or 0.0
  if one.kind != MEMCPY:  # A fill writes alone.
    return roofline.moved_us(moved, gpu)
  if _ON_THE_DEVICE.search(one.name):
    return roofline.moved_us(2 * moved, gpu)
  return roofline.moved_us(moved, gpu, link=True)


def _predictor(call: Call, work: Sequence[Activity],
               pair: Optional[Call]) -> tuple[Callable, str, str]:
  """Gpu -> microseconds, sizes in words, what it is bound by beside memory."""
  kind = kind_of(call)
  if kind == EMBEDDING:
    kernels = [one for one in work if one.kind == KERNEL]
    if embeddings.is_lookup(call.name):
      return (*embeddings.lookup_us(call, kernels, pair), 'cache')
    return (*embeddings.step_us(call, pair), 'arithmetic')
  if kind in (FULLY_CONNECTED, BATCHED):
    return (*_product(call, work), 'arithmetic')
  if call.name.endswith('copy_') and len(call.args.get('devices', ())) > 1:
    crossing = shapes.tensor(shapes.arguments(call), 1)
    return (lambda gpu: roofline.moved_us(crossing.bytes, gpu, link=True),
            crossing.text(), 'link')
  moved, sizes = _concat(call) if kind == CONCAT else _elementwise(call)
  return lambda gpu: roofline.moved_us(moved, gpu), sizes, 'memory'


def _product_size(name: str, left: tuple, right: tuple) -> Optional[tuple]:
  """(batch, m, n, k) of two shapes; None where they do not fit."""
  if name == 'linear':  # [..., k] and [n, k]
    if len(left) < 2 or len(right) != 2 or left[-1] != right[1]:
      return None
    return 1, math.prod(left[:-1]), right[0], left[-1]
  if len(left) != len(right) or len(left) not in (2, 3):
    return None
  *batch, m, k = left
  if right[:-1] != (*batch, k):
    return None
  return math.prod(batch), m, right[-1], k


def _factors(call: Call) -> tuple[tuple[Tensor, Tensor], tuple]:
  """The factors of a product, and its (batch, m, n, k)."""
  name = call.name.removeprefix('aten::')
  given, first = shapes.arguments(call), _PRODUCTS.get(name, 0)
  left, right = (shapes.tensor(given, first + place) for place in (0, 1))
  size = _product_size(name, left.shape, right.shape)
  if size is None:
    raise UnknownError(f'{left.text()} and {right.text()} are no product')
  if min(size) < 1:
    raise UnknownError('an empty product')
  return (left, right), size


def _product(call: Call, work: Sequence[Activity]) -> tuple[Callable, str]:
  (left, right), size = _factors(call)
  tensor_cores = any(_TENSOR_CORES.search(one.name) for one in work)

  def us_on(gpu: Gpu) -> float:
    faster = (gpu.half_gflop_s if left.value_bytes == 2
              else gpu.tf32_gflop_s if tensor_cores else None)
    return roofline.fully_connected_us(
        size, dataclasses.replace(gpu, gflop_s=faster or gpu.gflop_s),
        value_bytes=left.value_bytes)

  return us_on, (f'{"x".join(map(str, left.shape))} by '
                 f'{"x".join(map(str, right.shape))} {left.type}')


def _concat(call: Call) -> tuple[int, str]:
  """Bytes read and written, and sizes."""
  given = shapes.arguments(call)
  parts = given[0] if given else None
  if not isinstance(parts, list):
    raise UnknownError('argument 0 is no list of tensors')
  return 2 * sum(part.bytes for part in parts), _list_text(parts)


def _elementwise(call: Call) -> tuple[int, str]:
  """Inputs are read, and a result of the inputs' common shape is written."""
  name = call.name.removeprefix('aten::')
  given = shapes.arguments(call)
  lists = [one for one in given if isinstance(one, list)]
  if lists:
    written = sum(part.bytes for part in lists[0])
    read = sum(part.bytes for parts in lists for part in parts)
    if name in _WRITES:
      read = 0
    return read + written, _list_text(lists[0])
  tensors = [one for one in given if isinstance(one, Tensor)]
  if not tensors:
    raise UnknownError('none of its arguments is a tensor')
  if name in _WRITES:
    return tensors[0].bytes, tensors[0].text()
  if name == 'copy_':
    return (tensors[0].bytes + tensors[-1].bytes if len(tensors) > 1
            else tensors[0].bytes), tensors[0].text()
  result = _common_shape(tensors)
  kind = next((one for one in tensors if one.shape == result), tensors[0]).type
  if name == 'where' and len(tensors) > 1:
    kind = tensors[1].type
  written = math.prod(result) * shapes.SIZES[kind]
  return sum(one.bytes for one in tensors) + written, ' '.join(
      one.text() for one in tensors)


def _common_shape(tensors: Sequence[Tensor]) -> tuple:
  """What they are broadcast to."""
  length = max(len(one.shape) for one in tensors)
  sizes = zip(*((1,) * (length - len(one.shape)) + one.shape
                for one in tensors))
  found = []
  for size in sizes:
    different = set(size) - {1}
    if len(different) > 1:
      raise UnknownError('shapes that do not fit: ' + ' '.join(
          one.text() for one in tensors)[:80])
    found.append(different.pop() if different else 1)
  return tuple(found)


def _list_text(parts: Sequence[Tensor]) -> str:
  """'9 of float[16,13], ...'."""
  more = ', ...' if len({part.shape for part in parts}) > 1 else ''
  return f'{len(parts)} of {parts[0].text()}{more}' if parts else 'none'
