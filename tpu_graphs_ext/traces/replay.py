"""The time of a step: its launches replayed, with calibrated pauses."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from tpu_graphs_ext.traces import kinds, kineto
from tpu_graphs_ext.traces.kineto import Event, Trace

# Delays up to this are latency; after longer ones work waited for other work.
_NEAR_US = 20.0
_SLOW = 4 / 3  # Medians; in longer steps the host was interrupted.
_MOST_ENDED = 64  # Pieces of work that one may have waited for.
LATENCY, BETWEEN, PAUSE, CALL = 'latency', 'between', 'pause', 'call'
_STEP, _STALL = 'step', 'stall'


@dataclasses.dataclass(eq=False)
class Command:
  """A runtime call that launches work or waits for it, or a step's border."""
  start: float
  end: float
  place: tuple  # Its thread; () of a border.
  work: Sequence[Event]
  waits_for: Optional[Event]
  name: str  # Of operator and work, or `_STEP`: it tells pauses apart.
  step: Optional[int] = None  # That it is of; a border is of that which ends.
  before: Optional[Command] = None  # The last, of any thread, that had ended.
  pauses: Sequence[str] = ()  # Names of the pause between them, finest first.


def commands_of(trace: Trace) -> list[Command]:
  """Launches, waits and borders of steps, by their start."""
  launched = collections.defaultdict(list)
  for each in trace.work:
    launched[each.launch].append(each)
  marks = [call for call in trace.calls if call.step is not None]
  # A step begins where the one before it ends, or a little later.
  steps = {**{mark.start: mark.step for mark in marks},
           **{mark.end: None for mark in marks[-1:]}}
  commands = [Command(time, time, (), (), None, _STEP) for time in steps]
  ended = _finder(trace)
  last: dict[tuple, Event] = {}  # Work, by thread and operator.
  for call in trace.calls:
    work, waits = launched.get(call, ()), 'ynchronize' in call.name
    if call.kind != kineto.RUNTIME or not (work or waits):
      continue
    place = call.place, call.caller
    if work:
      last[place] = work[-1]
    waited = last.get(place) if waits or 'emcpy' in call.name else None
    if not waited or waited.end > call.end + kineto.ROUNDING_US:
      # Launches that take long wait until a queue has room.
      long = waits or call.duration_us > 2 * _NEAR_US
      waited = next((each for each in ended(call.end, max(
          call.start, call.end - 2 * _NEAR_US))
                     if long and each.launch.end <= call.start), None)
    name = call.caller.name if call.caller else ''
    commands.append(Command(
        call.start, call.end, call.place, work, waited,
        f'{name} {work[0].name if work else call.name}'))
  commands.sort(key=lambda command: (command.start, command.end))
  by_end = iter(sorted(commands, key=lambda command: command.end))
  before, following, step = None, next(by_end, None), None
  for command in commands:
    command.step = step
    if command.name == _STEP and trace.steps:
      step = steps[command.start]
    while following is not command and following.end <= command.start:
      before, following = following, next(by_end)
    if before:
      command.before, command.pauses = before, (
          f'{PAUSE} {before.name} > {command.name}', f'{PAUSE} {command.name}',
          PAUSE)
  return commands


def _finder(trace: Trace) -> Callable[[float, float], list[Event]]:
  """Finds work that ended until a time but after another, the last first."""
  ended = sorted((each for each in trace.all_work if each.launch is not None),
                 key=lambda each: each.end)
  ends = [each.end for each in ended]

  def find(time, after):
    first, last = (bisect.bisect_right(ends, each) for each in (after, time))
    return ended[max(first, last - _MOST_ENDED):last][::-1]
  return find


def host_of(trace: Trace) -> dict[str, tuple[float, int]]:
  """Mean times of the host's pauses and calls and the GPU's latencies, and how
  many there were; a stall is a wait of a stream that nothing explains."""
  times = collections.defaultdict(list)
  commands = commands_of(trace)
  usual = _usual(_periods(trace, commands, _earlier(trace, commands)[1]))
  commands = [command for command in commands if command.step in usual]
  launches = {each for command in commands for each in command.work}
  for command in commands:
    for key in command.pauses:
      times[key].append(command.start - command.before.end)
    if command.waits_for is None and command.name != _STEP:
      times[CALL].append(command.end - command.start)
  for each, before, other, key in _queues(trace):
    if each not in launches:
      continue
    free = max(0.0, each.start - max(each.launch.start, *(
        past.end for past in (before, other) if past), 0.0))
    if free < _NEAR_US:
      times[BETWEEN if before and before.end > each.launch.end
            else LATENCY].append(free)
    # Communication waits for other processes, never twice as long.
    if kinds.kind_of(each.name) != kinds.COMMUNICATION:
      times[key].append(free)
  return {key: (mean, len(each)) for key, each in times.items()
          if (mean := statistics.fmean(each)) > _NEAR_US or key[:5] != _STALL}


