"""matplotlib's figures, in the colours of a light page.

Figures are drawn as wide as a phone, so that their letters are never smaller
than 11 pixels; where there is room the page puts several side by side.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.errors import UserError, how_to_install

WIDTH = 3.7  # Inches of 96 pixels: 355 pixels.
_ROW = 0.165  # Inches of a line of `draw_ranges`.
INK, SOFT, LINE, PANEL = '#1b1f24', '#57606a', '#c9d0d8', '#f5f6f8'
# Those of Okabe and Ito, which colour-blind readers tell apart, made darker
# so that each stands out from the page by 3 to 1 and more. The shape of a
# mark says the same without any colour.
RUNS = ('#0072b2', '#c24e00', '#007a5a', '#a3457f', '#7a6000', '#3f4a9e')
_MARKS = 'osD^vPX*<>h'  # As many as no number of colours divides.
_DASHES = ('-', (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10 ** 4, 10 ** 5, 10 ** 6)
PERCENT = 'slowdown in % (log scale above 1 %)'


class Look(NamedTuple):
  """How a series differs from others: name and matplotlib's styles."""
  name: str
  colour: str
  mark: str
  dash: object


DEFAULT = Look('default tile', SOFT, '|', (0, (1, 1)))
RANDOM = Look('random tiles', SOFT, 'x', (0, (3, 3)))


def look_of(number: int, name: str) -> Look:
  """The look of the group of that number, from 0."""
  return Look(name, RUNS[number % len(RUNS)], _MARKS[number % len(_MARKS)],
              _DASHES[number // len(RUNS) % len(_DASHES)])


def require_packages() -> None:
  """Raises a UserError where a package that draws is missing."""
  try:
    import grandalf.layouts  # noqa: F401
    import jinja2  # noqa: F401
    import matplotlib
  except ImportError as error:
    raise UserError(
        f'report draws with packages that are not installed ({error}); '
        f'{how_to_install()}') from error
  matplotlib.use('Agg')


def svg(draw: Callable, *, height: float = 2.6, width: float = WIDTH,
        bare: bool = False) -> str:
  """An SVG document of one figure.

  Args:
    draw: called with matplotlib's figure and its only axes.
    height, width: in inches.
    bare: without axes: a drawing in pixels, y downward.
  """
  from matplotlib import pyplot
  content = io.StringIO()
  with pyplot.rc_context({
      'svg.fonttype': 'none', 'svg.hashsalt': 'report', 'font.size': 9,
      'font.family': 'DejaVu Sans',
      'text.color': INK, 'axes.labelcolor': INK, 'axes.edgecolor': LINE,
      'xtick.color': INK, 'ytick.color': INK, 'axes.titlesize': 9,
      'axes.labelsize': 8.5, 'xtick.labelsize': 8.5, 'ytick.labelsize': 8.5,
      'legend.fontsize': 8.5, 'axes.facecolor': 'none',
      'axes.spines.top': False, 'axes.spines.right': False,
      'grid.color': LINE, 'grid.linewidth': 0.6, 'axes.axisbelow': True,
      'axes.titlelocation': 'left', 'legend.frameon': False}):
    figure = pyplot.figure(figsize=(width, height),
                           layout=None if bare else 'constrained')
    axes = figure.add_axes([0, 0, 1, 1]) if bare else figure.subplots()
    if bare:
      axes.set_xlim(0, 96 * width)
      axes.set_ylim(96 * height, 0)
      axes.axis('off')
    draw(figure, axes)
    figure.savefig(content, format='svg', transparent=True,
                   metadata={'Date': None})
    pyplot.close(figure)
  return content.getvalue()


# ------------------------------------------------------------------- drawing


def percent_scale(axes, most: float) -> None:
  """An x axis of slowdowns in %: even up to 1 %, from there on logarithmic."""
  axes.set_xscale('symlog', linthresh=1, linscale=0.5)
  most = max(most, 3.0)
  axes.set_xlim(-0.08, most * 1.15)  # Marks at 0 keep off their names.
  ticks = [tick for tick in _TICKS if tick <= most * 1.15]
  if len(ticks) > 7:  # Room for as many labels.
    ticks = [tick for tick in ticks if not str(tick).startswith('3')]
  axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks])
  axes.minorticks_off()
  axes.set_xlabel(PERCENT)
  axes.grid(axis='x')


def legend_below(figure, axes) -> None:
  """Below the axes, where it covers no line."""
  marks, names = axes.get_legend_handles_labels()
  columns = 2 if max(map(len, names), default=0) <= 20 else 1
  figure.legend(marks, [_wrapped(name, 48 // columns) for name in names],
                ncol=columns, handlelength=2.2, columnspacing=1.0,
                loc='outside lower center')


def _wrapped(name: str, most: int = 20) -> str:
  return '\n'.join(textwrap.wrap(name, most))


class Range(NamedTuple):
  """A mark and the interval around it; the interval may be missing."""
  look: Look
  middle: float
  low: Optional[float] = None
  high: Optional[float] = None


_Ranges = Sequence[tuple[str, Sequence[Range]]]


def ranges_height(rows: _Ranges) -> float:
  """Inches that `draw_ranges` takes."""
  return 0.95 + _ROW * sum(bool(title) + 0.4 + sum(map(_lines, of))
                           for title, of in rows)


def _lines(one: Range) -> int:
  return _wrapped(one.look.name).count('\n') + 1


def draw_ranges(axes, rows: _Ranges) -> None:
  """A block a title, a line a range, from top to bottom.

  Titles stand above their lines, inside of the axes: beside them they would
  leave no room on a phone.
  """
  y, places, names = 0.0, [], []
  for title, of in rows:
    if title:
      axes.text(0.0, y, title, fontsize=8.5, fontweight='bold', va='center',
                transform=axes.get_yaxis_transform())
      y += 1
    for one in of:
      middle = y + (_lines(one) - 1) / 2
      if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [middle, middle],
                  color=one.look.colour, lw=1.8, alpha=0.65,
                  solid_capstyle='butt')
      axes.plot(one.middle, middle, color=one.look.colour,
                marker=one.look.mark, ms=5, lw=0, clip_on=False, zorder=3,
                mew=1.6 if one.look.mark in '|x' else 0.5)
      places.append(middle)
      names.append(_wrapped(one.look.name))
      y += _lines(one)
    y += 0.4
  axes.set_yticks(places, names)
  axes.set_ylim(y - 0.4 + 0.3, -0.7)
  axes.tick_params(axis='y', length=0, pad=5)
  axes.spines['left'].set_visible(False)


def finite(values: Sequence[Optional[float]]) -> list[float]:
  """Those that are numbers."""
  return [value for value in values
          if value is not None and math.isfinite(value)]
