"""Flame graphs: time by the path of calls, outermost on top, as SVG.

Calls with the same path of names are one box, as wide as their time. What is
narrower than a letter is left out and leaves a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from tpu_graphs_ext.report import charts, html
from tpu_graphs_ext.traces import predict, texts
from tpu_graphs_ext.traces.calls import Call
from tpu_graphs_ext.traces.launches import Window

_WIDTH, _HEIGHT, _LETTER = 1100, 19, 6.3  # Pixels; a letter of 11 pixels.
_NARROWEST = 2.0
_DEEPEST = 40
# Kind -> colour of `style`.
COLOURS = {kind: f'run{number}' for number, kind in enumerate(predict.KINDS)}


class Box:
  """Calls with one path.

  Attributes:
    name: the last name of the path.
    kind: one of `predict.KINDS`, or ''.
    us: time of the box, with all below it.
    calls: how many.
    inner: name -> box below it.
  """
  __slots__ = ('calls', 'inner', 'kind', 'name', 'us')

  def __init__(self, name: str, kind: str = ''):
    self.name, self.kind = name, kind
    self.us, self.calls = 0.0, 0
    self.inner: dict[str, Box] = {}

  def within(self, name: str, kind: str = '') -> Box:
    """The box of that name below this one, made where missing."""
    if name not in self.inner:
      self.inner[name] = Box(name, kind)
    return self.inner[name]


def of_threads(part: Window) -> list[Box]:
  """A box a thread, the busiest first, of the time of its calls."""
  threads: dict[object, Box] = {}
  boxes: dict[Call, Box] = {}
  for call in part.calls:  # Outer calls come before inner ones.
    around = call.parent
    if around in boxes:
      outer = boxes[around]
    else:
      outer = threads.setdefault(call.thread, Box(f'thread {call.thread[-1]}'))
      outer.us += call.duration_us
    box = boxes[call] = outer.within(call.name, predict.kind_of(call))
    box.us += call.duration_us
    box.calls += 1
  for thread in threads.values():
    thread.calls = sum(box.calls for box in thread.inner.values())
  return sorted(threads.values(), key=lambda box: -box.us)


def of_gpu(part: Window) -> Box:
  """Work of the GPU below the operators and annotations that launched it."""
  whole = Box('work of the GPU')
  for activity in part.activities:
    path: Iterable[Call] = reversed(list(
        activity.caller.upward()) if activity.caller else ())
    box = whole
    for call in path:
      box.us += activity.duration_us
      box = box.within(call.name, predict.kind_of(call))
    box.us += activity.duration_us
    leaf = box.within(activity.name)
    leaf.us += activity.duration_us
    leaf.calls += 1
  _count(whole)
  return whole


def _count(box: Box) -> int:
  """Calls of a box of the GPU are the kernels below it."""
  stack, order = [box], []
  while stack:
    one = stack.pop()
    order.append(one)
    stack.extend(one.inner.values())
  for one in reversed(order):
    if one.inner:
      one.calls = sum(inner.calls for inner in one.inner.values())
  return box.calls


def svg(box: Box, name: str, title: str) -> Optional[str]:
  """An SVG element; None of a box without time.

  Args:
    box: the widest one, on top.
    name: unlike all others of the page; ids are made of it.
    title: for those who do not see it.
  """
  if box.us <= 0:
    return None
  parts: list[str] = []
  depth = 0
  waiting: list[tuple[Box, float, int]] = [(box, 0.0, 0)]
  while waiting:
    one, left, row = waiting.pop()
    depth = max(depth, row)
    parts.append(_rectangle(one, left, row, box.us))
    if row < _DEEPEST:
      waiting += _below(one, left, row + 1, box.us)
  longest = sorted(box.inner.values(), key=lambda one: -one.us)[:3]
  description = (f'{texts.us(box.us)} us in {box.calls:,} calls; most in '
                 + ', '.join(f'{texts.short(one.name)} {one.us / box.us:.0%}'
                             for one in longest))
  height = (depth + 1) * _HEIGHT
  return (charts.opened('flame', f'0 0 {_WIDTH} {height}', name, title,
                        description, f' width="{_WIDTH}" height="{height}"')
          + ''.join(parts) + '</svg>')


def _below(box: Box, left: float, row: int,
           whole: float) -> Sequence[tuple[Box, float, int]]:
  """The boxes below one, from left to right, widest first."""
  found = []
  for one in sorted(box.inner.values(), key=lambda one: (-one.us, one.name)):
    if one.us / whole * _WIDTH >= _NARROWEST:
      found.append((one, left, row))
    left += one.us
  return found


def _rectangle(box: Box, left: float, row: int, whole: float) -> str:
  """A box, with its name as far as there is room, and what it stands for."""
  x, width = left / whole * _WIDTH, box.us / whole * _WIDTH
  y = row * _HEIGHT
  colour = COLOURS.get(box.kind)
  said = (f'{box.name}: {texts.us(box.us)} us, {box.us / whole:.1%}, '
          f'{box.calls:,} calls' + f'; {box.kind}' * bool(box.kind))
  bar = (f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="4" '
         f'fill="var(--{colour})"/>') if colour else ''
  room = int((width - 6) / _LETTER)
  name = texts.short(box.name, room) if room > 4 else ''
  written = (f'<text x="{x + 3:.1f}" y="{y + 14.5:.1f}" font-size="11" '
             f'fill="var(--ink)">{html.escape(name)}</text>') if name else ''
  return (f'<g><title>{html.escape(said)}</title>'
          f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
          f'height="{_HEIGHT - 1}" fill="var(--panel)" stroke="var(--line)" '
          f'stroke-width="0.7"/>{bar}{written}</g>')

