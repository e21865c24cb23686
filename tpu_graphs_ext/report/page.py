"""The page: its tables and figures, how it writes numbers, and its template."""

from __future__ import annotations

import base64
import math
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import pandas as pd

from tpu_graphs_ext import __version__

NOTHING = '\u2013'  # Stands where there is no number.
MINUS, TIMES = '\u2212', '\u00d7'
# How a page begins, by which an earlier one is recognised.
START = '<!DOCTYPE html>\n<!-- tpu_graphs_ext report -->'


class Table(NamedTuple):
  """A table of texts; its first column names the rows."""
  caption: str
  frame: pd.DataFrame


class Figure(NamedTuple):
  """A drawing; `said` describes it in words, `svg` is a document."""
  title: str
  said: str
  svg: str


def table(caption: str, columns: Iterable[str],
          rows: Iterable[Iterable[Any]]) -> Table:
  """A table by rows."""
  return Table(caption, pd.DataFrame(rows, columns=list(columns)))


def render(**content: Any) -> str:
  """One HTML file that loads nothing: `templates/report.html`, filled in."""
  import jinja2
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(
          os.path.join(os.path.dirname(__file__), 'templates')),
      autoescape=True, trim_blocks=True, lstrip_blocks=True,
      undefined=jinja2.StrictUndefined)
  environment.filters['base64'] = lambda text: base64.b64encode(
      text.encode()).decode()
  environment.tests['a_number'] = lambda cell: cell == NOTHING or re.match(
      rf'[{MINUS}{TIMES}+-]?\s?\d', str(cell))
  page = environment.get_template('report.html').render(
      version=__version__, **content)
  return f'{START}\n{page.strip()}\n'


def number(value: Optional[float], digits: int = 2) -> str:
  """A number as text; a dash if there is none.

  Args:
    value: the number.
    digits: behind the point, below 10; one less from 10 on, two from 100 on.
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
