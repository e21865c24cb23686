"""Trials of a sweep: a configuration with a seed, and how a worker trains it.

A trial's key is a hash of its content, with that of the data and of models.py:
a sweep that is started again, or has grown, knows which trials are done.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import math
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.data import cache
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid as grids
from tpu_graphs_ext.sweep import pool, study
from tpu_graphs_ext.sweep.grid import Configuration, Grid, Prune

# Between looks at a run that a killed sweep's worker on a cluster still trains.
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
    return hashlib.sha256(
        pathlib.Path(path).expanduser().read_bytes()).hexdigest()
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
  state, result = _trained(trial)
  info = result.run_info
  opa = info['train_curve']['val_opa']
  best = max(range(len(opa)), key=opa.__getitem__)
  values = {'opa': opa[best], **{
      f'top{k}': slowdown
      for k, slowdown in info['final_error'].get('val', {}).items()}}
  if trial.task == 'layout':
    values['kendall'] = info['final_kendall'].get('val')
  return state, {
      'run': os.path.basename(result.model_dir)[len('model_'):],
      'values': {name: float(value) for name, value in values.items()
                 if value is not None and math.isfinite(value)},
      'epochs': len(opa), 'best_epoch': best + 1,
      'parameters': sum(value.size for _, value in saved_weights.read(
          result.model_dir)),
      'seconds': time.monotonic() - start}


def _trained(trial: Trial) -> tuple[str, Any]:
  """(how it ended, the result of `train`)."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  import tensorflow as tf

  from tpu_graphs_ext.engine import threads, train
  from tpu_graphs_ext.engine.resume import InUseError

  class Ending(tf.keras.callbacks.Callback):
    """Ends a run that nobody wants, which can be resumed, or that is poor."""
    state = study.FINISHED

    def on_train_batch_end(self, batch, logs=None):
      if not pool.is_wanted():
        raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
      self.on_train_batch_end(epoch)
      if trial.prune and study.is_poor(
          trial, epoch + 1, float(logs['val_opa_metric'])):
        self.state, self.model.stop_training = study.STOPPED, True

  threads.one_for_each_operation()
  while True:
    ending = Ending()
    try:
      result = train.train(trial.settings(), [ending])
      return ending.state, result
    except InUseError:
      if not pool.is_wanted():
        raise
      time.sleep(_PAUSE_SECONDS)