def _queues(trace: Trace) -> Iterator[tuple]:
  """(work, the work before it on its stream, the work of another stream that it
  waited for, the key of its stall) for all work launched in the part."""
  part, ended, last = {*trace.work}, _finder(trace), {}
  for each in trace.all_work:
    before, last[each.place] = last.get(each.place), each
    if each.launch and each in part:
      key = f'{_STALL} {before.name if before else ""} > {each.name}'
      ready = max(each.launch.start, before.end if before else 0.0) + _NEAR_US
      yield each, before, next(
          (past for past in ended(each.start, ready)
           if past.place[0] == each.place[0] and past.place != each.place
           and past.launch.start < each.launch.start), None), key


def _earlier(trace: Trace, commands: Sequence[Command]) -> tuple:
  """When each piece of work that these commands did not launch ends, and when
  the last of those that came before them does."""
  origin = commands[0].start if commands else 0.0
  first = min((each.start for command in commands for each in command.work),
              default=origin)
  ends = {each: each.end for each in trace.all_work
          if each.launch is None or each.launch.start < origin}
  return ends, max([origin, *(end for each, end in ends.items()
                              if each.launch or each.start < first)])


def _periods(trace: Trace, commands: Sequence[Command], begin: float,
             end_of: Callable = operator.attrgetter('end')) -> Mapping:
  """Microseconds of each of the trace's steps, or of the whole trace, from the
  end of all before, on host and GPU; as measured, or with other ends."""
  reached, periods = begin, collections.Counter()
  for command in commands:
    end = max(reached, *map(end_of, (command, *command.work)))
    if command.step in trace.steps or not trace.steps:
      periods[command.step] += end - reached
    reached = end
  return periods


def _usual(periods: Mapping) -> set:
  """The steps that do not take much longer than the others."""
  most = _SLOW * statistics.median(periods.values() or [0.0])
  return {step for step, us in periods.items() if us <= most}


def _busy_us(work: Iterable[Event]) -> float:
  """Microseconds in which the busiest GPU runs any of this."""
  busy, ends = collections.Counter(), collections.Counter()
  for gpu, start, end in sorted(
      (each.place[0], each.start, each.end) for each in work):
    busy[gpu] += max(0.0, end - max(start, ends[gpu]))
    ends[gpu] = max(end, ends[gpu])
  return max(busy.values(), default=0.0)


def replay(trace: Trace, host: Mapping[str, tuple],
           duration_us: Mapping[Event, float]) -> tuple:
  """(predicted, measured, GPU's) microseconds of a step, the steps left out.

  It is the mean period, from the end of what came before to the end of its own
  work; without steps from the first launch, and 0 without one.
  """
  commands = commands_of(trace)
  ends, begin = _earlier(trace, commands)

  def constant(*keys):
    return next((host[key][0] for key in keys if key in host), 0.0)

  latency, between, call_us = map(constant, (LATENCY, BETWEEN, CALL))
  waits = {each: others for each, *others in _queues(trace)}
  threads: dict[tuple, float] = {}
  for command in commands:
    launch = threads.get(command.place, commands[0].start)
    if command.before:
      launch = max(launch, ends[command.before] + constant(*command.pauses))
    now = launch + (0.0 if command.name == _STEP else call_us)
    for each in command.work:
      *others, key = waits[each]
      ready = max(ends.get(past, 0.0) for past in others)
      start = max(launch + latency, ready + between,
                  max(launch, ready) + constant(key))
      ends[each] = start + duration_us[each]
    ends[command] = threads[command.place] = max(
        now, ends.get(command.waits_for, now))
  measured = _periods(trace, commands, begin)
  predicted = _periods(trace, commands, begin, ends.get)
  usual = _usual(measured)
  if not any(command.work for command in commands):
    return 0.0, 0.0, 0.0, []
  return *(statistics.fmean(periods[step] for step in usual)
           for periods in (predicted, measured)), _busy_us(
               each for command in commands if command.step in usual
               for each in command.work) / len(usual), sorted(
                   {*measured} - usual)
