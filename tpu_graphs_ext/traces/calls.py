"""What a trace holds: calls on the host's threads, and work of the GPU.

Calls of a thread lie within one another, and so make a tree.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

OPERATOR, ANNOTATION, RUNTIME = 'operator', 'annotation', 'runtime'
KERNEL, MEMCPY, MEMSET = 'kernel', 'memcpy', 'memset'
FORWARD, BACKWARD, OPTIMIZER = 'forward', 'backward', 'optimizer'

# Older traces count in whole microseconds, start and duration each cut off,
# so that a call may seem to end after the one that it lies within.
ROUNDING_US = 1.0

_STEP = re.compile(r'ProfilerStep#([0-9]{1,18})')
_BACKWARD = re.compile(r'autograd::engine::|(.*::)?\w*Backward\d*$|'
                       r'(torch::autograd::)?CppNode<')
_OPTIMIZER = re.compile(r'Optimizer\.\w+#')


class Call:
  """A call on a thread.

  Attributes:
    name: of the operator, the annotation or the runtime's function.
    kind: `OPERATOR`, `ANNOTATION` or `RUNTIME`.
    thread: process and thread, as texts.
    start, end: in microseconds since the first event; both 0 without times.
    args: what the trace tells beside: shapes, types, numbers.
    parent, children: in the tree; children in the order of their start.
    phase: `FORWARD`, `BACKWARD` or `OPTIMIZER`, by the calls around it.
    self_us: the time that is in none of the children.
  """
  __slots__ = ('args', 'children', 'end', 'kind', 'name', 'parent', 'phase',
               'self_us', 'start', 'thread')

  def __init__(self, name: str, kind: str, thread: tuple, start: float,
               end: float, args: Mapping[str, Any]):
    self.name, self.kind, self.thread = name, kind, thread
    self.start, self.end, self.args = start, end, args
    self.parent: Optional[Call] = None
    self.children: list[Call] = []
    self.phase, self.self_us = FORWARD, end - start

  @property
  def duration_us(self) -> float:
    return self.end - self.start

  @property
  def step(self) -> Optional[int]:
    """The number of the step, where this is one's annotation."""
    match = _STEP.fullmatch(self.name)
    return int(match[1]) if match else None

  def upward(self) -> Iterator[Call]:
    """This call and those around it, from the inside out."""
    call: Optional[Call] = self
    while call is not None:
      yield call
      call = call.parent

  def downward(self) -> Iterator[Call]:
    """This call and all within it, outer ones first."""
    waiting = [self]
    while waiting:
      call = waiting.pop()
      yield call
      waiting.extend(reversed(call.children))


@dataclasses.dataclass
class Activity:
  """Work of the GPU.

  Attributes:
    name: of the kernel; copies say their direction in it.
    kind: `KERNEL`, `MEMCPY` or `MEMSET`.
    device, stream: where it ran.
    start, end: as of calls.
    correlation: of the runtime's call that launched it.
    external: of the operator that did, if the trace says so.
    moved_bytes: of copies and fills; None where it is not told.
    block: threads of a block, three numbers; () where it is not told.
    threads: of all blocks; 0 where they are not told.
    launch: the runtime's call.
    caller: the operator, or else the annotation, that it was launched in.
  """
  name: str
  kind: str
  device: int
  stream: int
  start: float
  end: float
  correlation: Optional[int] = None
  external: Optional[int] = None
  moved_bytes: Optional[float] = None
  block: tuple = ()
  threads: int = 0
  launch: Optional[Call] = None
  caller: Optional[Call] = None

  @property
  def duration_us(self) -> float:
    return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Device:
  """Attributes:
    name: as its maker calls it.
    memory_bytes: 0 where it is not told.
  """
  name: str
  memory_bytes: int = 0


@dataclasses.dataclass
class Trace:
  """Attributes:
    path: the file.
    calls: of all threads, those around others first.
    activities: by start.
    devices: number -> GPU, as far as they are told.
    notes: what was left out, and why.
    timed: whether there are times; an execution trace has none.
  """
  path: str
  calls: list[Call]
  activities: list[Activity]
  devices: dict[int, Device]
  notes: list[str]
  timed: bool = True


def nest(calls: Sequence[Call]) -> tuple[list[Call], int]:
  """Makes trees of calls that have times.

  A call lies within the innermost one of its thread that begins before it and
  ends after it. Of calls with equal times the earlier one in `calls` is the
  outer one.

  Returns:
    The calls in the order of threads and starts, and how many overlap with
    another without lying within it.
  """
  threads = collections.defaultdict(list)
  for call in calls:
    threads[call.thread].append(call)
  ordered: list[Call] = []
  crossings = 0
  for own in threads.values():
    own.sort(key=lambda call: (call.start, -call.end))  # Keeps equal ones.
    around: list[Call] = []
    for call in own:
      while around and around[-1].end <= call.start:
        around.pop()
      while around and call.end > around[-1].end + ROUNDING_US:
        crossings += 1
        around.pop()
      if around:
        call.parent = around[-1]
        call.parent.children.append(call)
      around.append(call)
    ordered += own
  settle(ordered)
  return ordered, crossings


def settle(calls: Sequence[Call]) -> None:
  """Sets self times and phases; parents come before their children."""
  for call in calls:
    if _OPTIMIZER.match(call.name):
      call.phase = OPTIMIZER
    elif _BACKWARD.match(call.name):
      call.phase = BACKWARD
    elif call.parent is not None:
      call.phase = call.parent.phase
    call.self_us = call.duration_us - sum(
        end - start for start, end, of in pieces(call) if of is not call)


def pieces(call: Call) -> Iterator[tuple[float, float, Call]]:
  """(start, end, child or itself) of a call's time, without overlaps."""
  at = call.start
  for child in call.children:
    start, end = max(child.start, at), min(child.end, call.end)
    if end <= start:
      continue
    if start > at:
      yield at, start, call
    yield start, end, child
    at = end
  if call.end > at:
    yield at, call.end, call
