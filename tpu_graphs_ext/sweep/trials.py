"""Trials of a sweep: a configuration with a seed, and how a worker trains it.

A trial's key is a hash of its content, with that of the data and of models.py:
a sweep that is started again, or has grown, knows which trials are done. One
that still runs in <out>/sweep.journal, Optuna's, belongs to a killed sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache
from tpu_graphs_ext.engine.settings import MOST_SEED
from tpu_graphs_ext.errors import UserError, how_to_install, reason_of
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.sweep.grid import Configuration, Grid, Prune
from tpu_graphs_ext.tasks import TASKS

FILE = 'sweep.journal'
STARTED, FINISHED, STOPPED, FAILED = 'started', 'finished', 'stopped', 'failed'


@dataclasses.dataclass(frozen=True)
class Trial:
  """One training, as a worker gets it."""
  key: str  # Hash of its content.
  task: str
  configuration: Configuration
  seed: int
  data_root: str  # A full path.
  out: str  # Full path of the sweep's folder.
  prune: Optional[Prune]  # When it may end early; None: never.
  study: str = ''  # Its Optuna study.
  number: int = -1  # Its number there, once it is started.

  def settings(self) -> Any:
    """The settings of `train`; they resume what an earlier attempt left."""
    tried = self.configuration
    return TASKS[self.task].training(
        model=tried.model, seed=self.seed, resume=True,
        model_kwargs_json=json.dumps(tried.kwargs, sort_keys=True),
        data_root=self.data_root, out_dir=self.out,
        # Names the trial in the hash of the run, as data roots are not in it.
        results_csv=os.path.join(self.out, f'predictions_{self.key}.csv'),
        **tried.settings)


def trials_of(grid: Grid, out: str,
              configuration: Configuration) -> Iterator[Trial]:
  """A configuration of a grid with each seed; `out` is the sweep's folder."""
  trial = Trial('', grid.task, configuration, 0, grid.data_root, out,
                grid.prune, grid.study_name)
  settings = trial.settings()
  content = {
      'format': 'tpu_graphs_ext trial 2', 'task': grid.task,
      'model': configuration.model, 'kwargs': configuration.kwargs,
      'settings': {name: value for name, value in configuration.settings.items()
                   if name not in ('cache_dir', 'models_py')},
      'data': data_key(os.path.join(
          grid.data_root, *settings.task.collection(vars(settings)))),
      'prune': grid.prune and dataclasses.asdict(grid.prune),
      'models_py': file_sum(files.full_path(settings.models_file))}
  for seed in grid.seeds:
    key = hashlib.sha256(json.dumps(
        {**content, 'seed': seed}, sort_keys=True).encode()).hexdigest()[:16]
    yield dataclasses.replace(trial, key=key, seed=seed)


# Once a sweep, whose trials all train on the same files.
data_key = functools.lru_cache(None)(cache.data_key)
file_sum = functools.lru_cache(None)(files.sha256)


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


