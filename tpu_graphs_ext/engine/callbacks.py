"""Keras callbacks with one duty each, and `Epochs`, which runs them.

They share a `Progress`, and run in the order in which they stand here.
"""

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

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.resume import ResumeFolder
from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import write_file

_log = logging.getLogger(__name__)

Further = Sequence[tf.keras.callbacks.Callback]

# Saving takes longer than a short epoch. So the first best model waits for a
# minute, and a later one for 10 times as long as the last saving took.
_FIRST_SAVE_SECONDS = 60
_SAVE_PAUSE = 10

# Key of the run file's train_curve -> key in the logs of `fit`.
_CURVE = {'train_loss': 'loss', 'train_opa': 'opa_metric',
          'val_loss': 'val_loss', 'val_opa': 'val_opa_metric'}
CSV_LOG_START = ','.join(['epoch', *_CURVE.values()])


@dataclasses.dataclass(eq=False)
class Progress(tf.train.experimental.PythonState):
  """The progress of a training run, a part of its checkpoints.

  Attributes:
    epochs: finished epochs.
    best_epoch: number, from 0, of the best epoch; -1 before the first.
    best_val_opa: its validation OPA, on the batches that validation uses.
    saved_epoch: the epoch whose model is on disk; -1 before the first.
    stopped: no further epoch follows.
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

  def serialize(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  def deserialize(self, text: str) -> None:
    for key, value in json.loads(text).items():
      if hasattr(self, key):
        setattr(self, key, value)


def _first_line(error: Exception) -> str:
  """TensorFlow's errors go on for pages."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class LossNotFiniteError(UserError):
  """Training cannot continue, and resuming would not help."""


class StopOnNaN(tf.keras.callbacks.Callback):
  """Ends training if the loss is not finite after a call of several steps.

  Keras' TerminateOnNaN would still validate and count the epoch.
  """

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if not math.isfinite(logs['loss']):
      raise LossNotFiniteError(
          f'the loss became {logs["loss"]} in epoch {self._epoch + 1}, by step '
          f'{batch + 1}; training stopped')


class BestWeights(tf.keras.callbacks.Callback):
  """Keeps the weights of the epoch with the highest validation OPA."""

  def __init__(self, progress: Progress, model: tf.keras.Model):
    super().__init__()
    self._progress = progress
    self._of = model.trainable_variables
    self.variables = [tf.Variable(variable, trainable=False)
                      for variable in self._of]

  def on_epoch_end(self, epoch, logs=None):
    if float(logs['val_opa_metric']) > self._progress.best_val_opa:
      self._progress.best_val_opa = float(logs['val_opa_metric'])
      self._progress.best_epoch = epoch
      for best, variable in zip(self.variables, self._of):
        best.assign(variable)

  def restore(self) -> None:
    """Copies the best weights back into the model."""
    for best, variable in zip(self.variables, self._of):
      variable.assign(best)


class StopEarly(tf.keras.callbacks.Callback):
  """Ends the run after `patience` epochs without a better one; 0: never."""

  def __init__(self, progress: Progress, patience: int):
    super().__init__()
    self._progress, self._patience = progress, patience

  def on_epoch_end(self, epoch, logs=None):
    if self._patience and (
        epoch - self._progress.best_epoch >= self._patience):
      self.model.stop_training = True


class Record(tf.keras.callbacks.Callback):
  """Adds an epoch to the progress, and logs it; `batch`: kernels in a step."""

  def __init__(self, progress: Progress, epochs: int, batch: int):
    super().__init__()
    self._progress, self._epochs, self._batch = progress, epochs, batch

  def on_epoch_begin(self, epoch, logs=None):
    self._start = time.monotonic()

  def on_train_batch_end(self, batch, logs=None):
    self._kernels = (batch + 1) * self._batch
    self._train_seconds = time.monotonic() - self._start

  def on_epoch_end(self, epoch, logs=None):
    progress = self._progress
    # For TensorBoard, which comes later in the list and writes all logs.
    logs['kernels_per_second'] = self._kernels / max(
        self._train_seconds, 1e-9)
    progress.train_curve['epoch'].append(epoch)
    for key, log_key in _CURVE.items():
      progress.train_curve[key].append(float(logs[log_key]))
    progress.stopped = self.model.stop_training
    progress.epochs = epoch + 1
    seconds = time.monotonic() - self._start
    progress.seconds += seconds
    left = tqdm.format_interval((self._epochs - epoch - 1) * seconds)
    is_last = progress.stopped or progress.epochs == self._epochs
    _log.info('epoch %d: loss %.4f, validation loss %.4f, OPA %.4f%s; %.1f '
              'kernels/s%s', epoch + 1, logs['loss'], logs['val_loss'],
              logs['val_opa_metric'],
              ' (best so far)' * (progress.best_epoch == epoch),
              logs['kernels_per_second'],
              '' if is_last else f', at most {left} left')


