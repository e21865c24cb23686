"""A sweep's Optuna studies, in one journal file, <out>/sweep.journal.

An Optuna trial for each trial of the sweep: its content, curve and result. A
folder has one sweep at a time, so a trial that is still running belongs to a
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
from tpu_graphs_ext.sweep.trials import (
  FAILED,
  FINISHED,
  STARTED,
  STOPPED,
  Trial,
)

FILE = 'sweep.journal'

_MOST_LINE = 1 << 20  # Bytes; Optuna writes a few hundred.

# What Optuna calls the state of a trial.
_STATES = {STARTED: 'RUNNING', FINISHED: 'COMPLETE', STOPPED: 'PRUNED',
           FAILED: 'FAIL'}


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


def _storage(out: str) -> Any:
  """The journal of a folder, given by its full path.

  Raises:
    UserError: the file is damaged.
  """
  path, storages = os.path.join(out, FILE), _optuna().storages
  try:
    return storages.JournalStorage(storages.journal.JournalFileBackend(path))
  except Exception as error:  # Whatever a damaged line raises.
    raise UserError(
        f'{path}: is damaged ({reason_of(error)}); remove it, and the same '
        'command finds what was trained by its runs') from error


def _cut_torn_line(path: str) -> None:
  """Removes what a full disk left of a line, as Optuna would append to it."""
  with contextlib.suppress(FileNotFoundError), open(path, 'rb+') as file:
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - _MOST_LINE)
    file.seek(start)
    file.truncate(start + file.read().rfind(b'\n') + 1)


def _pruner(prune: Optional[Prune]) -> Any:
  """Asynchronous successive halving (ASHA), if trials may end early.

  A trial that reaches a rung continues if its validation OPA is among the best
  1/factor of those that reached it before. Source: Li et al. 2020, A System
  for Massively Parallel Hyperparameter Tuning, algorithm 2.
  """
  pruners = _optuna().pruners
  return (pruners.SuccessiveHalvingPruner(prune.min_epochs, prune.factor)
          if prune else pruners.NopPruner())


def _running(study: Any, number: int) -> Any:
  """The Optuna trial of that number, to continue."""
  return _optuna().trial.Trial(
      study, study.get_trials(deepcopy=False)[number]._trial_id)


def rows(out: str) -> dict[str, dict[str, Any]]:
  """Key of a trial -> its row; of several attempts the last."""
  storage, found = _storage(out), {}
  for summary in storage.get_all_studies():
    for trial in storage.get_all_trials(summary._study_id, deepcopy=False):
      if 'trial' in trial.user_attrs:
        row = _row(trial)
        found[row['key']] = {**row, 'study': summary.study_name}
  return found


def _row(trial: Any) -> dict[str, Any]:
  """The row of an Optuna trial: with what `trials.run` returned."""
  words = {name: word for word, name in _STATES.items()}
  return {'number': trial.number, 'state': words[trial.state.name],
          'attempts': trial.user_attrs.get('attempts', 0), 'error': '',
          'epochs': 0, 'best_epoch': 0, 'parameters': 0, 'seconds': 0.0,
          'values': {}, 'run': '', **trial.user_attrs['trial'],
          **trial.user_attrs.get('result', {})}


class Study:
  """The study of a grid, created if it is missing.

  Bayesian draws are by Optuna's tree-structured Parzen estimator (Bergstra et
  al. 2011, Algorithms for Hyper-Parameter Optimization), after ten random
  ones. A configuration that is still being trained counts as a bad one there,
  so that workers do not crowd.

  Args:
    grid: what is tried.
    out: full path of the sweep's folder.

  Raises:
    UserError: Optuna is missing, or the file is damaged.
  """

  def __init__(self, grid: Grid, out: str):
    optuna, self._grid = _optuna(), grid
    _cut_torn_line(os.path.join(out, FILE))
    self._study = optuna.create_study(
        storage=_storage(out), study_name=grid.study_name, load_if_exists=True,
        direction='maximize' if grid.highest_is_best else 'minimize',
        sampler=optuna.samplers.RandomSampler(), pruner=_pruner(grid.prune))
    # Of an interrupted sweep; else it would draw the same ones again.
    seed = grid.search.seed + len(self._study.get_trials(deepcopy=False))
    self._study.sampler = (
        optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        if grid.search.method == 'bayes'
        else optuna.samplers.RandomSampler(seed))

  def known(self) -> Iterator[Configuration]:
    """All configurations of a grid, or those drawn so far by its search."""
    if self._grid.search.method == 'grid':
      yield from self._grid.configurations()
      return
    drawn = {}
    for trial in self._study.get_trials(deepcopy=False):
      if content := trial.user_attrs.get('trial'):
        configuration = Configuration(**{
            name: content[name] for name in ('model', 'kwargs', 'settings')})
        drawn[repr(configuration)] = configuration
    yield from list(drawn.values())[:self._grid.search.configurations]

  def drawn(self) -> tuple[Configuration, Any]:
    """A new configuration of a search, and the Optuna trial that drew it."""
    asked = self._study.ask()
    return self._grid.drawn(asked), asked

  def begin(self, trial: Trial, row: Optional[dict[str, Any]],
            asked: Any = None) -> Trial:
    """Starts a trial; returns it numbered.

    Args:
      trial: the trial.
      row: its known row, if any.
      asked: the Optuna trial that drew its configuration.
    """
    row = row or {}
    if (row.get('state'), row.get('study')) == (STARTED, trial.study):
      asked = _running(self._study, row['number'])
    elif not asked or 'trial' in asked.user_attrs:  # That is another seed's.
      if asked:
        self._study.enqueue_trial(asked.params)
      copied, asked = asked, self._study.ask()
      if copied:
        self._grid.drawn(asked)
    asked.set_user_attr('trial', {
        'key': trial.key, **dataclasses.asdict(trial.configuration),
        'seed': trial.seed, 'data_root': trial.data_root})
    asked.set_user_attr('attempts', row.get('attempts', 0) + 1)
    return dataclasses.replace(trial, number=asked.number)

  def end(self, trial: Trial, state: str, result: dict[str, Any]
          ) -> dict[str, Any]:
    """Ends a trial with what `trials.run` returned, or with an 'error'."""
    _running(self._study, trial.number).set_user_attr(
        'result', {**result, 'state': state})
    value = result.get('values', {}).get(self._grid.goal)
    if state == FINISHED and value is None:
      state = FAILED  # For Optuna; its row says 'finished'.
    self._study.tell(
        trial.number, value if state == FINISHED else None,
        state=_optuna().trial.TrialState[_STATES[state]])
    return _row(self._study.get_trials(deepcopy=False)[trial.number])


def is_poor(trial: Trial, epochs: int, opa: float) -> bool:
  """In a worker: notes the OPA after some epochs; whether to end the trial."""
  optuna = _optuna()
  study = optuna.load_study(study_name=trial.study, storage=_storage(trial.out),
                            pruner=_pruner(trial.prune))
  reporting = _running(study, trial.number)
  maximizes = study.direction == optuna.study.StudyDirection.MAXIMIZE
  reporting.report(opa if maximizes else -opa, epochs)
  return reporting.should_prune()
