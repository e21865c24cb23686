"""Rows as CSV whose texts no spreadsheet runs as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

# What makes Excel and LibreOffice read a cell as a formula (OWASP, "CSV
# Injection").
_FORMULA_STARTS = ('=', '+', '-', '@', '\t', '\r', '\n')


def of_rows(rows: Iterable[Iterable[Any]]) -> str:
  """The text of a CSV; lines end with a newline alone.

  Texts that begin like a formula get an apostrophe in front, which
  spreadsheets take for "this is text". Numbers stay as they are.
  """
  lines = io.StringIO()
  csv.writer(lines, lineterminator='\n').writerows(
      [safe(cell) for cell in row] for row in rows)
  return lines.getvalue()


def safe(cell: Any) -> Any:
  """The cell, guarded where it is text that begins like a formula."""
  if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS):
    return "'" + cell
  return cell