class SaveBest(tf.keras.callbacks.Callback):
  """Saves a new best model, if that takes at most a tenth of the time.

  Args:
    progress: says which epoch is the best; `best` has its weights.
    model: to save in `model_dir`, with the run file's content `run_info`.

  Attributes:
    graph_spec: spec of the model's input, once it is known.
  """

  def __init__(self, progress: Progress, best: BestWeights,
               model: tf.keras.Model, run_info: dict[str, Any], model_dir: str):
    super().__init__()
    self.set_model(model)
    self.graph_spec = None
    self._progress, self._best = progress, best
    self._run_info, self._model_dir = run_info, model_dir
    self._is_called = False
    self._next_save = time.monotonic() + _FIRST_SAVE_SECONDS

  def on_train_batch_end(self, batch, logs=None):
    self._is_called = True

  def on_epoch_end(self, epoch, logs=None):
    if (self._progress.best_epoch == epoch
        and time.monotonic() >= self._next_save):
      self._save()

  def finish(self) -> None:
    """Gives the model its best weights, and saves it if not saved yet."""
    if self._progress.best_epoch < 0:
      return
    self._best.restore()
    # A run may be resumed after its model was moved away.
    is_saved = (self._progress.saved_epoch == self._progress.best_epoch
                and os.path.isdir(self._model_dir))
    # Without the spec it is too early; the checkpoint has the weights.
    if not is_saved and self.graph_spec is not None:
      self._save()

  def _save(self) -> None:
    start = time.monotonic()
    if not self._is_called:
      # Keras saves only a called model, and nothing was left to train.
      tf.function(lambda graph: self.model(graph), autograph=False
                  ).get_concrete_function(self.graph_spec)
      self._is_called = True
    artifacts.save_run(self.model, self._run_info,
                       os.path.dirname(self._model_dir))
    self._next_save = (1 + _SAVE_PAUSE) * time.monotonic() - _SAVE_PAUSE * start
    self._progress.saved_epoch = self._progress.best_epoch

  def summary(self) -> str:
    """Names the best model so far."""
    progress = self._progress
    if progress.best_epoch < 0:
      return 'No epoch was finished, so there is no model'
    where = (self._model_dir if progress.saved_epoch >= 0
             else 'not saved as a model yet')
    return (f'The best model so far (epoch {progress.best_epoch + 1}, '
            f'validation OPA {progress.best_val_opa:.4f}) is {where}')


class Checkpoints(tf.keras.callbacks.Callback):
  """Writes a checkpoint after each epoch; restores the last one if resumed.

  Raises:
    UserError: it belongs to other data or another models.py.
  """

  def __init__(self, progress: Progress, best: BestWeights, saved: SaveBest,
               folder: ResumeFolder, resume: bool):
    super().__init__()
    self._folder, self._saved = folder, saved
    optimizer = saved.model.optimizer
    optimizer.build(saved.model.trainable_variables)
    checkpoint = tf.train.Checkpoint(
        model=saved.model, optimizer=optimizer, best=best.variables,
        progress=progress,
        state=getattr(saved.model, 'training_state', list)())  # Averages.
    self._manager = tf.train.CheckpointManager(
        checkpoint, folder.path, max_to_keep=1)
    last = self._manager.latest_checkpoint
    if not resume or not last:
      return
    folder.keep_only(last)
    try:
      checkpoint.restore(last).assert_existing_objects_matched()
    except (ValueError, AssertionError, tf.errors.OpError) as error:
      raise UserError(
          f'{folder.path}: does not fit the model '
          f'({_first_line(error)}); the file is damaged, or the data or '
          'models.py changed since. Train without --resume') from error

  def on_epoch_end(self, epoch, logs=None):
    try:
      self._manager.save()
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self._folder.path}: cannot be written ({_first_line(error)}); '
          f'free some space. {self._saved.summary()}. To continue, run the '
          'same command with --resume') from error


