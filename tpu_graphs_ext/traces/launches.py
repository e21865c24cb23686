"""Who launched the GPU's work, and for whom the GPU waited."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.traces import calls, profile
from tpu_graphs_ext.traces.calls import Activity, Call, Trace

# Idle time that is no operator's.
QUEUED = '(launched already: the GPU takes its time)'
OUTSIDE = '(launched in no operator)'
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


def idle(trace: Trace, part: Window) -> dict[int, dict[str, float]]:
  """Where the time goes in which a GPU does nothing.

  A stretch of idle time ends with work. Until that was launched the GPU waits
  for the host, which is on its way to the operator that launches it; from
  there on it waits for itself.

  Returns:
    Device -> {operator, or one of the texts above: microseconds}, longest
    first, of each device that does anything in the window.
  """
  own = collections.defaultdict(list)
  for activity in trace.activities:
    if activity.end > part.start and activity.start < part.end:
      own[activity.device].append(activity)
  found = {}
  for device, activities in sorted(own.items()):
    waits: dict[str, float] = collections.defaultdict(float)
    at = part.start
    starts = {activity.start: activity for activity in reversed(activities)}
    for low, high in busy(activities, part.start, part.end):
      if low > at:
        work = starts[low]
        launched = min(max(work.launch.end, at), low) if work.launch else low
        name = (work.caller.name if work.caller else OUTSIDE
                ) if work.launch else UNKNOWN
        waits[name] += launched - at
        waits[QUEUED] += low - launched
      at = high
    waits[AFTER] += part.end - at
    found[device] = dict(sorted(
        ((name, us) for name, us in waits.items() if us > 0),
        key=lambda one: -one[1]))
  return found
