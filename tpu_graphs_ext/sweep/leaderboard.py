"""A sweep's tables: configurations with their seeds together, best first.

  <out>/leaderboard.md    for people, with links to models
  <out>/leaderboard.csv   one row a configuration
  <out>/trials.csv        one row a trial, failed ones with the reason
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from typing import Any, Optional

import pandas as pd

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.sweep.grid import GOALS, Grid
from tpu_graphs_ext.sweep.study import FAILED, FINISHED, STOPPED
from tpu_graphs_ext.sweep.trials import describe, text_of

# How each file begins; another one of its name is not replaced.
_STARTS = {'leaderboard.md': '# Sweep of ', 'leaderboard.csv': 'rank,model,',
           'trials.csv': 'key,model,kwargs,'}
_SHOWN = 10  # Rows that are printed.
# Columns of trials.csv before those of what was measured.
_FIRST = ['key', 'model', 'kwargs', 'settings', 'seed', 'data_root', 'state',
          'error', 'attempts', 'epochs', 'best_epoch', 'parameters', 'seconds']
_PARTS = ('mean', 'deviation', 'low', 'high')


def check(out: str) -> None:
  """Raises a UserError where a sweep would replace somebody else's file."""
  for name, start in _STARTS.items():
    output_paths.check_file('--out', os.path.join(out, name), start,
                            'table of a sweep')


