"""A sweep: workers run the trials of a grid; a leaderboard compares them.

  <out>/model_<hash>, run_<hash>.jsonz   of each trial, as
                       `train` leaves them
  <out>/sweep.journal, leaderboard.*, trials.csv   see `study`, `leaderboard`

Finished trials are never repeated and interrupted ones are resumed: the same
command continues after any interruption.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Callable

from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid, leaderboard, pool, study, trials
from tpu_graphs_ext.sweep.leaderboard import Leaderboard
from tpu_graphs_ext.sweep.trials import Trial

_log = logging.getLogger(__name__)

# Writing the leaderboard may take this fraction of the time.
_TABLES_SHARE = .05

Work = Callable[[Trial], tuple[str, dict[str, Any]]]


def sweep(path: str, out: str, *, workers: int = 0, scheduler: str = '',
          retry_failed: bool = False, work: Work = trials.run) -> Leaderboard:
  """Runs the missing trials; returns the leaderboard of all.

  Args:
    path: the grid; see `grid`.
    out: folder for everything. On a cluster, one that all machines have under
      this path, as the data root.
    workers, scheduler: see `pool.run`.
    retry_failed: also repeat failed trials.
    work: what a worker does with a trial.

  Raises:
    UserError: the grid, the data or the folder cannot be used, another sweep
      is at work in the folder, Optuna is missing, or the scheduler is not
      there. A trial that fails is a row.
    KeyboardInterrupt: passed on when the workers have ended and the
      leaderboard is written.
  """
  tried = grid.read(path)
  out = files.full_path(output_paths.check_folder('--out', out))
  leaderboard.check(out)
  try:
    with files.held_folder(out):
      return _Sweep(tried, out, retry_failed).run(work, workers, scheduler)
  except BlockingIOError as error:
    raise UserError(f'--out={out}: another sweep is at work in this folder; '
                    'wait for it, or name another folder') from error


class _Sweep:
  """One sweep at work."""

  def __init__(self, tried: grid.Grid, out: str, retry_failed: bool):
    trials.forget_files()
    self._grid, self._out, self._retry = tried, out, retry_failed
    self._study = study.Study(tried, out)
    self._known = study.rows(out)
    self._over: dict[str, dict[str, Any]] = {}  # Rows of this sweep's trials.
    self._begun: dict[str, Trial] = {}
    self._next_tables = 0.0

  def run(self, work: Work, workers: int, scheduler: str) -> Leaderboard:
    for configuration in self._study.known():
      for trial in trials.trials_of(self._grid, self._out, configuration):
        self._look_up(trial)
    total, before = self._grid.num_trials, len(self._over)
    if before:
      _log.info('%d of %d trials are done already', before, total)
    outcomes = pool.run(work, self._left(), workers=workers,
                        scheduler=scheduler)
    try:
      with tqdm(total=total, initial=before, unit='trial',
                disable=None) as bar:
        for outcome in outcomes:
          self._note(outcome)
          bar.update()
    except KeyboardInterrupt:
      _log.warning('interrupted: %d of %d trials are done; to continue, run '
                   'the same command', len(self._over), total)
      raise
    finally:
      outcomes.close()  # The workers first.
      board = Leaderboard(self._grid, self._over.values())
      if self._over:
        board.write(self._out)
    return board

  def _look_up(self, trial: Trial) -> None:
    """Takes the row of a trial that an earlier sweep ended."""
    row = self._known.get(trial.key)
    if row and row['state'] != study.STARTED and not (
        row['state'] == study.FAILED and self._retry):
      self._over[trial.key] = row

  def _left(self) -> Iterator[tuple[str, Trial]]:
    """Trials that are neither over nor under way, as workers become free."""
    known = list(self._study.known())
    for configuration in known:
      yield from self._begin(configuration)
    for _ in range(self._grid.search.configurations - len(known)):
      yield from self._begin(*self._study.drawn())

  def _begin(self, configuration: grid.Configuration,
             asked: Any = None) -> Iterator[tuple[str, Trial]]:
    for trial in trials.trials_of(self._grid, self._out, configuration):
      self._look_up(trial)
      if not (trial.key in self._over or trial.key in self._begun):
        self._begun[trial.key] = self._study.begin(
            trial, self._known.get(trial.key), asked)
        yield trial.key, self._begun[trial.key]

  def _note(self, outcome: pool.Outcome) -> None:
    trial = self._begun[outcome.key]
    state, result = outcome.result or (study.FAILED, {'error': outcome.error})
    row = self._over[trial.key] = self._study.end(trial, state, result)
    if outcome.error:
      _log.warning('%s: failed: %s', trials.describe(row), outcome.error)
    else:
      _log.info('%s: %s', trials.describe(row), ', '.join(
          f'{name} {value:.4f}' for name, value in result['values'].items()))
    start = time.monotonic()
    if start >= self._next_tables:
      Leaderboard(self._grid, self._over.values()).write(self._out)
      end = time.monotonic()
      self._next_tables = end + (end - start) / _TABLES_SHARE
