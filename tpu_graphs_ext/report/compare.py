"""Which run is better: the first screen, by program, over kernels, in pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tpu_graphs_ext.data import kernel_kinds
from tpu_graphs_ext.report import charts, page
from tpu_graphs_ext.report.charts import Bar, Look
from tpu_graphs_ext.report.measure import (
  DEFAULT,
  RANDOM,
  Comparison,
  Measure,
  difference,
  gain,
  mean_interval,
  measures_of,
)

if TYPE_CHECKING:
  import pandas

# Programs that are drawn; the others are one row, and all are in the table.
MOST_PROGRAMS = 8
# With more groups, all are compared with the best one instead of in pairs.
_MOST_PAIRED = 4
_FEWEST = 10  # Problems that a distribution is drawn of.

Looks = Mapping[str, Look]
# Name of a part of the problems -> which ones: bool [problems].
_Parts = Mapping[str, np.ndarray]


def looks_of(names: Sequence[str]) -> dict[str, Look]:
  """How groups of those names are drawn, and who else chooses."""
  return {**{name: charts.look_of(number, name)
             for number, name in enumerate(names)},
          DEFAULT: Look(DEFAULT, mark='|', dash=(0, (1, 1))),
          **{name: Look(name) for name in RANDOM.values()}}


def section(comparison: Comparison, looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of a comparison."""
  rows, task = comparison.rows, comparison.task
  title, certainty = headline(comparison)
  programs = rows['program'].nunique()
  data = f'{len(rows)} labelled {task.problem}s'
  if task.name == 'tile':
    data += f' of {programs} program{"s" * (programs != 1)}'
  return {
      'task': task.name, 'problem': task.problem, 'title': title,
      'certainty': certainty, 'data': f'{data}: {comparison.source}',
      'means': means_table(comparison),
      'overall': _part_figure(comparison, measures_of(task)[0], '', looks,
                              {'': np.ones(len(rows), bool)}),
      'programs': by_program(comparison, looks),
      'kinds': by_kind(comparison, looks),
      'distributions': distributions(comparison, looks),
      'differences': differences(comparison)}


# -------------------------------------------------------------- first screen


def best_first(comparison: Comparison) -> list[str]:
  """Names of the groups by the mean of the first measure."""
  measure = measures_of(comparison.task)[0]
  means = comparison.values(measure)[list(comparison.groups)].mean()
  return list(means.sort_values(
      ascending=not measure.higher_is_better, kind='stable').index)


def headline(comparison: Comparison) -> tuple[str, str]:
  """A title that names the winner, and sentences on how certain that is.

  The best group is compared with the next one, and with the default tile,
  which is in the title if it is ahead.
  """
  measure = measures_of(comparison.task)[0]
  values = comparison.values(measure)
  best, *others = best_first(comparison)
  baseline = next((name for name in (DEFAULT, *RANDOM.values())
                   if name in values), None)
  if not others and not baseline:
    mean = page.number(values[best].mean(), measure.digits)
    return (f'{best}: {measure.name} {mean}',
            'There is nothing to compare it with.')
  title, certainty = _verdict(measure, values, best, [*others, baseline][0])
  if others and baseline == DEFAULT:
    ahead = gain(measure, values, DEFAULT, best)
    if ahead[0] > 0:
      title += (f'. The default tile is {page.number(ahead[0])} points ahead '
                f'of {"both" if len(others) == 1 else "all"}')
    certainty += (f' {best} minus the default tile: {page.interval(*ahead)} '
                  'points.')
  runs = [len(of) for of in comparison.groups.values()]
  if min(runs) == 1:
    who = 'One run each' if max(runs) == 1 else 'Some have one run'
    certainty += f' {who}: another seed may change this.'
  return title, certainty