class Leaderboard:
  """Tables of trials.

  Args:
    grid: what was tried.
    rows: of all trials that are over, as `study.rows` has them.

  Attributes:
    trials: the columns of trials.csv, and `group`, their configuration.
    groups: a row a group, best first; of each measure `_mean`, `_deviation` (of
      a sample), `_low` and `_high` (95 % interval of the mean by Student's t,
      from three seeds on).
  """

  def __init__(self, grid: Grid, rows: Iterable[dict[str, Any]]):
    self._grid = grid
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
    goal, ascending = self._grid.goal, not self._grid.highest_is_best
    measured = trials[trials[goal].notna()].sort_values(
        goal, ascending=ascending, kind='stable')
    by = measured.groupby('group')
    groups = trials.drop_duplicates('group').set_index('group')[
        ['model', 'kwargs', 'settings']]
    groups['trials'] = trials.groupby('group').size()
    groups['seeds'] = by.size().reindex(groups.index, fill_value=0)
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
    groups['seconds'] = by['seconds'].mean()
    groups['best_seed'] = by['seed'].first().astype('Int64')
    groups['best_run'] = by['run'].first()
    groups = groups.sort_values(f'{goal}_mean', ascending=ascending,
                                kind='stable')
    rank = pd.Series(range(1, len(groups) + 1), groups.index, dtype='Int64')
    groups.insert(0, 'rank', rank.where(groups['seeds'] > 0))
    return groups

  @property
  def best(self) -> Optional[dict[str, Any]]:
    """The best trial of the first group; None if nothing was measured."""
    if not len(self.groups) or self.groups['seeds'].iloc[0] == 0:
      return None
    run = self.groups['best_run'].iloc[0]
    return self.trials[self.trials['run'] == run].iloc[0].to_dict()

  def counts(self) -> str:
    """'12 trials: 10 finished, 1 stopped early, 1 failed'."""
    number = self.trials['state'].value_counts()
    parts = [f'{number.get(state, 0)} {word}' for state, word in (
        (FINISHED, 'finished'), (STOPPED, 'stopped early'), (FAILED, 'failed'))
        if state == FINISHED or number.get(state, 0)]
    return f'{len(self.trials)} trials: {", ".join(parts)}'

  def write(self, out: str) -> None:
    """Replaces the three files.

    Raises:
      UserError: one cannot be written.
    """
    for name, text in zip(_STARTS, (
        self.markdown(), self.csv(), self.trials_csv())):
      files.write_file(os.path.join(out, name), text.encode())

  # ------------------------------------------------------------------ tables

  def _arguments(self, differ: bool, digits: int = 17) -> pd.DataFrame:
    """Texts of the arguments that differ between groups, or do not."""
    groups, cells = self.groups, {}
    for part in ('kwargs', 'settings'):
      for name in dict.fromkeys(
          name for given in groups[part] for name in given):
        texts = [text_of(given[name], digits) if name in given else ''
                 for given in groups[part]]
        if name != 'cache_dir' and (len(set(texts)) > 1) == differ:
          cells[part, name] = texts
    table = pd.DataFrame(cells, groups.index)
    # Arguments of a model and flags may have the same names.
    return table.set_axis([name for _, name in cells], axis=1)

  def table(self) -> pd.DataFrame:
    """The table for people, of texts."""
    groups, goal = self.groups, self._grid.goal
    first = pd.DataFrame({'': groups['rank'].astype('string').fillna(''),
                          'model': groups['model']})
    rest = {'seeds': [f'{seeds} of {trials}' for seeds, trials in groups[
        ['seeds', 'trials']].values]}
    for name in self._measures:
      parts = _PARTS[:4 if name == goal else 2]
      rest[_head(name)] = [_spread(name, *row) for row in groups[
          [f'{name}_{part}' for part in parts]].values]
    rest.update({
        'seconds': groups['seconds'].map('{:.0f}'.format).replace('nan', ''),
        'stopped': groups[STOPPED].astype(str).replace('0', ''),
        'failed': groups[FAILED].astype(str).replace('0', ''),
        'best run': [f'[{run[:8]}](model_{run})' if isinstance(run, str) and run
                     else '' for run in groups['best_run']]})
    return pd.concat([first, self._arguments(True, 4),
                      pd.DataFrame(rest, groups.index)], axis=1)

  def text(self, out: str) -> str:
    """The first rows, and where the rest is."""
    table = self.table().iloc[:_SHOWN, :-1]
    lines = [table.to_string(index=False), '', self.counts()]
    if self.best:
      lines.append(f'best model:  {out}/model_{self.best["run"]}')
    lines += [f'leaderboard: {out}/leaderboard.md, .csv; trials.csv',
              f'to compare:  tpu-graphs-ext report {out}']
    return '\n'.join(lines)

  def markdown(self) -> str:
    goal, table, best = self._grid.goal, self.table(), self.best
    shared = ', '.join(f'{name}={texts.iloc[0]}' for name, texts
                       in self._arguments(False).items())
    most = 'highest' if self._grid.highest_is_best else 'lowest'
    lines = [
        f'# Sweep of {os.path.basename(self._grid.path)}', '',
        f'{self.counts()}. The {most} {_head(goal)} on the validation split '
        'first: mean over seeds, ± deviation, and from three seeds on its '
        f'(95 % interval).{f" All with {shared}." if shared else ""}', '', *(
            '| ' + ' | '.join(str(cell).replace('|', '\\|') for cell in row)
            + ' |' for row in (table.columns, ['---'] * table.shape[1],
                               *table.values))]
    if best:
      run = f'model_{best["run"]}'
      lines += ['', f'Best model: [{run}]({run}), seed {best["seed"]}, '
                f'{_head(goal)} {_number(goal, best[goal])}.']
    failed = self.trials[self.trials['state'] == FAILED].to_dict('records')
    lines += ['', '## Failed', ''] if failed else []
    for row in failed:
      error = ' '.join(row['error'].split()).replace('|', '\\|')
      lines.append(f'- `{row["key"]}` {describe(row)}: {error}')
    return '\n'.join(lines) + '\n'

  def csv(self) -> str:
    groups = self.groups
    return files.csv_of(pd.concat([
        groups[['rank', 'model']], self._arguments(True),
        groups[['seeds', 'trials', STOPPED, FAILED, *(
            f'{name}_{part}' for name in self._measures for part in _PARTS)]],
        groups[['seconds']].round(1), groups[['best_seed', 'best_run']]],
        axis=1))

  def trials_csv(self) -> str:
    table = self.trials.drop(columns='group').round({'seconds': 1})
    for part in ('kwargs', 'settings'):
      table[part] = [json.dumps(given, sort_keys=True)
                     for given in table[part]]
    return files.csv_of(table)


def _head(name: str) -> str:
  return {'opa': 'OPA', 'kendall': "Kendall's tau"}.get(
      name, f'top-{name[3:]} %')


def _number(name: str, value: float) -> str:
  return f'{100 * value:.2f}' if name.startswith('top') else f'{value:.4f}'


def _spread(name: str, mean: float, deviation: float, low: float = math.nan,
            high: float = math.nan) -> str:
  """'0.2000 ± 0.1000 (-0.0484 to 0.4484)', as far as there are numbers."""
  mean, deviation, low, high = (
      '' if math.isnan(value) else _number(name, value)
      for value in (mean, deviation, low, high))
  return (mean + f' ± {deviation}' * bool(deviation)
          + f' ({low} to {high})' * bool(low))
