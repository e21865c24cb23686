"""Traces of PyTorch's profiler (Kineto), in Chrome's format."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

OPERATOR, ANNOTATION, RUNTIME, WORK = 'operator annotation runtime work'.split()
_KINDS = {
    'cpu_op': OPERATOR, 'user_annotation': ANNOTATION,
    **dict.fromkeys(('cuda_runtime', 'cuda_driver', 'hip_runtime',
                     'hip_driver'), RUNTIME),
    **dict.fromkeys(('kernel', 'gpu_memcpy', 'gpu_memset'), WORK)}

ROUNDING_US = 1.0  # Older traces truncate times.
# Work of a stream may begin so long before that before it ends, by rounding or
# by programmatic dependent launch. No work takes an hour.
_OVERLAP_US, _MOST_US = 3.0, 3.6e9
_MOST = 1e19  # Larger than any number of nanoseconds or bytes.
_STEP = re.compile(r'ProfilerStep#([0-9]{1,18})')
_ESCAPE = re.compile(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
MOST_BYTES, MOST_PARSED_BYTES = 2**30, 2**32  # Of the text, and as objects.

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Event:
  """A call on a thread of the host, or work on a stream of a GPU."""
  name: str
  kind: str  # `OPERATOR`, `ANNOTATION`, `RUNTIME`; `WORK`: kernel, copy, fill.
  place: tuple  # Process and thread, or device and stream.
  start: float  # Microseconds since the first event, as `end`.
  end: float
  args: Mapping[str, Any]  # The rest of the trace: shapes, types, numbers.
  parent: Optional[Event] = None  # The innermost call that contains this one.
  launch: Optional[Event] = None  # The runtime's call of the same correlation.
  caller: Optional[Event] = None  # The innermost operator around, or itself.
  step: Optional[int] = None  # Its number, if this is the annotation of one.

  @property
  def duration_us(self) -> float:
    return self.end - self.start


class Trace(NamedTuple):
  """A trace, or some steps of it."""
  path: str
  calls: list[Event]  # Of all threads, outer calls first.
  work: list[Event]  # By start; of steps, all work launched in them.
  all_work: list[Event]  # Of the whole trace.
  gpu: str  # The name of the first GPU in the file, or 'a GPU'.
  steps: tuple  # Numbers of the profiler's steps; () for a whole trace.
  dropped: int  # Events whose durations cannot be right.
  sweep: Optional[Mapping[str, Any]]  # Of a sweep: what its profiler adds, us.


def read(path: str) -> Trace:
  """Reads a trace, JSON or gzip, or raises UserError; mends paths, control
  characters, broken bytes and N/A as TensorBoard's plug-in does."""
  content = files.read_file(files.require_path('FILE', path), MOST_BYTES,
                            unpack=True)
  try:
    parsed = files.parse_json(content, path, MOST_PARSED_BYTES)
  except UserError:
    text = _ESCAPE.sub(lambda match: match[1] or rb'\\', content)
    text = re.sub(rb'([:,[] *)N/A(?= *[],}])', rb'\1"N/A"', re.sub(
        rb'[\x00-\x1f]', b' ', text)).decode('utf-8', 'replace').encode()
    parsed = files.parse_json(text, path, MOST_PARSED_BYTES)
    _log.warning('%s: is not valid JSON; its backslashes, control characters '
                 'and broken bytes were replaced', path)
  return trace_of(path, parsed)


