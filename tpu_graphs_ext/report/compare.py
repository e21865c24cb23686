"""What the models do on the same labelled problems, and which run is better."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.data.kernel import Problems
from tpu_graphs_ext.engine import evaluate, metrics, results, scoring
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import page
from tpu_graphs_ext.report.page import Look
from tpu_graphs_ext.report.runs import Group, Run
from tpu_graphs_ext.tasks import ShippedTask
from tpu_graphs_ext.tasks.tile import LoadSettings

DEFAULT = 'default tile'
MOST_DRAWN = 8  # Programs or kinds in a figure; the tables have all.

Looks = Mapping[str, Look]


class Measure(NamedTuple):
  """A column of the rows, and how it reads: times `scale`, with `digits`."""
  column: str
  name: str
  unit: str  # Of a difference.
  scale: int = 1
  digits: int = 3
  higher_is_better: bool = True


def measures_of(task: ShippedTask) -> list[Measure]:
  """Those that a report compares; the first one decides which run wins."""
  return [
      Measure(column, name, f'more {name}') if column in results.SCORES else
      Measure(column, name, f'percentage points less slowdown at {name[:-2]}',
              100, 2, False)
      for name, column in results.columns_of(
          task.compared_by, task.top_ks).items()]


class Measured(NamedTuple):
  """A run, its model, and a row a problem; see `Results.row_of`."""
  run: Optional[Run]  # None: its scores come from elsewhere.
  ranker: evaluate.AnyRanker
  rows: pd.DataFrame


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Runs on the same labelled problems, by the name of their group."""
  task: ShippedTask
  source: str
  problems: Problems
  groups: dict[str, list[Measured]] = dataclasses.field(default_factory=dict)

  @property
  def rows(self) -> pd.DataFrame:
    """The first run's rows, for the columns that no model changes."""
    return next(iter(self.groups.values()))[0].rows

  @functools.cached_property
  def values(self) -> dict[Measure, pd.DataFrame]:
    """[problems, who chooses]: means over the runs of a group, scaled.

    Columns: the groups, best first; the default tile and random choices.
    """
    return {measure: self._values(measure)
            for measure in measures_of(self.task)}

  def _values(self, measure: Measure) -> pd.DataFrame:
    values = pd.DataFrame({
        name: np.mean([run.rows[measure.column] for run in of], axis=0)
        for name, of in self.groups.items()})
    means = values.mean() * (1 if measure.higher_is_better else -1)
    values = values[means.sort_values(ascending=False, kind='stable').index]
    if measure.column.startswith('slowdown'):
      if 'default' in self.rows and self.rows['default'].notna().any():
        values[DEFAULT] = self.rows['default']
      values[f'random {self.task.choices}'] = self.rows[
          measure.column.replace('slowdown', 'random')]
    return measure.scale * values


def measured(groups: Sequence[Group], data: str, loading: LoadSettings,
            problems: list[str], foreign: Sequence[evaluate.AnyRanker] = ()
            ) -> Optional[Comparison]:
  """Ranks the same labelled problems with every model that can be loaded.

  Args:
    data: labelled problems: a folder of .npz files, a .npz or, for tiles, a
      .pb; empty: the valid split of `loading`'s data root, or else their own.
    problems: a message is added for everything that cannot be done.
    foreign: scores of other models on the same problems, a group each.
  """
  every = [(group, run) for group in groups for run in group.runs
           if run.model_dir]
  roots = {run.settings.get('data_root') for _, run in every} - {None, ''}
  only_root = roots.pop() if len(roots) == 1 else ''
  comparison: Optional[Comparison] = None
  for group, run in every:
    source = run.model_dir
    try:
      task = run.task
      run_loading = loading_of(run, loading, only_root)
      collection = task.collection(run.info['args'])
      source = data or os.path.join(run_loading.data_root, *collection, 'valid')
      comparison = comparison or Comparison(task, source, evaluate.labelled(
          task.read(source, run_loading), source, task))
      if source != comparison.source:
        raise UserError(f'its data is {source}, so it is not compared with '
                        f'runs on {comparison.source}; measure all of them on '
                        'one --data, or make a page for each')
      ranker = scoring.load_ranker(run.model_dir, run_loading)
      comparison.groups.setdefault(group.name, []).append(Measured(
          run, ranker, evaluate.measure(
              ranker, comparison.problems, f'{run.model} {run.name[:8]}')))
    except UserError as error:
      text = str(error)
      problems.append(text if run.model_dir in text or text.startswith(source)
                      else f'{run.model_dir}: {text}')
  for name, ranker in named(groups, foreign).items() if comparison else ():
    try:
      comparison.groups[name] = [Measured(
          None, ranker, evaluate.measure(ranker, comparison.problems, ''))]
    except UserError as error:
      problems.append(str(error))
  problems[:] = dict.fromkeys(problems)
  return comparison if comparison and comparison.groups else None


