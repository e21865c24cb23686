"""The results of an evaluation: one table, and the means, JSON and CSV of it.

The table is a pandas DataFrame with a row for each problem: a kernel, or a
program of the layout task. Some columns name and describe the problem; float
columns are measures, NaN where undefined. A measure that depends on k, the
number of configurations to try, has a column for each, such as `slowdown_5`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths, statistics

if TYPE_CHECKING:
  import pandas

# Measures that depend on the number of configurations to try.
BY_K = ('slowdown', 'slowdown_kept', 'random')


def table(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
  """A table of rows {column: value}, which have the same columns."""
  import pandas  # Takes .4 s, which not every verb needs.
  return pandas.DataFrame(list(rows))


def by_k(name: str, values: Mapping[int, float]) -> dict[str, float]:
  """The columns of a measure that depends on k: {'<name>_<k>': value}."""
  return {f'{name}_{k}': value for k, value in values.items()}


def ks_of(columns: Iterable[str]) -> list[int]:
  """The numbers k that a table has columns for."""
  found = (name.rpartition('_') for name in columns)
  return [int(k) for name, _, k in found if name == BY_K[0] and k.isdigit()]


def columns_of(measures: Iterable[str],
               ks: Sequence[int]) -> list[tuple[str, Optional[int], str]]:
  """(measure, k or None, column) of each column of some measures."""
  return [(measure, k, measure if k is None else f'{measure}_{k}')
          for measure in measures
          for k in (ks if measure in BY_K else [None])]


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
  """Means of the measures over rows of a table; NaN is left out.

  Attributes:
    rows: of problems, or of the means over groups of problems.
    problems: how many problems the rows stand for.
  """
  rows: pandas.DataFrame
  problems: int

  @functools.cached_property
  def means(self) -> dict[str, float]:
    """Column -> its mean, for all measures."""
    return {name: _mean(values)
            for name, values in self.rows.select_dtypes('float').items()}

  def __getitem__(self, column: str) -> float:
    """The mean of a column, such as 'opa' and 'slowdown_5'."""
    return self.means[column]

  def interval(self, column: str) -> tuple[float, float]:
    """95 % interval of the mean, see `statistics`."""
    return statistics.bootstrap_interval(self.rows[column])

  def minus(self, column: str, other: Summary,
            other_column: str = '') -> tuple[float, float, float]:
    """Mean and interval of the difference to a column of the same problems."""
    return statistics.paired_difference(
        self.rows[column], other.rows[other_column or column])


def _mean(values: Iterable[float]) -> float:
  # In the order of the rows, for the same last digits as the baseline.
  defined = [value for value in values if not math.isnan(value)]
  return sum(defined) / len(defined) if defined else math.nan


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
  """Measures of all problems of one source, by one model.

  Attributes:
    model_dir: its folder.
    data: where the problems were read from, as given.
    rows: a table of the problems, see the module.
    keep_repeats: whether duplicate configurations stay where the scores put
      them, as with the baseline, or come last.
    model: the model's class; '' where it is not known.
  """
  model_dir: str
  data: str
  rows: pandas.DataFrame
  keep_repeats: bool = False
  model: str = ''

  # Set by each task: the column that names a problem, JSON's name for
  # problems, measures with an interval there, measures to compare models by,
  # and the file of `to_csv`.
  NAME: ClassVar[str]
  PROBLEMS: ClassVar[str]
  INTERVALS: ClassVar[Sequence[str]]
  COMPARED: ClassVar[Sequence[str]]
  CSV: ClassVar[output_paths.Text]

  @property
  def ks(self) -> list[int]:
    """The numbers of configurations to try."""
    return ks_of(self.rows)

  @functools.cached_property
  def mean(self) -> Summary:
    """Means over all problems."""
    return self.over(self.rows)

  def over(self, rows: pandas.DataFrame) -> Summary:
    return Summary(rows, len(rows))

  def summary_json(self, summary: Summary) -> dict[str, Any]:
    """Means and their intervals, as plain values."""
    return {
        self.PROBLEMS: summary.problems, **nested(summary.means),
        'interval': nested({
            column: self.interval_json(*summary.interval(column))
            for *_, column in columns_of(self.INTERVALS, self.ks)})}

  def problems_json(self) -> dict[str, Any]:
    """The rows by the problems' names."""
    return {row.pop(self.NAME): nested(row)
            for row in self.rows.to_dict('records')}

  def differences_json(self, other: Results) -> dict[str, Any]:
    """This model's measures minus another's, paired by problem."""
    return nested({
        column: self.difference_json(*self.mean.minus(column, other.mean))
        for *_, column in columns_of(self.COMPARED, self.ks)})

  # The task's JSON format of the two.

  def interval_json(self, low: float, high: float) -> Any:
    return [or_none(low), or_none(high)]

  def difference_json(self, mean: float, low: float, high: float) -> Any:
    return [or_none(mean), or_none(low), or_none(high)]

  def to_json(self) -> dict[str, Any]:
    """Plain values; None where a measure is undefined."""
    raise NotImplementedError

  @classmethod
  def texts(cls, evaluations: Sequence[Results],
            by_kernel: bool = False) -> str:
    """Tables of each model and, of several, of how they differ.

    Args:
      evaluations: of models on the same problems.
      by_kernel: shows every kernel too; programs are few and always shown.
    """
    raise NotImplementedError


def to_json(evaluations: Sequence[Results]) -> Any:
  """Of one model its `to_json`, of several a list of them.

  Each of several then has 'differences' too: to every other model, paired by
  problem, this one's measure minus the other's.
  """
  contents = [evaluation.to_json() for evaluation in evaluations]
  if len(contents) == 1:
    return contents[0]
  for one, content in zip(evaluations, contents):
    content['differences'] = [
        {'to': other.model_dir, **one.differences_json(other)}
        for other in evaluations if other is not one]
  return contents


def to_csv(evaluations: Sequence[Results]) -> str:
  """A CSV, a row a problem and model; empty where a measure is undefined.

  Slowdowns are fractions: 0.2 is 20 %. All evaluations have the same `ks`.
  """
  import pandas
  rows = pandas.concat([
      one.rows.assign(model_dir=one.model_dir, data=one.data)
      for one in evaluations])
  first = ['model_dir', 'data']
  return files.csv_of(rows[first + rows.columns.drop(first).tolist()])


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
  """Columns in the form of the JSON: {'slowdown': {'5': ...}, 'opa': ...}."""
  found: dict[str, Any] = {}
  for column, value in columns.items():
    name, _, k = column.rpartition('_')
    if name in BY_K and k.isdigit():
      found.setdefault(name, {})[k] = or_none(value)
    else:
      found[column] = or_none(value)
  return found


def or_none(value: Any) -> Any:
  """None instead of NaN, which JSON does not have."""
  return None if isinstance(value, float) and math.isnan(value) else value
