"""From runs to a page: one HTML file that needs nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext import files
from tpu_graphs_ext.engine.evaluate import ForeignRanker
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.report import KERNELS, compare, kernels, page
from tpu_graphs_ext.report.compare import Comparison, Looks, measures_of
from tpu_graphs_ext.report.runs import Group, find, grouped, short_names, shown
from tpu_graphs_ext.tasks import ShippedTask
from tpu_graphs_ext.tasks.tile import LoadSettings

_log = logging.getLogger(__name__)


def report(paths: Sequence[str], *, out: str, data: str = '',
           num_kernels: int = KERNELS, loading: LoadSettings = LoadSettings(),
           foreign: Sequence[Callable[[Loading], ForeignRanker]] = ()) -> str:
  """Writes a page about training runs; returns its path.

  What cannot be read or measured is named in the page and in the log.

  Args:
    paths: model folders, run files, or folders of them.
    out: the file to write.
    data, loading: see `compare.measured`; its models_py may name a file for
      each of the paths.
    foreign: read scores of other models for the first run's task and
      collection.
    num_kernels: of the worst and of the best kernels of each group.

  Raises UserError if there is no run, there are runs of two tasks, the extra
  [report] is not installed, or the file cannot be written.
  """
  page.require_packages()
  path = files.Output('--out', page.START, 'report of this package').check(out)
  runs, problems = find(paths, [
      each.models_py for each in loading.for_each(len(paths))])
  groups = grouped(runs)
  rankers = [read(compare.loading_of(groups[0].runs[0], loading))
             for read in foreign]
  comparison = compare.measured(groups, data, loading, problems, rankers)
  for problem in problems:
    _log.warning('%s', problem)
  task = groups[0].runs[0].task
  looks = compare.looks_of(
      [*(group.name for group in groups), *compare.named(groups, rankers)],
      task)
  content = page.render(
      comparison=comparison and compare.section(comparison, looks),
      kernels=comparison and kernels.section(comparison, num_kernels, looks),
      noun=task.problem, choices=task.choices, problems=problems,
      by_slowdown=task.compared_by[0] == 'slowdown',
      **runs_section(groups, comparison, looks))
  files.write_file(path, content.encode())
  return path


def runs_section(groups: Sequence[Group], comparison: Optional[Comparison],
                 looks: Looks) -> dict[str, Any]:
  """Everything that the template shows of the runs."""
  task = groups[0].runs[0].task
  runs = frame_of(groups, comparison, task)
  roots = sorted({run.flags['data_root'] for group in groups
                  for run in group.runs if run.flags.get('data_root')})
  return {
      'trained': f'Runs: {len(runs)}; written: {runs["written"].min()} to '
                 f'{runs["written"].max()}; epochs: {runs["epochs"].min():.0f} '
                 f'to {runs["epochs"].max():.0f}; data: {", ".join(roots)}',
      'curves': learning_curves(groups, looks),
      'groups': groups_table(runs, task), 'runs': runs_table(runs, task),
      'flags': flags_table(groups)}


def frame_of(groups: Sequence[Group], comparison: Optional[Comparison],
             task: ShippedTask) -> pd.DataFrame:
  """A row a run: `Run.record`, and means over problems, unscaled, or NaN."""
  columns = [measure.column for measure in measures_of(task)]
  measured = {result.run.run_path: result.rows[columns].mean()
              for of in (comparison.groups.values() if comparison else ())
              for result in of if result.run}
  names = short_names([run for group in groups for run in group.runs])
  frame = pd.DataFrame([
      {'group': group.name, 'run': names[run], **run.record(task.top_ks),
       **measured.get(run.run_path, dict.fromkeys(columns, np.nan))}
      for group in groups for run in group.runs])
  numbers = frame.columns.difference(['group', 'run', 'written'])
  frame[numbers] = frame[numbers].astype(float)
  return frame


def _columns(task: ShippedTask) -> list[tuple[str, str, int, int]]:
  """Title, column, scale and digits of the numbers of runs."""
  return [('epochs', 'epochs', 1, 0), ('best epoch', 'best_epoch', 1, 0),
          ('best validation OPA', 'best_opa', 1, 3), *(
              (measure.name, measure.column, measure.scale, measure.digits)
              for measure in measures_of(task)), *(
              (f'top-{k} %, run file', f'final_{k}', 100, 2)
              for k in task.top_ks), ('minutes', 'minutes', 1, 1)]


def groups_table(runs: pd.DataFrame, task: ShippedTask) -> page.Table:
  """A row a group: mean and deviation over its seeds."""
  columns = _columns(task)
  by = runs.groupby('group', sort=False)
  of = by[[column for _, column, *_ in columns]].agg(['mean', 'std'])
  return page.Table(
      'Groups of runs', ('group', 'runs', *(name for name, *_ in columns)),
      [(group, count, *(
          page.spread(*(scale * of.loc[group, column]), digits)
          for _, column, scale, digits in columns))
       for group, count in by.size().items()])


def runs_table(runs: pd.DataFrame, task: ShippedTask) -> page.Table:
  """A row a run."""
  columns = _columns(task)
  return page.Table(
      'Runs; the last slowdowns come from the run files',
      ('group', 'run', 'seed', *(name for name, *_ in columns)),
      [(row['group'], row['run'], page.number(row['seed'], 0), *(
          page.number(scale * row[column], digits)
          for _, column, scale, digits in columns))
       for row in runs.to_dict('records')])


def flags_table(groups: Sequence[Group]) -> page.Table:
  """Every flag and argument; those that differ come first."""
  table = pd.DataFrame({group.name: {
      'model': group.runs[0].model, **{
          name: shown(value) for name, value in group.runs[0].flags.items()},
      **{f'argument {name}': shown(value)
         for name, value in group.runs[0].kwargs.items()}}
                        for group in groups}).fillna(page.NOTHING)
  differs = table.nunique(axis=1) > 1
  names, table.columns = list(table.columns), range(table.shape[1])
  table.insert(0, '', np.where(differs, 'differs', 'same'))
  table = table.rename_axis('name').sort_values(['', 'name']).reset_index()
  return page.Table(
      'What the groups were trained with, as the run files name it; '
      f'{page.NOTHING}: not given', ('name', '', *names), table.values.tolist())


def learning_curves(every: Sequence[Group], looks: Looks) -> list[page.Figure]:
  """OPA of all groups in one figure, and the losses of each."""
  groups = [group for group in every
            if any(not run.curve.empty for run in group.runs)]
  figures = [
      _curves('Validation OPA by epoch', 'OPA', looks,
              [(group, 'val_opa', '-', group.name) for group in groups]),
      *(_curves(f'Loss of {group.name} by epoch', 'loss', looks,
                [(group, 'train_loss', '--', 'training'),
                 (group, 'val_loss', '-', 'validation')]) for group in groups)]
  return [figure for figure in figures if figure]


def _curves(title: str, label: str, looks: Looks,
            lines: Sequence[tuple[Group, str, str, str]]
            ) -> Optional[page.Figure]:
  """A line for each (group, column, line style, name), thin ones for runs;
  None without a number."""
  from matplotlib import ticker
  means = []
  for group, key, style, name in lines:
    curves = [run.curve[key] for run in group.runs
              if key in run.curve and run.curve[key].notna().any()]
    if curves:  # Up to the epoch that all of these reached.
      mean = pd.concat(curves, axis=1).dropna().mean(axis=1)
      if not mean.empty:
        means.append((group, key, style, name, mean))

  def draw(axes):
    for group, key, style, name, mean in means:
      look = looks[group.name]
      for run in group.runs if len(group.runs) > 1 else ():
        if key in run.curve:
          axes.plot(run.curve[key], color=look.colour, lw=0.7, alpha=0.5,
                    ls=style)
      # Marks, as a line of a single epoch would not be seen.
      axes.plot(mean, color=look.colour, lw=1.8, ls=style, label=f' {name}',
                marker=look.mark, ms=4, markevery=max(1, len(mean) // 6))
    axes.set(xlabel='epoch', ylabel=label)
    axes.grid(True)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(
        integer=True, nbins=6, min_n_ticks=1))

  said = '; '.join(
      f'{name}: {mean.iloc[0]:.4g} at first, {mean.iloc[-1]:.4g} at epoch '
      f'{mean.index[-1]}, {mean.max() if label == "OPA" else mean.min():.4g} '
      'at best' for *_, name, mean in means)
  return page.Figure(title, said, page.svg(
      draw, 2.5 + 0.16 * len(lines))) if means else None
