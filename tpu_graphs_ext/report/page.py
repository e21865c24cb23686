"""A page of sections: what stands in it, and how numbers are written.

Sections are data; `templates/page.html` makes HTML of them and escapes what
comes from files.
"""

from __future__ import annotations

import base64
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext import __version__

# Stands where there is no number.
NOTHING = '\u2013'
MINUS, TIMES = '\u2212', '\u00d7'


class Text(NamedTuple):
  """A paragraph."""
  text: str
  kind = 'text'


class Facts(NamedTuple):
  """What a reader wants to know first: names and what is said of each."""
  pairs: Sequence[tuple[str, str]]
  kind = 'facts'


class Table(NamedTuple):
  """Rows of text.

  Attributes:
    caption: what it says, also for those who do not see it.
    head: names of the columns.
    rows: cells; the first of each names the row.
  """
  caption: str
  head: Sequence[str]
  rows: Sequence[Sequence[str]]
  kind = 'table'


class Figure(NamedTuple):
  """A drawing.

  Attributes:
    title: its name.
    said: what it shows, in words.
    svg: a whole SVG document.
    table: its numbers, folded away below it.
    size: its width in pixels, if it is not one of the charts, which are all
      of one width.
  """
  title: str
  said: str
  svg: str
  table: Optional[Table] = None
  size: int = 0
  kind = 'figure'


class Fold(NamedTuple):
  """What is folded away until it is asked for."""
  title: str
  blocks: Sequence[Any]
  kind = 'fold'


class Row(NamedTuple):
  """Blocks side by side where there is room."""
  blocks: Sequence[Any]
  kind = 'row'


class Section(NamedTuple):
  """A part of the page with a title."""
  title: str
  blocks: Sequence[Any]


def page(start: str, title: str, sections: Sequence[Section],
         problems: Sequence[str] = ()) -> str:
  """One HTML file that loads nothing.

  Args:
    start: its first lines, by which its kind is recognised.
    title: of the page.
    sections: the first one is the summary.
    problems: what could not be read or measured.
  """
  import jinja2
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(
          os.path.join(os.path.dirname(__file__), 'templates')),
      autoescape=True, trim_blocks=True, lstrip_blocks=True,
      undefined=jinja2.StrictUndefined)
  environment.filters.update(
      anchor=anchor, base64=lambda text: base64.b64encode(
          text.encode()).decode())
  environment.tests['a_number'] = _is_number
  content = environment.get_template('page.html').render(
      title=title, sections=sections, problems=problems, version=__version__)
  return f'{start}\n{content.strip()}\n'


def anchor(text: str) -> str:
  """A name that can stand in an address."""
  return re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')


def _is_number(cell: str) -> bool:
  return cell == NOTHING or bool(
      re.match(rf'[{MINUS}{TIMES}+-]?\s?\d', cell))


# ------------------------------------------------------------------- numbers


def number(value: Optional[float], digits: int = 2) -> str:
  """A number as text; a dash where there is none."""
  if value is None or math.isnan(value):
    return NOTHING
  return f'{value:.{digits}f}'.replace('-', MINUS)


def percent(value: Optional[float], digits: int = 2) -> str:
  """0.125 as '12.50'."""
  return number(None if value is None else 100 * value, digits)


def with_spread(mean: Optional[float], deviation: Optional[float],
                digits: int = 2) -> str:
  """'1.25 ± 0.10'; only the mean where there was a single run."""
  text = number(mean, digits)
  return text if deviation is None else f'{text} ± {number(deviation, digits)}'


def with_interval(mean: Optional[float], low: Optional[float],
                  high: Optional[float], digits: int = 2) -> str:
  """'1.25 [1.00 to 1.50]'; only the mean where there is no interval."""
  text = number(mean, digits)
  if low is None or high is None or math.isnan(low) or math.isnan(high):
    return text
  return f'{text} [{number(low, digits)} to {number(high, digits)}]'


def count(value: float) -> str:
  """A whole number with its thousands apart; others with three digits."""
  if value == round(value):
    return f'{int(value):,}'.replace(',', '\u202f')
  return f'{value:.3g}'


def size(num_bytes: float) -> str:
  """6921408512 as '6.45 GiB'."""
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if num_bytes < 1024 or unit == 'GiB':
      break
    num_bytes /= 1024
  return f'{num_bytes:.4g} {unit}' if unit == 'B' else f'{num_bytes:.3g} {unit}'
