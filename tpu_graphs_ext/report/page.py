"""The page: its template, tables and figures, and how it writes numbers.

Figures are as wide as a phone, so that letters are never below 11 pixels.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tpu_graphs_ext import __version__
from tpu_graphs_ext.errors import UserError, how_to_install

NOTHING = '\u2013'  # Stands where there is no number.
MINUS = '\u2212'
# How a page begins, by which an earlier one is recognised.
START = '<!DOCTYPE html>\n<!-- tpu_graphs_ext report -->'


class Table(NamedTuple):
  """A table of texts; the first cell of a row is its name."""
  caption: str
  columns: Sequence[str]
  rows: Sequence[Sequence[Any]]


class Figure(NamedTuple):
  """A drawing; `said` describes it in words, `svg` is a document."""
  title: str
  said: str
  svg: str


def require_packages() -> None:
  """Raises UserError if a package that draws is missing."""
  try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
  except ImportError as error:
    raise UserError('report draws with packages that are not installed '
                    f'({error}); {how_to_install("report")}') from error


def render(**content: Any) -> str:
  """One HTML file that loads nothing: `templates/report.html`, filled in."""
  import jinja2
  environment = jinja2.Environment(
      loader=jinja2.PackageLoader('tpu_graphs_ext.report'),
      autoescape=True, trim_blocks=True, lstrip_blocks=True,
      undefined=jinja2.StrictUndefined)
  environment.filters['base64'] = lambda text: base64.b64encode(
      text.encode()).decode()
  environment.tests['a_number'] = lambda cell: cell == NOTHING or re.match(
      rf'[{MINUS}+-]?\s?\d', str(cell))
  page = environment.get_template('report.html').render(
      version=__version__, **content)
  return f'{START}\n{page.strip()}\n'


def number(value: Optional[float], digits: int = 2) -> str:
  """A number as text; a dash if there is none.

  `digits` are behind the point, one less from 10 on, two less from 100 on.
  """
  if value is None or math.isnan(value):
    return NOTHING
  digits = max(0, digits - (abs(value) >= 10) - (abs(value) >= 100))
  # The sum turns -0.0 into 0.0.
  return f'{round(value, digits) + 0.0:.{digits}f}'.replace('-', MINUS)


def spread(mean: float, deviation: float, digits: int = 2) -> str:
  """'1.25 ± 0.10'; only the mean if there is no deviation."""
  text = number(mean, digits)
  return text if math.isnan(deviation) else (
      f'{text} ± {number(deviation, digits)}')


def interval(mean: float, low: float, high: float, digits: int = 2) -> str:
  """'1.25 [1.00 to 1.50]'; only the mean if there is no interval."""
  text = number(mean, digits)
  return text if math.isnan(low) else (
      f'{text} [{number(low, digits)}\u00a0to\u00a0{number(high, digits)}]')


# -------------------------------------------------------------------- figures

WIDTH, WIDE = 3.7, 5.4  # Inches of 96 pixels; style.css has the pixels.
INK, SOFT, LINE = '#1b1f24', '#57606a', '#c9d0d8'
# Okabe and Ito's colours, which colour-blind readers can distinguish, darkened
# to a contrast of at least 3 to 1. Marks differ as well.
RUNS = ('#0072b2', '#c24e00', '#007a5a', '#a3457f', '#7a6000', '#3f4a9e')
MARKS = 'osD^vPX*<>h'
_STYLE = {
    'svg.fonttype': 'none', 'svg.hashsalt': 'report', 'font.size': 8.5,
    'font.family': 'DejaVu Sans', 'text.color': INK, 'axes.labelcolor': INK,
    'axes.edgecolor': LINE, 'xtick.color': INK, 'ytick.color': INK,
    'axes.titlesize': 9, 'axes.labelsize': 8.5, 'legend.fontsize': 8.5,
    'axes.facecolor': 'none', 'axes.spines.top': False,
    'axes.spines.right': False, 'grid.color': LINE, 'grid.linewidth': 0.6,
    'axes.axisbelow': True, 'legend.frameon': False,
    'text.parse_math': False}


class Look(NamedTuple):
  """The name of a series, and its colour, mark and line in matplotlib."""
  name: str
  colour: str = SOFT
  mark: str = 'x'
  line: str = ':'


def svg(draw: Callable, height: float = 2.6, width: float = WIDTH) -> str:
  """An SVG document of axes that `draw` fills, with a legend; inches.

  Labels of names begin with a blank, as matplotlib hides those with an _.
  """
  # Not pyplot: its backend is the notebook's.
  import matplotlib
  from matplotlib.figure import Figure
  content = io.StringIO()
  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # The browser has other fonts.
    warnings.filterwarnings('ignore', r'Glyph .* missing from')
    figure = Figure(figsize=(width, height), layout='constrained')
    axes = figure.subplots()
    draw(axes)
    marks, names = axes.get_legend_handles_labels()
    if names:  # Below the axes, where it covers no line.
      figure.legend(marks, [textwrap.fill(name, 48) for name in names],
                    loc='outside lower center')
    figure.savefig(content, format='svg', transparent=True, dpi=192,
                   metadata={'Date': None})
  return content.getvalue()


def log_scale(axes, name: str, least: float, most: float) -> None:
  """Makes the axis 'x' or 'y' linear from -1 to 1 and logarithmic beyond.

  `least` and `most` of the values fit; 0 to 3 is always shown.
  """
  from matplotlib import ticker
  getattr(axes, f'set_{name}scale')('symlog', linthresh=1, linscale=0.5)
  # Marks at 0 keep their distance from the names beside the axis.
  getattr(axes, f'set_{name}lim')(1.3 * min(least, -0.2), 1.3 * max(most, 3))
  axis = getattr(axes, f'{name}axis')
  axis.set_major_locator(ticker.SymmetricalLogLocator(
      base=10, linthresh=1, subs=(1, 3) if most - least < 1000 else (1,)))
  axis.set_major_formatter('{x:,.0f}')
  axis.set_minor_locator(ticker.NullLocator())


def forest(blocks: Sequence[tuple[str, Sequence[tuple]]], label: str,
           is_log: bool, width: float = WIDTH) -> str:
  """Means and intervals from top to bottom, as an SVG document.

  `blocks` are a title, which may be empty, and its bars: look, mean, and ends
  of the interval, which are NaN without one. Titles stand above their bars:
  beside them they would leave no room on a phone.
  """
  lines, names = 0.0, {}  # Lines so far; place of a bar -> its name.
  titles, bars = {}, {}
  for title, of in blocks:
    if title:
      titles[lines] = title[:44]
      lines += 1
    for bar in of:
      name = textwrap.fill(bar[0].name, 20)
      more = name.count('\n')
      names[lines + more / 2], bars[lines + more / 2] = name, bar
      lines += 1 + more
    lines += 0.4

  def draw(axes):
    if is_log:
      ends = np.array([bar[1:] for bar in bars.values()])
      log_scale(axes, 'x', np.nanmin(ends, initial=0),
                np.nanmax(ends, initial=0))
    for y, (look, mean, low, high) in bars.items():
      axes.plot([low, high], [y, y], color=look.colour, lw=1.8, alpha=0.65)
      axes.plot(mean, y, look.mark, color=look.colour, clip_on=False, zorder=3,
                **({'ms': 9, 'mew': 2.5} if look.mark == '|' else {'ms': 5}))
    for y, title in titles.items():
      axes.text(0, y, title, fontweight='bold', va='center',
                transform=axes.get_yaxis_transform())
    axes.set(xlabel=label, ylim=(lines - 0.1, -0.7))
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis='y', length=0, pad=5)
    axes.spines['left'].set_visible(False)
    axes.grid(axis='x')

  return svg(draw, 0.95 + 0.165 * lines, width)
