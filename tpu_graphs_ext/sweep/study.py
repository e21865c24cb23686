"""A sweep's Optuna studies, in one journal file.

  <out>/sweep.journal
    trainings ...  an Optuna trial for each trial: its content, curve and result
    search ...     an Optuna trial for each configuration that a search draws

A folder has one sweep at a time, so a trial that is still running belongs to a
sweep that was killed; it is handed out again. `optuna-dashboard` reads the
file, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.sweep.grid import Configuration, Grid, Prune
from tpu_graphs_ext.sweep.trials import Trial

FILE = 'sweep.journal'

_MOST_LINE = 1 << 20  # Bytes; Optuna writes a few hundred.

# The state of a trial, and what Optuna calls it.
STARTED, FINISHED, STOPPED, FAILED = 'started', 'finished', 'stopped', 'failed'
_STATES = {STARTED: 'RUNNING', FINISHED: 'COMPLETE', STOPPED: 'PRUNED',
           FAILED: 'FAIL'}
_WORDS = {name: word for word, name in _STATES.items()}


def _optuna() -> Any:
  """The library, quiet.

  Raises:
    UserError: it is not installed.
  """
  try:
    import optuna
    import optuna.storages.journal
  except ImportError as error:
    raise UserError('a sweep needs Optuna, which is not installed; '
                    f'{how_to_install("scale")}') from error
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  warnings.filterwarnings(
      'ignore', category=optuna.exceptions.ExperimentalWarning)
  return optuna


def _cut_torn_line(path: str) -> None:
  """Removes what a full disk left of a line, as Optuna would append to it."""
  with contextlib.suppress(FileNotFoundError), open(path, 'rb+') as file:
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - _MOST_LINE)
    file.seek(start)
    file.truncate(start + file.read().rfind(b'\n') + 1)


class Journal:
  """The file of a sweep, in folder `out`.

  Args:
    out: full path.
    mends: cuts off an unfinished line; nobody else may be writing.

  Raises:
    UserError: Optuna is missing, or the file is damaged.
  """

  def __init__(self, out: str, mends: bool = False):
    self._optuna = _optuna()
    path = os.path.join(out, FILE)
    if mends:
      _cut_torn_line(path)
    try:
      self._storage = self._optuna.storages.JournalStorage(
          self._optuna.storages.journal.JournalFileBackend(path))
    except Exception as error:  # Whatever a line that is no record raises.
      raise UserError(
          f'{path}: is damaged ({reason_of(error)}); remove it, and the same '
          'command finds what was trained by its runs') from error

  def study(self, name: str, *, maximize: bool = True,
            prune: Optional[Prune] = None, sampler: Any = None) -> Any:
    """A study, created if it is missing.

    Pruning is asynchronous successive halving (ASHA): a trial that reaches a
    rung continues if its validation OPA is among the best 1/factor of those
    that reached it before. Source: Li et al. 2020, A System for Massively
    Parallel Hyperparameter Tuning, algorithm 2.
    """
    optuna = self._optuna
    return optuna.create_study(
        storage=self._storage, study_name=name, load_if_exists=True,
        direction='maximize' if maximize else 'minimize',
        sampler=sampler or optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(
            prune.min_epochs, prune.factor) if prune
        else optuna.pruners.NopPruner())

  def trainings(self, trial: Trial) -> Any:
    """A trial's study: only curves on the same data and rungs compare."""
    prune = trial.prune and f'{trial.prune.min_epochs} {trial.prune.factor}'
    return self.study(f'trainings {prune} {trial.task} {trial.data_root}',
                      prune=trial.prune)

  def rows(self) -> dict[str, dict[str, Any]]:
    """Key of a trial -> its row; of several attempts the last."""
    found = {}
    for summary in self._storage.get_all_studies():
      for trial in self._storage.get_all_trials(
          summary._study_id, deepcopy=False):
        if 'trial' in trial.user_attrs:
          row = _row(trial)
          found[row['key']] = row
    return found

  def begin(self, trial: Trial, row: Optional[dict[str, Any]]) -> Trial:
    """Starts a trial with a known `row`, if any; returns it numbered."""
    study, row = self.trainings(trial), row or {}
    is_left = (row.get('state'), row.get('data_root')) == (
        STARTED, trial.data_root)
    running = self.running(study, row['number']) if is_left else study.ask()
    running.set_user_attr('trial', {
        'key': trial.key, **dataclasses.asdict(trial.configuration),
        'seed': trial.seed, 'data_root': trial.data_root})
    running.set_user_attr('attempts', row.get('attempts', 0) + 1)
    return dataclasses.replace(trial, number=running.number)

  def running(self, study: Any, number: int) -> Any:
    """The Optuna trial of that number, to continue."""
    return self._optuna.trial.Trial(
        study, study.get_trials(deepcopy=False)[number]._trial_id)

  def end(self, trial: Trial, state: str, result: dict[str, Any]
          ) -> dict[str, Any]:
    """Ends a trial by what `training.run` returned, or with its 'error'."""
    study = self.trainings(trial)
    self.running(study, trial.number).set_user_attr('result', result)
    study.tell(
        trial.number,
        result['values'].get('opa', 0.) if state == FINISHED else None,
        state=self._optuna.trial.TrialState[_STATES[state]])
    return _row(study.get_trials(deepcopy=False)[trial.number])


