"""matplotlib's figures, as SVG that takes the colours of the page around it.

Figures are drawn as wide as a phone, so that their letters are never smaller
than 11 pixels; where there is room the page puts several side by side.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.report import html, style

WIDTH = 3.7  # Inches of 96 pixels: 355 pixels.
_ROW = 0.165  # Inches of a row of `ranges`.

# A colour that matplotlib writes and that the page's variable then replaces.
_STAND_IN = {name: f'#0102{number:02x}'
             for number, name in enumerate(style.COLOURS, 1)}
INK, SOFT, LINE, PAGE = (
    _STAND_IN[name] for name in ('ink', 'soft', 'line', 'page'))

_MARKS = 'osD^vPX*<>h'  # As many as no number of colours divides.
_DASHES = ('-', (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10 ** 4, 10 ** 5, 10 ** 6)


class Look(NamedTuple):
  """How a series is told from others.

  Attributes:
    letter: stands beside its marks.
    colour, mark, dash: as matplotlib has them.
  """
  letter: str
  colour: str
  mark: str
  dash: object


DEFAULT = Look('def.', SOFT, '|', (0, (1, 1)))
RANDOM = Look('rnd.', SOFT, 'x', (0, (3, 3)))


def look_of(number: int, letter: str) -> Look:
  """The look of the group of that number, from 0."""
  colours = style.NUM_RUN_COLOURS
  return Look(letter, _STAND_IN[f'run{number % colours}'],
              _MARKS[number % len(_MARKS)],
              _DASHES[number // colours % len(_DASHES)])


def require_matplotlib() -> None:
  """Raises a UserError where matplotlib or the graph layouts are missing."""
  try:
    import grandalf.layouts  # noqa: F401
    import matplotlib
  except ImportError as error:
    raise UserError(
        f'report draws with packages that are not installed ({error}); '
        f'{how_to_install("report")}') from error
  matplotlib.use('Agg')


def svg(draw: Callable, *, name: str, title: str, description: str,
        height: float = 2.6) -> str:
  """An SVG element of one figure.

  Args:
    draw: called with matplotlib's figure and its only axes.
    name: unlike all others of the page; ids are made of it.
    title, description: for those who do not see it.
    height: in inches; the width is `WIDTH`.
  """
  from matplotlib import pyplot
  content = io.BytesIO()
  with pyplot.rc_context({
      'svg.fonttype': 'none', 'svg.hashsalt': name, 'font.size': 9,
      'font.family': 'DejaVu Sans', 'text.color': INK, 'axes.labelcolor': INK,
      'axes.edgecolor': LINE, 'xtick.color': INK, 'ytick.color': INK,
      'axes.titlesize': 9, 'axes.labelsize': 9, 'xtick.labelsize': 8.5,
      'ytick.labelsize': 8.5, 'legend.fontsize': 8.5, 'axes.facecolor': 'none',
      'axes.spines.top': False, 'axes.spines.right': False,
      'grid.color': LINE, 'grid.linewidth': 0.6, 'axes.axisbelow': True,
      'axes.titlelocation': 'left', 'legend.frameon': False}):
    figure, axes = pyplot.subplots(
        figsize=(WIDTH, height), layout='constrained')
    draw(figure, axes)
    figure.savefig(content, format='svg', transparent=True, metadata={
        'Date': None, 'Creator': None, 'Format': None, 'Type': None})
    pyplot.close(figure)
  return _inlined(content.getvalue().decode(), name, title, description)


def _inlined(text: str, name: str, title: str, description: str) -> str:
  """The SVG of a file as an element of the page."""
  text = text[text.index('<svg'):]
  text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
  text = re.sub(r'<defs>\s*<style.*?</style>\s*</defs>', '', text,
                flags=re.DOTALL)
  for variable, colour in _STAND_IN.items():
    text = text.replace(colour, f'var(--{variable})')
  # Fonts come from the page; the size stays.
  text = re.sub(r'font: (?:\w+ )*([\d.]+px) [^;"]*', r'font-size: \1', text)
  text = re.sub(r' ?font-family: [^;"]*;?', '', text)
  used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))

  def renamed(match: re.Match) -> str:
    return f' id="{name}-{match[1]}"' if match[1] in used else ''

  text = re.sub(r' id="([^"]+)"', renamed, text)
  text = re.sub(r'(href="#|url\(#)', rf'\g<1>{name}-', text)
  box = re.search(r'viewBox="([^"]+)"', text)[1]
  text = text[text.index('>') + 1:]
  return '\n'.join(line.strip() for line in (
      opened('chart', box, name, title, description) + text
  ).splitlines() if line.strip())


def opened(kind: str, box: str, name: str, title: str, description: str,
           size: str = '') -> str:
  """The start of an SVG element that says in words what it shows."""
  return (f'<svg class="{kind}" viewBox="{box}"{size} role="img" '
          f'aria-labelledby="{name}-t" aria-describedby="{name}-d">'
          f'<title id="{name}-t">{html.escape(title)}</title>'
          f'<desc id="{name}-d">{html.escape(description)}</desc>')


# ------------------------------------------------------------------- drawing


def percent_scale(axis, most: float) -> None:
  """An x axis of slowdowns in %: even up to 1 %, from there on logarithmic."""
  axis.set_xscale('symlog', linthresh=1, linscale=0.5)
  most = max(most, 3.0)
  axis.set_xlim(-0.08, most * 1.15)  # Marks at 0 keep off their letters.
  ticks = [tick for tick in _TICKS if tick <= most * 1.15]
  axis.set_xticks(ticks, [f'{tick:,}' for tick in ticks])
  axis.minorticks_off()
  axis.grid(axis='x')


def legend_below(figure, axes) -> None:
  """Below the axes, where it covers no line."""
  figure.legend(*axes.get_legend_handles_labels(), ncol=5, handlelength=2.2,
                columnspacing=1.0, loc='outside lower center')


class Range(NamedTuple):
  """A mark and the interval around it; the interval may be missing."""
  look: Look
  middle: float
  low: Optional[float] = None
  high: Optional[float] = None


def ranges_height(rows: Sequence[tuple[str, Sequence[Range]]]) -> float:
  """Inches that `draw_ranges` takes."""
  return 0.75 + _ROW * sum(bool(title) + len(of) + 0.4 for title, of in rows)


def draw_ranges(axes, rows: Sequence[tuple[str, Sequence[Range]]]) -> None:
  """A block a title, a line a range, from top to bottom.

  Titles stand above their lines, inside of the axes: beside them they would
  leave no room on a phone.
  """
  y, places, letters = 0.0, [], []
  for title, of in rows:
    if title:
      axes.text(0.0, y, title, fontsize=8.5, fontweight='bold', va='center',
                transform=axes.get_yaxis_transform())
      y += 1
    for one in of:
      if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [y, y], color=one.look.colour, lw=1.8,
                  alpha=0.65, solid_capstyle='butt')
      axes.plot(one.middle, y, color=one.look.colour, marker=one.look.mark,
                ms=5, mew=1.6 if one.look.mark in '|x' else 0.5, lw=0,
                clip_on=False, zorder=3)
      places.append(y)
      letters.append(one.look.letter)
      y += 1
    y += 0.4
  axes.set_yticks(places, letters)
  axes.set_ylim(y - 0.4 + 0.3, -0.7)
  axes.tick_params(axis='y', length=0, pad=5)
  axes.spines['left'].set_visible(False)


def finite(values: Sequence[Optional[float]]) -> list[float]:
  """Those that are numbers."""
  return [value for value in values
          if value is not None and math.isfinite(value)]