def named(groups: Sequence[Group], foreign: Sequence[evaluate.AnyRanker]
          ) -> dict[str, evaluate.AnyRanker]:
  """Scores of other models by name, or by path where another one, a group of
  runs or a baseline has that name."""
  taken = [DEFAULT, f'random {groups[0].runs[0].task.choices}',
           *(group.name for group in groups)]
  names = [*taken, *(ranker.class_name for ranker in foreign)]

  def name_of(ranker):
    if names.count(ranker.class_name) == 1:
      return ranker.class_name
    return f'./{ranker.name}' if ranker.name in taken else ranker.name

  return {name_of(ranker): ranker for ranker in foreign}


def loading_of(run: Run, asked: LoadSettings, only_root: str = '') -> Loading:
  """How to load a run: as asked, else with the folders it was trained with."""
  task, default = run.task, run.task.loading()
  chosen = {name: value for name, value in vars(asked).items()
            if name in vars(default)}
  chosen['models_py'] = run.models_py
  chosen.update(zip(task.collection_args, task.collection(run.info['args'])))
  if asked.stats not in task.loading.STATS:
    chosen['stats'] = 'train'
  if asked.data_root == asked.task.loading.data_root:
    chosen['data_root'] = (run.settings.get('data_root') or only_root
                           or default.data_root)
  if asked.cache_dir == asked.task.loading.cache_dir:
    chosen['cache_dir'] = run.settings.get('cache_dir', default.cache_dir)
  return task.loading(**chosen)


def looks_of(names: Sequence[str], task: ShippedTask) -> dict[str, Look]:
  """How groups of those names are drawn, and who else chooses."""
  groups = zip(names, itertools.cycle(page.RUNS), itertools.cycle(page.MARKS))
  return {look.name: look for look in (
      *(Look(*group, '-') for group in groups),
      Look(DEFAULT, mark='|', line='--'), Look(f'random {task.choices}'))}


