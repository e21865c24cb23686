"""Cells and rows of the tables that `evaluate` prints."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

from tpu_graphs_ext.engine.results import Results, Summary, columns_of

_NAMES = {'slowdown': 'top-{} %', 'random': 'random-{} %',
          'default': 'default %', 'opa': 'OPA', 'kendall': 'tau'}
SCORES = ('opa', 'kendall')  # Not slowdowns, which are in per cent.


def heads(measures: Iterable[str], ks: Sequence[int]) -> list[str]:
  """Headings of the columns of some measures."""
  return [_NAMES[measure].format(k)
          for measure, k, _ in columns_of(measures, ks)]


def values(of: Mapping[str, float] | Summary, measures: Iterable[str],
           ks: Sequence[int]) -> list[str]:
  """A cell for each column: of a row of a table, or of means."""
  return [cell(measure, of[column])
          for measure, _, column in columns_of(measures, ks)]


def intervals(summary: Summary, measures: Iterable[str],
              ks: Sequence[int]) -> list[str]:
  """The same with intervals of the means."""
  return [cell(measure, summary[column], *summary.interval(column))
          for measure, _, column in columns_of(measures, ks)]


def differences(evaluations: Sequence[Results]) -> list[tuple[str, ...]]:
  """A row for each two models: their differences, paired by problem."""
  names = names_of(evaluations)
  return [
      (f'{names[i]} - {names[j]}', *(
          cell(measure, *one.mean.minus(column, evaluations[j].mean))
          for measure, _, column in columns_of(one.COMPARED, one.ks)))
      for i, one in enumerate(evaluations)
      for j in range(i + 1, len(evaluations))]


def names_of(evaluations: Sequence[Results]) -> list[str]:
  """The models' classes; with the start of the hash where one comes twice."""
  folders = [os.path.basename(os.path.normpath(one.model_dir)).removeprefix(
      'model_') for one in evaluations]
  classes = [one.model or folder for one, folder in zip(evaluations, folders)]
  return [name if classes.count(name) == 1 else f'{name} {folder[:8]}'
          for name, folder in zip(classes, folders)]


def places(evaluations: Sequence[Results]) -> list[str]:
  """A line for each model: its name and folder."""
  return [f'{name}: {evaluation.model_dir}'
          for name, evaluation in zip(names_of(evaluations), evaluations)]


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
  """First column to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join([row[0].ljust(widths[0])] + [
      cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
          for row in rows]


def cell(measure: str, value: float, low: float = math.nan,
         high: float = math.nan) -> str:
  """'1.23', or '1.23 [0.9, 1.5]'; '-' where undefined."""
  scale, digits = (1, 3) if measure in SCORES else (100, 2)
  # The sum turns -0.0 into 0.0.
  text, *ends = ('-' if math.isnan(number) else
                 f'{round(scale * number, digits) + 0.0:.{digits}f}'
                 for number in (value, low, high))
  return text if math.isnan(low) else f'{text} [{", ".join(ends)}]'
