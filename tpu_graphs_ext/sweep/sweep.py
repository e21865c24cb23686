"""A sweep: workers run the trials of a grid; a leaderboard compares them.

  <out>/model_<hash>, run_<hash>.jsonz   of each trial, as of `train`
  <out>/sweep.journal     Optuna's; see `trials`
  <out>/leaderboard.csv   one row a configuration, best first
  <out>/trials.csv        one row a trial, failed ones with the reason
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import pandas as pd
from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid, pool, trials
from tpu_graphs_ext.sweep.grid import Configuration, Grid, goals_of
from tpu_graphs_ext.sweep.trials import FAILED, STARTED, STOPPED, Trial

_log = logging.getLogger(__name__)

# How each file begins; another one of its name is not replaced.
_STARTS = {'leaderboard.csv': 'rank,model,', 'trials.csv': 'key,model,kwargs,'}
# Leading columns of trials.csv; metrics follow.
_FIRST = ['key', 'model', 'kwargs', 'settings', 'seed', 'data_root', 'state',
          'error', 'attempts', 'epochs', 'best_epoch', 'parameters', 'seconds']
_DRAWS = 100  # At most, for each configuration: the last are rarely drawn.


def sweep(path: str, out: str, *, workers: int = 0, scheduler: str = '',
          retry_failed: bool = False) -> Leaderboard:
  """Runs the missing trials; returns the leaderboard of all.

  Finished trials are never repeated and interrupted ones are resumed: the same
  call continues after any interruption. A trial that fails is a row.

  Args:
    path: the grid; see `grid`.
    out: folder for everything; on a cluster, one that all machines have.
    workers, scheduler: see `pool.run`.
    retry_failed: also repeat failed trials.

  Raises UserError if the grid, the data, the folder or the scheduler cannot be
  used, or Optuna is not installed.
  """
  tried = grid.read(path)
  out = files.full_path(files.check_folder('--out', out))
  for name, start in _STARTS.items():
    files.Output('--out', start, 'table of a sweep').check(
        os.path.join(out, name))
  try:
    with files.held_folder(out), trials.reading(out, and_written=True):
      with trials.reading(out):
        work = _Sweep(tried, out, retry_failed)
      return work.run(workers, scheduler)
  except BlockingIOError as error:
    raise UserError(f'--out={out}: another sweep is at work in this folder; '
                    'wait for it, or name another folder') from error


class _Sweep:
  def __init__(self, tried: Grid, out: str, retry_failed: bool):
    for known in (trials.data_key, trials.file_sum):
      known.cache_clear()  # Files may have changed since another sweep.
    self._grid, self._out, self._retry = tried, out, retry_failed
    self._study = trials.opened(tried, out)
    self._rows = trials.rows(out)  # By the keys of all trials of the folder.
    self._over: dict[str, dict[str, Any]] = {}  # Rows of this sweep's trials.
    self._begun: dict[str, Trial] = {}
    self._params: dict[str, Any] = {}  # Optuna's, of what a search has drawn.
    self._known = self._known_configurations()
    self._still_open = [trial for configuration in self._known
                        for trial in self._open_trials(configuration)]

  def run(self, workers: int, scheduler: str) -> Leaderboard:
    try:
      with contextlib.closing(pool.run(
          trials.run, self._begin_all(), workers=workers,
          scheduler=scheduler)) as outcomes, tqdm(
              total=self._grid.num_trials, initial=len(self._over),
              unit='trial', disable=None) as bar:
        for outcome in outcomes:
          self._note(outcome)
          bar.update()
          self._written_board()
    except KeyboardInterrupt:
      _log.warning('interrupted: %d of %d trials are done; to continue, run '
                   'the same command', len(self._over), self._grid.num_trials)
      raise
    return self._written_board()

  def _written_board(self) -> Leaderboard:
    board = Leaderboard(self._grid, self._over.values())
    board.write(self._out)
    return board

  def _known_configurations(self) -> list[Configuration]:
    """All of a grid, or those that its search has drawn so far."""
    if self._grid.search.method == 'grid':
      return list(self._grid.configurations())
    drawn = {}
    for trial in self._study.get_trials(deepcopy=False):
      if content := trial.user_attrs.get('trial'):
        configuration = Configuration(**{
            name: content[name] for name in ('model', 'kwargs', 'settings')})
        if not any(configuration.model == space.name
                   and configuration.settings.get('models_py', '')
                   in space.values.get(('settings', 'models_py'), [''])
                   for space in self._grid.models):
          raise ValueError('it names another models.py than the grid')
        drawn[configuration.text] = configuration
        self._params.setdefault(configuration.text, trial.params)
    return list(drawn.values())[:self._grid.search.configurations]

  def _open_trials(self, configuration: Configuration) -> Iterator[Trial]:
    """Its trials that are neither over, which is noted, nor under way."""
    for trial in trials.trials_of(self._grid, self._out, configuration):
      row = self._rows.get(trial.key, {'state': STARTED})
      if row['state'] != STARTED and not (
          row['state'] == FAILED and self._retry):
        self._over.setdefault(trial.key, row)
      elif trial.key not in self._begun:
        yield trial

  def _begin_all(self) -> Iterator[tuple[str, Trial]]:
    """Begins trials as workers become free; (key, trial) of each."""
    for trial in {trial.key: trial for trial in self._still_open}.values():
      yield trial.key, self._begin(trial)
    for asked, configuration in self._drawn():
      opened = {trial.key: trial for trial in self._open_trials(configuration)}
      if not opened:
        self._copy(asked, configuration)
      for trial in opened.values():
        yield trial.key, self._begin(trial, asked)
        asked = None

  def _drawn(self) -> Iterator[tuple[Any, Configuration]]:
    """The search's missing configurations, with Optuna's trials of them."""
    most, sampler = self._grid.search.configurations, self._study.sampler
    drawn = {configuration.text for configuration in self._known}
    for _ in range(_DRAWS * most):
      if len(drawn) >= most:
        break
      asked = self._study.ask()
      configuration = self._grid.drawn(asked)
      if configuration.text in drawn:
        trials.drop(self._study, asked.number)
        # A Bayesian search would draw it for ever.
        self._study.sampler = trials.random_sampler(asked.number)
        continue
      self._study.sampler = sampler
      drawn.add(configuration.text)
      self._params[configuration.text] = asked.params
      yield asked, configuration

  def _copy(self, asked: Any, configuration: Configuration) -> None:
    """Ends Optuna's trial with what another search or a grid has measured."""
    trial = next(trials.trials_of(self._grid, self._out, configuration))
    if not (row := self._over.get(trial.key)):
      return trials.drop(self._study, asked.number)
    self._begin(trial, asked)
    trials.end(self._study, asked.number, {
        name: row[name] for name in trials.RESULT},
               row['values'].get(self._grid.goal))

  def _begin(self, trial: Trial, asked: Any = None) -> Trial:
    """Starts a trial, whose configuration the Optuna trial `asked` drew."""
    row = self._rows.get(trial.key, {})
    if (row.get('state'), row.get('study')) == (STARTED, trial.study):
      begun = trials.running(self._study, row['number'])
    else:
      begun = asked or self._asked(trial.configuration)
    begun.set_user_attr('trial', {
        'key': trial.key, **dataclasses.asdict(trial.configuration),
        'seed': trial.seed, 'data_root': trial.data_root})
    begun.set_user_attr('attempts', row.get('attempts', 0) + 1)
    self._begun[trial.key] = dataclasses.replace(trial, number=begun.number)
    return self._begun[trial.key]

  def _asked(self, configuration: Configuration) -> Any:
    """A new Optuna trial; of a drawn configuration with its parameters."""
    params = self._params.get(configuration.text)
    if params:
      self._study.enqueue_trial(params)
    asked = self._study.ask()
    if params:
      self._grid.drawn(asked)
    return asked

  def _note(self, outcome: pool.Outcome) -> None:
    trial = self._begun[outcome.key]
    state, result = outcome.result or (FAILED, {'error': outcome.error})
    self._over[trial.key] = trials.end(
        self._study, trial.number, {**result, 'state': state},
        result.get('values', {}).get(self._grid.goal))
    if outcome.error:
      _log.warning('%s, seed %d: %s', trial.configuration, trial.seed,
                   outcome.error)


