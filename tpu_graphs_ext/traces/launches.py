"""Who launched the GPU's work, and for whom the GPU waited."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext.traces import calls, profile
from tpu_graphs_ext.traces.calls import Activity, Call, Trace

# Idle time that is no operator's.
QUEUED = '(launched already: the GPU takes its time)'
OUTSIDE = '(the thread is in no operator)'
UNKNOWN = '(before work whose launch is not in the trace)'
AFTER = '(after the last work)'


def attribute(trace: Trace) -> None:
  """Sets `launch` and `caller` of all work of the GPU.

  The runtime's call with the same correlation number launched it, within the
  innermost operator of its thread at that time. Without such a call the
  number of an operator ('External id') decides. Some versions write the
  correlation number there, which says nothing.
  """
  launches, operators = {}, {}
  for call in trace.calls:
    if call.kind == calls.RUNTIME:
      launches.setdefault(profile.correlation_of(call), call)
    elif call.kind == calls.OPERATOR:
      operators.setdefault(profile.external_of(call), call)
  launches.pop(None, None)
  operators.pop(None, None)
  for activity in trace.activities:
    activity.launch = launches.get(activity.correlation)
    activity.caller = activity.launch and _around(activity.launch)
    if activity.caller is None and activity.external != activity.correlation:
      activity.caller = operators.get(activity.external)


def _around(launch: Call) -> Optional[Call]:
  """The innermost operator, or else annotation that is not a whole step."""
  annotation = None
  for call in launch.upward():
    if call.kind == calls.OPERATOR:
      return call
    if call.kind == calls.ANNOTATION and call.step is None:
      annotation = annotation or call
  return annotation


class Window(NamedTuple):
  """A part of a trace.

  Attributes:
    start, end: in microseconds.
    steps: numbers of the profiler's steps in it; () of a whole trace.
    calls: those that start in it.
    activities: those that were launched in it, whenever they ran.
  """
  start: float
  end: float
  steps: tuple
  calls: list[Call]
  activities: list[Activity]

  @property
  def duration_us(self) -> float:
    return self.end - self.start


def steps_of(trace: Trace) -> dict[int, tuple[float, float]]:
  """Number -> (start, end) of the profiler's steps."""
  found: dict[int, tuple[float, float]] = {}
  for call in trace.calls:
    if call.step is not None:
      start, end = found.get(call.step, (call.start, call.end))
      found[call.step] = min(start, call.start), max(end, call.end)
  return dict(sorted(found.items()))


def window(trace: Trace, steps: dict[int, tuple[float, float]]) -> Window:
  """The part of the trace from the first of `steps` to the last one's end.

  Without steps it is all of the trace.
  """
  if steps:
    start = min(start for start, _ in steps.values())
    end = max(end for _, end in steps.values())
  else:
    ends = [one.end for one in (*trace.calls, *trace.activities)]
    start, end = 0.0, max(ends, default=0.0)
  if not trace.timed or not steps:
    return Window(start, end, (), list(trace.calls), list(trace.activities))

  def launched(activity: Activity) -> float:
    cause = activity.launch or activity.caller or activity
    return cause.start

  return Window(
      start, end, tuple(steps),
      [call for call in trace.calls if start <= call.start < end],
      [activity for activity in trace.activities
       if start <= launched(activity) < end])


def busy(activities: Sequence[Activity], start: float,
         end: float) -> list[tuple[float, float]]:
  """Disjoint stretches, in order, in which any of the work runs."""
  found: list[list[float]] = []
  for activity in sorted(activities, key=lambda one: one.start):
    low, high = max(activity.start, start), min(activity.end, end)
    if high <= low:
      continue
    if found and low <= found[-1][1]:
      found[-1][1] = max(found[-1][1], high)
    else:
      found.append([low, high])
  return [(low, high) for low, high in found]


def idle(trace: Trace, part: Window) -> dict[int, dict[Any, float]]:
  """Where the time goes in which a GPU does nothing.

  A stretch of idle time ends with work that was launched by a thread. As long
  as that was not launched, the GPU waits for the thread, and so for the
  operators that it is in; from there on it waits for itself.

  Returns:
    Device -> {call, or one of the texts above: microseconds}, each device
    that does anything in the window.
  """
  own = collections.defaultdict(list)
  for activity in trace.activities:
    if activity.end > part.start and activity.start < part.end:
      own[activity.device].append(activity)
  threads = _Threads(trace.calls)
  found = {}
  for device, activities in sorted(own.items()):
    waits: dict[Any, float] = collections.defaultdict(float)
    at = part.start
    stretches = busy(activities, part.start, part.end)
    starts = {activity.start: activity for activity in reversed(activities)}
    for low, high in stretches:
      if low > at:
        for cause, lost in threads.waited_for(starts[low], at, low):
          waits[cause] += lost
      at = high
    if part.end > at:
      waits[AFTER] += part.end - at
    found[device] = dict(waits)
  return found


class _Threads:
  """What each thread is in at each time."""

  def __init__(self, all_calls: Sequence[Call]):
    self._roots = collections.defaultdict(list)
    for call in all_calls:
      if call.parent is None:
        self._roots[call.thread].append(call)
    self._known: dict[Any, tuple[list, list]] = {}

  def waited_for(self, work: Activity, start: float,
                 end: float) -> Iterator[tuple[Any, float]]:
    """(cause, microseconds) of the idle time before some work."""
    if work.launch is None:
      yield UNKNOWN, end - start
      return
    launched = min(max(work.launch.end, start), end)
    yield from self._inside(work.launch.thread, start, launched)
    if end > launched:
      yield QUEUED, end - launched

  def _inside(self, thread: Any, start: float,
              end: float) -> Iterator[tuple[Any, float]]:
    """The same of a stretch of a thread, by its innermost operator."""
    stretches, ends = self._stretches(thread)
    at, place = start, bisect.bisect_right(ends, start)
    while place < len(stretches) and stretches[place][0] < end:
      low, high, cause = stretches[place]
      low, high = max(low, at), min(high, end)
      if low > at:
        yield OUTSIDE, low - at
      if high > low:
        yield cause, high - low
        at = high
      place += 1
    if end > at:
      yield OUTSIDE, end - at

  def _stretches(self, thread: Any) -> tuple[list, list]:
    """(start, end, cause) of all the thread's time in calls, and the ends."""
    if thread not in self._known:
      found = []
      for root in self._roots[thread]:
        for call in root.downward():
          cause = _around(call) or OUTSIDE
          found += [(start, end, cause)
                    for start, end, of in calls.pieces(call) if of is call]
      found.sort(key=lambda stretch: stretch[:2])
      self._known[thread] = found, [end for _, end, _ in found]
    return self._known[thread]
