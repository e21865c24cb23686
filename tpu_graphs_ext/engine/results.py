"""The results of an evaluation: a table, its means, and both as text and files.

The table is a pandas DataFrame with a row for each kernel or program. Float
columns are measures, NaN where undefined; one that depends on k, the number of
configurations to try, has a column for each, such as `slowdown_5`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Union

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import metrics

if TYPE_CHECKING:
  import pandas

  from tpu_graphs_ext.data.kernel import Problem
  from tpu_graphs_ext.engine.scoring import Scores

# Measures that depend on the number of configurations to try.
BY_K = ('slowdown', 'slowdown_kept', 'random')
SCORES = ('opa', 'kendall')  # The others are shown in per cent.
_HEADS = {'slowdown': 'top-{} %', 'random': 'random-{} %',
          'default': 'default %', 'opa': 'OPA', 'kendall': 'tau'}
_NOTES = (
    'top-k %: how much slower the fastest of the first k choices is than the '
    'fastest of all.\n[low, high]: 95 % bootstrap interval of the mean; too '
    'narrow for a handful of problems.')


def table(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
  """A table of rows {column: value}, which have the same columns."""
  import pandas  # Takes .4 s, which not every verb needs.
  return pandas.DataFrame(list(rows))


def ks_of(columns: Iterable[str]) -> list[int]:
  """The numbers k that a table has columns for."""
  parts = (name.rpartition('_') for name in columns)
  return [int(k) for name, _, k in parts if name == 'slowdown' and k.isdigit()]


def columns_of(measures: Iterable[str], ks: Sequence[int]) -> dict[str, str]:
  """Heading -> column, of all columns of some measures."""
  return {_HEADS[measure].format(k):
          f'{measure}_{k}' if measure in BY_K else measure
          for measure in measures for k in (ks if measure in BY_K else [None])}


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
  """Means of the measures over rows of a table; NaN is left out."""
  rows: pandas.DataFrame  # Of problems, or of means over groups of problems.
  problems: int  # How many problems the rows stand for.

  @functools.cached_property
  def means(self) -> dict[str, float]:
    """Column -> its mean, for all measures."""
    # Summed in the order of the rows, for the baseline's last digits.
    defined = {name: values.dropna().tolist() for name, values
               in self.rows.select_dtypes('float').items()}
    return {name: sum(values) / len(values) if values else math.nan
            for name, values in defined.items()}

  def __getitem__(self, column: str) -> float:
    """The mean of a column, such as 'opa' and 'slowdown_5'."""
    return self.means[column]

  def interval(self, column: str) -> tuple[float, float]:
    """95 % interval of the mean."""
    return metrics.bootstrap_interval(self.rows[column])

  def cell(self, column: str) -> str:
    """The mean with its interval, as text."""
    return cell(column, self[column], *self.interval(column))

  def minus(self, column: str, other: Summary,
            other_column: str = '') -> tuple[float, float, float]:
    """Mean and interval of the difference to a column of the same problems."""
    return metrics.paired_difference(
        self.rows[column], other.rows[other_column or column])


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
  """Measures of all problems of one source, by one model."""
  model_dir: str
  data: str  # Where the problems were read from, as given.
  rows: pandas.DataFrame  # A table of the problems, see the module.
  keep_repeats: bool = False  # See `scoring.Scores`.
  model: str = ''  # Its class; '' where it is not known.

  NAME: ClassVar[str] = 'name'  # The column that names a problem.
  PROBLEMS: ClassVar[str] = 'problems'  # JSON's name for problems.
  # Measures with an interval there, and to compare models by.
  INTERVALS: ClassVar[Sequence[str]] = ('kendall', 'opa', 'slowdown')
  COMPARED: ClassVar[Sequence[str]] = INTERVALS
  ABOUT: ClassVar[Sequence[str]] = ('configs',)  # To list for each problem,
  LISTED: ClassVar[Sequence[str]] = (*INTERVALS, 'random')  # and measures.
  # Choices without a model, and the columns of their slowdowns.
  OTHERS: ClassVar[Sequence] = (('a random choice', 'random_{}'),)
  CSV: ClassVar[files.Output] = files.Output(
      '--csv', 'model_dir,data,name,configs,kendall,opa', 'CSV of evaluate')

  @classmethod
  def row_of(cls, problem: Problem, scores: Scores,
             ks: Sequence[int]) -> dict[str, Any]:
    """Measures of one labelled problem with a model's scores, by column.

    Returns, if a task has no others:
      kendall: tau-b of the runtimes and the places in the model's order, which
        has no ties, as in the organisers' `layout_evaluate.py`.
      opa: share of the pairs of different runtime that the scores order alike;
        NaN, as is tau, where all runtimes are equal.
      slowdown_<k>: `metrics.slowdown_of` the first k configurations.
      random_<k>: the expected slowdown of k drawn at random.
    """
    runtime, order = problem.runtime_rel, scores.order
    return {
        cls.NAME: problem.name, 'configs': problem.num_configs,
        'kendall': metrics.pair_agreement(runtime, np.argsort(order))[1],
        'opa': metrics.pair_agreement(runtime, scores.given)[0],
        **{f'slowdown_{k}': metrics.slowdown_of(runtime, order[:k])
           for k in ks},
        **{f'random_{k}': metrics.random_slowdown(runtime, scores.repeats, k)
           for k in ks}}

  @property
  def ks(self) -> list[int]:
    return ks_of(self.rows)

  @functools.cached_property
  def mean(self) -> Summary:
    return Summary(self.rows, len(self.rows))

  def to_json(self) -> dict[str, Any]:
    """Means and problems as plain values; a task may add groups."""
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.summary_json(self.mean),
            self.PROBLEMS: self.problems_json()}

  def summary_json(self, summary: Summary) -> dict[str, Any]:
    """Means and their intervals, as plain values."""
    return {
        self.PROBLEMS: summary.problems, **nested(summary.means),
        'interval': nested({
            column: interval_json(*summary.interval(column))
            for column in columns_of(self.INTERVALS, self.ks).values()})}

  def problems_json(self) -> dict[str, Any]:
    return {row.pop(self.NAME): nested(row)
            for row in self.rows.to_dict('records')}

  def groups(self) -> list[tuple[str, Summary]]:
    return []  # Then all problems are listed.

  def text(self, by_problem: bool = False) -> str:
    return self.texts([self], by_problem)

  def _tables(self, by_problem: bool) -> list[list[str]]:
    """The tables of this model alone, as lines."""
    tables, ks, groups = [], self.ks, self.groups()
    if groups:
      columns = columns_of(self.COMPARED, ks)
      tables.append(aligned([
          ('', self.PROBLEMS, *columns),
          *((name, str(summary.problems), *cells(summary, columns))
            for name, summary in groups)]))
    if by_problem or not groups:
      worst_first = self.rows.sort_values(
          [f'slowdown_{k}' for k in ks], ascending=False, kind='stable')
      columns = columns_of(self.LISTED, ks)
      tables.append(aligned([
          (self.NAME, *self.ABOUT, *columns),
          *((row[self.NAME], *(str(row[name]) for name in self.ABOUT),
             *cells(row, columns))
            for row in worst_first.to_dict('records'))]))
    return [[f'{self.model_dir} on {self.data}'], *tables]

  @classmethod
  def texts(cls, evaluations: Sequence[Results],
            by_problem: bool = False) -> str:
    """The tables of models on the same problems, and their `comparison`."""
    tables = [table for result in evaluations
              for table in result._tables(by_problem)]
    return '\n\n'.join([*map('\n'.join, tables), cls.comparison(evaluations)])

  @classmethod
  def comparison(cls, evaluations: Sequence[Results]) -> str:
    """Means of models and of choices without one, and paired differences."""
    first = evaluations[0]
    heads = columns_of(cls.COMPARED, first.ks)
    columns = heads.values()
    named = list(zip(names_of(evaluations), evaluations))
    rows = [(f'mean of {len(first.rows)} {cls.PROBLEMS}', *heads)]
    rows += [(name, *map(result.mean.cell, columns)) for name, result in named]
    rows += [  # They have a slowdown alone.
        (name, *('-' if column in SCORES else
                 first.mean.cell(other.format(column.rpartition('_')[2]))
                 for column in columns)) for name, other in cls.OTHERS]
    rows += [
        (f'{a} - {b}', *(cell(column, *result.mean.minus(column, other.mean))
                         for column in columns))
        for (a, result), (b, other) in itertools.combinations(named, 2)]
    return '\n'.join([*aligned(rows), '', _NOTES])


def to_json(evaluations: Sequence[Results]) -> Any:
  """`to_json` of one model; of several a list, with paired differences."""
  contents = [evaluation.to_json() for evaluation in evaluations]
  if len(contents) == 1:
    return contents[0]
  for result, content in zip(evaluations, contents):
    content['differences'] = [
        {'to': other.model_dir, **nested({
            column: difference_json(*result.mean.minus(column, other.mean))
            for column in columns_of(result.COMPARED, result.ks).values()})}
        for other in evaluations if other is not result]
  return contents


def to_csv(evaluations: Sequence[Results]) -> str:
  """A CSV, a row a problem and model; empty where a measure is undefined."""
  import pandas
  rows = pandas.concat([
      result.rows.assign(model_dir=result.model_dir, data=result.data)
      for result in evaluations])
  first = ['model_dir', 'data']
  return files.csv_of(rows.set_index(first).reset_index())


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
  """Columns in the form of the JSON: {'slowdown': {'5': ...}, 'opa': ...}."""
  content: dict[str, Any] = {}
  for column, value in columns.items():
    name, _, k = column.rpartition('_')
    place, key = (content.setdefault(name, {}), k) if (
        name in BY_K and k.isdigit()) else (content, column)
    place[key] = or_none(value)
  return content


def interval_json(low: float, high: float) -> Any:
  return None if math.isnan(low) else [low, high]


def difference_json(mean: float, low: float, high: float) -> dict[str, Any]:
  return {'mean': or_none(mean), 'interval': interval_json(low, high)}


def or_none(value: Any) -> Any:
  """None instead of NaN, which JSON does not have."""
  return None if isinstance(value, float) and math.isnan(value) else value


def cells(of: Union[Mapping[str, float], Summary],
          columns: Mapping[str, str]) -> list[str]:
  """A cell for each of `columns_of`, of a row of a table or of means."""
  return [cell(column, of[column]) for column in columns.values()]


def names_of(evaluations: Sequence[Results]) -> list[str]:
  """The models' classes, the start of the hash where one comes twice, or all.
  """
  folders = [os.path.basename(os.path.normpath(result.model_dir)).removeprefix(
      'model_') for result in evaluations]
  classes = [result.model or folder
             for result, folder in zip(evaluations, folders)]
  short = [name if classes.count(name) == 1 else f'{name} {folder[:8]}'
           for name, folder in zip(classes, folders)]
  return [name if short.count(name) == 1 else f'{cls} {result.model_dir}'
          for name, cls, result in zip(short, classes, evaluations)]


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
  """First column to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join([row[0].ljust(widths[0])] + [
      text.rjust(width) for text, width in zip(row[1:], widths[1:])])
          for row in rows]


def cell(column: str, value: float, low: float = math.nan,
         high: float = math.nan) -> str:
  """'1.23', or '1.23 [0.9, 1.5]'; '-' where undefined."""
  scale, digits = (1, 3) if column in SCORES else (100, 2)
  # The sum turns -0.0 into 0.0.
  text, *ends = ('-' if math.isnan(number) else
                 f'{round(scale * number, digits) + 0.0:.{digits}f}'
                 for number in (value, low, high))
  return text if math.isnan(low) else f'{text} [{", ".join(ends)}]'
