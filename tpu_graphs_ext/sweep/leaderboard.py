"""A sweep's tables: configurations with their seeds together, best first.

  <out>/leaderboard.csv   one row a configuration
  <out>/trials.csv        one row a trial, failed ones with the reason
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, Optional

import pandas as pd

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.sweep.grid import GOALS, Grid
from tpu_graphs_ext.sweep.trials import FAILED, STOPPED

# How each file begins; another one of its name is not replaced.
_STARTS = {'leaderboard.csv': 'rank,model,', 'trials.csv': 'key,model,kwargs,'}
_SHOWN = 10  # Rows that are printed.
# Columns of trials.csv before those of what was measured.
_FIRST = ['key', 'model', 'kwargs', 'settings', 'seed', 'data_root', 'state',
          'error', 'attempts', 'epochs', 'best_epoch', 'parameters', 'seconds']


def check(out: str) -> None:
  """Raises a UserError where a sweep would replace somebody else's file."""
  for name, start in _STARTS.items():
    output_paths.check_file('--out', os.path.join(out, name), start,
                            'table of a sweep')


class Leaderboard:
  """Tables of trials.

  Args:
    grid: what was tried.
    rows: of all trials that are over, as `trials.rows` has them.

  Attributes:
    trials: the columns of trials.csv, and `group`, their configuration.
    groups: a row a group, best first; of each measure `_mean`, `_deviation` (of
      a sample), `_low` and `_high` (95 % interval of the mean by Student's t,
      from three seeds on).
  """

  def __init__(self, grid: Grid, rows: Iterable[dict[str, Any]]):
    self._goal, self._ascending = grid.goal, not grid.highest_is_best
    self._measures = sorted(GOALS[grid.task], key=lambda name:
                            name != grid.goal)
    trials = pd.DataFrame([{**row, **row['values']} for row in rows],
                          columns=[*_FIRST, *self._measures, 'run'])
    trials = trials.astype(dict.fromkeys(self._measures, float))
    trials['group'] = [json.dumps(parts, sort_keys=True) for parts in trials[
        ['model', 'kwargs', 'settings']].values.tolist()]
    self.groups = self._grouped(trials)
    place = {group: place for place, group in enumerate(self.groups.index)}
    self.trials = trials.sort_values('seed', kind='stable').sort_values(
        'group', kind='stable', ignore_index=True,
        key=lambda column: column.map(place))

  def _grouped(self, trials: pd.DataFrame) -> pd.DataFrame:
    measured = trials[trials[self._goal].notna()].sort_values(
        self._goal, ascending=self._ascending, kind='stable')
    by = measured.groupby('group')
    groups = trials.drop_duplicates('group').set_index('group')[
        ['model', 'kwargs', 'settings']]
    groups['seeds'] = by.size().reindex(groups.index, fill_value=0)
    groups['trials'] = trials.groupby('group').size()
    for state in (STOPPED, FAILED):
      groups[state] = (trials['state'] == state).groupby(trials['group']).sum()
    for name in self._measures:
      number, deviation = by[name].count(), by[name].std()
      half = (deviation / number ** .5).where(number > 2)
      if half.notna().any():
        from scipy import stats  # Half a second.
        half *= stats.t.ppf(.975, number - 1)
      groups[f'{name}_mean'] = mean = by[name].mean()
      groups[f'{name}_deviation'] = deviation
      groups[f'{name}_low'], groups[f'{name}_high'] = mean - half, mean + half
    groups['seconds'] = by['seconds'].mean().round(1)
    groups['best_seed'] = by['seed'].first().astype('Int64')
    groups['best_run'] = by['run'].first()
    groups = groups.sort_values(f'{self._goal}_mean', ascending=self._ascending,
                                kind='stable')
    rank = pd.Series(range(1, len(groups) + 1), groups.index, dtype='Int64')
    groups.insert(0, 'rank', rank.where(groups['seeds'] > 0))
    return groups

  @property
  def best(self) -> Optional[dict[str, Any]]:
    """The best trial of the first group; None if nothing was measured."""
    if not self.groups['seeds'].any():
      return None
    run = self.groups['best_run'].iloc[0]
    return self.trials[self.trials['run'] == run].iloc[0].to_dict()

  def write(self, out: str) -> None:
    """Replaces the files; UserError if one cannot be written."""
    trials = self.trials.drop(columns='group').round({'seconds': 1})
    for part in ('kwargs', 'settings'):
      trials[part] = [json.dumps(given, sort_keys=True)
                      for given in trials[part]]
    for name, table in zip(_STARTS, (self.table(), trials)):
      files.write_file(os.path.join(out, name), files.csv_of(table).encode())

  def table(self) -> pd.DataFrame:
    """The groups with a column for each argument that differs between them."""
    groups, cells = self.groups, {}
    for part in ('kwargs', 'settings'):
      for name in dict.fromkeys(
          name for given in groups[part] for name in given):
        values = [_cell(given.get(name, '')) for given in groups[part]]
        if name != 'cache_dir' and len(set(values)) > 1:
          cells[part, name] = values
    # Arguments of a model and flags may have the same names.
    arguments = pd.DataFrame(cells, groups.index, dtype=object).set_axis(
        [name for _, name in cells], axis=1)
    return pd.concat([groups[['rank', 'model']], arguments, groups.drop(
        columns=['rank', 'model', 'kwargs', 'settings'])], axis=1)

  def text(self, out: str) -> str:
    """The first rows, and where the rest is."""
    shown = self.table().loc[:, :f'{self._goal}_high'].head(_SHOWN)
    states = self.trials['state'].value_counts()
    lines = [
        shown.to_string(index=False, na_rep='', float_format='{:.4g}'.format),
        '', f'{len(self.trials)} trials: ' + ', '.join(
            f'{number} {state}' for state, number in states.items())]
    if self.best:
      lines.append(f'best model:  {out}/model_{self.best["run"]}')
    return '\n'.join([
        *lines, f'tables:      {out}/leaderboard.csv, trials.csv',
        f'to compare:  tpu-graphs-ext report {out}'])


def _cell(value: Any) -> Any:
  """A number or a text as it is, anything else as JSON."""
  return value if type(value) in (int, float, str) else json.dumps(
      value, sort_keys=True)