def section(comparison: Comparison, looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of a comparison."""
  rows, task = comparison.rows, comparison.task
  title, certainty = headline(comparison)
  data = f'{len(rows)} labelled {task.problem}s'
  if task.has_groups:
    data += f', programs: {rows["program"].nunique()}'
  measure, values = next(iter(comparison.values.items()))
  every = _parts(values, {'': rows.index >= 0})
  return {
      'title': title, 'certainty': certainty,
      'data': f'{data}: {comparison.source}', 'means': means_table(comparison),
      'overall': _figure(measure, '', f'{task.problem}s', every, looks),
      'programs': by(comparison, 'program', looks),
      'kinds': by(comparison, 'kind', looks),
      'distributions': [
          distribution(values, measure, looks)
          for measure, values in comparison.values.items()
          if not measure.higher_is_better],
      'differences': differences(comparison)}


def headline(comparison: Comparison) -> tuple[str, str]:
  """A title that names the winner if there is one, and how certain that is.

  The best group is compared with the next one, and with the default tile.
  """
  measure, values = next(iter(comparison.values.items()))
  best, *others = values
  if not others:
    return (f'{best}: {measure.name} '
            f'{page.number(values[best].mean(), measure.digits)}',
            'There is nothing to compare it with.')
  title, certainty = _verdict(measure, values, best, others[0])
  if DEFAULT in others[1:]:
    ahead = _gain(measure, values, DEFAULT, best)
    if ahead[0] > 0:  # Then nobody wins.
      title = (title.replace(' wins: ', ' has ') + '; the default tile is '
               f'still {page.number(ahead[0])} points faster')
    certainty += (f' {best} minus the default tile: {page.interval(*ahead)} '
                  'points.')
  if min(map(len, comparison.groups.values())) == 1:
    certainty += ' Groups of a single run: another seed may change this.'
  return title, certainty


def _verdict(measure: Measure, values: pd.DataFrame, first: str,
             other: str) -> tuple[str, str]:
  """A title, and a sentence on how certain it is."""
  mean, low, high = _gain(measure, values, first, other)
  if math.isnan(mean):
    return (f'{first} and {other} have no {measure.name} to compare',
            'All scores of one of them, or all runtimes, are equal.')
  if mean < 0:
    first, other, mean, low, high = other, first, -mean, -high, -low
  first, other = (f'the {name}' if name == DEFAULT else name
                  for name in (first, other))
  mean, *ends = (page.number(value, measure.digits)
                 for value in (mean, low, high))
  ahead = f'{mean} {measure.unit} than {other}'
  interval = f'95 % interval of the difference: {" to ".join(ends)}.'
  if low > 0:
    title = f'{first} wins: {ahead}'
  else:  # Or NaN.
    title = f'no clear winner: {first} has {ahead}'
    interval += (' There are too few problems for one.' if math.isnan(low)
                 else ' It includes 0, so this may be chance.')
  return title[0].upper() + title[1:], interval


def _gain(measure: Measure, values: pd.DataFrame, first: str,
          other: str) -> tuple[float, float, float]:
  """How much better `first` is than `other`: (mean, low, high)."""
  if not measure.higher_is_better:
    first, other = other, first
  return metrics.paired_difference(values[first], values[other])


def means_table(comparison: Comparison) -> page.Table:
  """A row for everyone who chooses, the best first, with intervals."""
  values = comparison.values
  # The default tile has a slowdown alone, so it comes after the groups.
  names = dict.fromkeys(name for of in values.values() for name in of)
  runs = {name: f', {len(of)} runs' for name, of in comparison.groups.items()
          if len(of) > 1}
  return page.Table(
      'Mean [95 % interval]',
      ('who chooses', *(measure.name for measure in values)),
      [(name + runs.get(name, ''), *(
          page.interval(*_mean_interval(of[name]), measure.digits)
          if name in of else page.NOTHING
          for measure, of in values.items())) for name in names])


def _mean_interval(values: pd.Series) -> tuple[float, float, float]:
  """(mean, low, high) without NaN; NaN where unknown."""
  return (float(values.mean()), *metrics.bootstrap_interval(values))


def by(comparison: Comparison, column: str, looks: Looks) -> dict[str, Any]:
  """Means by 'program' or 'kind': figures of common ones, tables of all."""
  if column not in comparison.rows or comparison.rows[column].nunique() < 2:
    return {}
  labels, nouns = comparison.rows[column], f'{comparison.task.problem}s'
  common = labels.value_counts().sort_index().sort_values(
      ascending=False, kind='stable').index
  masks = {f'all {nouns}': labels.notna(),
           **{name: labels == name for name in common}}
  figures, tables = [], []
  for measure, values in comparison.values.items():
    parts = _parts(values, masks)
    figures.append(_figure(
        measure, column, nouns, parts[:MOST_DRAWN + 1], looks))
    tables.append(page.Table(
        f'{measure.name}, mean [95 % interval]', (column, nouns, *parts[0][2]),
        [(name, str(number), *(page.interval(*difference, measure.digits)
                               for difference in of.values()))
         for name, number, of in parts]))
  return {'figures': figures, 'tables': tables}


def _parts(values: pd.DataFrame, masks: Mapping[str, pd.Series]) -> list[tuple]:
  """(name, number of problems, who chooses -> (mean, low, high)) of parts."""
  return [(name, mask.sum(), {who: _mean_interval(values[who][mask])
                               for who in values})
          for name, mask in masks.items()]


def _figure(measure: Measure, what: str, nouns: str, parts: Sequence[tuple],
            looks: Looks) -> page.Figure:
  """A block for each part, with the means of those who have one."""
  blocks = [(f'{name} ({number})' if name else '', [
      (looks[who], *interval) for who, interval in of.items()
      if not math.isnan(interval[0])]) for name, number, of in parts]
  said = ', '.join(f'{look.name} {page.number(mean, measure.digits)}'
                   for look, mean, *_ in blocks[0][1])
  name, better = ((measure.name, 'Higher') if measure.higher_is_better
                  else (f'Slowdown, {measure.name}', 'Lower'))
  return page.Figure(
      f'{name} by {what}' if what else f'{name}, mean of all {nouns}',
      f'All {nouns}: {said}. {better} is better.',
      page.forest(blocks, measure.name, not measure.higher_is_better,
                  page.WIDTH if what else page.WIDE))


def distribution(values: pd.DataFrame, measure: Measure,
                 looks: Looks) -> page.Figure:
  """What share of the problems is within which slowdown."""
  known = {name: values[name].dropna() for name in values}

  def draw(axes):
    page.log_scale(axes, 'x', 0, np.nanmax(values))
    for name, of in known.items():
      look = looks[name]
      axes.ecdf(of.clip(lower=0), color=look.colour, ls=look.line, lw=1.6,
                marker=look.mark, ms=4.5, label=f' {name}',
                markevery=max(1, len(of) // 5))
    axes.set(xlabel='slowdown in % (log scale above 1 %)', ylim=(0, 1.02),
             ylabel='share of the kernels')
    axes.grid(True)

  return page.Figure(
      f'Distribution of the slowdown, {measure.name}',
      '; '.join(f'{name}: median {of.median():.2f} %, 90 % within '
                f'{of.quantile(0.9):.1f} %, worst {of.max():.1f} %'
                for name, of in known.items()) + '.',
      page.svg(draw, 2.5 + 0.16 * len(known)))


def differences(comparison: Comparison) -> Optional[page.Table]:
  """The best group minus each other, and each group minus the default tile."""
  values = comparison.values
  names = next(iter(values.values()))
  best, *others = (name for name in names if name in comparison.groups)
  pairs = [(best, other) for other in others]
  if DEFAULT in names:
    pairs += [(name, DEFAULT) for name in (best, *others)]
  return page.Table(
      'Difference, mean [95 % interval]', ('pair', *(
          f'{measure.name}, {"above" if measure.higher_is_better else "below"} '
          '0: the first is better' for measure in values)),
      [(f'{first} {page.MINUS} {other}', *(
          page.interval(*metrics.paired_difference(of[first], of[other]),
                        measure.digits)
          for measure, of in values.items())) for first, other in pairs]
  ) if pairs else None