class CsvLog(tf.keras.callbacks.Callback):
  """Writes one row an epoch; all of them each time, so none is ever half."""

  def __init__(self, progress: Progress, path: str):
    super().__init__()
    self._progress, self._path = progress, os.path.expanduser(path)

  def on_epoch_end(self, epoch, logs=None):
    curve = self._progress.train_curve
    rows = [CSV_LOG_START]
    rows += [','.join(map(repr, row))
             for row in zip(curve['epoch'], *(curve[key] for key in _CURVE))]
    write_file(self._path, ''.join(row + '\r\n' for row in rows).encode())


class ProgressBar(tf.keras.callbacks.Callback):
  """On a terminal, a bar of the kernels of an epoch, with loss and OPA.

  tqdm's own callback counts calls, each of which does several steps.
  """

  def __init__(self, batch: int):
    super().__init__()
    self._batch = batch

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


class Epochs:
  """The epochs of a run, with the callbacks above.

  Args:
    settings: of the run.
    model: built and compiled.
    run_info: the run file's content; its train_curve is kept up to date.
    folder: where checkpoints go; the run continues from one that is there.

  Attributes:
    progress: how far the run is.
  """

  def __init__(self, settings: Training, model: tf.keras.Model,
               run_info: dict[str, Any], folder: ResumeFolder):
    self.progress = Progress()
    self._settings, self._run_info = settings, run_info
    self._folder = folder
    best = BestWeights(self.progress, model)
    self._saved = SaveBest(
        self.progress, best, model, run_info, folder.model_dir)
    checkpoints = Checkpoints(
        self.progress, best, self._saved, folder, settings.resume)
    run_info['train_curve'] = self.progress.train_curve
    self._csv_log = [CsvLog(self.progress, path)
                     for path in [settings.csv_log] if path]
    self._callbacks = [
        best, StopEarly(self.progress, settings.early_stop),
        Record(self.progress, settings.epochs, settings.batch),
        self._saved, checkpoints, *self._csv_log, ProgressBar(settings.batch)]
    if settings.tensorboard:
      self._callbacks.append(tf.keras.callbacks.TensorBoard(
          os.path.expanduser(settings.tensorboard), write_graph=False))

  def fit(self, train_batches: tf.data.Dataset, valid_batches: tf.data.Dataset,
          further: Further) -> None:
    """Runs the remaining epochs; the model is the best of all afterwards."""
    epochs = self._settings.epochs
    self._saved.graph_spec = train_batches.element_spec[0]
    if not self.progress.stopped and self.progress.epochs < epochs:
      self._saved.model.fit(
          train_batches, validation_data=valid_batches, verbose=0,
          epochs=epochs, initial_epoch=self.progress.epochs,
          callbacks=[StopOnNaN(), *further, *self._callbacks])
    self._finish()
    self._run_info['seconds']['train'] = self.progress.seconds

  def _finish(self) -> None:
    """Leaves the best epoch, if there is one, in the model and on disk."""
    self._saved.finish()
    if self.progress.epochs:
      for csv_log in self._csv_log:
        csv_log.on_epoch_end(self.progress.epochs)

  @contextlib.contextmanager
  def saved_if_interrupted(self) -> Iterator[None]:
    """Keeps the best epoch if the `with` block ends early, and says how."""
    try:
      yield
    except LossNotFiniteError as error:
      self._finish()
      self._folder.is_over = True
      raise UserError(
          f'{error}. {self._saved.summary()}. Try a lower --lr, another '
          '--losses, or `check-data` on the data') from error
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
      raise UserError(
          f'out of memory or disk after epoch {self.progress.epochs} '
          f'({_first_line(error)}). {self._saved.summary()}. Lower '
          '--batch or --configs, or make room and run the same command with '
          '--resume') from error
    except KeyboardInterrupt:
      self._finish()
      _log.warning('interrupted after epoch %d. %s. To continue, run the same '
                   'command with --resume', self.progress.epochs,
                   self._saved.summary())
      raise
