"""Sections of the page: slowdowns by program, over kernels, between runs."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from tpu_graphs_ext.data import kinds
from tpu_graphs_ext.host import metrics, statistics
from tpu_graphs_ext.report import charts, html
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


class _Choice:
  """Who chooses tiles: a group of runs, the compiler, or chance.

  Attributes:
    name: in tables.
    look: in figures.
    slowdowns: k -> float64 [kernels], in %.
  """

  def __init__(self, name: str, look: Look, value: Callable):
    self.name, self.look = name, look
    self.slowdowns = {k: 100 * value(k) for k in metrics.TOP_KS}


def _choices(measurements: Measurements) -> list[_Choice]:
  """All groups, then the default tile, then a random one."""
  def of_group(group: Group) -> Callable:
    return lambda k: measurements.per_kernel(group, f'slowdown_{k}')

  choices = [
      _Choice(group.name, charts.look_of(
          measurements.groups.index(group), group.letter), of_group(group))
      for group in measurements.measured_groups]
  rows = _any_rows(measurements)
  return choices + [
      _Choice('default tile', charts.DEFAULT,
              lambda unused_k: rows['default'].to_numpy()),
      _Choice('random tiles', charts.RANDOM,
              lambda k: rows[f'random_{k}'].to_numpy())]


def _any_rows(measurements: Measurements) -> pandas.DataFrame:
  """What no model changes is read off the first run."""
  group = measurements.measured_groups[0]
  return measurements.of_group[group.letter][0].rows


# ---------------------------------------------------------------- by program


def by_program(measurements: Measurements) -> str:
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
  return html.section('Slowdown by program', html.paragraph(
      'Marks are means over kernels, each kernel\'s mean over seeds; lines '
      'are 95 % bootstrap intervals of kernels drawn like these, too narrow '
      'where kernels are few and missing where there is one alone. def. is '
      'the compiler\'s default tile, the same for any k; rnd. what is to be '
      'expected of k tiles drawn blindly.' + note) + _ranges(
          measurements, 'program', parts if len(common) > 1 else [],
          [(name, program_of == name) for name in common]))


def by_kind(measurements: Measurements) -> str:
  """The same by the kind of work that a kernel does; '' if it is one."""
  kind_of = _any_rows(measurements)['kind'].to_numpy(str)
  parts = [(kind, kind_of == kind) for kind in kinds.KINDS
           if (kind_of == kind).any()]
  if len(parts) < 2:
    return ''
  return html.section('Slowdown by kind of kernel', html.paragraph(
      'As above, by what most of the work of a kernel is.') + _ranges(
          measurements, 'kind', parts, parts))


def _ranges(measurements: Measurements, what: str, drawn: Sequence[_Part],
            every: Sequence[_Part]) -> str:
  """Figures of some parts of the kernels, and tables of every part."""
  choices = _choices(measurements)
  whole = np.ones(len(_any_rows(measurements)), bool)
  return (html.paragraph(_key(measurements)) + html.figures(
      _range_figure(k, what, choices, [('All kernels', whole), *drawn])
      for k in metrics.TOP_KS) + html.details('Numbers', ''.join(
          html.table(_range_table(
              k, what, choices, [('all kernels', whole), *every]))
          for k in metrics.TOP_KS)))


def _key(measurements: Measurements) -> str:
  return '; '.join(
      group.name for group in measurements.measured_groups) + '.'


def _mean_and_interval(values: np.ndarray) -> tuple[
    Optional[float], Optional[float], Optional[float]]:
  values = values[~np.isnan(values)]
  if not values.size:
    return None, None, None
  low, high = statistics.bootstrap_interval(values)
  return float(values.mean()), *(
      (None, None) if np.isnan(low) else (low, high))


def _range_figure(k: int, what: str, choices: Sequence[_Choice],
                  parts: Sequence[_Part]) -> str:
  rows = []
  for name, mask in parts:
    found = [(choice.look, *_mean_and_interval(choice.slowdowns[k][mask]))
             for choice in choices]
    rows.append((f'{name} ({mask.sum()})', [
        Range(*one) for one in found if one[1] is not None]))

  def draw(unused_figure, axes):
    axes.set_title(f'Top-{k}: slowdown in %')
    charts.percent_scale(axes, max(charts.finite(
        [bound for _, of in rows for one in of
         for bound in (one.middle, one.high)]), default=1))
    charts.draw_ranges(axes, [
        (name if len(name) < 44 else f'{name[:42]}…', of) for name, of in rows])

  overall = ', '.join(f'{one.look.letter} {one.middle:.2f} %'
                      for one in rows[0][1])
  title = f'Slowdown at top-{k} by {what}'
  return html.figure(
      charts.svg(draw, name=f'{what}-{k}', title=title,
                 description=f'All kernels: {overall}. Lower is better.',
                 height=charts.ranges_height(rows)),
      f'{title}; in brackets the number of kernels. Lower is better.')


def _range_table(k: int, what: str, choices: Sequence[_Choice],
                 parts: Sequence[_Part]) -> html.Table:
  rows = []
  for name, mask in parts:
    cells = []
    for choice in choices:
      mean, low, high = _mean_and_interval(choice.slowdowns[k][mask])
      cells.append(html.number(mean) + (
          '' if low is None else f' [{html.interval(low, high)}]'))
    rows.append((name, str(int(mask.sum())), *cells))
  return html.Table(
      f'Slowdown at top-{k} in %, mean [95 % interval]',
      (what, 'kernels', *(choice.name for choice in choices)), rows)


# -------------------------------------------------------------- over kernels


def distribution(measurements: Measurements) -> str:
  """What part of the kernels is within which slowdown."""
  choices = _choices(measurements)
  return html.section('Distribution over kernels', html.paragraph(
      'A line says for what part of the kernels the best of the first k tiles '
      'is within the slowdown below it. The higher a line, the better; where '
      'two cross, one is better on most kernels and worse on its bad ones.')
      + html.paragraph(_key(measurements)) + html.figures(
          _distribution_figure(k, choices) for k in metrics.TOP_KS))


def _distribution_figure(k: int, choices: Sequence[_Choice]) -> str:
  values = [(choice, np.sort(choice.slowdowns[k][~np.isnan(
      choice.slowdowns[k])])) for choice in choices]
  values = [(choice, of) for choice, of in values if of.size]
  most = max(float(of[-1]) for _, of in values)

  def draw(figure, axes):
    charts.percent_scale(axes, most)
    for choice, of in values:
      share = np.arange(1, of.size + 1) / of.size
      axes.plot(np.concatenate([[0], np.maximum(of, 0), [most * 1.15]]),
                np.concatenate([[0], share, [1]]), drawstyle='steps-post',
                color=choice.look.colour, ls=choice.look.dash, lw=1.6,
                marker=choice.look.mark, ms=4.5, label=choice.look.letter,
                markevery=max(1, of.size // 5))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel('slowdown in %')
    axes.set_title(f'Top-{k}: part of the kernels within')
    axes.grid(True)
    charts.legend_below(figure, axes)

  quantiles = (0.5, 0.75, 0.9, 0.95, 1.0)
  rows = [(choice.name, html.percent(float(np.mean(of <= 1e-9)), 1),
           html.percent(float(np.mean(of <= 5)), 1),
           *(html.number(float(np.quantile(of, q))) for q in quantiles))
          for choice, of in values]
  said = '; '.join(f'{choice.look.letter} median {np.median(of):.2f} %, worst '
                   f'{of[-1]:.1f} %' for choice, of in values)
  title = f'Distribution of the slowdown at top-{k}'
  return html.figure(
      charts.svg(draw, name=f'distribution-{k}', title=title,
                 description=said + '.'), f'{title}.',
      html.Table(title, ('', 'at the best, % of kernels',
                         'within 5 %, % of kernels', 'median',
                         *(f'{100 * q:.0f} % of kernels within'
                           for q in quantiles[1:-1]), 'worst'), rows))


# -------------------------------------------------------------- between runs


def differences(measurements: Measurements) -> str:
  """Between groups, and between each group and the default tile."""
  choices = _choices(measurements)
  groups, default = choices[:-2], choices[-2]
  best = min(groups, key=lambda choice: np.mean(choice.slowdowns[1]))
  pairs = (list(itertools.combinations(groups, 2))
           if len(groups) <= _MOST_PAIRED
           else [(best, other) for other in groups if other is not best])
  pairs += [(choice, default) for choice in groups]
  figures, rows = [], {pair: [] for pair in pairs}
  for k in metrics.TOP_KS:
    found = [(pair, statistics.paired_difference(
        pair[0].slowdowns[k], pair[1].slowdowns[k])) for pair in pairs]
    for pair, (mean, low, high) in found:
      rows[pair].append(f'{html.number(mean)} [{html.interval(low, high)}]')
    figures.append(_difference_figure(k, found))
  table = html.Table(
      'Difference of slowdowns in percentage points, mean [95 % interval]',
      ('pair', *(f'top-{k}' for k in metrics.TOP_KS)),
      [(f'{one.name} {html.MINUS} {other.name}', *cells)
       for (one, other), cells in rows.items()])
  return html.section('Differences between runs', html.paragraph(
      'The first minus the second, kernel by kernel, so that the differences '
      'between kernels are not in it: left of 0 the first is better. An '
      'interval that holds 0 says that these kernels do not tell the two '
      'apart. Intervals are over kernels; what another seed would change is '
      'in the spread of the groups above.')
      + html.paragraph(_key(measurements)) + html.figures(figures)
      + html.table(table))


def _difference_figure(k: int, found: Sequence) -> str:
  known = [(pair, of) for pair, of in found if not np.isnan(of[0])]
  rows = []
  for (one, other), (mean, low, high) in known:
    look = one.look._replace(
        letter=f'{one.look.letter} {html.MINUS} {other.look.letter}')
    rows.append(Range(look, mean, *(
        (None, None) if np.isnan(low) else (low, high))))

  def draw(unused_figure, axes):
    axes.set_title(f'Top-{k}: percentage points')
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
    axes.set_xticks(ticks, [f'{tick:,}'.replace('-', html.MINUS)
                           for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=charts.SOFT, lw=1)
    axes.grid(axis='x')
    charts.draw_ranges(axes, [('', rows)])

  said = ', '.join(f'{row.look.letter} {row.middle:+.2f}' for row in rows)
  title = f'Paired differences at top-{k}'
  return html.figure(
      charts.svg(draw, name=f'differences-{k}', title=title,
                 description=said + ' percentage points.',
                 height=charts.ranges_height([('', rows)])),
      f'{title}; left of 0 the first is better.')
