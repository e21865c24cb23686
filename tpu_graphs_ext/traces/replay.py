"""The time of a step, replayed.

The host launches work in the recorded order, with calibrated pauses, and waits
where it waited in the trace. Work starts once it is launched, and the work
before it on its stream and what it waited for in the trace have ended.
"""

from __future__ import annotations

import bisect
import collections
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.traces import kineto
from tpu_graphs_ext.traces.kineto import Event, Trace

# Delays up to this are latency; after longer ones work waited for other work.
_NEAR_US = 20.0
LATENCY, BETWEEN, PAUSE, CALL = 'latency', 'between', 'pause', 'call'
_STEP = 'step'


class Command(NamedTuple):
  """A runtime call that launches work or waits for it, or a step's border."""
  start: float
  end: float
  work: Sequence[Event]
  waits_for: Optional[Event]
  name: str  # Of operator and work, or `_STEP`: it tells pauses apart.


def commands_of(trace: Trace) -> list[Command]:
  """Launches, waits and borders of steps, by their start."""
  launched = collections.defaultdict(list)
  for each in trace.work:
    if each.launch is not None:
      launched[each.launch].append(each)
  ended = sorted(trace.all_work, key=lambda each: each.end)
  ends = [each.end for each in ended]
  borders = [time for call in trace.calls if call.step is not None
             for time in (call.start, call.end)]
  # A step begins where the one before it ends, or a little later.
  commands = [Command(time, time, (), None, _STEP)
              for time in {*borders[::2], *borders[-1:]}]
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
    is_called = call.caller and call.caller.kind == kineto.OPERATOR
    commands.append(Command(
        call.start, call.end, work, last, (call.caller.name if is_called else ''
        ) + f' {work[0].name if work else call.name}'))
  return sorted(commands, key=lambda command: command.start)


def host_of(trace: Trace) -> dict[str, tuple[float, int]]:
  """Mean times of the host's pauses and calls, and of the GPU's latencies.

  With how many there were. Keys are the words above, some followed by names:
  'pause A > B' is the pause between commands A and B, 'stall A > B' a long wait
  of a stream that nothing in the trace explains.
  """
  times = collections.defaultdict(list)
  commands = commands_of(trace)
  for before, command in zip([None, *commands], commands):
    if before is not None:
      pause = max(command.start - before.end, 0.0)
      for key in _pause_keys(before, command):
        times[key].append(pause)
    if command.waits_for is None and command.name != _STEP:
      times[CALL].append(command.end - command.start)
  stalls = collections.defaultdict(list)
  for each, before, other in _queues(trace):
    ready = [past.end for past in (before, other) if past is not None]
    free = max(0.0, each.start - max(each.launch.start, *ready, 0.0))
    if free < _NEAR_US:
      waited = before and before.end > each.launch.end
      times[BETWEEN if waited else LATENCY].append(free)
    stalls[_stall(before, each)].append(free)
  times.update((key, free) for key, free in stalls.items()
               if statistics.fmean(free) > _NEAR_US)
  return {key: (statistics.fmean(each), len(each))
          for key, each in times.items()}


def _stall(before: Optional[Event], work: Event) -> str:
  """The key of a wait that nothing in the trace explains."""
  return f'stall {before.name if before else ""} > {work.name}'


def _pause_keys(before: Command, command: Command) -> list[str]:
  """Finest first."""
  return [f'{PAUSE} {before.name} > {command.name}',
          f'{PAUSE} {command.name}', PAUSE]


def _queues(trace: Trace) -> Iterator[tuple]:
  """(work, the work before it on its stream, the work of another stream that it
  waited for) for all work launched in the part, by start.

  What was launched before the part is before the first of it.
  """
  part = {*trace.work}
  ended = iter(sorted(trace.all_work, key=lambda each: each.end))
  upcoming = next(ended, None)
  last: dict[tuple, Event] = {}
  # Of each GPU the work that ended last, and that of another stream.
  latest: dict[int, list[Event]] = collections.defaultdict(list)
  for each in trace.all_work:
    while upcoming is not None and upcoming.end <= each.start:
      ends = latest[upcoming.place[0]]
      ends[:] = [upcoming, *(end for end in ends
                             if end.place != upcoming.place)][:2]
      upcoming = next(ended, None)
    if each.launch is None:
      continue
    before = last.get(each.place)
    last[each.place] = each
    if each in part:
      ready = max(each.launch.end, before.end if before else 0.0) + _NEAR_US
      yield each, before, next(
          (past for past in latest[each.place[0]]
           if past.place != each.place and past.end > ready), None)


def replay(trace: Trace, host: Mapping[str, tuple],
           duration_us: Mapping[Event, float]) -> tuple[float, float]:
  """(predicted, measured) microseconds of a step; 0, 0 without a launch.

  A step takes as long as from the end of what came before the steps, on host
  and GPU, to the end of their own work, divided by their number: its period. Of
  a trace without steps the whole counts, from the first launch. `host` comes
  from `host_of`, for these or other steps.
  """
  commands = commands_of(trace)
  launched = [each for command in commands for each in command.work]
  if not launched:
    return 0.0, 0.0
  origin = commands[0].start
  free, ends = collections.defaultdict(lambda: origin), {}
  for each in {*trace.all_work} - {*launched}:
    if each.launch and each.launch.start < origin:
      ends[each] = each.end
      free[each.place] = max(free[each.place], each.end)
  begin = max(origin, *free.values(), 0.0)

  def constant(*keys):
    return next((host[key][0] for key in keys if key in host), 0.0)

  latency, between, call_us = map(constant, (LATENCY, BETWEEN, CALL))
  waits, now = {each: others for each, *others in _queues(trace)}, origin
  for last, command in zip([None, *commands], commands):
    if last is not None:
      now += constant(*_pause_keys(last, command))
    launch = now
    now += 0.0 if command.name == _STEP else call_us
    for each in command.work:
      before, other = waits[each]
      ready = max(free[each.place], ends.get(other, 0.0))
      start = max(launch + latency, ready + between,
                  max(launch, ready) + constant(_stall(before, each)))
      ends[each] = free[each.place] = start + duration_us[each]
    now = max(now, ends.get(command.waits_for, now))
  count = max(len(trace.steps), 1)
  measured = max(*(each.end for each in launched), commands[-1].end)
  predicted = max(now, *(ends[each] for each in launched))
  return (predicted - begin) / count, (measured - begin) / count
