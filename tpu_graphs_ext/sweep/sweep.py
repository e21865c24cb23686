"""A sweep: the trials of a grid by workers, and a leaderboard of them.

  <out>/model_<hash>, run_<hash>.jsonz, run_<hash>.log   of each trial, as
                       `train` leaves them
  <out>/trials/, leaderboard.*, trials.csv, search.json, pruning.log
                       see `trials`, `leaderboard`, `search`, `pruning`

What is finished is never done again, and what was broken off is resumed: the
same command goes on after whatever ended it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Callable

from tqdm import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.sweep import grid, pool, search, trial_run, trials
from tpu_graphs_ext.sweep.grid import Grid
from tpu_graphs_ext.sweep.leaderboard import (
  NAME,
  TRIALS_NAME,
  Leaderboard,
  check,
  describe,
)
from tpu_graphs_ext.sweep.trials import Record, Trial

_log = logging.getLogger(__name__)

# Rows of the leaderboard that are printed.
_SHOWN = 10


def sweep(path: str, out: str, *, workers: int = 0, scheduler: str = '',
          retry_failed: bool = False,
          work: Callable[[Trial], Record] = trial_run.run) -> Leaderboard:
  """Does the trials that are left; returns the leaderboard of all.

  Args:
    path: the grid; see `grid`.
    out: folder for everything. On a cluster, one that all machines have under
      this path, as the data roots.
    workers, scheduler: see `pool.run`.
    retry_failed: does failed trials again, too.
    work: what a worker does with a trial.

  Raises:
    UserError: the grid, the data or the folder cannot be used, another sweep
      is at work in the folder, or the scheduler is not there. A trial that
      fails is a row.
    KeyboardInterrupt: as it came, once workers have ended and the leaderboard
      is written.
  """
  tried = grid.read(path)
  out = files.full_path(outputs.check_folder('--out', out))
  check(out)
  try:
    with files.held_folder(out):
      under_way = _Sweep(tried, out, retry_failed)
      return under_way.run(work, workers, scheduler)
  except BlockingIOError as error:
    raise UserError(f'--out={out}: another sweep is at work in this folder; '
                    'wait for it, or name another folder') from error


def text(board: Leaderboard, out: str) -> str:
  """The first rows of the leaderboard, and where the rest is."""
  rows = [row[:-1] for row in board.rows(link=False)[:_SHOWN + 1]]
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)
                     ).rstrip() for row in rows]
  lines += ['', board.counts()]
  if board.best:
    lines.append(f'best model:  {out}/model_{board.best.best.run}')
  lines += [f'leaderboard: {out}/{NAME}.md, .csv; {TRIALS_NAME}',
            f'to compare:  tpu-graphs-ext report {out}']
  return '\n'.join(lines)


class _Sweep:
  """One sweep at work."""

  def __init__(self, tried: Grid, out: str, retry_failed: bool):
    self._grid, self._out, self._retry = tried, out, retry_failed
    self._search = search.of(tried, out)
    self._maker = trials.Maker(tried, out)
    self._records: dict[str, Record] = {}
    self._trials: dict[str, Trial] = {}
    # Number of a configuration -> keys of its trials, until they are over.
    self._open: dict[int, list[str]] = {}

  def run(self, work: Callable[[Trial], Record], workers: int,
          scheduler: str) -> Leaderboard:
    for configuration in self._search.known():
      for trial in self._maker.trials(configuration):
        self._look_up(trial)
    before = len(self._records)
    if before:
      _log.info('%d of %d trials are done already', before,
                self._grid.num_trials)
    outcomes = pool.run(work, self._left(), workers=workers,
                          scheduler=scheduler)
    bar = tqdm(total=self._grid.num_trials, initial=before, unit='trial',
               disable=None)
    try:
      with bar:
        for outcome in outcomes:
          self._note(outcome)
          bar.set_postfix_str(self._best_so_far(), refresh=False)
          bar.update()
    except KeyboardInterrupt:
      _log.warning('interrupted: %d of %d trials are done; to continue, run '
                   'the same command', len(self._records),
                   self._grid.num_trials)
      raise
    finally:
      outcomes.close()  # The workers first.
      if self._records:
        self._board().write(self._out)
    return self._board()

  def _look_up(self, trial: Trial) -> bool:
    """Whether a trial is over."""
    if trial.key not in self._records:
      record = trials.read(self._out, trial.key)
      if record is None or not record.is_over or (
          record.state == trials.FAILED and self._retry
          and trial.key not in self._trials):
        return False
      self._records[trial.key] = record
    return True

  def _left(self) -> Iterator[tuple[str, Trial]]:
    """Trials that are neither over nor under way, as workers become free."""
    for number, configuration in enumerate(self._search.configurations()):
      tried = list(self._maker.trials(configuration))
      self._open[number] = [trial.key for trial in tried]
      for trial in tried:
        if not self._look_up(trial) and trial.key not in self._trials:
          self._trials[trial.key] = trial
          yield trial.key, trial
      self._tell()

  def _tell(self) -> None:
    """Tells the search of configurations whose trials are all over."""
    over = [number for number, keys in self._open.items()
            if all(key in self._records for key in keys)]
    for number in over:
      values = [self._records[key].values[self._grid.goal]
                for key in self._open.pop(number)
                if self._grid.goal in self._records[key].values]
      self._search.tell(
          number, sum(values) / len(values) if values else None)

  def _note(self, outcome: pool.Outcome) -> None:
    key, record, error = outcome
    if error:
      record = trial_run.failed(self._trials[key], error)
      _log.warning('%s: failed: %s', describe(record), error)
    else:
      _log.info('%s: %s', describe(record), ', '.join(
          f'{name} {value:.4f}' for name, value in record.values.items()))
    self._records[key] = record
    self._tell()
    self._board().write(self._out)

  def _best_so_far(self) -> str:
    best = self._board().best
    return (f'best {self._grid.goal} {best.spread.mean:.4f}' if best else '')

  def _board(self) -> Leaderboard:
    return Leaderboard(self._grid, self._records.values())
