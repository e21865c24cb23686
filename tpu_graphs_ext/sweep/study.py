"""A sweep's Optuna studies, in one journal file, <out>/sweep.journal.

A folder has one sweep at a time, so a trial that is still running there belongs
to a sweep that was killed; it is handed out again.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.sweep.grid import Grid, Prune

FILE = 'sweep.journal'
STARTED, FINISHED, STOPPED, FAILED = 'started', 'finished', 'stopped', 'failed'

_MOST_LINE = 1 << 20  # Bytes; Optuna writes a few hundred.


def _optuna() -> Any:
  """The library, quiet; UserError if it is not installed."""
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
  """The journal of a folder; UserError if it is damaged."""
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
    start = max(0, file.seek(0, os.SEEK_END) - _MOST_LINE)
    file.seek(start)
    file.truncate(start + file.read().rfind(b'\n') + 1)


def _pruner(prune: Optional[Prune]) -> Any:
  """Asynchronous successive halving: a trial that reaches a rung continues if
  its OPA is among the best 1/factor of those that reached it before. Source: Li
  et al. 2020, A System for Massively Parallel Hyperparameter Tuning."""
  pruners = _optuna().pruners
  return (pruners.SuccessiveHalvingPruner(prune.min_epochs, prune.factor)
          if prune else pruners.NopPruner())


def opened(grid: Grid, out: str) -> Any:
  """The Optuna study of a grid, created if it is missing.

  Bayesian draws are by a tree-structured Parzen estimator (Bergstra et al.
  2011, Algorithms for Hyper-Parameter Optimization), to which a configuration
  in training counts as a bad one, so that workers do not crowd.
  """
  optuna = _optuna()
  _cut_torn_line(os.path.join(out, FILE))
  study = optuna.create_study(
      storage=_storage(out), study_name=grid.study_name, load_if_exists=True,
      direction='maximize' if grid.highest_is_best else 'minimize',
      pruner=_pruner(grid.prune))
  # An interrupted sweep would draw the same ones again.
  seed = grid.search.seed + len(study.get_trials(deepcopy=False))
  study.sampler = (optuna.samplers.TPESampler(seed=seed, constant_liar=True)
                   if grid.search.method == 'bayes'
                   else optuna.samplers.RandomSampler(seed))
  return study


def running(study: Any, number: int) -> Any:
  """The Optuna trial of that number, to continue."""
  return _optuna().trial.Trial(
      study, study.get_trials(deepcopy=False)[number]._trial_id)


def end(study: Any, number: int, result: dict[str, Any],
        value: Optional[float]) -> dict[str, Any]:
  """Ends a trial; returns its row. `result` has its state, see `trials.run`."""
  running(study, number).set_user_attr('result', result)
  if result['state'] == FINISHED and value is not None:
    study.tell(number, value)
  else:
    states = _optuna().trial.TrialState
    study.tell(number, state=(
        states.PRUNED if result['state'] == STOPPED else states.FAIL))
  return _row(study.get_trials(deepcopy=False)[number])


def rows(out: str) -> dict[str, dict[str, Any]]:
  """Key of a trial -> its row; of several attempts the last."""
  storage = _storage(out)
  return {trial.user_attrs['trial']['key']: {
      **_row(trial), 'study': summary.study_name}
          for summary in storage.get_all_studies()
          for trial in storage.get_all_trials(
              summary._study_id, deepcopy=False)
          if 'trial' in trial.user_attrs}


def _row(trial: Any) -> dict[str, Any]:
  """The row of an Optuna trial: with what `trials.run` returned."""
  return {'number': trial.number, 'state': STARTED, 'error': '',
          'attempts': trial.user_attrs.get('attempts', 0), 'epochs': 0,
          'best_epoch': 0, 'parameters': 0, 'seconds': 0.0, 'values': {},
          'run': '', **trial.user_attrs['trial'],
          **trial.user_attrs.get('result', {})}


def is_poor(trial: Any, epochs: int, opa: float) -> bool:
  """In a worker: notes the OPA after some epochs; whether to end the trial."""
  optuna = _optuna()
  study = optuna.load_study(study_name=trial.study, storage=_storage(trial.out),
                            pruner=_pruner(trial.prune))
  reporting = running(study, trial.number)
  maximizes = study.direction == optuna.study.StudyDirection.MAXIMIZE
  reporting.report(opa if maximizes else -opa, epochs)
  return reporting.should_prune()
