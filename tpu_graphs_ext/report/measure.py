"""What the models of the runs do on labelled problems, as pandas frames."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.engine import evaluate, scoring
from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.engine.settings import DATA_ROOT, Loading, LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report.runs import Group, Run

DEFAULT = 'default tile'
RANDOM = {'tile': 'random tiles', 'layout': 'random layouts'}


class Measure(NamedTuple):
  """A column of the rows, and how it reads: times `scale`, with `digits`."""
  column: str
  name: str
  unit: str = ''  # Of a difference.
  scale: int = 1
  digits: int = 3
  higher_is_better: bool = True


def measures_of(task: tasks.Task) -> list[Measure]:
  """Those that a report compares; the first one decides which run wins."""
  slowdowns = [Measure(f'slowdown_{k}', f'top-{k} %',
                       f'percentage points less slowdown at top-{k}', 100, 2,
                       False) for k in task.top_ks]
  return slowdowns if task.name == 'tile' else [
      Measure('kendall', 'tau', 'more tau'), Measure('opa', 'OPA', 'more OPA'),
      *slowdowns]


class Measured(NamedTuple):
  """A run, its model, and a row a problem; see `Task.row_of`."""
  run: Run
  ranker: scoring.Ranker
  rows: pd.DataFrame


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Runs on the same labelled problems, by the name of their group."""
  task: tasks.Task
  source: str
  problems: tasks.Problems
  groups: dict[str, list[Measured]] = dataclasses.field(default_factory=dict)

  @property
  def measures(self) -> list[Measure]:
    return measures_of(self.task)

  @property
  def rows(self) -> pd.DataFrame:
    """The first run's rows, for the columns that no model changes."""
    return next(iter(self.groups.values()))[0].rows

  def values(self, measure: Measure) -> pd.DataFrame:
    """[problems, who chooses]: means over the runs of a group, scaled.

    The best group comes first; after the groups come the default tile and
    random choices, for measures that they have.
    """
    found = pd.DataFrame({
        name: np.mean([run.rows[measure.column] for run in of], axis=0)
        for name, of in self.groups.items()})
    means = found.mean() * (1 if measure.higher_is_better else -1)
    found = found[means.sort_values(ascending=False, kind='stable').index]
    if measure.column.startswith('slowdown'):
      if 'default' in self.rows and self.rows['default'].notna().any():
        found[DEFAULT] = self.rows['default']
      found[RANDOM[self.task.name]] = self.rows[
          measure.column.replace('slowdown', 'random')]
    return measure.scale * found


def measure(groups: Sequence[Group], data: str, loading: LoadSettings,
            problems: list[str]) -> Optional[Comparison]:
  """Ranks the same labelled problems with every model that can be loaded.

  Args:
    groups: the runs, of one task.
    data: labelled problems: a folder of .npz files, a .npz or, for tiles, a
      .pb; empty: the valid split of `loading`'s data root, or else their own.
    problems: a message is added for everything that cannot be done.
  """
  every = [(group, run) for group in groups for run in group.runs
           if run.model_dir]
  roots = {run.settings.get('data_root') for _, run in every} - {None, ''}
  only_root = roots.pop() if len(roots) == 1 else ''
  found: Optional[Comparison] = None
  for group, run in every:
    source = run.model_dir
    try:
      task = tasks.find(run.task)
      own = _loading_of(task, run, loading, only_root)
      collection = task.collection(run.info['args'], own)
      source = data or os.path.join(own.data_root, *collection, 'valid')
      found = found or Comparison(task, source, evaluate.labelled(
          task.read(source, own), source, task))
      if source != found.source:
        raise UserError(
            f'its data is {source}, so it is not compared with runs on '
            f'{found.source}; measure all of them on one --data, or make a '
            'page for each')
      ranker = scoring.load_ranker(run.model_dir, own)
      found.groups.setdefault(group.name, []).append(Measured(
          run, ranker, evaluate.measure(
              ranker, found.problems, f'{run.model} {run.name[:8]}')))
    except UserError as error:
      text = str(error)
      problems.append(text if run.model_dir in text or text.startswith(source)
                      else f'{run.model_dir}: {text}')
  problems[:] = dict.fromkeys(problems)
  return found if found and found.groups else None


def _loading_of(task: tasks.Task, run: Run, given: LoadSettings,
                only_root: str) -> Loading:
  """How to load a run: as given, else with the folders it was trained with."""
  default = task.loading()
  chosen = {name: value for name, value in vars(given).items()
            if hasattr(default, name)}
  if given.stats not in task.loading.STATS:
    chosen['stats'] = 'train'
  if given.data_root == DATA_ROOT:
    chosen['data_root'] = (run.settings.get('data_root') or only_root
                           or default.data_root)
  if given.cache_dir == LoadSettings().cache_dir:
    chosen['cache_dir'] = run.settings.get('cache_dir', default.cache_dir)
  return task.loading(**chosen)
