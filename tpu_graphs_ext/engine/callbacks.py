"""Keras callbacks with one duty each, and `Epochs`, which runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine import artifacts, saved_weights
from tpu_graphs_ext.engine.resume import ResumeFolder
from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError, reason_of

_log = logging.getLogger(__name__)

Further = Sequence[tf.keras.callbacks.Callback]

# Key of the run file's train_curve -> key in the logs of `fit`.
_CURVE = {'train_loss': 'loss', 'train_opa': 'opa_metric',
          'val_loss': 'val_loss', 'val_opa': 'val_opa_metric'}


@dataclasses.dataclass(eq=False)
class Progress(tf.train.experimental.PythonState):
  """The progress of a training run, a part of its checkpoints."""
  epochs: int = 0  # Finished.
  best_epoch: int = -1  # From 0; -1 before the first.
  best_val_opa: float = -1.0  # Its validation OPA.
  stopped: bool = False  # No further epoch follows.
  seconds: float = 0.0  # In finished epochs, validation included.
  train_curve: dict[str, list] = dataclasses.field(
      default_factory=lambda: {'epoch': [], **{key: [] for key in _CURVE}})

  def serialize(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  def deserialize(self, text: str) -> None:
    for key, value in json.loads(text).items():
      setattr(self, key, value)


class LossNotFiniteError(UserError):
  """Training cannot continue, and resuming would not help."""


class StopOnNaN(tf.keras.callbacks.Callback):
  """Ends training at a loss that is not finite or an epoch without measures."""

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if not math.isfinite(logs.get('loss', 0.0)):
      raise LossNotFiniteError(
          f'the loss became {logs["loss"]} in epoch {self._epoch + 1}, by step '
          f'{batch + 1}; training stopped')

  def on_epoch_end(self, epoch, logs=None):
    if missing := sorted(set(_CURVE.values()) - set(logs)):
      raise UserError(f'{type(self.model).__name__}: training reports no '
                      f'{", ".join(missing)}; compile must set the metrics it '
                      'is given, and train_step and test_step return them')
    if not math.isfinite(logs['val_loss']):
      raise LossNotFiniteError(
          f'the validation loss became {logs["val_loss"]} in epoch '
          f'{epoch + 1}; training stopped')


class EarlyStopping(tf.keras.callbacks.Callback):
  """Keeps the weights of the epoch with the highest validation OPA.

  Ends the run after `patience` epochs without a better one, counted over all
  resumed parts; 0: never.
  """

  def __init__(self, progress: Progress, model: tf.keras.Model, patience: int):
    super().__init__()
    self._progress, self._patience = progress, patience
    self._of = model.trainable_variables
    self.variables = [tf.Variable(variable, trainable=False)
                      for variable in self._of]

  def on_epoch_end(self, epoch, logs=None):
    if float(logs['val_opa_metric']) > self._progress.best_val_opa:
      self._progress.best_val_opa = float(logs['val_opa_metric'])
      self._progress.best_epoch = epoch
      for best, variable in zip(self.variables, self._of):
        best.assign(variable)
    if self._patience and (epoch - self._progress.best_epoch >= self._patience):
      self.model.stop_training = True

  def restore(self) -> None:
    for best, variable in zip(self.variables, self._of):
      variable.assign(best)


class Record(tf.keras.callbacks.Callback):
  """Adds an epoch to the progress, shows a bar of its kernels, and logs it."""

  def __init__(self, progress: Progress, epochs: int, batch: int):
    super().__init__()
    self._progress, self._epochs, self._batch = progress, epochs, batch
    self.kernels = 0  # Of this epoch.

  def on_epoch_begin(self, epoch, logs=None):
    self._start = time.monotonic()
    steps = self.params['steps']
    self._bar = tqdm(
        desc=f'epoch {epoch + 1} of {self._epochs}', unit='kernel',
        total=steps and steps * self._batch, disable=None, leave=False)

  def on_train_batch_end(self, batch, logs=None):
    self.kernels = (batch + 1) * self._batch  # A call does several steps.
    self._train_seconds = time.monotonic() - self._start
    self._bar.set_postfix(logs, refresh=False)
    self._bar.update(self.kernels - self._bar.n)

  def on_epoch_end(self, epoch, logs=None):
    self._bar.close()
    progress = self._progress
    progress.train_curve['epoch'].append(epoch)
    for key, log_key in _CURVE.items():
      progress.train_curve[key].append(float(logs[log_key]))
    progress.stopped = self.model.stop_training
    progress.epochs = epoch + 1
    progress.seconds += time.monotonic() - self._start
    _log.info('epoch %d: loss %.4f, validation loss %.4f, OPA %.4f%s; %.1f '
              'kernels/s', epoch + 1, logs['loss'], logs['val_loss'],
              logs['val_opa_metric'],
              ' (best so far)' if progress.best_epoch == epoch else '',
              self.kernels / max(self._train_seconds, 1e-9))


class Checkpoints(tf.keras.callbacks.Callback):
  """Writes a checkpoint after each epoch; restores the last one if resumed."""

  def __init__(self, progress: Progress, best: EarlyStopping,
               model: tf.keras.Model, folder: ResumeFolder):
    super().__init__()
    self._path = path = folder.path
    model.optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=model.optimizer, best=best.variables,
        progress=progress,
        state=getattr(model, 'training_state', list)())  # Averages.
    self._manager = tf.train.CheckpointManager(
        checkpoint, folder.checkpoints, max_to_keep=1)
    last = self._manager.latest_checkpoint
    if folder.is_new or not last:
      return
    try:
      saved_weights.require_sound(last)
      checkpoint.restore(last).assert_existing_objects_matched()
    except (ValueError, AssertionError, tf.errors.OpError) as error:
      raise UserError(f'{path}: does not fit the model ({reason_of(error)}); '
                      'the file is damaged, or the data or models.py changed '
                      'since. Train without --resume') from error

  def on_epoch_end(self, epoch, logs=None):
    try:
      self._manager.save()
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self._path}: cannot be written ({reason_of(error)}); free some '
          'space. To continue, run the same command with --resume') from error


class Epochs:
  """The epochs of a run, which keep `run_info` up to date."""

  def __init__(self, settings: Training, model: tf.keras.Model,
               run_info: dict[str, Any], folder: ResumeFolder):
    self.progress = Progress()
    self._settings, self._run_info = settings, run_info
    self._model, self._folder = model, folder
    self._best = EarlyStopping(self.progress, model, settings.early_stop)
    self._record = Record(self.progress, settings.epochs, settings.batch)
    checkpoints = Checkpoints(self.progress, self._best, model, folder)
    run_info['train_curve'] = self.progress.train_curve
    keras = tf.keras.callbacks
    self._callbacks = [
        StopOnNaN(), self._best, self._record, checkpoints,
        *(keras.TensorBoard(os.path.expanduser(path), write_graph=False)
          for path in [settings.tensorboard] if path)]

  def fit(self, train_batches: tf.data.Dataset, valid_batches: tf.data.Dataset,
          further: Further) -> None:
    """Runs the remaining epochs; the model is the best of all afterwards."""
    epochs = self._settings.epochs
    if not self.progress.stopped and self.progress.epochs < epochs:
      with load_models.errors_of_model(
          self._model, 'be trained', 'call(graph, training)'):
        self._model.fit(
            train_batches, validation_data=valid_batches, verbose=0,
            epochs=epochs, initial_epoch=self.progress.epochs,
            callbacks=[*further, *self._callbacks])
    else:  # Keras saves only a called model.
      tf.function(lambda graph: self._model(graph), autograph=False
                  ).get_concrete_function(train_batches.element_spec[0])
    self._save()
    self._run_info['seconds']['train'] = self.progress.seconds

  def _save(self) -> str:
    """Leaves the best epoch in the model and on disk; says where it is."""
    if self.progress.best_epoch < 0:
      return 'No epoch was finished, so there is no model'
    self._best.restore()
    artifacts.save_run(
        self._model, self._run_info, os.path.dirname(self._folder.model_dir),
        self._settings.task, self._folder.origin.source)
    return (f'The best model so far (epoch {self.progress.best_epoch + 1}, '
            f'validation OPA {self.progress.best_val_opa:.4f}) is '
            f'{self._folder.model_dir}')

  @contextlib.contextmanager
  def saved_if_interrupted(self) -> Iterator[None]:
    """Keeps the best epoch if the `with` block ends early, and says how."""
    try:
      yield
    except LossNotFiniteError as error:
      saved = self._save()
      self._folder.is_over = True
      raise UserError(f'{error}. {saved}. Try a lower --lr, another --losses, '
                      'or `check-data` on the data') from error
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
      raise UserError(
          f'out of memory or disk after epoch {self.progress.epochs} '
          f'({reason_of(error)}). Lower --batch or --configs, or make room and '
          'run the same command with --resume') from error
    except KeyboardInterrupt:
      # Without a step since the last checkpoint there is nothing to save.
      saved = self._save() if self._record.kernels else 'Nothing was trained'
      _log.warning('interrupted after epoch %d. %s. To continue, run the same '
                   'command with --resume', self.progress.epochs, saved)
      raise
