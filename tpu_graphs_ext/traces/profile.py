"""Traces of PyTorch's profiler (Kineto), in Chrome's format, old and new.

Names of categories and fields have changed over the years: `Operator` became
`cpu_op`, `Runtime` `cuda_runtime`, `Memcpy` `gpu_memcpy`, `external id`
`External id`, `Input dims` `Input Dims`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Optional

from tqdm import tqdm

from tpu_graphs_ext.traces import calls
from tpu_graphs_ext.traces.calls import Activity, Call, Device, Trace

# Python refuses to read thousands of digits.
_WHOLE = re.compile('[0-9]{1,18}')

_HOST = {
    'operator': calls.OPERATOR, 'cpu_op': calls.OPERATOR,
    'user_annotation': calls.ANNOTATION,
    'runtime': calls.RUNTIME, 'cuda_runtime': calls.RUNTIME,
    'cuda_driver': calls.RUNTIME, 'hip_runtime': calls.RUNTIME}
_GPU = {
    'kernel': calls.KERNEL, 'memcpy': calls.MEMCPY, 'gpu_memcpy': calls.MEMCPY,
    'memset': calls.MEMSET, 'gpu_memset': calls.MEMSET}


def trace_of(path: str, events: Sequence[Any], devices: Any) -> Trace:
  """A trace of the events of a file.

  Args:
    path: the file, for messages.
    events: those of other categories than above, and those that do not last,
      are left aside.
    devices: `deviceProperties`, or None.
  """
  host: list[Call] = []
  gpu: list[Activity] = []
  unusable = 0
  for event in tqdm(events, 'events', unit='event', disable=None, leave=False):
    if not isinstance(event, dict) or event.get('ph') != 'X':
      continue
    category = str(event.get('cat')).lower()
    if category not in _HOST and category not in _GPU:
      continue
    times = _times(event)
    if times is None:
      unusable += 1
      continue
    args = event.get('args')
    args = args if isinstance(args, dict) else {}
    name = str(event.get('name'))
    if category in _GPU:
      gpu.append(_activity(event, name, _GPU[category], times, args))
    else:
      host.append(_call(event, name, _HOST[category], times, args))
  _count_from_zero(host, gpu)
  # Outer calls have the smaller numbers, where times do not tell.
  host.sort(key=lambda call: (call.kind == calls.RUNTIME,
                              external_of(call) or 0))
  host, crossings = calls.nest(host)
  gpu.sort(key=lambda activity: (activity.start, activity.end))
  notes = []
  if unusable:
    notes.append(f'{unusable:,} events without a usable start and duration '
                 'are left out')
  if crossings:
    notes.append(f'{crossings:,} calls overlap with another of their thread '
                 'without lying within it')
  return Trace(path, host, gpu, _devices(devices), notes)


def _times(event: dict) -> Optional[tuple[float, float]]:
  """(start, end), or None."""
  start, duration = event.get('ts'), event.get('dur')
  if not _is_number(start) or not _is_number(duration) or duration < 0:
    return None
  return start, start + duration


# Beyond all that is measured in microseconds or bytes.
_MOST = 1e18
_MOST_SIDE = 2**32  # Of a grid.


def _is_number(value: Any) -> bool:
  """Whether it is one that can be reckoned with; NaN is not."""
  return (isinstance(value, (int, float)) and not isinstance(value, bool)
          and -_MOST < value < _MOST)


def _call(event: dict, name: str, kind: str, times: tuple,
          args: dict) -> Call:
  thread = str(event.get('pid')), str(event.get('tid'))
  call = Call(name, kind, thread, *times, args)
  if call.step is not None:
    call.kind = calls.ANNOTATION  # Operators of older versions.
  return call


def _activity(event: dict, name: str, kind: str, times: tuple,
              args: dict) -> Activity:
  block, grid = _three(args.get('block')), _three(args.get('grid'))
  moved = args.get('bytes')
  return Activity(
      name, kind,
      _whole(args.get('device', event.get('pid'))) or 0,
      _whole(args.get('stream', event.get('tid'))) or 0, *times,
      correlation=_whole(args.get('correlation')), external=_external(args),
      moved_bytes=(float(moved) if _is_number(moved) and moved >= 0
                   else None),
      block=block, threads=math.prod(block) * math.prod(grid) if grid else 0)


def _three(sides: Any) -> tuple:
  """Sizes of a block or grid, three whole numbers, or ()."""
  return (tuple(sides) if isinstance(sides, list) and len(sides) == 3
          and all(type(side) is int and 0 < side < _MOST_SIDE
                  for side in sides) else ())


def _whole(value: Any) -> Optional[int]:
  """A whole number, or None; some versions write it as text."""
  if isinstance(value, str):
    return int(value) if _WHOLE.fullmatch(value) else None
  return value if type(value) is int else None


def external_of(call: Call) -> Optional[int]:
  """The number of an operator, which what it launches may name; not 0."""
  return _external(call.args) or None


def _external(args: dict) -> Optional[int]:
  return _whole(args.get('External id', args.get('external id')))


def correlation_of(call: Call) -> Optional[int]:
  """The number of a runtime's call, which what it launches has too."""
  return _whole(call.args.get('correlation'))


def _count_from_zero(host: list[Call], gpu: list[Activity]) -> None:
  first = min((one.start for one in (*host, *gpu)), default=0)
  for one in (*host, *gpu):
    one.start, one.end = float(one.start - first), float(one.end - first)


def _devices(listed: Any) -> dict[int, Device]:
  found = {}
  for device in listed if isinstance(listed, list) else ():
    if isinstance(device, dict) and _whole(device.get('id')) is not None:
      found[_whole(device['id'])] = Device(
          str(device.get('name')), _whole(device.get('totalGlobalMem')) or 0)
  return found