class Leaderboard:
  """Tables of the trials that are over, from their `trials.rows`.

  Attributes:
    trials: the columns of trials.csv, and `group`, their configuration.
    groups: a row a group, best first; of each measure `_mean`, `_deviation` (of
      a sample), `_low` and `_high` (95 % interval of the mean by Student's t,
      from three seeds on).
  """

  def __init__(self, grid: Grid, rows: Iterable[dict[str, Any]]):
    self._goal, self._ascending = grid.goal, not grid.highest_is_best
    self._measures = sorted(goals_of(grid.task), key=lambda name:
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
      trials[part] = [json.dumps(arguments, sort_keys=True)
                      for arguments in trials[part]]
    for name, table in zip(_STARTS, (self.table(), trials)):
      files.write_file(os.path.join(out, name), files.csv_of(table).encode())

  def table(self) -> pd.DataFrame:
    """The groups with a column for each argument that differs between them."""
    groups, cells = self.groups, {}
    for part in ('kwargs', 'settings'):
      for name in dict.fromkeys(
          name for chosen in groups[part] for name in chosen):
        values = [_cell(chosen.get(name, '')) for chosen in groups[part]]
        if name != 'cache_dir' and len(set(values)) > 1:
          cells[part, name] = values
    # Arguments of a model and flags may have the same names.
    arguments = pd.DataFrame(cells, groups.index, dtype=object).set_axis(
        [name for _, name in cells], axis=1)
    return pd.concat([groups[['rank', 'model']], arguments, groups.drop(
        columns=['rank', 'model', 'kwargs', 'settings'])], axis=1)

  def text(self, out: str) -> str:
    """The first rows, and where the rest is."""
    shown = self.table().loc[:, :f'{self._goal}_high'].head(10)
    text = shown.to_string(
        index=False, na_rep='', float_format='{:.4g}'.format)
    states = self.trials['state'].value_counts()
    lines = [
        text.replace('<NA>', 4 * ' '),  # Not by na_rep.
        '', f'{len(self.trials)} trials: ' + ', '.join(
            f'{number} {state}' for state, number in states.items())]
    if self.best:
      lines.append(f'best model:  {out}/model_{self.best["run"]}')
    remedy = ' (has errors; --retry_failed repeats)' if FAILED in states else ''
    return '\n'.join([
        *lines, f'tables:      {out}/leaderboard.csv, trials.csv{remedy}',
        f'to compare:  tpu-graphs-ext report {shlex.quote(out)}'])


def _cell(value: Any) -> Any:
  """A number or a text as it is, anything else as JSON."""
  return value if type(value) in (int, float, str) else json.dumps(
      value, sort_keys=True)
