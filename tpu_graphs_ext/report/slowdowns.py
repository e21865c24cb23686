"""Sections of the page: slowdowns by program, over kernels, between runs."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from tpu_graphs_ext.data import kernel_kinds
from tpu_graphs_ext.engine import metrics, statistics
from tpu_graphs_ext.report import charts, page
from tpu_graphs_ext.report.charts import Look, Range
from tpu_graphs_ext.report.measure import Measurements
from tpu_graphs_ext.report.runs import Group

if TYPE_CHECKING:
  import pandas

# Programs that are drawn; the rest are one row, and all are in the table.
MOST_PROGRAMS = 8
# Groups up to which all pairs of them are compared, else all with the best.
_MOST_PAIRED = 4
_REST = 'the other programs'

# Its name, and which kernels it has: bool [kernels].
_Part = tuple[str, np.ndarray]


class Choice:
  """Who chooses tiles: a group of runs, the compiler, or chance.

  Attributes:
    name, look: in tables and in figures.
    slowdowns: k -> float64 [kernels], in %.
    rows: of the kernels, what no model changes.
  """

  def __init__(self, look: Look, value: Callable, rows: pandas.DataFrame):
    self.name, self.look, self.rows = look.name, look, rows
    self.slowdowns = {k: 100 * value(k) for k in metrics.TOP_KS}

  def mean(self, k: int) -> float:
    """Over the kernels where it is known; NaN if there is none."""
    values = self.slowdowns[k][~np.isnan(self.slowdowns[k])]
    return float(values.mean()) if values.size else math.nan


def choices(measurements: Measurements) -> list[Choice]:
  """All groups, then the default tile, then a random one."""
  def of_group(group: Group) -> Callable:
    return lambda k: measurements.per_kernel(group, f'slowdown_{k}')

  rows = _any_rows(measurements)
  return [*(Choice(charts.look_of(measurements.groups.index(group),
                                  group.name), of_group(group), rows)
            for group in measurements.measured_groups),
          Choice(charts.DEFAULT, lambda unused_k: rows['default'].to_numpy(),
                 rows),
          Choice(charts.RANDOM, lambda k: rows[f'random_{k}'].to_numpy(),
                 rows)]


def _any_rows(measurements: Measurements) -> pandas.DataFrame:
  """What no model changes is read off the first run."""
  group = measurements.measured_groups[0]
  return measurements.of_group[group.name][0].rows


# ---------------------------------------------------------------- by program


def by_program(measurements: Measurements) -> page.Section:
  """Means with their intervals: of all kernels, and program by program."""
  program_of = _any_rows(measurements)['program'].to_numpy(str)
  programs = collections.Counter(program_of.tolist())
  common = [name for name, _ in sorted(
      programs.items(), key=lambda item: (-item[1], item[0]))]
  drawn = common if len(common) <= MOST_PROGRAMS + 1 else common[:MOST_PROGRAMS]
  parts = [(name, program_of == name) for name in drawn]
  note = ''
  if len(drawn) < len(common):
    parts.append((_REST, ~np.isin(program_of, drawn)))
    note = (f' Of {len(common)} programs the {MOST_PROGRAMS} with the most '
            'kernels are drawn, and the others together; the table has all.')
  return page.Section('Slowdown by program', [page.Text(
      'Marks are means over kernels, lines their 95 % intervals: too narrow '
      'where kernels are few, missing where there is a single one. The '
      'default tile is the compiler\'s, the same at any k; random tiles are '
      'what k blind draws can expect.' + note), *_ranges(
          measurements, 'program', parts if len(common) > 1 else [],
          [(name, program_of == name) for name in common])])


def by_kind(measurements: Measurements) -> Optional[page.Section]:
  """The same by the kind of work that a kernel does; None if it is one."""
  kind_of = _any_rows(measurements)['kind'].to_numpy(str)
  parts = [(kind, kind_of == kind) for kind in kernel_kinds.KINDS
           if (kind_of == kind).any()]
  if len(parts) < 2:
    return None
  return page.Section('Slowdown by kind of kernel', [
      page.Text('As above, by what most of the work of a kernel is.'),
      *_ranges(measurements, 'kind', parts, parts)])


def _ranges(measurements: Measurements, what: str, drawn: Sequence[_Part],
            every: Sequence[_Part]) -> list:
  """Figures of some parts of the kernels, and tables of every part."""
  of = choices(measurements)
  whole = np.ones(len(of[0].rows), bool)
  return [page.Row([range_figure(k, what, of, [('All kernels', whole), *drawn])
                    for k in metrics.TOP_KS]),
          page.Fold('Numbers', [
              _range_table(k, what, of, [('all kernels', whole), *every])
              for k in metrics.TOP_KS])]


def mean_and_interval(values: np.ndarray) -> tuple[
    Optional[float], Optional[float], Optional[float]]:
  """(mean, low, high); NaN is left out, None is what is not known."""
  values = values[~np.isnan(values)]
  if not values.size:
    return None, None, None
  low, high = statistics.bootstrap_interval(values)
  return float(values.mean()), *(
      (None, None) if np.isnan(low) else (low, high))


def range_figure(k: int, what: str, of: Sequence[Choice],
                 parts: Sequence[_Part]) -> page.Figure:
  """A block for each part of the kernels, a line for each choice."""
  rows = []
  for name, mask in parts:
    found = [(choice.look, *mean_and_interval(choice.slowdowns[k][mask]))
             for choice in of]
    rows.append((name and f'{name} ({mask.sum()})', [
        Range(*one) for one in found if one[1] is not None]))

  def draw(unused_figure, axes):
    charts.percent_scale(axes, max(charts.finite(
        [bound for _, of in rows for one in of
         for bound in (one.middle, one.high)]), default=1))
    charts.draw_ranges(axes, [
        (name if len(name) < 44 else f'{name[:42]}…', of) for name, of in rows])

  overall = ', '.join(f'{one.look.name} {one.middle:.2f} %'
                      for one in rows[0][1])
  return page.Figure(
      f'Slowdown at top-{k} by {what}' if what != 'all kernels'
      else f'Slowdown at top-{k}, mean of all kernels',
      f'All kernels: {overall}. Lower is better.',
      charts.svg(draw, height=charts.ranges_height(rows)))


def _range_table(k: int, what: str, of: Sequence[Choice],
                 parts: Sequence[_Part]) -> page.Table:
  rows = []
  for name, mask in parts:
    cells = [page.with_interval(*mean_and_interval(choice.slowdowns[k][mask]))
             for choice in of]
    rows.append((name, str(int(mask.sum())), *cells))
  return page.Table(
      f'Slowdown at top-{k} in %, mean [95 % interval]',
      (what, 'kernels', *(choice.name for choice in of)), rows)


# -------------------------------------------------------------- over kernels


def distribution(measurements: Measurements) -> page.Section:
  """What share of the kernels is within which slowdown."""
  of = choices(measurements)
  return page.Section('Distribution over kernels', [
      page.Text('A line says for what share of the kernels the best of the '
                'first k tiles is within the slowdown below it: the higher, '
                'the better.'),
      page.Row([_distribution_figure(k, of) for k in metrics.TOP_KS])])


def _distribution_figure(k: int, every: Sequence[Choice]) -> page.Figure:
  values = [(choice, np.sort(choice.slowdowns[k][~np.isnan(
      choice.slowdowns[k])])) for choice in every]
  values = [(choice, of) for choice, of in values if of.size]
  most = max(float(of[-1]) for _, of in values)

  def draw(figure, axes):
    charts.percent_scale(axes, most)
    for choice, of in values:
      share = np.arange(1, of.size + 1) / of.size
      axes.plot(np.concatenate([[0], np.maximum(of, 0), [most * 1.15]]),
                np.concatenate([[0], share, [1]]), drawstyle='steps-post',
                color=choice.look.colour, ls=choice.look.dash, lw=1.6,
                marker=choice.look.mark, ms=4.5, label=choice.name,
                markevery=max(1, of.size // 5))
    axes.set_ylim(0, 1.02)
    axes.set_ylabel('share of the kernels')
    axes.grid(True)
    charts.legend_below(figure, axes)

  quantiles = (0.5, 0.75, 0.9, 0.95, 1.0)
  rows = [(choice.name, page.percent(float(np.mean(of <= 1e-9)), 1),
           page.percent(float(np.mean(of <= 5)), 1),
           *(page.number(float(np.quantile(of, q))) for q in quantiles))
          for choice, of in values]
  said = '; '.join(f'{choice.name}: median {np.median(of):.2f} %, worst '
                   f'{of[-1]:.1f} %' for choice, of in values)
  title = f'Distribution of the slowdown at top-{k}'
  return page.Figure(
      title, f'{said}.', charts.svg(draw, height=3.1), page.Table(title, (
          '', 'at the best, % of kernels', 'within 5 %, % of kernels',
          'median',
          *(f'{100 * q:.0f} % of kernels within' for q in quantiles[1:-1]),
          'worst'), rows))


# -------------------------------------------------------------- between runs


def differences(measurements: Measurements) -> page.Section:
  """Between groups, and between each group and the default tile."""
  *groups, default, _ = choices(measurements)
  best = min(groups, key=lambda choice: choice.mean(1))
  pairs = (list(itertools.combinations(groups, 2))
           if len(groups) <= _MOST_PAIRED
           else [(best, other) for other in groups if other is not best])
  pairs += [(choice, default) for choice in groups]
  figures, rows = [], {pair: [] for pair in pairs}
  for k in metrics.TOP_KS:
    found = [(pair, statistics.paired_difference(
        pair[0].slowdowns[k], pair[1].slowdowns[k])) for pair in pairs]
    for pair, (mean, low, high) in found:
      rows[pair].append(page.with_interval(mean, low, high))
    figures.append(_difference_figure(k, found))
  table = page.Table(
      'Difference of slowdowns in percentage points, mean [95 % interval]',
      ('pair', *(f'top-{k}' for k in metrics.TOP_KS)),
      [(f'{one.name} {page.MINUS} {other.name}', *cells)
       for (one, other), cells in rows.items()])
  return page.Section('Differences between runs', [
      page.Text('The first minus the second, kernel by kernel, so that the '
                'differences between kernels are not in it: left of 0 the '
                'first is better. If an interval holds 0, these kernels do '
                'not tell the two apart. Intervals are over kernels; the '
                'spread of a group says what another seed would change.'),
      page.Row(figures), table])


def _difference_figure(k: int, found: Sequence) -> page.Figure:
  known = [(pair, of) for pair, of in found if not np.isnan(of[0])]
  rows = []
  for (one, other), (mean, low, high) in known:
    look = one.look._replace(name=f'{one.name} {page.MINUS} {other.name}')
    rows.append(Range(look, mean, *(
        (None, None) if np.isnan(low) else (low, high))))

  def draw(unused_figure, axes):
    axes.set_xlabel('percentage points (log scale beyond ±1)')
    axes.set_xscale('symlog', linthresh=1, linscale=0.5)
    bounds = charts.finite([bound for row in rows
                            for bound in (row.middle, row.low, row.high)])
    least, most = min([*bounds, -1.0]), max([*bounds, 1.0])
    axes.set_xlim(least * 1.3, most * 1.3)
    ticks = [sign * tick for sign in (-1, 1) for tick in (1, 3, 10, 30, 100,
                                                          300, 1000, 10000)]
    ticks = sorted(tick for tick in [0, *ticks]
                   if least * 1.3 <= tick <= most * 1.3)
    if len(ticks) > 8:  # Room for as many labels.
      ticks = [tick for tick in ticks if abs(tick) in (0, 1, 10, 100, 1000)]
    axes.set_xticks(ticks, [f'{tick:,}'.replace('-', page.MINUS)
                           for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=charts.SOFT, lw=1)
    axes.grid(axis='x')
    charts.draw_ranges(axes, [('', rows)])

  said = ', '.join(f'{row.look.name}: {row.middle:+.2f}' for row in rows)
  return page.Figure(
      f'Paired differences at top-{k}', f'{said}. Left of 0 the first is '
      'better.', charts.svg(draw, height=charts.ranges_height([('', rows)])))
