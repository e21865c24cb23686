"""The runs, their learning curves, and the physical constants they learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.report import charts, page
from tpu_graphs_ext.report.compare import Looks
from tpu_graphs_ext.report.measure import Comparison, measures_of
from tpu_graphs_ext.report.runs import Group, shown

# What a physical constant is; the unit ends its name.
_MEANINGS = {
    'launch_ns': 'time of a kernel that does nothing',
    'step_ns': 'overhead of a step for each tensor',
    'bytes_per_ns': 'from main memory to on-chip memory',
    'piece_ns': 'for each contiguous piece of a transfer',
    'matrix_row_ns': 'a row through a block of weights',
    'vector_ns': 'a vector instruction',
    'unhidden': 'fraction of the shorter of memory and arithmetic time that '
                'does not overlap with the longer'}


# ---------------------------------------------------------------------- runs


def frame_of(groups: Sequence[Group],
             comparisons: Sequence[Comparison]) -> pd.DataFrame:
  """A row a run: its group and name, what `Run.record` and measuring say.

  Measures are means over problems, unscaled; NaN if the run was not measured.
  Slowdowns are those of the run files if none was.
  """
  task = tasks.find(groups[0].runs[0].task)
  measured = {one.run.run_path: (comparison.source, one.rows)
              for comparison in comparisons
              for of in comparison.groups.values() for one in of}
  rows = []
  for group in groups:
    for run in group.runs:
      source, own = measured.get(run.run_path, ('', {}))
      rows.append({
          'group': group.name, 'run': run.name[:8], 'source': source,
          **run.record(task.top_ks), **{
              measure.column: own[measure.column].mean() if source else np.nan
              for measure in measures_of(task)}})
  frame = pd.DataFrame(rows)
  numbers = [name for name in frame if name not in (
      'group', 'run', 'source', 'run_id', 'tensorflow', 'written')]
  frame[numbers] = frame[numbers].astype(float)
  for k in () if comparisons else task.top_ks:
    frame[f'slowdown_{k}'] = frame[f'final_{k}']
  return frame


def trained(runs: pd.DataFrame, groups: Sequence[Group]) -> str:
  """How many runs, when, and on which data."""
  days, epochs = sorted(runs['written']), sorted(runs['epochs'].astype(int))
  roots = sorted({run.flags['data_root'] for group in groups
                  for run in group.runs if run.flags.get('data_root')})
  when = days[0]
  if days[-1] != when:
    when += ' to ' + days[-1].replace(f'{when[:10]} ', '')
  return (f'{len(runs)} run{"s" * (len(runs) > 1)}, written {when}, '
          f'{" to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))} '
          f'epochs' + f', on {", ".join(roots)}' * bool(roots))


def groups_table(runs: pd.DataFrame, task: tasks.Task) -> page.Table:
  """A row a group: mean and deviation over its seeds."""
  columns = [('best validation OPA', 'best_opa', 1, 3), *(
      (measure.name, measure.column, measure.scale, measure.digits)
      for measure in measures_of(task)),
             ('epochs', 'epochs', 1, 0), ('minutes', 'minutes', 1, 1)]
  by = runs.groupby('group', sort=False)
  of = by[[column for _, column, *_ in columns]].agg(['mean', 'std'])
  return page.table(
      'Groups of runs', ('group', 'runs', *(name for name, *_ in columns)),
      ((group, count, *(
          page.spread(*(scale * of.loc[group, column]), digits)
          for _, column, scale, digits in columns))
       for group, count in by.size().items()))


def runs_table(runs: pd.DataFrame, task: tasks.Task) -> page.Table:
  """A row a run."""
  ks = task.top_ks

  def whole(value: float) -> str:
    return page.number(value, 0)

  columns = [('group', 'group', str), ('run', 'run', str),
             ('seed', 'seed', whole), ('run_id', 'run_id', str),
             ('epochs', 'epochs', whole), ('best epoch', 'best_epoch', whole),
             ('best OPA', 'best_opa', lambda value: page.number(value, 3)), *(
                 (measure.name, measure.column,
                  lambda value, of=measure: page.number(
                      of.scale * value, of.digits))
                 for measure in measures_of(task)), *(
                 (f'top-{k} %, run file', f'final_{k}',
                  lambda value: page.number(100 * value)) for k in ks),
             ('TensorFlow', 'tensorflow', str)]
  return page.table(
      'Runs; the last slowdowns are those of the run file',
      (name for name, *_ in columns),
      ([text(row[column]) or page.NOTHING for _, column, text in columns]
       for row in runs.to_dict('records')))


def flags_table(groups: Sequence[Group]) -> page.Table:
  """Every flag and argument; those that differ come first."""
  runs = [group.runs[0] for group in groups]
  given = [{'model': run.model, **run.flags, **{
      f'argument {key}': value for key, value in run.kwargs.items()}}
           for run in runs]

  def differs(key: str) -> bool:
    return len({json.dumps(of.get(key), sort_keys=True) for of in given}) > 1

  names = sorted({key for of in given for key in of},
                 key=lambda key: (not differs(key), key))
  return page.table(
      'What the groups were trained with, as the run files name it; '
      f'{page.NOTHING}: not given',
      ('name', '', *(group.name for group in groups)),
      ((key, 'differs' if differs(key) else 'same', *(
          page.NOTHING if of.get(key) is None else shown(of[key])
          for of in given)) for key in names))


# -------------------------------------------------------------------- curves


def learning_curves(every: Sequence[Group], looks: Looks) -> list[page.Figure]:
  """OPA of all groups in one figure, and the losses of each."""
  groups = [group for group in every
            if any(not run.curve.empty for run in group.runs)]
  if not groups:
    return []
  opa = [(group, 'val_opa', looks[group.name].dash, group.name)
         for group in groups]
  best = ', '.join(
      f'{group.name} {page.number(np.mean(values) if values else None, 3)}'
      for group in groups for values in [[
          run.curve['val_opa'].max() for run in group.runs
          if 'val_opa' in run.curve]])
  return [
      _curve_figure('Validation OPA by epoch',
                    f'Best: {best}. Higher is better.', 'OPA', opa,
                    ('train_opa', 'val_opa'), looks),
      *(_curve_figure(
          f'Loss of {group.name} by epoch', _loss_in_words(group), 'loss',
          [(group, 'train_loss', (0, (3, 2)), 'training'),
           (group, 'val_loss', '-', 'validation')],
          ('train_loss', 'val_loss'), looks) for group in groups)]


def _mean_curve(group: Group, key: str) -> pd.Series:
  """Mean over the runs, up to the epoch that all of them reached."""
  curves = [run.curve[key] for run in group.runs if key in run.curve]
  return (pd.concat(curves, axis=1).dropna().mean(axis=1) if curves
          else pd.Series(dtype=float))


def _loss_in_words(group: Group) -> str:
  loss = _mean_curve(group, 'val_loss')
  return (f'Validation loss {loss.iloc[0]:.4g} at first, {loss.iloc[-1]:.4g} '
          f'at epoch {len(loss)}, {loss.min():.4g} at its lowest.'
          if len(loss) else 'No validation loss.')


def _curve_figure(title: str, said: str, label: str, lines: Sequence[tuple],
                  keys: Sequence[str], looks: Looks) -> page.Figure:
  """A line for each (group, column, dash, label), thin ones for its runs."""
  from matplotlib import ticker

  def draw(figure, axes):
    for group, key, dash, name in lines:
      look, mean = looks[group.name], _mean_curve(group, key)
      if not len(mean):
        continue
      for run in group.runs if len(group.runs) > 1 else ():
        if key in run.curve:
          axes.plot(run.curve[key], color=look.colour, lw=0.7, alpha=0.5,
                    ls=dash)
      # Marks, as a line of a single epoch would not be seen.
      axes.plot(mean, color=look.colour, lw=1.8, ls=dash, label=name,
                marker=look.mark, ms=4, markevery=max(1, len(mean) // 6))
    axes.set(xlabel='epoch', ylabel=label)
    axes.grid(True)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(
        integer=True, nbins=6, min_n_ticks=1))
    charts.legend_below(figure, axes)

  groups = list({group.name: group for group, *_ in lines}.values())
  table = pd.DataFrame({f'{group.name} {key}': _mean_curve(group, key)
                        for group in groups for key in keys})
  return page.Figure(
      title, said, charts.svg(draw, height=2.5 + 0.16 * len(groups)),
      page.table('Means over the seeds', ('epoch', *table), (
          (epoch, *(page.number(value, 4) for value in row))
          for epoch, *row in table.itertuples())))


# ----------------------------------------------------------------- constants


def constants(comparisons: Sequence[Comparison]) -> list[page.Table]:
  """Physical constants of each group that has some: before and after."""
  return [_constants(name, [one.constants for one in of if one.constants])
          for comparison in comparisons
          for name, of in comparison.groups.items()
          if any(one.constants for one in of)]


def _constants(group: str, runs: Sequence[Mapping[str, tuple]]) -> page.Table:
  frame = pd.DataFrame([
      {'name': name, 'before': before, 'now': now}
      for run in runs for name, (before, now) in run.items()])
  of = frame.groupby('name', sort=False).agg(
      before=('before', 'first'), mean=('now', 'mean'), std=('now', 'std'))

  def cells(row: Any) -> tuple[str, ...]:
    learned = f'{row.mean:.4g}'
    if row.std == row.std:
      learned += f' ± {row.std:.2g}'
    if not row.before or row.before != row.before:
      return page.NOTHING, learned, page.NOTHING
    return (f'{row.before:.4g}', learned,
            f'{page.TIMES} {row.mean / row.before:.3g}')

  return page.table(
      f'Physical constants of {group}',
      ('constant', 'before training', 'learned', 'change', 'meaning'),
      ((row.Index, *cells(row), _MEANINGS.get(row.Index, ''))
       for row in of.itertuples()))


def section(groups: Sequence[Group], comparisons: Sequence[Comparison],
            looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of the runs."""
  task = tasks.find(groups[0].runs[0].task)
  runs = frame_of(groups, comparisons)
  return {'trained': trained(runs, groups),
          'curves': learning_curves(groups, looks),
          'constants': constants(comparisons),
          'by_run_files': by_run_files(runs, task.top_ks[0]),
          'groups': groups_table(runs, task),
          'runs': runs_table(runs, task), 'flags': flags_table(groups)}


def by_run_files(runs: pd.DataFrame, k: int) -> str:
  """A title, if no problem could be measured."""
  means = runs.groupby('group', sort=False)[f'final_{k}'].mean().dropna()
  return (f'According to its run file {means.idxmin()} leads: '
          f'{page.number(100 * means.min())} % slowdown at top-{k}'
          if len(means) else 'Nothing could be measured')