@contextlib.contextmanager
def reading(out: str, and_written: bool = False) -> Iterator[None]:
  """Raises UserError if the journal of a folder is damaged.

  Whatever reading a damaged line raises is taken for damage; where the journal
  is also `and_written`, what Optuna raises.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    if and_written and not isinstance(
        error, (_optuna().exceptions.OptunaError, LookupError)):
      raise
    raise UserError(
        f'{os.path.join(out, FILE)}: is damaged ({reason_of(error)}); remove '
        'it, and the same command finds what was trained by its runs'
    ) from error


def _storage(out: str) -> Any:
  path, storages = os.path.join(out, FILE), _optuna().storages
  if os.path.lexists(path):
    files.open_ordinary(path).close()
  return storages.JournalStorage(storages.journal.JournalFileBackend(path))


def _pruner(prune: Optional[Prune]) -> Any:
  """Asynchronous successive halving (Li et al. 2020): docs/scale.md."""
  pruners = _optuna().pruners
  return (pruners.SuccessiveHalvingPruner(prune.min_epochs, prune.factor)
          if prune else pruners.NopPruner())


def opened(grid: Grid, out: str) -> Any:
  """The Optuna study of a grid, created if it is missing.

  Bayesian draws are by a tree-structured Parzen estimator (Bergstra et al.
  2011), to which a configuration in training counts as a bad one, so that
  workers do not crowd.
  """
  optuna = _optuna()
  study = optuna.create_study(
      storage=_storage(out), study_name=grid.study_name, load_if_exists=True,
      direction='maximize' if grid.highest_is_best else 'minimize',
      pruner=_pruner(grid.prune))
  # An interrupted sweep would draw the same ones again.
  seed = grid.search.seed + len(study.get_trials(deepcopy=False))
  study.sampler = (optuna.samplers.TPESampler(seed=seed, constant_liar=True)
                   if grid.search.method == 'bayes' else random_sampler(seed))
  for trial in study.get_trials(deepcopy=False):
    if trial.state.name == 'RUNNING' and 'trial' not in trial.user_attrs:
      drop(study, trial.number)  # A killed sweep had just drawn it.
  return study


def random_sampler(seed: int) -> Any:
  return _optuna().samplers.RandomSampler(seed)


def drop(study: Any, number: int) -> None:
  """Ends a trial that nothing trains; no draw depends on it."""
  study.tell(number, state=_optuna().trial.TrialState.FAIL)


def running(study: Any, number: int) -> Any:
  """The Optuna trial of that number, to continue."""
  return _optuna().trial.Trial(
      study, study.get_trials(deepcopy=False)[number]._trial_id)


def end(study: Any, number: int, result: dict[str, Any],
        value: Optional[float]) -> dict[str, Any]:
  """Ends a trial; returns its row. `result` has its state, see `run`."""
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
  attempts = [(trial, summary.study_name)
              for summary in storage.get_all_studies() for trial in
              storage.get_all_trials(summary._study_id, deepcopy=False)
              if 'trial' in trial.user_attrs]
  # Another study may have copied a failure before it was tried again.
  return {trial.user_attrs['trial']['key']: {**_row(trial), 'study': study}
          for trial, study in sorted(
              attempts, key=lambda attempt: attempt[0].datetime_start)}


# Of a row, what came of a trial.
RESULT = ('state', 'error', 'attempts', 'epochs', 'best_epoch', 'parameters',
          'seconds', 'values', 'run')
# Columns of a row; see `files.require_forms`.
_FORMS = {
    **dict.fromkeys(('key', 'model', 'data_root', 'state', 'error', 'run'),
                    ((str,), 'text')),
    **dict.fromkeys(('number', 'attempts', 'epochs', 'best_epoch',
                     'parameters'), ((int,), 'a whole number')),
    **dict.fromkeys(('kwargs', 'settings'), ((dict,), 'an object')),
    'seed': (range(MOST_SEED + 1), f'from 0 to {MOST_SEED}'),
    'seconds': ((int, float), 'a number'),
    'values': ({'': (int, float)}, 'numbers by name')}


def _row(trial: Any) -> dict[str, Any]:
  """The row of an Optuna trial: with what `trials.run` returned."""
  row = {**dict.fromkeys(_FORMS), 'number': trial.number, 'state': STARTED,
         'error': '', 'attempts': trial.user_attrs.get('attempts', 0),
         'epochs': 0, 'best_epoch': 0, 'parameters': 0, 'seconds': 0.0,
         'values': {}, 'run': '', **trial.user_attrs['trial'],
         **trial.user_attrs.get('result', {})}
  files.parse_json(json.dumps(row), f'trial {trial.number}')  # Its limits.
  try:
    files.require_forms(row, _FORMS)
  except ValueError as error:
    raise ValueError(f'trial {trial.number}: {error}') from error
  return row


def is_poor(trial: Trial, epochs: int, opa: float) -> bool:
  """In a worker: notes the OPA after some epochs; whether to end the trial."""
  study = _optuna().load_study(
      study_name=trial.study, storage=_storage(trial.out),
      pruner=_pruner(trial.prune))
  reporting = running(study, trial.number)
  reporting.report(opa if study.direction.name == 'MAXIMIZE' else -opa, epochs)
  # Optuna does not say so again when a killed trial repeats the epoch.
  if reporting.should_prune():
    reporting.set_user_attr('poor', True)
  return 'poor' in reporting.user_attrs


def run(trial: Trial) -> tuple[str, dict[str, Any]]:
  """Trains, or continues where an earlier attempt was broken off.

  Returns (`FINISHED` or `STOPPED`, columns of a row: the run's hash, goal ->
  value on the validation split, the best epoch from 1, and so on).
  """
  from tpu_graphs_ext.engine import saved_weights
  start = time.monotonic()
  result = _trained(trial)
  info, settings = result.run_info, result.run_info['settings']
  opa = info['train_curve']['val_opa']
  best = max(range(len(opa)), key=opa.__getitem__)
  # Read from the run: the sweep may have been killed after the last epoch.
  is_whole = len(opa) == settings['epochs'] or (
      0 < settings['early_stop'] < len(opa) - best)
  values = {'opa': opa[best], **{
      f'top{k}': slowdown
      for k, slowdown in info['final_error'].get('val', {}).items()}}
  for measure, key in TASKS[trial.task].final:
    if measure not in ('slowdown', 'opa'):
      values[measure] = info[key].get('val')
  return FINISHED if is_whole or not trial.prune else STOPPED, {
      'run': os.path.basename(result.model_dir)[len('model_'):],
      'values': {name: float(value) for name, value in values.items()
                 if value is not None and math.isfinite(value)},
      'epochs': len(opa), 'best_epoch': best + 1,
      'parameters': sum(value.size for _, value in saved_weights.read(
          result.model_dir)), 'seconds': time.monotonic() - start}


def _trained(trial: Trial) -> Any:
  """The result of `train`."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  import tensorflow as tf

  from tpu_graphs_ext.engine import threads, train
  from tpu_graphs_ext.engine.resume import InUseError

  class Ending(tf.keras.callbacks.Callback):
    """Ends a run that nobody wants, which can be resumed, or that is poor."""

    def on_train_batch_end(self, batch, logs=None):
      if not pool.is_wanted():
        raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
      self.on_train_batch_end(epoch)
      if trial.prune and is_poor(
          trial, epoch + 1, float(logs['val_opa_metric'])):
        self.model.stop_training = True

  threads.one_for_each_operation()
  while True:
    try:
      return train.train(trial.settings(), [Ending()])
    except InUseError:  # A killed sweep's worker on a cluster still trains it.
      if not pool.is_wanted():
        raise
      time.sleep(2)
