"""Sections of the page: the runs, their learning curves, what they learned."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.report import charts, page
from tpu_graphs_ext.report.measure import Measurements
from tpu_graphs_ext.report.runs import Group, Run, shown

# What a physical constant is; the unit ends its name.
_MEANINGS = {
    'launch_ns': 'time of a kernel that does nothing',
    'step_ns': 'overhead of a step for each tensor',
    'bytes_per_ns': 'from main memory to on-chip memory',
    'piece_ns': 'for each contiguous piece of a transfer',
    'matrix_row_ns': 'a row through a block of weights',
    'vector_ns': 'a vector instruction',
    'unhidden': 'part of the shorter of memory and arithmetic time that does '
                'not overlap with the longer'}


# ---------------------------------------------------------------------- runs


def runs(measurements: Measurements) -> page.Section:
  """What is compared, in every detail."""
  return page.Section('Runs', [
      page.Text('Runs that differ in their seed alone are one group: mean ± '
                'standard deviation over its seeds.'),
      groups_table(measurements),
      page.Fold('Every run', [_runs_table(measurements)]),
      page.Fold('Flags and arguments', [flags_table(measurements.groups)])])


def slowdowns_of(measurements: Measurements, group: Group,
                 k: int) -> list[Optional[float]]:
  """Mean slowdown of each run of a group; None where it is not known."""
  if measurements.kernels is None:
    return [run.final_error(k) for run in group.runs]
  return measurements.per_run(group, f'slowdown_{k}')


def groups_table(measurements: Measurements) -> page.Table:
  """A row a group: slowdowns, OPA, epochs and time."""
  rows = []
  for group in measurements.groups:
    row = [group.name, str(len(group.runs)),
           page.with_spread(*group.spread(map(best_opa, group.runs)), 3)]
    for k in metrics.TOP_KS:
      row.append(page.with_spread(*group.spread(
          None if value is None else 100 * value
          for value in slowdowns_of(measurements, group, k))))
    row.append(page.with_spread(*group.spread(
        len(run.curve.get('epoch', [])) for run in group.runs), 0))
    row.append(page.with_spread(*group.spread(map(minutes, group.runs)), 1))
    rows.append(row)
  return page.Table(
      'Groups of runs', ('group', 'runs', 'best validation OPA',
                         *(f'top-{k} %' for k in metrics.TOP_KS), 'epochs',
                         'minutes of training'), rows)


def _runs_table(measurements: Measurements) -> page.Table:
  rows = []
  for group in measurements.groups:
    slowdowns = [slowdowns_of(measurements, group, k) for k in metrics.TOP_KS]
    for number, run in enumerate(group.runs):
      best = run.best_epoch
      versions = run.info.get('versions', {})
      rows.append((
          group.name, run.name[:8],
          page.NOTHING if run.seed is None else str(run.seed),
          str(run.info['args'].get('run_id', '')) or page.NOTHING,
          str(len(run.curve.get('epoch', []))),
          page.NOTHING if best is None else str(best + 1),
          page.number(best_opa(run), 3),
          *(page.percent(of[number]) for of in slowdowns),
          *(page.percent(run.final_error(k)) for k in metrics.TOP_KS),
          shown(versions.get('tensorflow', '')) or page.NOTHING))
  ks = [f'top-{k} %' for k in metrics.TOP_KS]
  return page.Table(
      'Runs; the second three slowdowns are what the run file says',
      ('group', 'run', 'seed', 'run_id', 'epochs', 'best epoch', 'best OPA',
       *ks, *(f'{k}, run file' for k in ks), 'TensorFlow'), rows)


def flags_table(groups: Sequence[Group]) -> page.Table:
  """Every flag and argument; those that differ come first."""
  values: dict[str, list[Any]] = {}
  for number, group in enumerate(groups):
    run = group.runs[0]
    own = {'model': run.model, **run.flags, **{
        f'argument {key}': value for key, value in run.kwargs.items()}}
    for key, value in own.items():
      values.setdefault(key, [None] * len(groups))[number] = value
  rows = []
  for key, row in sorted(values.items(), key=lambda item: (
      not _differs(item[1]), item[0])):
    rows.append((key, 'differs' if _differs(row) else 'same', *(
        page.NOTHING if value is None else shown(value) for value in row)))
  return page.Table(
      'What the groups were trained with, by its names in the run files; '
      f'{page.NOTHING} is not given',
      ('name', '', *(group.name for group in groups)), rows)


def _differs(row: Sequence[Any]) -> bool:
  return len({json.dumps(value, sort_keys=True) for value in row}) > 1


def best_opa(run: Run) -> Optional[float]:
  best = run.best_epoch
  return None if best is None else run.curve['val_opa'][best]


def minutes(run: Run) -> Optional[float]:
  seconds = run.info.get('seconds', {}).get('train')
  return seconds / 60 if type(seconds) in (int, float) else None


# -------------------------------------------------------------------- curves


def learning_curves(every: Sequence[Group], of: str = 'tiles',
                    over: str = 'kernels') -> page.Section:
  """Loss and OPA by epoch: OPA of all together, losses each by itself.

  Args:
    every: the groups of runs.
    of: what the models rank.
    over: what it is of.
  """
  groups = [group for group in every if any(run.curve for run in group.runs)]
  if not groups:
    return page.Section('Learning curves', [
        page.Text('No run file has a curve.')])
  losses = [_loss_figure(every.index(group), group) for group in groups]
  return page.Section('Learning curves', [
      page.Text(
          'A thin line is a run, a thick one the mean over the seeds of a '
          f'group, as far as all of them went. OPA is the share of pairs of '
          f'{of} in the right order. Losses of different models do not '
          'compare, so each group has its own axis.'),
      page.Row([_opa_figure(every, groups, over), *losses])])


def _mean_curve(group: Group, key: str) -> np.ndarray:
  """Mean over the runs, up to the epoch that all of them reached."""
  curves = [run.curve[key] for run in group.runs if key in run.curve]
  length = min(map(len, curves), default=0)
  return np.mean([curve[:length] for curve in curves], axis=0)


def _lines(axes, group: Group, key: str, look: charts.Look, dash: Any,
           label: str) -> None:
  for run in group.runs:
    values = run.curve.get(key, [])
    if len(group.runs) > 1:
      axes.plot(range(1, len(values) + 1), values, color=look.colour, lw=0.7,
                alpha=0.5, ls=dash)
  mean = _mean_curve(group, key)
  # A line of one epoch would not be seen.
  axes.plot(range(1, len(mean) + 1), mean, color=look.colour, lw=1.8, ls=dash,
            label=label, marker=look.mark, ms=4,
            markevery=max(1, len(mean) // 6))


def _opa_figure(every: Sequence[Group], groups: Sequence[Group],
                over: str) -> page.Figure:
  def draw(figure, axes):
    for group in groups:
      look = charts.look_of(every.index(group), group.name)
      if any('val_opa' in run.curve for run in group.runs):
        _lines(axes, group, 'val_opa', look, look.dash, group.name)
    axes.set_xlabel('epoch')
    axes.set_title(f'OPA of the validation {over}')
    axes.grid(True)
    charts.legend_below(figure, axes)
    _whole_epochs(axes)

  best = ', '.join(
      f'{group.name} '
      f'{page.number(group.spread(map(best_opa, group.runs))[0], 3)}'
      for group in groups)
  return page.Figure(
      'Validation OPA by epoch', f'Best: {best}. Higher is better.',
      charts.svg(draw, height=2.5 + 0.16 * len(groups)),
      _curve_table(groups, ('train_opa', 'val_opa')))


def _loss_figure(number: int, group: Group) -> page.Figure:
  look = charts.look_of(number, group.name)

  def draw(figure, axes):
    for key, dash, label in (('train_loss', (0, (3, 2)), 'training'),
                             ('val_loss', '-', 'validation')):
      if any(key in run.curve for run in group.runs):
        _lines(axes, group, key, look, dash, label)
    axes.set_xlabel('epoch')
    axes.set_title('Loss')
    axes.grid(True)
    charts.legend_below(figure, axes)
    _whole_epochs(axes)

  mean = _mean_curve(group, 'val_loss')
  said = (f'Validation loss {mean[0]:.4g} at first, {mean[-1]:.4g} at epoch '
          f'{len(mean)}, at its least {mean.min():.4g}.'
          if mean.size else 'No validation loss.')
  return page.Figure(f'Loss of {group.name} by epoch', said, charts.svg(draw),
                     _curve_table([group], ('train_loss', 'val_loss')))


def _whole_epochs(axes) -> None:
  from matplotlib import ticker
  least, most = axes.get_xlim()
  if most - least < 2:  # One epoch alone.
    axes.set_xlim(0, 2)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=6))


def _curve_table(groups: Sequence[Group], keys: Sequence[str]) -> page.Table:
  curves = {f'{group.name} {key}': _mean_curve(group, key)
            for group in groups for key in keys}
  rows = [(str(epoch), *(page.NOTHING if value is None else f'{value:.4f}'
                         for value in values))
          for epoch, values in enumerate(
              itertools.zip_longest(*curves.values()), 1)]
  return page.Table('Means over the seeds', ('epoch', *curves), rows)


# ----------------------------------------------------------------- constants


def constants(measurements: Measurements) -> Optional[page.Section]:
  """Physical constants: where training started, and where it came to."""
  parts = []
  for number, group in enumerate(measurements.groups):
    told = [measured for measured in measurements.of_group[group.name]
            if measured.constants]
    if told:
      parts.append(page.Row(_constants(number, group, told)))
  return page.Section('Physical constants', [
      page.Text('A model with an analytic time fits these to the runtimes. A '
                'constant that hardly matters for these kernels stays near '
                'its start.'), *parts]) if parts else None


def _constants(number: int, group: Group, told: Sequence) -> list:
  look = charts.look_of(number, group.name)
  names = list(told[0].constants)
  rows, titles = [], []
  for name in names:
    start = told[0].constants[name][0]
    now = [measured.constants[name][1] for measured in told]
    mean, deviation = group.spread(now)
    ratio = None if not start else mean / start
    titles.append((name, start, now, ratio))
    rows.append((name, page.NOTHING if start is None else f'{start:.4g}',
                 f'{mean:.4g}' + ('' if deviation is None
                                  else f' ± {deviation:.2g}'),
                 page.NOTHING if ratio is None else f'{page.TIMES} {ratio:.3g}',
                 _MEANINGS.get(name, '')))
  numbers = page.Table(
      f'Physical constants of {group.name}',
      ('constant', 'at the start', 'learned', 'change', 'what it is'), rows)
  known = [row for row in titles if row[3] is not None]
  if not known:
    return [numbers]

  def draw(unused_figure, axes):
    for place, (_, start, now, _) in enumerate(known):
      for value in now:
        axes.plot([1, value / start], [place, place], color=look.colour,
                  lw=1.2, alpha=0.6)
        axes.plot(value / start, place, color=look.colour, marker=look.mark,
                  ms=5, lw=0, zorder=3, clip_on=False)
    axes.axvline(1, color=charts.SOFT, lw=1)
    _ratio_scale(axes, [value / start for _, start, now, _ in known
                        for value in now])
    axes.set_yticks(range(len(known)), [name for name, *_ in known])
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.tick_params(axis='y', length=0)
    axes.set_xlabel('learned / start (log scale)')
    axes.grid(axis='x')

  said = ', '.join(f'{name} times {ratio:.3g}' for name, _, _, ratio in known)
  return [page.Figure(
      f'Physical constants of {group.name}, learned over start', said,
      charts.svg(draw, height=0.9 + 0.22 * len(known))), numbers]


def _ratio_scale(axes, ratios: Sequence[float]) -> None:
  """A logarithmic x axis around 1 with ticks that can be read."""
  from matplotlib import ticker
  least, most = min([*ratios, 0.8]) / 1.15, max([*ratios, 1.25]) * 1.15
  axes.set_xscale('log')
  axes.set_xlim(least, most)
  wide = most / least
  steps = ((1,) if wide > 300 else (1, 3) if wide > 20
           else (1, 1.5, 2, 3, 5, 7))
  ticks = [step * 10.0 ** power for power in range(-9, 10) for step in steps
           if least <= step * 10.0 ** power <= most]
  axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
