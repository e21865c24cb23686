"""Pieces of an HTML page. What comes from files is escaped here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

# Stands where there is no number.
NOTHING = '\u2013'
MINUS, TIMES = '\u2212', '\u00d7'


class Table(NamedTuple):
  """Rows of text.

  Attributes:
    caption: what it says, for those who do not see it, too.
    head: names of the columns.
    rows: cells; the first of each names the row.
  """
  caption: str
  head: Sequence[str]
  rows: Sequence[Sequence[str]]


def escape(text: Any) -> str:
  return html.escape(str(text), quote=True)


def anchor(text: str) -> str:
  """A name that can stand in an address."""
  return re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')


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
  """'1.25 ± 0.10'; without the second part where there was one run alone."""
  text = number(mean, digits)
  return text if deviation is None else f'{text} ± {number(deviation, digits)}'


def interval(low: Optional[float], high: Optional[float],
             digits: int = 2) -> str:
  """'1.00 to 1.50'."""
  if low is None or high is None or math.isnan(low) or math.isnan(high):
    return NOTHING
  return f'{number(low, digits)} to {number(high, digits)}'


def count(value: float) -> str:
  """A whole number with its thousands apart; others with three digits."""
  if value == round(value):
    return f'{int(value):,}'.replace(',', '\u202f')
  return f'{value:.3g}'


def paragraph(text: str) -> str:
  return f'<p>{escape(text)}</p>'


def items(texts: Iterable[str]) -> str:
  """A list of them."""
  return ('<ul>' + ''.join(f'<li>{escape(text)}</li>' for text in texts)
          + '</ul>')


def table(content: Table) -> str:
  """A table that is scrolled by itself where it is wider than the page."""
  first_row = content.rows[0] if content.rows else content.head
  head = ''.join(
      f'<th scope="col"{_number_class(below)}>{escape(cell)}</th>'
      for cell, below in zip(content.head, first_row))
  rows = []
  for first, *rest in content.rows:
    cells = ''.join(
        f'<td{_number_class(cell)}>{escape(cell)}</td>' for cell in rest)
    rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
  return scrolled(
      f'<table><caption>{escape(content.caption)}</caption>'
      f'<thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>',
      content.caption)


def _number_class(cell: str) -> str:
  is_number = re.match(rf'[{MINUS}{TIMES}+-]?\s?\d', cell) or cell == NOTHING
  return ' class="n"' if is_number else ''


def scrolled(content: str, label: str, kind: str = 'scroll') -> str:
  """A region that the arrow keys scroll."""
  return (f'<div class="{kind}" tabindex="0" role="region" '
          f'aria-label="{escape(label)}">{content}</div>')


def details(summary: str, content: str) -> str:
  """What is folded away until it is asked for."""
  return (f'<details><summary>{escape(summary)}</summary>{content}</details>')


def figure(picture: str, caption: str, numbers: Optional[Table] = None) -> str:
  """A drawing, what it shows, and its numbers as a table to unfold."""
  below = details('Numbers', table(numbers)) if numbers else ''
  return (f'<figure>{picture}<figcaption>{escape(caption)}</figcaption>'
          f'{below}</figure>')


def figures(parts: Iterable[str]) -> str:
  """Side by side where there is room."""
  return '<div class="figures">' + ''.join(parts) + '</div>'


def section(title: str, content: str) -> str:
  return (f'<section id="{anchor(title)}"><h2>{escape(title)}</h2>'
          f'{content}</section>')
