"""The end of poor trials by Optuna: asynchronous successive halving (ASHA).

A trial that comes to a rung, at min_epochs, min_epochs * factor, ... epochs,
goes on where its validation OPA is among the best 1/factor of those that came
there before it. Nobody waits for anybody. Source: Li et al. 2020, A System for
Massively Parallel Hyperparameter Tuning, algorithm 2.

  <out>/pruning.log   the curves of all trials, which all workers add to
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from tpu_graphs_ext.errors import UserError, how_to_install
from tpu_graphs_ext.sweep.trials import Trial

FILE = 'pruning.log'


def require_optuna(what: str) -> Any:
  """The library, quiet.

  Raises:
    UserError: it is not installed.
  """
  try:
    import optuna
    import optuna.storages.journal
  except ImportError as error:
    raise UserError(f'{what} needs Optuna, which is not installed; '
                    f'{how_to_install("scale")}') from error
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  warnings.filterwarnings(
      'ignore', category=optuna.exceptions.ExperimentalWarning)
  return optuna


class Curve:
  """One trial's curve among those of the others.

  A trial that is resumed goes on with the curve that it had.

  Args:
    trial: with a `prune`.
  """

  def __init__(self, trial: Trial):
    optuna = require_optuna('"prune"')
    self._states = optuna.trial.TrialState
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(
            os.path.join(trial.out, FILE)))
    # Curves of other data, and rungs elsewhere, would not compare.
    study = (f'{trial.prune.min_epochs} {trial.prune.factor} {trial.task} '
             f'{trial.data_root}')
    self._study = optuna.create_study(
        storage=storage, study_name=study, direction='maximize',
        load_if_exists=True, pruner=optuna.pruners.SuccessiveHalvingPruner(
            min_resource=trial.prune.min_epochs,
            reduction_factor=trial.prune.factor))
    own = [stored for stored in self._study.get_trials(deepcopy=False)
           if stored.user_attrs.get('key') == trial.key]
    if own:
      self._trial = optuna.trial.Trial(self._study, own[0]._trial_id)
      self.is_poor = own[0].state == self._states.PRUNED
      self._reported = dict(own[0].intermediate_values)
      self._is_over = own[0].state.is_finished()
    else:
      self._trial = self._study.ask()
      self._trial.set_user_attr('key', trial.key)
      self.is_poor, self._reported, self._is_over = False, {}, False

  def add(self, epochs: int, opa: float) -> bool:
    """Adds a point; whether the trial shall end.

    Args:
      epochs: finished, from 1.
      opa: on the validation split.
    """
    if self._is_over or epochs in self._reported:
      return self.is_poor
    self._reported[epochs] = opa
    self._trial.report(opa, epochs)
    self.is_poor = self._trial.should_prune()
    return self.is_poor

  def end(self) -> None:
    """No point comes any more."""
    if not self._is_over and self._reported:
      self._is_over = True
      if self.is_poor:
        self._study.tell(self._trial, state=self._states.PRUNED)
      else:
        self._study.tell(self._trial, max(self._reported.values()))