def _verdict(measure: Measure, values: pandas.DataFrame, one: str,
             other: str) -> tuple[str, str]:
  """A title, and a sentence on how certain it is."""
  mean, low, high = gain(measure, values, one, other)
  if mean < 0:
    one, other, mean, low, high = other, one, -mean, -high, -low
  digits = measure.digits
  ahead = f'{page.number(mean, digits)} {measure.unit} than {_the(other)}'
  if math.isnan(low):
    return (f'{_capital(_the(one))} leads: {ahead}',
            'Unknown: there are too few problems for an interval.')
  interval = (f'95 % interval of the difference: {page.number(low, digits)} '
              f'to {page.number(high, digits)}')
  if low > 0:
    return f'{_capital(_the(one))} wins: {ahead}', f'{interval}.'
  return (f'No clear winner: {_the(one)} has {ahead}',
          f'{interval}. It includes 0, so this may be chance.')


def _the(name: str) -> str:
  return f'the {name}' if name == DEFAULT else name


def _capital(name: str) -> str:
  return f'The {name[4:]}' if name.startswith('the ') else name


def means_table(comparison: Comparison) -> page.Table:
  """A row for everyone who chooses, the best first, with intervals."""
  measures = measures_of(comparison.task)
  values = {measure: comparison.values(measure) for measure in measures}
  names = [*best_first(comparison), *(
      name for name in values[measures[-1]] if name not in comparison.groups)]
  return page.table(
      'Mean [95 % interval]',
      ('who chooses', *(measure.name for measure in measures)),
      ((_with_runs(name, len(comparison.groups.get(name, ()))), *(
          page.interval(*mean_interval(of[name]), measure.digits)
          if name in of else page.NOTHING for measure, of in values.items()))
       for name in names))


def _with_runs(name: str, runs: int) -> str:
  return f'{name}, {runs} runs' if runs > 1 else name


# ------------------------------------------------------------------- by part


def by_program(comparison: Comparison, looks: Looks) -> dict[str, Any]:
  """Figures of the programs with the most problems, tables of all."""
  programs = comparison.rows['program']
  common = programs.value_counts().sort_index().sort_values(
      ascending=False, kind='stable').index
  parts = {name: (programs == name).to_numpy() for name in common}
  drawn = parts
  if len(common) > MOST_PROGRAMS + 1:
    drawn = {name: parts[name] for name in common[:MOST_PROGRAMS]}
    drawn['the other programs'] = ~np.any([*drawn.values()], axis=0)
  found = _parts(comparison, 'program', drawn if len(parts) > 1 else {}, parts,
                 looks)
  if comparison.task.name == 'layout':
    columns = ['nodes', 'configurable', 'configs', 'runtimes']
    found['tables'].append(page.table(
        'The programs', ('program', *columns),
        ((row['program'], *(page.count(row[name]) for name in columns))
         for row in comparison.rows.to_dict('records'))))
  return {**found, 'number': len(common), 'drawn': min(
      len(common), MOST_PROGRAMS) if drawn is not parts else len(common)}


def by_kind(comparison: Comparison, looks: Looks) -> dict[str, Any]:
  """The same by kind of kernel; empty if there is only one."""
  if 'kind' not in comparison.rows:
    return {}
  kinds = comparison.rows['kind'].to_numpy()
  parts = {kind: kinds == kind for kind in kernel_kinds.KINDS
           if (kinds == kind).any()}
  return ({} if len(parts) < 2
          else _parts(comparison, 'kind', parts, parts, looks))


def _parts(comparison: Comparison, what: str, drawn: _Parts, every: _Parts,
           looks: Looks) -> dict[str, Any]:
  """Figures of some parts of the problems, and tables of every part."""
  whole = {f'all {comparison.task.problem}s': np.ones(
      len(comparison.rows), bool)}
  measures = measures_of(comparison.task)
  return {'figures': [_part_figure(comparison, measure, what, looks,
                                   {**whole, **drawn}) for measure in measures],
          'tables': [_part_table(comparison, measure, what, {**whole, **every})
                     for measure in measures]}