def trace_of(path: str, content: Any) -> Trace:
  """A trace of a file's JSON, by events with times and a known category."""
  events = content.get('traceEvents') if isinstance(content, dict) else None
  if not isinstance(events, list):
    raise UserError(f'{path}: is not a trace of PyTorch, which is an object '
                    'with a list traceEvents')
  known = [each for event in events if (each := _event(event))]
  first = min((each.start for each in known), default=0)
  for each in known:
    each.start = float(each.start - first)  # Since 1970 ends would be rounded.
    each.end += each.start
  work = _plausible([each for each in known if each.kind == WORK])
  calls = _nested([each for each in known
                   if each.kind != WORK and each.duration_us < _MOST_US])
  launches = {_whole(call.args.get('correlation')): call
              for call in reversed(calls) if call.kind == RUNTIME}
  launches.pop(None, None)
  for each in work:
    each.launch = launches.get(_whole(each.args.get('correlation')))
    each.caller = each.launch and each.launch.caller
  gpu, sweep = 'a GPU', content.get('tpu_graphs_ext_sweep')
  with contextlib.suppress(LookupError, TypeError):
    gpu = str(content['deviceProperties'][0]['name'])
  return Trace(path, calls, work, work, gpu, (),
               len(known) - len(calls) - len(work),
               sweep if isinstance(sweep, dict) else None)


def _plausible(work: list[Event]) -> list[Event]:
  """By start, without what ends after the next of its stream began."""
  work.sort(key=lambda each: (each.start, each.end))
  following, kept = {}, []  # By place, when the work after this starts.
  for each in reversed(work):
    if (each.duration_us < _MOST_US and each.end <= _OVERLAP_US
        + following.get(each.place, each.end)):
      kept.append(each)
    following[each.place] = each.start
  return kept[::-1]


def _event(event: Any) -> Optional[Event]:
  """An event of Chrome's format that counts; its end is its duration."""
  if not isinstance(event, dict) or event.get('ph') != 'X':
    return None
  kind = _KINDS.get(str(event.get('cat')))
  start, duration = event.get('ts'), event.get('dur')
  if not (kind and is_number(start) and is_number(duration) and duration >= 0):
    return None
  name, args = str(event.get('name')), event.get('args')
  args = args if isinstance(args, dict) else {}
  place, step = (str(event.get('pid')), str(event.get('tid'))), None
  if kind == WORK:
    place = tuple(_whole(args.get(key, event.get(other))) or 0 for key, other
                  in (('device', 'pid'), ('stream', 'tid')))
  elif match := _STEP.fullmatch(name):
    kind, step = ANNOTATION, int(match[1])
  return Event(name, kind, place, start, duration, args, step=step)


def is_number(value: Any) -> bool:
  """Whether it is a number in range; NaN is not."""
  return type(value) in (int, float) and -_MOST < value < _MOST


def _whole(value: Any) -> Optional[int]:
  return value if type(value) is int else None


def _nested(calls: list[Event]) -> list[Event]:
  """The calls by thread and start, each with the innermost call around it; of
  two operators with equal times the smaller number is the outer."""
  around: list[Event] = []
  calls.sort(key=lambda call: (
      call.place, call.start, -call.end, call.kind == RUNTIME,
      _whole(call.args.get('External id')) or 0))
  for call in calls:
    while around and (around[-1].place != call.place
                      or around[-1].end <= call.start
                      or around[-1].end + ROUNDING_US < call.end):
      around.pop()
    call.parent = around[-1] if around else None
    call.caller = call if call.kind == OPERATOR else (
        call.parent and call.parent.caller)
    around.append(call)
  return calls


def steps_of(trace: Trace, wanted: Optional[Sequence[int]]) -> Trace:
  """From the first to the last of some steps, or of all, or without steps the
  whole trace."""
  marks = {call.step: call for call in trace.calls if call.step is not None}
  chosen = sorted(marks) if wanted is None else wanted
  if missing := {*chosen} - {*marks}:
    raise UserError(f'{trace.path}: has no step {min(missing)}; its steps are: '
                    + (', '.join(map(str, sorted(marks)))
                       or 'none; leave out --step'))
  if not chosen:
    return trace
  start = min(marks[step].start for step in chosen)
  end = max(marks[step].end for step in chosen)
  return trace._replace(
      steps=tuple(chosen),
      calls=[call for call in trace.calls if start <= call.start < end],
      work=[each for each in trace.work
            if each.launch and start <= each.launch.start < end])
