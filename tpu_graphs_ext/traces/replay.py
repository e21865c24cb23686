"""The time of a step: launches, streams and dependencies replayed.

The host launches work in the recorded order, with the calibrated pauses
between launches. Work starts when it was launched, when the work before it on
its stream has ended, and when what it waited for in the trace has ended. The
host waits where it waited in the trace.
"""

from __future__ import annotations

import bisect
import collections
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.traces import calls
from tpu_graphs_ext.traces.calls import Activity, Call, Trace
from tpu_graphs_ext.traces.launches import Window

# Delays up to this are latency; after longer ones work waited for other work.
_NEAR_US = 20.0
# Launches that a GPU holds before the host must wait (CUDA's queue).
_QUEUE = 1024
LATENCY, BETWEEN, PAUSE, CALL = 'latency', 'between', 'pause', 'call'


class Event(NamedTuple):
  """A call that launches work or waits for some, in the host's order.

  Attributes:
    call: of the runtime.
    work: what it launched.
    waits_for: the work whose end it waited for, if any.
    name: of the operator and of the work, what pauses are told apart by.
  """
  call: Call
  work: Sequence[Activity]
  waits_for: Optional[Activity]
  name: str


def events_of(trace: Trace, part: Window) -> list[Event]:
  """Launches and waits of a part of a trace, by their start."""
  launched = collections.defaultdict(list)
  for one in part.activities:
    if one.launch is not None:
      launched[one.launch].append(one)
  ended = sorted(trace.activities, key=lambda one: one.end)
  ends = [one.end for one in ended]
  found = []
  for call in part.calls:
    work = launched.get(call, ())
    waits = 'ynchronize' in call.name
    if call.kind != calls.RUNTIME or not (work or waits):
      continue
    last = None
    if waits:
      place = bisect.bisect_right(ends, call.end) - 1
      if place >= 0 and ends[place] > max(call.start, call.end - 2 * _NEAR_US):
        last = ended[place]
    elif 'emcpy' in call.name and call.end >= work[-1].end:
      last = work[-1]
    found.append(Event(call, work, last, _name(call, work)))
  return sorted(found, key=lambda event: event.call.start)


def _name(call: Call, work: Sequence[Activity]) -> str:
  operator = next((one.name for one in call.upward()
                   if one.kind == calls.OPERATOR), '')
  return f'{operator} {work[0].name if work else call.name}'


def host_of(trace: Trace, part: Window) -> dict[str, float]:
  """Means of the host's pauses and calls, and of the GPU's latencies.

  Keys are the words above, with names of events behind them where they are
  told apart: 'pause A > B' is between events named A and B; and 'stall A > B'
  of long waits of a stream that nothing in the trace explains.
  """
  times = collections.defaultdict(list)
  events = events_of(trace, part)
  for before, event in zip([None, *events], events):
    if before is not None:
      pause = max(event.call.start - before.call.end, 0.0)
      for key in _pause_keys(before, event):
        times[key].append(pause)
    if event.waits_for is None:
      for key in (f'{CALL} {event.call.name}', CALL):
        times[key].append(event.call.duration_us)
  stalls = collections.defaultdict(list)
  for one, before, other in _queues(trace, part):
    ready = [past.end for past in (before, other) if past is not None]
    free = max(0.0, one.start - max(one.launch.start, *ready, 0.0))
    if free < _NEAR_US:
      waited = before and before.end > one.launch.end
      times[BETWEEN if waited else LATENCY].append(free)
    stalls[_stall(before, one)].append(free)
  found = {key: statistics.fmean(each) for key, each in times.items()}
  found.update((key, us) for key, each in stalls.items()
               if (us := statistics.fmean(each)) > _NEAR_US)
  return found


def _stall(before: Optional[Activity], one: Activity) -> str:
  """Of time in which a stream waits for nothing that the trace shows."""
  return f'stall {before.name if before else ""} > {one.name}'


def _pause_keys(before: Event, event: Event) -> list[str]:
  """Finest first."""
  return [f'{PAUSE} {before.name} > {event.name}', f'{PAUSE} {event.name}',
          PAUSE]


def _queues(trace: Trace, part: Window) -> list[tuple]:
  """(work, the one before on its stream, the one of another that it waited
  for) of all work launched in the part, by its start."""
  ended = sorted(trace.activities, key=lambda one: one.end)
  ends = [one.end for one in ended]
  found, last = [], {}
  for one in sorted(part.activities, key=lambda one: one.start):
    if one.launch is None:
      continue
    before = last.get(_stream(one))
    ready = max(one.launch.end, before.end if before else 0.0) + _NEAR_US
    other, place = None, bisect.bisect_right(ends, one.start) - 1
    while place >= 0 and ends[place] > ready and other is None:
      past = ended[place]
      if past.device == one.device and past.stream != one.stream:
        other = past
      place -= 1
    found.append((one, before, other))
    last[_stream(one)] = one
  return found


def _stream(one: Activity) -> tuple[int, int]:
  return one.device, one.stream


def replay(trace: Trace, part: Window, host: dict[str, float],
           duration_us: Callable[[Activity], float]) -> tuple[float, float]:
  """(predicted, measured) microseconds from the first launch to the last end.

  Args:
    trace: all of it; work launched before the part still runs at its start.
    part: the steps.
    host: of `host_of`, of these or other steps.
    duration_us: the predicted time of work.

  Returns:
    0, 0 where the part launches nothing.
  """
  events = events_of(trace, part)
  if not any(event.work for event in events):
    return 0.0, 0.0
  origin = events[0].call.start
  free, ends, starts = collections.defaultdict(lambda: origin), {}, []
  own = {id(one) for one in part.activities}
  for one in trace.activities:
    if id(one) not in own and one.launch and one.launch.start < origin:
      ends[id(one)] = one.end
      free[_stream(one)] = max(free[_stream(one)], one.end)
  waits = {id(one): (before, other)
           for one, before, other in _queues(trace, part)}
  now, latency, between = origin, host.get(LATENCY, 0), host.get(BETWEEN, 0)
  for last, event in zip([None, *events], events):
    if last is not None:
      now += _first(host, _pause_keys(last, event))
    begin = now
    now += _first(host, (f'{CALL} {event.call.name}', CALL))
    if len(starts) >= _QUEUE:
      now = max(now, starts[-_QUEUE])
    for one in event.work:
      stream, (before, other) = _stream(one), waits[id(one)]
      ready = max(free[stream], ends.get(id(other), 0.0))
      start = max(begin + latency, ready + between,
                  max(begin, ready) + host.get(_stall(before, one), 0.0))
      ends[id(one)] = free[stream] = start + duration_us(one)
      starts.append(start)
    if event.waits_for is not None:
      now = max(now, ends.get(id(event.waits_for), now))
  measured = max((*(one.end for event in events for one in event.work),
                  events[-1].call.end))
  predicted = max(now, *(ends[id(one)] for event in events
                         for one in event.work))
  return predicted - origin, measured - origin


def _first(host: dict[str, float], keys: Sequence[str]) -> float:
  return next((host[key] for key in keys if key in host), 0.0)
