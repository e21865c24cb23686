"""The runs: what they were trained with, and their learning curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.report import charts, page
from tpu_graphs_ext.report.compare import Looks
from tpu_graphs_ext.report.measure import Comparison, measures_of
from tpu_graphs_ext.report.runs import Group, shown


def section(groups: Sequence[Group], comparison: Optional[Comparison],
            looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of the runs."""
  task = tasks.find(groups[0].runs[0].task)
  runs = frame_of(groups, comparison)
  by_files = runs.groupby('group', sort=False)[f'final_{task.top_ks[0]}']
  means = by_files.mean().dropna()
  return {
      'trained': trained(runs, groups),
      'curves': learning_curves(groups, looks),
      # A title, if no problem could be measured.
      'by_run_files': (
          f'According to its run file {means.idxmin()} leads: '
          f'{page.number(100 * means.min())} % slowdown at '
          f'top-{task.top_ks[0]}' if len(means)
          else 'Nothing could be measured'),
      'groups': groups_table(runs, task), 'runs': runs_table(runs, task),
      'flags': flags_table(groups)}


# ---------------------------------------------------------------------- runs


def frame_of(groups: Sequence[Group],
             comparison: Optional[Comparison]) -> pd.DataFrame:
  """A row a run: its group and name, what `Run.record` and measuring say.

  Measures are means over problems, unscaled; NaN if the run was not measured.
  If no run was measured, slowdowns come from the run files.
  """
  task = tasks.find(groups[0].runs[0].task)
  columns = [measure.column for measure in measures_of(task)]
  measured = {one.run.run_path: one.rows[columns].mean()
              for of in (comparison.groups.values() if comparison else ())
              for one in of}
  frame = pd.DataFrame([
      {'group': group.name, 'run': run.name[:8], **run.record(task.top_ks),
       **measured.get(run.run_path, dict.fromkeys(columns, np.nan))}
      for group in groups for run in group.runs])
  texts = ['group', 'run', 'run_id', 'tensorflow', 'written']
  numbers = frame.columns.difference(texts)
  frame[numbers] = frame[numbers].astype(float)
  for k in () if comparison else task.top_ks:
    frame[f'slowdown_{k}'] = frame[f'final_{k}']
  return frame


def trained(runs: pd.DataFrame, groups: Sequence[Group]) -> str:
  """How many runs, when, and on which data."""
  days, epochs = sorted(runs['written']), sorted(runs['epochs'].astype(int))
  roots = sorted({run.flags['data_root'] for group in groups
                  for run in group.runs if run.flags.get('data_root')})
  return (f'{len(runs)} run{"s" * (len(runs) > 1)}, written '
          f'{" to ".join(dict.fromkeys((days[0], days[-1])))}, '
          f'{" to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))} '
          f'epochs' + f', on {", ".join(roots)}' * bool(roots))


def _columns(task: tasks.Task) -> list[tuple[str, str, int, int]]:
  """Title, column, scale and digits of the numbers of runs."""
  return [('epochs', 'epochs', 1, 0), ('best epoch', 'best_epoch', 1, 0),
          ('best validation OPA', 'best_opa', 1, 3), *(
              (measure.name, measure.column, measure.scale, measure.digits)
              for measure in measures_of(task)), *(
              (f'top-{k} %, run file', f'final_{k}', 100, 2)
              for k in task.top_ks), ('minutes', 'minutes', 1, 1)]


def groups_table(runs: pd.DataFrame, task: tasks.Task) -> page.Table:
  """A row a group: mean and deviation over its seeds."""
  columns = [one for one in _columns(task)
             if not one[1].startswith(('final', 'best_epoch'))]
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
  columns = _columns(task)
  return page.table(
      'Runs; the last slowdowns come from the run files',
      ('group', 'run', 'seed', 'run_id', *(name for name, *_ in columns),
       'TensorFlow'),
      ((row['group'], row['run'], page.number(row['seed'], 0),
        row['run_id'] or page.NOTHING, *(
            page.number(scale * row[column], digits)
            for _, column, scale, digits in columns),
        row['tensorflow'] or page.NOTHING)
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
  return [
      _curves('Validation OPA by epoch', 'OPA', looks,
              [(group, 'val_opa', '-', group.name) for group in groups]),
      *(_curves(f'Loss of {group.name} by epoch', 'loss', looks,
                [(group, 'train_loss', '--', 'training'),
                 (group, 'val_loss', '-', 'validation')]) for group in groups)]


def _mean_curve(group: Group, key: str) -> pd.Series:
  """Mean over the runs, up to the epoch that all of them reached."""
  curves = [run.curve[key] for run in group.runs if key in run.curve]
  return (pd.concat(curves, axis=1).dropna().mean(axis=1) if curves
          else pd.Series(dtype=float))


def _curves(title: str, label: str, looks: Looks,
            lines: Sequence[tuple[Group, str, str, str]]) -> page.Figure:
  """A line for each (group, column, line style, name), thin ones for runs."""
  from matplotlib import ticker
  means = [(group, key, style, name, mean)
           for group, key, style, name in lines
           for mean in [_mean_curve(group, key)] if len(mean)]

  def draw(figure, axes):
    for group, key, style, name, mean in means:
      look = looks[group.name]
      for run in group.runs if len(group.runs) > 1 else ():
        if key in run.curve:
          axes.plot(run.curve[key], color=look.colour, lw=0.7, alpha=0.5,
                    ls=style)
      # Marks, as a line of a single epoch would not be seen.
      axes.plot(mean, color=look.colour, lw=1.8, ls=style, label=name,
                marker=look.mark, ms=4, markevery=max(1, len(mean) // 6))
    axes.set(xlabel='epoch', ylabel=label)
    axes.grid(True)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(
        integer=True, nbins=6, min_n_ticks=1))
    charts.legend_below(figure, axes)

  said = '; '.join(
      f'{name}: {mean.iloc[0]:.4g} at first, {mean.iloc[-1]:.4g} at epoch '
      f'{len(mean)}, {mean.max() if label == "OPA" else mean.min():.4g} at '
      'best' for *_, name, mean in means)
  return page.Figure(title, f'{said or "None is in the run files"}.',
                     charts.svg(draw, 2.5 + 0.16 * len(lines)))
