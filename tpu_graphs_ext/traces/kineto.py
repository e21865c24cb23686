"""Traces of PyTorch's profiler (Kineto), in Chrome's format, old and new.

Names of categories and fields have changed over the years: `Operator` became
`cpu_op`, `Runtime` `cuda_runtime`, `Memcpy` `gpu_memcpy`, `external id`
`External id`, `Input dims` `Input Dims`.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, shortened

OPERATOR, ANNOTATION, RUNTIME = 'operator', 'annotation', 'runtime'
_HOST = {
    'operator': OPERATOR, 'cpu_op': OPERATOR, 'user_annotation': ANNOTATION,
    'runtime': RUNTIME, 'cuda_runtime': RUNTIME, 'cuda_driver': RUNTIME,
    'hip_runtime': RUNTIME}
_GPU = ('kernel', 'memcpy', 'gpu_memcpy', 'memset', 'gpu_memset')

# Older traces truncate start and duration to whole microseconds, so a call may
# seem to end after the call that contains it.
_ROUNDING_US = 1.0
# Larger than any number of nanoseconds or bytes; than a side of a grid.
_MOST, _MOST_SIDE = 1e19, 2**32
# Python refuses to read thousands of digits.
_WHOLE = re.compile('[0-9]{1,18}')
_STEP = re.compile(r'ProfilerStep#([0-9]{1,18})')
# Limits on the text, and on the memory of its objects.
MOST_BYTES = 2**30
MOST_PARSED_BYTES = 4 * 2**30


@dataclasses.dataclass(eq=False)
class Call:
  """A call on a thread of the host.

  Attributes:
    kind: `OPERATOR`, `ANNOTATION` or `RUNTIME`.
    thread: process and thread, as texts.
    start, end: in microseconds since the first event.
    args: everything else in the trace: shapes, types, numbers.
    parent: the innermost call that contains it.
  """
  name: str
  kind: str
  thread: tuple
  start: float
  end: float
  args: Mapping[str, Any]
  parent: Optional[Call] = None

  @property
  def step(self) -> Optional[int]:
    """The number of the step, if this is the annotation of one."""
    match = _STEP.fullmatch(self.name)
    return int(match[1]) if match else None

  def upward(self) -> Iterator[Call]:
    """This call and those around it, from the inside out."""
    call: Optional[Call] = self
    while call is not None:
      yield call
      call = call.parent


@dataclasses.dataclass(eq=False)
class Work:
  """A kernel, a copy or a fill on a GPU.

  Attributes:
    name: of the kernel; the name of a copy contains its direction.
    stream: device and stream that it ran on.
    start, end, args: as in `Call`.
    moved_bytes: by copies and fills; 0 if unknown.
    threads: of all blocks; 0 if unknown.
    launch: the runtime's call.
    caller: the innermost operator, or else annotation, around the launch.
  """
  name: str
  stream: tuple
  start: float
  end: float
  args: Mapping[str, Any]
  moved_bytes: float
  threads: int
  launch: Optional[Call] = None
  caller: Optional[Call] = None

  @property
  def duration_us(self) -> float:
    return self.end - self.start


class Trace(NamedTuple):
  """A trace, or some steps of it.

  Attributes:
    calls: of all threads, outer calls first.
    work: by start; of steps, all work launched in them, whenever it ran.
    all_work: of the whole trace.
    gpu: the name of the first GPU in the file, or 'a GPU'.
    steps: numbers of the profiler's steps; () for a whole trace.
    notes: what was left out, and why.
    began_us: the first event, on the clock that ranks of a run share.
  """
  path: str
  calls: list[Call]
  work: list[Work]
  all_work: list[Work]
  gpu: str
  steps: tuple
  notes: list[str]
  began_us: float


def read(path: str) -> Trace:
  """Reads a trace of PyTorch's profiler: JSON, packed by gzip or not.

  Args:
    path: an object with `traceEvents`, or a list of events, in Chrome's format.

  Raises:
    UserError: the file cannot be read, is truncated, is not JSON, is not a
      trace, or holds no operators.
  """
  content = _parsed(path)
  devices = base_ns = None
  if isinstance(content, dict):
    devices, keys = content.get('deviceProperties'), sorted(content)
    base_ns = content.get('baseTimeNanoseconds')
    content = content.get('traceEvents')
    if not isinstance(content, list):
      raise UserError(f'{path}: is not a trace: it has no list traceEvents; '
                      f'its keys are {shortened(keys, 6) or "none"}')
  if not isinstance(content, list):
    raise UserError(f'{path}: is not a trace: it holds a '
                    f'{type(content).__name__}')
  trace = trace_of(path, content, devices, base_ns)
  if not any(call.kind == OPERATOR for call in trace.calls):
    raise UserError(
        f'{path}: has no operators (events of the category cpu_op); record '
        'them with ProfilerActivity.CPU')
  return trace


def _parsed(path: str) -> Any:
  try:
    with files.open_ordinary(files.require_path('FILE', path)) as file:
      packed = file.read(2) == b'\x1f\x8b'
      file.seek(0)
      content = (gzip.GzipFile(fileobj=file) if packed else file).read(
          MOST_BYTES + 1)
  except EOFError as error:
    raise UserError(f'{path}: is cut off: gzip ends too early; copy all of it, '
                    'or record it again') from error
  except (zlib.error, gzip.BadGzipFile) as error:
    raise UserError(f'{path}: is damaged: {error}') from error
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  if len(content) > MOST_BYTES:
    raise UserError(f'{path}: holds more than {MOST_BYTES:,} bytes of JSON; '
                    'record fewer steps')
  try:
    text = content.decode('utf-8-sig')
    files.require_parsable(text, path, MOST_PARSED_BYTES)
    return files.checked_json(text)
  except (ValueError, RecursionError) as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(f'{path}: is not JSON, or is cut off ({reason})') from error


def trace_of(path: str, events: Sequence[Any], devices: Any = None,
             base_ns: Any = 0) -> Trace:
  """A trace of a file's events, `deviceProperties` and `baseTimeNanoseconds`.

  Events of other categories, and those without a duration, are skipped.
  """
  host: list[Call] = []
  gpu: list[Work] = []
  unusable = 0
  for event in events:
    if not isinstance(event, dict) or event.get('ph') != 'X':
      continue
    category = str(event.get('cat')).lower()
    if category not in _HOST and category not in _GPU:
      continue
    start, duration = event.get('ts'), event.get('dur')
    if not (_is_number(start) and _is_number(duration) and duration >= 0):
      unusable += 1
      continue
    name, args = str(event.get('name')), event.get('args')
    times = start, start + duration
    args = args if isinstance(args, dict) else {}
    if category in _GPU:
      gpu.append(_work(event, name, times, args))
    else:
      kind = ANNOTATION if _STEP.fullmatch(name) else _HOST[category]
      thread = str(event.get('pid')), str(event.get('tid'))
      host.append(Call(name, kind, thread, *times, args))
  first = min((one.start for one in (*host, *gpu)), default=0)
  for one in (*host, *gpu):
    one.start, one.end = float(one.start - first), float(one.end - first)
  gpu.sort(key=lambda one: (one.start, one.end))
  host = _nested(host)
  _attribute(host, gpu)
  names = [str(device.get('name')) for device in
           (devices if isinstance(devices, list) else ())
           if isinstance(device, dict)] or ['a GPU']
  notes = [f'{unusable:,} events without a usable start and duration are '
           'left out'] * bool(unusable)
  began = float(first) + (base_ns / 1000 if _is_number(base_ns) else 0.0)
  return Trace(path, host, gpu, gpu, names[0], (), notes, began)


def _is_number(value: Any) -> bool:
  """Whether it is a number in range; NaN is not."""
  return type(value) in (int, float) and -_MOST < value < _MOST


def _whole(value: Any) -> Optional[int]:
  """A whole number, or None; some versions write it as text."""
  if isinstance(value, str) and _WHOLE.fullmatch(value):
    return int(value)
  return value if type(value) is int else None


def _external(one: Union[Call, Work]) -> Optional[int]:
  """The number of an operator; the work that it launches may have it too."""
  return _whole(one.args.get('External id', one.args.get('external id')))


def _correlation(one: Union[Call, Work]) -> Optional[int]:
  """The number of a runtime call; the work that it launches has it too."""
  return _whole(one.args.get('correlation'))


def _work(event: dict, name: str, times: tuple, args: dict) -> Work:
  block, grid = _product(args.get('block')), _product(args.get('grid'))
  moved = args.get('bytes')
  return Work(
      name, (_whole(args.get('device', event.get('pid'))) or 0,
             _whole(args.get('stream', event.get('tid'))) or 0), *times, args,
      float(moved) if _is_number(moved) and moved > 0 else 0.0, block * grid)


def _product(sides: Any) -> int:
  """Product of the three sides of a block or grid; 0 if they are missing."""
  known = isinstance(sides, list) and len(sides) == 3 and all(
      type(side) is int and 0 < side < _MOST_SIDE for side in sides)
  return math.prod(sides) if known else 0


def _nested(calls: list[Call]) -> list[Call]:
  """The calls by thread and start, each with its parent.

  The parent is the innermost call of the thread that begins before and ends
  after it. If two operators have equal times, the smaller number is the outer.
  """
  around: list[Call] = []
  calls.sort(key=lambda call: (
      call.thread, call.start, -call.end, call.kind == RUNTIME,
      _external(call) or 0))
  for call in calls:
    while around and (around[-1].thread != call.thread
                      or around[-1].end <= call.start
                      or around[-1].end + _ROUNDING_US < call.end):
      around.pop()
    call.parent = around[-1] if around else None
    around.append(call)
  return calls


def _attribute(calls: Sequence[Call], work: Sequence[Work]) -> None:
  """Sets `launch` and `caller` of all work.

  The runtime call with the same correlation number launched it. Without one the
  number of an operator ('External id') decides, unless a version has written
  the correlation number there.
  """
  launches, operators = {}, {}
  for call in calls:
    if call.kind == RUNTIME:
      launches.setdefault(_correlation(call), call)
    elif call.kind == OPERATOR:
      operators.setdefault(_external(call) or None, call)
  launches.pop(None, None)
  operators.pop(None, None)
  for one in work:
    one.launch = launches.get(_correlation(one))
    around = [call for call in (one.launch.upward() if one.launch else ())
              if call.kind != RUNTIME and call.step is None]
    one.caller = next((call for call in around if call.kind == OPERATOR),
                      around[0] if around else None)
    if one.caller is None and _external(one) != _correlation(one):
      one.caller = operators.get(_external(one))


def steps_of(trace: Trace, wanted: Optional[Sequence[int]]) -> Trace:
  """Some steps of a trace, or all steps; a trace without steps as a whole.

  Raises:
    UserError: a wanted step is missing.
  """
  times: dict[int, list[float]] = {}
  for call in trace.calls:
    if call.step is not None:
      times.setdefault(call.step, []).extend((call.start, call.end))
  chosen = sorted(times) if wanted is None else wanted
  for number in chosen:
    if number not in times:
      names = shortened([str(one) for one in sorted(times)], 8) or 'none'
      raise UserError(f'{trace.path}: has no step {number}; its steps are: '
                      f'{names}')
  if not chosen:
    return trace
  start = min(min(times[number]) for number in chosen)
  end = max(max(times[number]) for number in chosen)
  return trace._replace(
      steps=tuple(chosen),
      calls=[call for call in trace.calls if start <= call.start < end],
      work=[one for one in trace.work
            if start <= (one.launch or one.caller or one).start < end])