def _row(trial: Any) -> dict[str, Any]:
  """The row of an Optuna trial: what `training.run` says, and more."""
  return {'number': trial.number, 'state': _WORDS[trial.state.name],
          'attempts': trial.user_attrs.get('attempts', 0), 'error': '',
          'epochs': 0, 'best_epoch': 0, 'parameters': 0, 'seconds': 0.0,
          'values': {}, 'run': '', **trial.user_attrs['trial'],
          **trial.user_attrs.get('result', {})}


class Curve:
  """The curve of a trial that was started, perhaps in an earlier attempt.

  Attributes:
    is_poor: whether the trial is to end.
  """

  def __init__(self, trial: Trial):
    journal = Journal(trial.out)
    study = journal.trainings(trial)
    self._trial = journal.running(study, trial.number)
    stored = study.get_trials(deepcopy=False)[trial.number]
    self._reported = set(stored.intermediate_values)
    self.is_poor = stored.user_attrs.get('is_poor', False)

  def add(self, epochs: int, opa: float) -> bool:
    """Adds the validation OPA after some epochs; returns `is_poor`."""
    if not self.is_poor and epochs not in self._reported:
      self._reported.add(epochs)
      self._trial.report(opa, epochs)
      self.is_poor = self._trial.should_prune()
      if self.is_poor:
        self._trial.set_user_attr('is_poor', True)
    return self.is_poor


class Draws:
  """Configurations of a sweep: all of a grid, or those that Optuna draws.

  Bayesian draws are by its tree-structured Parzen estimator (Bergstra et al.
  2011, Algorithms for Hyper-Parameter Optimization), after ten random ones.
  There a configuration that is still being trained counts as a bad one, so
  that workers do not crowd.
  """

  def __init__(self, grid: Grid, journal: Journal):
    self._grid, self._journal, self._study = grid, journal, None
    if grid.method == 'grid':
      return
    samplers, name = _optuna().samplers, f'search {grid.space_hash}'
    drawn = len(journal.study(name, maximize=grid.highest_is_best)
                .get_trials(deepcopy=False))
    seed = grid.search_seed + drawn  # Else the same would be drawn again.
    self._study = journal.study(
        name, maximize=grid.highest_is_best,
        sampler=samplers.RandomSampler(seed) if grid.method == 'random'
        else samplers.TPESampler(seed=seed, constant_liar=True))

  def configurations(self, known: bool = False) -> Iterator[Configuration]:
    """Each, in order; or only those `known` before any trial ends."""
    if not self._study:
      yield from self._grid.configurations()
      return
    drawn = len(self._study.get_trials(deepcopy=False))
    most = self._grid.draws
    for number in range(min(drawn, most) if known else most):
      yield self._grid.drawn(
          self._journal.running(self._study, number) if number < drawn
          else self._study.ask())

  def tell(self, number: int, value: Optional[float]) -> None:
    """Reports the goal of a configuration; None if all its trials failed."""
    if not self._study:
      return
    with contextlib.suppress(ValueError):  # An earlier sweep told it.
      self._study.tell(number, value, state=None if value is not None
                       else _optuna().trial.TrialState.FAIL)
