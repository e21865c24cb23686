"""A sweep: workers run the trials of a grid; a leaderboard compares them.

  <out>/model_<hash>, run_<hash>.jsonz, run_<hash>.log   of each trial, as
                       `train` leaves them
  <out>/sweep.journal, leaderboard.*, trials.csv   see `study`, `leaderboard`

Finished trials are never repeated and interrupted ones are resumed: the same
command continues after whatever ended it.
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
from tpu_graphs_ext.sweep import grid, leaderboard, pool, study, training
from tpu_graphs_ext.sweep.grid import Grid
from tpu_graphs_ext.sweep.leaderboard import Leaderboard
from tpu_graphs_ext.sweep.trials import (
  Trial,
  describe,
  forget_files,
  trials_of,
)

_log = logging.getLogger(__name__)

# Writing the leaderboard may take this fraction of the time.
_TABLES_SHARE = .05


def sweep(path: str, out: str, *, workers: int = 0, scheduler: str = '',
          retry_failed: bool = False,
          work: Callable[[Trial], tuple[str, dict[str, Any]]] = training.run
          ) -> Leaderboard:
  """Runs the missing trials; returns the leaderboard of all.

  Args:
    path: the grid; see `grid`.
    out: folder for everything. On a cluster, one that all machines have under
      this path, as the data roots.
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

  def __init__(self, tried: Grid, out: str, retry_failed: bool):
    forget_files()
    self._grid, self._out, self._retry = tried, out, retry_failed
    self._journal = study.Journal(out, mends=True)
    self._draws = study.Draws(tried, self._journal)
    self._known = self._journal.rows()
    self._over: dict[str, dict[str, Any]] = {}  # Rows of this sweep's trials.
    self._begun: dict[str, Trial] = {}
    # Number of a configuration -> keys of its trials, until they are over.
    self._open: dict[int, list[str]] = {}
    self._next_tables = 0.0

  def run(self, work: Callable[[Trial], tuple[str, dict[str, Any]]],
          workers: int, scheduler: str) -> Leaderboard:
    for configuration in self._draws.configurations(known=True):
      for trial in trials_of(self._grid, self._out, configuration):
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

  def _look_up(self, trial: Trial) -> bool:
    """Whether a trial is over."""
    row = self._known.get(trial.key)
    if trial.key not in self._over and row and row['state'] != study.STARTED:
      if row['state'] != study.FAILED or not self._retry:
        self._over[trial.key] = row
    return trial.key in self._over

  def _left(self) -> Iterator[tuple[str, Trial]]:
    """Trials that are neither over nor under way, as workers become free."""
    for number, configuration in enumerate(self._draws.configurations()):
      tried = list(trials_of(self._grid, self._out, configuration))
      self._open[number] = [trial.key for trial in tried]
      for trial in tried:
        if not self._look_up(trial) and trial.key not in self._begun:
          self._begun[trial.key] = self._journal.begin(
              trial, self._known.get(trial.key))
          yield trial.key, self._begun[trial.key]
      self._tell()

  def _tell(self) -> None:
    """Reports configurations whose trials are all over to the search."""
    over = [number for number, keys in self._open.items()
            if all(key in self._over for key in keys)]
    for number in over:
      values = [self._over[key]['values'][self._grid.goal]
                for key in self._open.pop(number)
                if self._grid.goal in self._over[key]['values']]
      self._draws.tell(number, sum(values) / len(values) if values else None)

  def _note(self, outcome: pool.Outcome) -> None:
    trial = self._begun[outcome.key]
    state, result = outcome.result or (study.FAILED, {'error': outcome.error})
    row = self._over[trial.key] = self._journal.end(trial, state, result)
    if outcome.error:
      _log.warning('%s: failed: %s', describe(row), outcome.error)
    else:
      _log.info('%s: %s', describe(row), ', '.join(
          f'{name} {value:.4f}' for name, value in result['values'].items()))
    self._tell()
    start = time.monotonic()
    if start >= self._next_tables:
      Leaderboard(self._grid, self._over.values()).write(self._out)
      end = time.monotonic()
      self._next_tables = end + (end - start) / _TABLES_SHARE
