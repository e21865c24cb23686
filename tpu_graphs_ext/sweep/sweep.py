"""A sweep: workers run the trials of a grid; a leaderboard compares them.

  <out>/model_<hash>, run_<hash>.jsonz   of each trial, as of `train`
  <out>/sweep.journal, leaderboard.csv, trials.csv   see `trials`, `leaderboard`
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid, leaderboard, pool, trials
from tpu_graphs_ext.sweep.grid import Configuration
from tpu_graphs_ext.sweep.leaderboard import Leaderboard
from tpu_graphs_ext.sweep.trials import FAILED, STARTED, Trial

_log = logging.getLogger(__name__)


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

  Raises:
    UserError: the grid, the data or the folder cannot be used, another sweep
      is at work there, Optuna or the scheduler is missing.
  """
  tried = grid.read(path)
  out = files.full_path(output_paths.check_folder('--out', out))
  leaderboard.check(out)
  try:
    with files.held_folder(out):
      return _Sweep(tried, out, retry_failed).run(workers, scheduler)
  except BlockingIOError as error:
    raise UserError(f'--out={out}: another sweep is at work in this folder; '
                    'wait for it, or name another folder') from error


class _Sweep:
  """One sweep at work."""

  def __init__(self, tried: grid.Grid, out: str, retry_failed: bool):
    trials.forget_files()
    self._grid, self._out, self._retry = tried, out, retry_failed
    self._study = trials.opened(tried, out)
    self._rows = trials.rows(out)  # By the keys of all trials of the folder.
    self._over: dict[str, dict[str, Any]] = {}  # Rows of this sweep's trials.
    self._begun: dict[str, Trial] = {}

  def run(self, workers: int, scheduler: str) -> Leaderboard:
    known = self._known_configurations()
    still_open = [trial for one in known for trial in self._open_trials(one)]
    try:
      with contextlib.closing(pool.run(
          trials.run, self._begin_all(still_open, len(known)), workers=workers,
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
        drawn[repr(configuration)] = configuration
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

  def _begin_all(self, still_open: list[Trial],
                 num_known: int) -> Iterator[tuple[str, Trial]]:
    """Begins trials as workers become free; (key, trial) of each."""
    for trial in {trial.key: trial for trial in still_open}.values():
      yield trial.key, self._begin(trial)
    for _ in range(self._grid.search.configurations - num_known):
      asked = self._study.ask()
      for trial in self._open_trials(self._grid.drawn(asked)):
        if 'trial' in asked.user_attrs:  # It is another seed's.
          self._study.enqueue_trial(asked.params)
          asked = self._study.ask()
          self._grid.drawn(asked)
        yield trial.key, self._begin(trial, asked)

  def _begin(self, trial: Trial, asked: Any = None) -> Trial:
    """Starts a trial, whose configuration the Optuna trial `asked` drew."""
    row = self._rows.get(trial.key, {})
    if (row.get('state'), row.get('study')) == (STARTED, trial.study):
      begun = trials.running(self._study, row['number'])
    else:
      begun = asked or self._study.ask()
    begun.set_user_attr('trial', {
        'key': trial.key, **dataclasses.asdict(trial.configuration),
        'seed': trial.seed, 'data_root': trial.data_root})
    begun.set_user_attr('attempts', row.get('attempts', 0) + 1)
    self._begun[trial.key] = dataclasses.replace(trial, number=begun.number)
    return self._begun[trial.key]

  def _note(self, outcome: pool.Outcome) -> None:
    trial = self._begun[outcome.key]
    state, result = outcome.result or (FAILED, {'error': outcome.error})
    self._over[trial.key] = trials.end(
        self._study, trial.number, {**result, 'state': state},
        result.get('values', {}).get(self._grid.goal))
    if outcome.error:
      _log.warning('%s, seed %d: %s', trial.configuration, trial.seed,
                   outcome.error)
