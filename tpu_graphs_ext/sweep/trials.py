"""Trials of a sweep: a configuration with a seed, and how a worker trains it.

A trial's key is a hash of its content: task, model, arguments, settings, seed,
and the content of the data and of models.py. So a sweep that is started again,
or whose grid has grown, knows which trials are done with these very files.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.data import cache
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid as grids
from tpu_graphs_ext.sweep import pool, study
from tpu_graphs_ext.sweep.grid import Configuration, Grid, Prune

# Seconds between looks at a run that another process still trains: what a sweep
# that was killed started on a cluster continues there.
_PAUSE_SECONDS = 2


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
    return grids.SETTINGS[self.task](
        model=tried.model, seed=self.seed, resume=True,
        model_kwargs_json=json.dumps(tried.kwargs, sort_keys=True),
        data_root=self.data_root, out_dir=self.out,
        # Names the trial in the hash of the run, as data roots are not in it.
        results_csv=os.path.join(self.out, f'predictions_{self.key}.csv'),
        **tried.settings)


# ----------------------------------------------------------------------- keys


def trials_of(grid: Grid, out: str,
              configuration: Configuration) -> Iterator[Trial]:
  """A configuration of a grid with each seed; `out` is the sweep's folder."""
  for seed in grid.seeds:
    trial = Trial('', grid.task, configuration, seed, grid.data_root, out,
                  grid.prune, grid.study_name)
    yield dataclasses.replace(trial, key=_key(trial))


def _key(trial: Trial) -> str:
  settings, tried = trial.settings(), trial.configuration
  content = {
      'format': 'tpu_graphs_ext trial 2', 'task': trial.task,
      'model': tried.model, 'kwargs': tried.kwargs, 'seed': trial.seed,
      'settings': {name: value for name, value in tried.settings.items()
                   if name not in ('cache_dir', 'models_py')},
      'data': _data_key(
          trial.data_root if trial.task == 'tile' else os.path.join(
              trial.data_root, settings.source, settings.search)),
      'prune': trial.prune and dataclasses.asdict(trial.prune),
      'models_py': _file_sum(
          settings.models_py or load_models.models_path(trial.task))}
  return hashlib.sha256(json.dumps(
      content, sort_keys=True).encode()).hexdigest()[:16]


def forget_files() -> None:
  """Before each sweep: files are read once, but may change in between."""
  _data_key.cache_clear()
  _file_sum.cache_clear()


@functools.lru_cache(None)
def _data_key(folder: str) -> str:
  """Hash of all .npz files below a folder, by their paths and checksums."""
  paths = sorted(glob.glob(
      os.path.join(glob.escape(folder), '**', '*.npz'), recursive=True))
  if not paths:
    raise UserError(f'{folder}: has no .npz files, so nothing can be trained; '
                    'name another "data_root"')
  return cache.content_key(
      paths, ' '.join(os.path.relpath(path, folder) for path in paths))


@functools.lru_cache(None)
def _file_sum(path: str) -> str:
  try:
    with open(files.full_path(path), 'rb') as file:
      return hashlib.sha256(file.read()).hexdigest()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error


# ------------------------------------------------------------------- training


def run(trial: Trial) -> tuple[str, dict[str, Any]]:
  """Trains, or continues where an earlier attempt was broken off.

  Returns:
    (`FINISHED` or `STOPPED`, what was measured: the run's hash, goal -> value
    on the validation split, epochs, the best of them from 1, number of
    trainable parameters, seconds of this attempt).
  """
  from tpu_graphs_ext.engine import saved_weights
  start = time.monotonic()
  ending, result = _trained(trial)
  info = result.run_info
  opa = info['train_curve']['val_opa']
  best = max(range(len(opa)), key=opa.__getitem__)
  values = {'opa': opa[best], **{
      f'top{k}': slowdown
      for k, slowdown in info['final_error'].get('val', {}).items()}}
  if trial.task == 'layout':
    values['kendall'] = info['final_kendall'].get('val')
  return study.STOPPED if ending.is_poor else study.FINISHED, {
      'run': os.path.basename(result.model_dir)[len('model_'):],
      'values': {name: float(value) for name, value in values.items()
                 if value is not None and math.isfinite(value)},
      'epochs': len(opa), 'best_epoch': best + 1,
      'parameters': sum(value.size for _, value in saved_weights.read(
          result.model_dir)),
      'seconds': time.monotonic() - start}


def _trained(trial: Trial) -> tuple[Any, Any]:
  """(what could have ended the trial early, the result of `train`)."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tpu_graphs_ext.engine import threads, train
  from tpu_graphs_ext.engine.resume import InUseError
  threads.one_for_each_operation()
  while True:
    ending = _ending(trial)
    try:
      return ending, train.train(trial.settings(), [ending])
    except InUseError:
      if not pool.is_wanted():
        raise
      time.sleep(_PAUSE_SECONDS)


def _ending(trial: Trial) -> Any:
  """A callback that ends a run that is poor or that nobody wants."""
  import tensorflow as tf

  class Ending(tf.keras.callbacks.Callback):
    is_poor = False

    def on_train_batch_end(self, batch, logs=None):
      if not pool.is_wanted():
        raise KeyboardInterrupt  # The run can be resumed.

    def on_epoch_end(self, epoch, logs=None):
      self.on_train_batch_end(epoch)
      if trial.prune and study.is_poor(
          trial, epoch + 1, float(logs['val_opa_metric'])):
        self.is_poor = self.model.stop_training = True

  return Ending()