def _part_figure(comparison: Comparison, measure: Measure, what: str,
                 looks: Looks, parts: _Parts) -> page.Figure:
  """A block for each part of the problems, a bar for everyone who chooses."""
  values = comparison.values(measure)
  values = values[[*best_first(comparison), *(
      name for name in values if name not in comparison.groups)]]
  blocks = [(f'{name} ({mask.sum()})' if name else '', [
      Bar(looks[column], *found) for column in values
      for found in [mean_interval(values[column][mask])]
      if not math.isnan(found[0])]) for name, mask in parts.items()]
  is_slowdown = not measure.higher_is_better
  said = ', '.join(f'{bar.look.name} {page.number(bar.mean, measure.digits)}'
                   + ' %' * is_slowdown for bar in blocks[0][1])
  name = f'Slowdown at {measure.short}' if is_slowdown else measure.name
  return page.Figure(
      f'{name} by {what}' if what else f'{name}, mean of all '
      f'{comparison.task.problem}s',
      f'All {comparison.task.problem}s: {said}. '
      f'{"Lower" if is_slowdown else "Higher"} is better.',
      charts.forest(blocks, 'slowdown in % (log scale above 1 %)'
                    if is_slowdown else measure.name, is_slowdown))


def _part_table(comparison: Comparison, measure: Measure, what: str,
                parts: _Parts) -> page.Table:
  values = comparison.values(measure)
  return page.table(
      f'{measure.name}, mean [95 % interval]',
      (what, f'{comparison.task.problem}s', *values),
      ((name, str(mask.sum()), *(
          page.interval(*mean_interval(values[column][mask]), measure.digits)
          for column in values)) for name, mask in parts.items()))


# ------------------------------------------------------------ over problems


def distributions(comparison: Comparison, looks: Looks) -> list[page.Figure]:
  """What share of the problems is within which slowdown."""
  if len(comparison.rows) < _FEWEST:
    return []
  return [_distribution(comparison.values(measure), measure, looks)
          for measure in measures_of(comparison.task)
          if not measure.higher_is_better]


def _distribution(values: pandas.DataFrame, measure: Measure,
                  looks: Looks) -> page.Figure:
  def draw(figure, axes):
    charts.log_scale(axes, 'x', 0, np.nanmax(values))
    for name in values:
      look, known = looks[name], values[name].dropna().clip(lower=0)
      axes.ecdf(known, color=look.colour, ls=look.dash, lw=1.6,
                marker=look.mark, ms=4.5, label=name,
                markevery=max(1, len(known) // 5))
    axes.set(xlabel='slowdown in % (log scale above 1 %)', ylim=(0, 1.02),
             ylabel='share of the kernels')
    axes.grid(True)
    charts.legend_below(figure, axes)

  title = f'Distribution of the slowdown at {measure.short}'
  known = {name: values[name].dropna() for name in values}
  return page.Figure(
      title, '; '.join(f'{name}: median {of.median():.2f} %, worst '
                       f'{of.max():.1f} %' for name, of in known.items()) + '.',
      charts.svg(draw, height=3.1), page.table(title, (
          'who chooses', 'at the best, % of kernels',
          'within 5 %, % of kernels', 'median', '75 % of kernels within',
          '90 % of kernels within', '95 % of kernels within', 'worst'),
          ((name, *(page.number(100 * (of <= most).mean(), 1)
                    for most in (1e-7, 5)),
            *map(page.number, of.quantile([0.5, 0.75, 0.9, 0.95, 1])))
           for name, of in known.items())))


# -------------------------------------------------------------- between runs


def differences(comparison: Comparison) -> Optional[page.Table]:
  """Between groups, and between each group and the default tile."""
  measures = measures_of(comparison.task)
  values = {measure: comparison.values(measure) for measure in measures}
  groups = best_first(comparison)
  pairs = (list(itertools.combinations(comparison.groups, 2))
           if len(groups) <= _MOST_PAIRED
           else [(groups[0], other) for other in groups[1:]])
  if DEFAULT in values[measures[0]]:
    pairs += [(name, DEFAULT) for name in comparison.groups]
  return page.table(
      'Difference, mean [95 % interval]', ('pair', *(
          f'{measure.name}, {"above" if measure.higher_is_better else "below"} '
          '0: the first is better' for measure in measures)),
      ((f'{one} {page.MINUS} {other}', *(
          page.interval(*difference(of, one, other), measure.digits)
          for measure, of in values.items())) for one, other in pairs)
  ) if pairs else None
