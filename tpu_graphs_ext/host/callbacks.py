"""Keras callbacks: keep the best model, stop on NaN, resume, show progress."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import time
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import write_file
from tpu_graphs_ext.host import artifacts
from tpu_graphs_ext.host.resume import ResumeFolder
from tpu_graphs_ext.host.settings import TrainSettings

_log = logging.getLogger(__name__)

# Saving takes longer than a short epoch. So the first best model waits for so
# many seconds, and each further one until this many times as long as the last
# saving took has passed.
_FIRST_SAVE_SECONDS = 60
_SAVE_PAUSE = 10

# Key of the run file's train_curve -> key in the logs of `fit`.
_CURVE = {'train_loss': 'loss', 'train_opa': 'opa_metric',
          'val_loss': 'val_loss', 'val_opa': 'val_opa_metric'}
CSV_LOG_START = ','.join(['epoch', *_CURVE.values()])


@dataclasses.dataclass
class Progress:
  """How far a training run is; all of it survives an interruption.

  Attributes:
    epochs: epochs finished.
    best_epoch: number, from 0, of the best epoch; -1 before the first.
    best_val_opa: its validation OPA, on the batches that validation uses.
    saved_epoch: the epoch whose model is on disk; -1 before the first.
    stopped: no further epoch is to come.
    seconds: spent in finished epochs, validation included.
    train_curve: the run file's.
  """
  epochs: int = 0
  best_epoch: int = -1
  best_val_opa: float = -1.0
  saved_epoch: int = -1
  stopped: bool = False
  seconds: float = 0.0
  train_curve: dict[str, list] = dataclasses.field(
      default_factory=lambda: {'epoch': [], **{key: [] for key in _CURVE}})


class _StoredProgress(tf.train.experimental.PythonState):
  """Puts a `Progress` into a TensorFlow checkpoint, as JSON."""

  def __init__(self, progress: Progress):
    self.progress = progress

  def serialize(self) -> str:
    return json.dumps(dataclasses.asdict(self.progress))

  def deserialize(self, text: str) -> None:
    for key, value in json.loads(text).items():
      if hasattr(self.progress, key):
        setattr(self.progress, key, value)


class KeepBest(tf.keras.callbacks.Callback):
  """Records every epoch, saves new best models, stops early.

  Best is the highest validation OPA, as in the baseline. After every epoch
  weights, optimizer, best weights and progress go into one checkpoint. The
  first best model is saved after a minute, later ones when saving takes no more
  than about a tenth of the time; `finish` saves the last.

  Args:
    settings: of the run: whether to go on from the last checkpoint, when to
      stop early, where artifacts go.
    model: built and compiled.
    run_info: the run file's content; its train_curve is kept up to date.
    folder: where checkpoints go.

  Raises:
    UserError: the checkpoint is of other data or another models.py.
  """

  def __init__(self, settings: TrainSettings, model: tf.keras.Model,
               run_info: dict[str, Any], folder: ResumeFolder):
    super().__init__()
    self.set_model(model)
    self.folder = folder
    self.progress = Progress()
    self._stored = _StoredProgress(self.progress)
    self.model_dir = artifacts.model_path(
        settings.out_dir, artifacts.train_hash(run_info['args']))
    self._settings = settings
    self.run_info = run_info
    self.graph_spec = None  # Of what `fit` is given, once it is known.
    self._is_called = False
    self._next_save = time.monotonic() + _FIRST_SAVE_SECONDS
    self._best = [tf.Variable(variable, trainable=False)
                  for variable in model.trainable_variables]
    model.optimizer.build(model.trainable_variables)
    self._open_checkpoints()
    run_info['train_curve'] = self.progress.train_curve

  def _open_checkpoints(self) -> None:
    """Prepares checkpoints; loads the last where the run is resumed."""
    checkpoint = tf.train.Checkpoint(
        model=self.model, optimizer=self.model.optimizer, best=self._best,
        progress=self._stored)
    self._checkpoints = tf.train.CheckpointManager(
        checkpoint, self.folder.path, max_to_keep=1)
    last = self._checkpoints.latest_checkpoint
    if not self._settings.resume or not last:
      return
    self.folder.keep_only(last)
    try:
      checkpoint.restore(last).assert_existing_objects_matched()
    except (ValueError, AssertionError, tf.errors.OpError) as error:
      raise UserError(
          f'{self.folder.path}: does not fit the model '
          f'({first_line(error)}); the file is damaged, or the data or '
          'models.py changed since. Train without --resume') from error

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch_start = time.monotonic()

  def on_train_batch_end(self, batch, logs=None):
    self._is_called = True
    self._kernels = (batch + 1) * self._settings.batch
    self._train_seconds = time.monotonic() - self._epoch_start

  def on_epoch_end(self, epoch, logs=None):
    progress = self.progress
    # For TensorBoard, which comes later in the list and takes all logs.
    logs['kernels_per_second'] = self._kernels / max(
        self._train_seconds, 1e-9)
    progress.train_curve['epoch'].append(epoch)
    for key, log_key in _CURVE.items():
      progress.train_curve[key].append(float(logs[log_key]))
    val_opa = float(logs['val_opa_metric'])
    is_best = val_opa > progress.best_val_opa
    if is_best:
      progress.best_val_opa = val_opa
      progress.best_epoch = epoch
      for best, variable in zip(self._best, self.model.trainable_variables):
        best.assign(variable)
    elif 0 < self._settings.early_stop <= epoch - progress.best_epoch:
      self.model.stop_training = True
    progress.stopped = self.model.stop_training  # Others may have set it too.
    progress.epochs = epoch + 1
    self._epoch_seconds = time.monotonic() - self._epoch_start
    progress.seconds += self._epoch_seconds
    _log.info('epoch %d: loss %.4f, validation loss %.4f, OPA %.4f%s; %.1f '
              'kernels/s%s', epoch + 1, logs['loss'], logs['val_loss'],
              val_opa, ' (best so far)' if is_best else '',
              logs['kernels_per_second'], self._time_left())
    self._write(is_best)

  def _write(self, is_best: bool) -> None:
    """What is on disk after an epoch."""
    if is_best and time.monotonic() >= self._next_save:
      self._save()
    try:
      self._checkpoints.save()
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self.folder.path}: cannot be written ({first_line(error)}); '
          f'free some space. {self.summary()}. To continue, run the same '
          'command with --resume') from error
    self._write_csv_log()

  def _time_left(self) -> str:
    """', at most 1:23:45 left', by the last epoch; '' where none is left."""
    epochs = self._settings.epochs - self.progress.epochs
    if not epochs or self.progress.stopped:
      return ''
    left = tqdm.format_interval(epochs * self._epoch_seconds)
    return f', at most {left} left'

  def finish(self) -> None:
    """Gives the model its best weights, and saves it where that waited."""
    if self.progress.best_epoch < 0:
      return
    for best, variable in zip(self._best, self.model.trainable_variables):
      variable.assign(best)
    # A run may be resumed after its model was moved away.
    is_saved = (self.progress.saved_epoch == self.progress.best_epoch
                and os.path.isdir(self.model_dir))
    # Without the spec it is too early; the checkpoint has the weights.
    if not is_saved and self.graph_spec is not None:
      self._save()
    self._write_csv_log()

  def _save(self) -> None:
    start = time.monotonic()
    if not self._is_called:
      # Keras saves what it has called, and nothing was left to train.
      tf.function(lambda graph: self.model(graph), autograph=False
                  ).get_concrete_function(self.graph_spec)
      self._is_called = True
    artifacts.save_run(self.model, self.run_info, self._settings.out_dir)
    self._next_save = (1 + _SAVE_PAUSE) * time.monotonic() - _SAVE_PAUSE * start
    self.progress.saved_epoch = self.progress.best_epoch

  def _write_csv_log(self) -> None:
    """One row an epoch; whole each time, so a killed run leaves no half row."""
    if not self._settings.csv_log:
      return
    curve = self.progress.train_curve
    rows = [CSV_LOG_START]
    rows += [','.join(map(repr, row))
             for row in zip(curve['epoch'], *(curve[key] for key in _CURVE))]
    write_file(os.path.expanduser(self._settings.csv_log),
               ''.join(row + '\r\n' for row in rows).encode())

  def summary(self) -> str:
    """Names the best model so far."""
    if self.progress.best_epoch < 0:
      return 'No epoch was finished, so there is no model'
    where = (self.model_dir if self.progress.saved_epoch >= 0
             else 'not saved as a model yet')
    return (f'The best model so far (epoch {self.progress.best_epoch + 1}, '
            f'validation OPA {self.progress.best_val_opa:.4f}) is {where}')


def first_line(error: Exception) -> str:
  """TensorFlow's errors go on for pages."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class LossNotFiniteError(UserError):
  """Training cannot go on, and resuming would not help."""


