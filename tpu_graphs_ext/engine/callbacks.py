"""The epochs of a training run; each ends with a checkpoint."""

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

from tpu_graphs_ext.engine import artifacts
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
    vars(self).update(json.loads(text))


class Epochs(tf.keras.callbacks.Callback):
  """Runs the epochs and keeps the best; continues from a checkpoint.

  It is its own callback: Keras' EarlyStopping starts anew in a resumed run, and
  its TerminateOnNaN still validates and counts the epoch. The train_curve of
  `run_info`, the run file's content, is kept up to date.
  """

  def __init__(self, settings: Training, model: tf.keras.Model,
               run_info: dict[str, Any], folder: ResumeFolder):
    super().__init__()
    self.model, self.progress = model, Progress()
    self._settings, self._run_info, self._folder = settings, run_info, folder
    self._kernels = 0  # Of this epoch; 0 before the first step.
    self._variables = model.trainable_variables
    self._best = [tf.Variable(variable, trainable=False)
                  for variable in self._variables]
    model.optimizer.build(self._variables)
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=model.optimizer, best=self._best,
        progress=self.progress,
        state=getattr(model, 'training_state', list)())  # Averages.
    self._manager = tf.train.CheckpointManager(
        checkpoint, folder.path, max_to_keep=1)
    last = self._manager.latest_checkpoint
    try:
      if last and not folder.is_new:
        checkpoint.restore(last).assert_existing_objects_matched()
    except (ValueError, AssertionError, tf.errors.OpError) as error:
      raise UserError(
          f'{folder.path}: does not fit the model ({reason_of(error)}); the '
          'file is damaged, or the data or models.py changed since. Train '
          'without --resume') from error
    run_info['train_curve'] = self.progress.train_curve

  def fit(self, train_batches: tf.data.Dataset, valid_batches: tf.data.Dataset,
          further: Further) -> None:
    """Runs the remaining epochs; the model is the best of all afterwards."""
    progress, epochs = self.progress, self._settings.epochs
    callbacks = [*further, self]
    if self._settings.tensorboard:
      callbacks.append(tf.keras.callbacks.TensorBoard(
          os.path.expanduser(self._settings.tensorboard), write_graph=False))
    if not progress.stopped and progress.epochs < epochs:
      self.model.fit(
          train_batches, validation_data=valid_batches, verbose=0,
          epochs=epochs, initial_epoch=progress.epochs, callbacks=callbacks)
    else:  # Keras saves only a called model.
      tf.function(lambda graph: self.model(graph), autograph=False
                  ).get_concrete_function(train_batches.element_spec[0])
    self._save()
    self._run_info['seconds']['train'] = progress.seconds

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch, self._start = epoch, time.monotonic()

  def on_train_batch_end(self, batch, logs=None):
    if not math.isfinite(logs['loss']):
      saved, self._folder.is_over = self._save(), True  # Nothing to resume.
      raise UserError(
          f'the loss became {logs["loss"]} in epoch {self._epoch + 1}, by step '
          f'{batch + 1}; training stopped. {saved}. Try a lower --lr, another '
          '--losses, or `check-data` on the data')
    # A call does several steps.
    self._kernels = (batch + 1) * self._settings.batch
    self._train_seconds = time.monotonic() - self._start

  def on_epoch_end(self, epoch, logs=None):
    progress, settings = self.progress, self._settings
    # For TensorBoard, which comes later in the list and writes all logs.
    logs['kernels_per_second'] = self._kernels / max(self._train_seconds, 1e-9)
    progress.train_curve['epoch'].append(epoch)
    for key, log_key in _CURVE.items():
      progress.train_curve[key].append(float(logs[log_key]))
    if logs['val_opa_metric'] > progress.best_val_opa:
      progress.best_val_opa = float(logs['val_opa_metric'])
      progress.best_epoch = epoch
      for best, variable in zip(self._best, self._variables):
        best.assign(variable)
    if 0 < settings.early_stop <= epoch - progress.best_epoch:
      self.model.stop_training = True
    progress.stopped, progress.epochs = self.model.stop_training, epoch + 1
    seconds = time.monotonic() - self._start
    progress.seconds += seconds
    _log.info('epoch %d: loss %.4f, validation loss %.4f, OPA %.4f%s; %.1f '
              'kernels/s, at most %.1f min left', epoch + 1, logs['loss'],
              logs['val_loss'], logs['val_opa_metric'],
              ' (best so far)' * (progress.best_epoch == epoch),
              logs['kernels_per_second'],
              (settings.epochs - epoch - 1) * seconds / 60)
    try:
      self._manager.save()
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self._folder.path}: cannot be written ({reason_of(error)}); free '
          'some space. To continue, run the same command with --resume'
      ) from error

  def _save(self) -> str:
    """Saves the best epoch as a model; returns a sentence about it."""
    progress = self.progress
    if progress.best_epoch < 0:
      return 'No epoch was finished, so there is no model'
    for best, variable in zip(self._best, self._variables):
      variable.assign(best)
    artifacts.save_run(self.model, self._run_info,
                       os.path.dirname(self._folder.model_dir))
    return (f'The best model so far (epoch {progress.best_epoch + 1}, OPA '
            f'{progress.best_val_opa:.4f}) is {self._folder.model_dir}')

  @contextlib.contextmanager
  def saved_if_interrupted(self) -> Iterator[None]:
    """Keeps the best epoch if the `with` block ends early, and says how."""
    try:
      yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
      raise UserError(
          f'out of memory or disk after epoch {self.progress.epochs} '
          f'({reason_of(error)}). Lower --batch or --configs, or make room and '
          'run the same command with --resume') from error
    except KeyboardInterrupt:
      # Before the first step, the checkpoint has all that there is.
      saved = self._save() if self._kernels else 'Nothing was trained'
      _log.warning('interrupted after epoch %d. %s. To continue, run the same '
                   'command with --resume', self.progress.epochs, saved)
      raise
