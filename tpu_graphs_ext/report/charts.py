"""Figures by matplotlib, in the colours of a light page.

They are as wide as a phone, so that letters are never smaller than 11 pixels;
the page puts several side by side where there is room.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.errors import UserError, how_to_install

WIDTH = 3.7  # Inches of 96 pixels: 355 pixels.
_LINE = 0.165  # Inches of a line of `forest`.
INK, SOFT, LINE, PANEL = '#1b1f24', '#57606a', '#c9d0d8', '#f5f6f8'
# Those of Okabe and Ito, which colour-blind readers can tell apart, darkened
# to a contrast of at least 3 to 1. Marks differ as well.
RUNS = ('#0072b2', '#c24e00', '#007a5a', '#a3457f', '#7a6000', '#3f4a9e')
_MARKS = 'osD^vPX*<>h'
_DASHES = ('-', (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_STYLE = {
    'svg.fonttype': 'none', 'svg.hashsalt': 'report', 'font.size': 8.5,
    'font.family': 'DejaVu Sans', 'text.color': INK, 'axes.labelcolor': INK,
    'axes.edgecolor': LINE, 'xtick.color': INK, 'ytick.color': INK,
    'axes.titlesize': 9, 'axes.labelsize': 8.5, 'legend.fontsize': 8.5,
    'axes.facecolor': 'none', 'axes.spines.top': False,
    'axes.spines.right': False, 'grid.color': LINE, 'grid.linewidth': 0.6,
    'axes.axisbelow': True, 'axes.titlelocation': 'left',
    'legend.frameon': False}


class Look(NamedTuple):
  """The name of a series, and its colour, mark and dash in matplotlib."""
  name: str
  colour: str = SOFT
  mark: str = 'x'
  dash: object = (0, (3, 3))


def look_of(number: int, name: str) -> Look:
  """The look of the group of runs with that number, from 0."""
  return Look(name, RUNS[number % len(RUNS)], _MARKS[number % len(_MARKS)],
              _DASHES[number // len(RUNS) % len(_DASHES)])


def require_packages() -> None:
  """Raises UserError if a package that draws is missing."""
  try:
    import grandalf.layouts  # noqa: F401
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
  except ImportError as error:
    raise UserError(
        f'report draws with packages that are not installed ({error}); '
        f'{how_to_install("report")}') from error


def svg(draw: Callable, *, height: float = 2.6, width: float = WIDTH,
        bare: bool = False) -> str:
  """An SVG document.

  Args:
    draw: called with matplotlib's figure and its only axes.
    height, width: in inches.
    bare: without axes: a drawing in pixels, y downward.
  """
  # Not pyplot: its backend is the notebook's.
  import matplotlib
  from matplotlib.figure import Figure
  content = io.StringIO()
  with matplotlib.rc_context(_STYLE):
    figure = Figure(figsize=(width, height),
                    layout=None if bare else 'constrained')
    axes = figure.add_axes([0, 0, 1, 1]) if bare else figure.subplots()
    if bare:
      axes.axis('off')
      axes.set(xlim=(0, 96 * width), ylim=(96 * height, 0))
    draw(figure, axes)
    figure.savefig(content, format='svg', transparent=True,
                   metadata={'Date': None})
  return content.getvalue()


def log_scale(axes, name: str, least: float, most: float) -> None:
  """Makes an axis linear from -1 to 1 and logarithmic beyond.

  Args:
    axes: matplotlib's.
    name: 'x' or 'y'.
    least, most: of the values; from 0 to 3 is shown in any case.
  """
  least, most = 1.3 * least if least < 0 else 0, 1.3 * max(most, 3)
  for steps in ((1, 3), (1,)):
    ticks = np.outer(10.0 ** np.arange(7), steps).ravel()
    ticks = np.concatenate([-ticks[::-1], [0], ticks])
    ticks = ticks[(ticks >= least) & (ticks <= most)]
    if len(ticks) <= 8:  # Room for their labels.
      break
  getattr(axes, f'set_{name}scale')('symlog', linthresh=1, linscale=0.5)
  # Marks at 0 keep their distance from the names beside the axis.
  getattr(axes, f'set_{name}lim')(min(least, -0.08), most)
  getattr(axes, f'set_{name}ticks')(
      ticks, [f'{tick:,.0f}'.replace('-', '\u2212') for tick in ticks])
  axes.minorticks_off()


def legend_below(figure, axes) -> None:
  """A legend below the axes, where it covers no line."""
  marks, names = axes.get_legend_handles_labels()
  columns = 2 if max(map(len, names), default=0) <= 20 else 1
  figure.legend(marks, [_wrapped(name, 48 // columns) for name in names],
                ncol=columns, handlelength=2.2, columnspacing=1.0,
                loc='outside lower center')


def _wrapped(name: str, most: int = 20) -> str:
  return '\n'.join(textwrap.wrap(name, most))


class Bar(NamedTuple):
  """A mean and its interval, whose ends are NaN where there is none."""
  look: Look
  mean: float
  low: float
  high: float


def forest(blocks: Sequence[tuple[str, Sequence[Bar]]], label: str,
           is_log: bool) -> str:
  """Means and intervals from top to bottom, as an SVG document.

  Args:
    blocks: a title, which may be empty, and its bars. Titles stand above
      their bars: beside them they would leave no room on a phone.
    label: of the x axis.
    is_log: whether the x axis is that of `log_scale`.
  """
  lines = sum(bool(title) + 0.4 + sum(
      1 + _wrapped(bar.look.name).count('\n') for bar in bars)
              for title, bars in blocks)

  def draw(unused_figure, axes):
    y, names = 0.0, {}
    ends = np.array([bar[1:] for _, bars in blocks for bar in bars])
    if is_log:
      log_scale(axes, 'x', np.nanmin(ends, initial=0),
                np.nanmax(ends, initial=0))
    for title, bars in blocks:
      if title:
        axes.text(0, y, textwrap.shorten(title, 44, placeholder='…'),
                  fontweight='bold', va='center',
                  transform=axes.get_yaxis_transform())
        y += 1
      for look, mean, low, high in bars:
        name = _wrapped(look.name)
        y += name.count('\n') / 2
        axes.plot([low, high], [y, y], color=look.colour, lw=1.8, alpha=0.65)
        axes.plot(mean, y, look.mark, color=look.colour, ms=5, mew=1.4,
                  clip_on=False, zorder=3)
        names[y] = name
        y += name.count('\n') / 2 + 1
      y += 0.4
    axes.set(xlabel=label, ylim=(y - 0.1, -0.7))
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis='y', length=0, pad=5)
    axes.spines['left'].set_visible(False)
    axes.grid(axis='x')

  return svg(draw, height=0.95 + _LINE * lines)