class StopOnNaN(tf.keras.callbacks.Callback):
  """Ends training where the loss is not a finite number.

  It looks after each call of the compiled step, which does several steps.
  Keras' TerminateOnNaN would still validate and count the epoch.
  """

  def __init__(self):
    super().__init__()
    self._epoch = 0

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if not math.isfinite(logs['loss']):
      raise LossNotFiniteError(
          f'the loss became {logs["loss"]} in epoch {self._epoch + 1}, by step '
          f'{batch + 1}; training stopped')


class ProgressBar(tf.keras.callbacks.Callback):
  """A bar of the kernels of the epoch, with loss and OPA, on a terminal.

  It shows kernels a second and the time left of the epoch. tqdm's own callback
  counts calls, each of which does several steps.

  Args:
    settings: of the run.
  """

  def __init__(self, settings: TrainSettings):
    super().__init__()
    self._batch = settings.batch

  def on_epoch_begin(self, epoch, logs=None):
    steps = self.params['steps']
    self._bar = tqdm(
        desc=f'epoch {epoch + 1} of {self.params["epochs"]}', unit='kernel',
        total=steps and steps * self._batch, disable=None, leave=False)

  def on_train_batch_end(self, batch, logs=None):
    self._bar.set_postfix(logs, refresh=False)
    self._bar.update((batch + 1) * self._batch - self._bar.n)

  def on_epoch_end(self, epoch, logs=None):
    self._bar.close()
