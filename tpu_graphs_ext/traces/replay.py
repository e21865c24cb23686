"""The time of a step: launches, streams and dependencies replayed.

The host launches work in the recorded order, with calibrated pauses, and waits
where it waited in the trace. Work starts once it is launched, and the work
before it on its stream and what it waited for in the trace have ended.
"""

from __future__ import annotations

import bisect
import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.traces import kineto
from tpu_graphs_ext.traces.kineto import Event, Trace

# Delays up to this are latency; after longer ones work waited for other work.
_NEAR_US = 20.0
LATENCY, BETWEEN, PAUSE, CALL = 'latency', 'between', 'pause', 'call'


class Command(NamedTuple):
  """A runtime call that launches work or waits for it."""
  call: Event
  work: Sequence[Event]
  waits_for: Optional[Event]
  name: str  # Of operator and work: it tells pauses apart.


def commands_of(trace: Trace) -> list[Command]:
  """Launches and waits, by their start."""
  launched = collections.defaultdict(list)
  for one in trace.work:
    if one.launch is not None:
      launched[one.launch].append(one)
  ended = sorted(trace.all_work, key=lambda one: one.end)
  ends = [one.end for one in ended]
  found = []
  for call in trace.calls:
    work, last = launched.get(call, ()), None
    if call.kind != kineto.RUNTIME:
      continue
    if 'ynchronize' in call.name:
      place = bisect.bisect_right(ends, call.end) - 1
      if place >= 0 and ends[place] > max(
          call.start, call.end - 2 * _NEAR_US):
        last = ended[place]
    elif not work:
      continue
    elif 'emcpy' in call.name and call.end >= work[-1].end:
      last = work[-1]
    operator = next((one.name for one in call.upward()
                     if one.kind == kineto.OPERATOR), '')
    found.append(Command(call, work, last,
                         f'{operator} {work[0].name if work else call.name}'))
  return sorted(found, key=lambda command: command.call.start)


def host_of(trace: Trace) -> dict[str, float]:
  """Mean times of the host's pauses and calls, and of the GPU's latencies.

  Keys are the words above, some followed by names: 'pause A > B' is the pause
  between commands A and B, 'stall A > B' a long wait of a stream that nothing
  in the trace explains.
  """
  times = collections.defaultdict(list)
  commands = commands_of(trace)
  for before, command in zip([None, *commands], commands):
    if before is not None:
      pause = max(command.call.start - before.call.end, 0.0)
      for key in _pause_keys(before, command):
        times[key].append(pause)
    if command.waits_for is None:
      times[CALL].append(command.call.duration_us)
  stalls = collections.defaultdict(list)
  for one, before, other in _queues(trace):
    ready = [past.end for past in (before, other) if past is not None]
    free = max(0.0, one.start - max(one.launch.start, *ready, 0.0))
    if free < _NEAR_US:
      waited = before and before.end > one.launch.end
      times[BETWEEN if waited else LATENCY].append(free)
    stalls[_stall(before, one)].append(free)
  found = {key: statistics.fmean(each) for key, each in times.items()}
  return {**found, **{key: us for key, each in stalls.items()
                      if (us := statistics.fmean(each)) > _NEAR_US}}


def _stall(before: Optional[Event], one: Event) -> str:
  """The key of a wait that nothing in the trace explains."""
  return f'stall {before.name if before else ""} > {one.name}'


def _pause_keys(before: Command, command: Command) -> list[str]:
  """Finest first."""
  return [f'{PAUSE} {before.name} > {command.name}',
          f'{PAUSE} {command.name}', PAUSE]


def _queues(trace: Trace) -> list[tuple]:
  """(work, the work before it on its stream, the work of another stream that it
  waited for) for all work launched in the part, by start."""
  ended = sorted(trace.all_work, key=lambda one: one.end)
  ends = [one.end for one in ended]
  found, last = [], {}
  for one in sorted(trace.work, key=lambda one: one.start):
    if one.launch is None:
      continue
    before = last.get(one.place)
    ready = max(one.launch.end, before.end if before else 0.0) + _NEAR_US
    other, place = None, bisect.bisect_right(ends, one.start) - 1
    while place >= 0 and ends[place] > ready and other is None:
      past = ended[place]
      if past.place[0] == one.place[0] and past.place != one.place:
        other = past
      place -= 1
    found.append((one, before, other))
    last[one.place] = one
  return found


def replay(trace: Trace, host: Mapping[str, float],
           duration_us: Mapping[Event, float]) -> tuple[float, float]:
  """(predicted, measured) microseconds from the first launch to the last end.

  0, 0 if nothing is launched. `host` comes from `host_of`, for these or other
  steps.
  """
  commands = commands_of(trace)
  launched = [one for command in commands for one in command.work]
  if not launched:
    return 0.0, 0.0
  origin = commands[0].call.start
  free, ends = collections.defaultdict(lambda: origin), {}
  for one in {*trace.all_work} - {*trace.work}:
    if one.launch and one.launch.start < origin:
      ends[one] = one.end
      free[one.place] = max(free[one.place], one.end)
  waits = {one: others for one, *others in _queues(trace)}
  now, latency, between = origin, host.get(LATENCY, 0), host.get(BETWEEN, 0)
  for last, command in zip([None, *commands], commands):
    if last is not None:
      now += next((host[key] for key in _pause_keys(last, command)
                   if key in host), 0.0)
    begin = now
    now += host.get(CALL, 0.0)
    for one in command.work:
      before, other = waits[one]
      ready = max(free[one.place], ends.get(other, 0.0))
      start = max(begin + latency, ready + between,
                  max(begin, ready) + host.get(_stall(before, one), 0.0))
      ends[one] = free[one.place] = start + duration_us[one]
    now = max(now, ends.get(command.waits_for, now))
  measured = max(*(one.end for one in launched), commands[-1].call.end)
  predicted = max(now, *(ends[one] for one in launched))
  return predicted - origin, measured - origin
