"""Keras callbacks: keep the best model, stop on NaN, resume, show progress."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
import time
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import write_file
from tpu_graphs_ext.host import artifacts
from tpu_graphs_ext.host.settings import TrainSettings

_log = logging.getLogger(__name__)

# Settings that do not change what is trained: a resumed run may differ here.
_FREE_SETTINGS = ('resume', 'cache_dir', 'tensorboard', 'csv_log')

# A new best model waits until this many times as long as the last saving took
# has passed; else short epochs would be spent on saving.
_SAVE_PAUSE = 10

# Key of the run file's train_curve -> key in the logs of `fit`.
_CURVE = {'train_loss': 'loss', 'train_opa': 'opa_metric',
          'val_loss': 'val_loss', 'val_opa': 'val_opa_metric'}


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
      setattr(self.progress, key, value)


class ResumeFolder:
  """<out_dir>/resume_<hash>/: what an interrupted run needs to go on.

  It exists from the start of a run until its end. `started.json` holds the
  run's settings, the `args` of its run file and the seed of its batches.
  """

  def __init__(self, path: str, started: dict[str, Any]):
    self.path = path
    self.args = started['args']
    self.batch_seed = started['batch_seed']

  @classmethod
  def of(cls, settings: TrainSettings) -> ResumeFolder:
    """That of the run to resume, or a new one; see `find` and `start`."""
    return cls.find(settings) if settings.resume else cls.start(settings)

  @classmethod
  def start(cls, settings: TrainSettings) -> ResumeFolder:
    """Makes the folder of a new run."""
    args = settings.baseline_args()
    # Without a seed one is drawn, and kept for a resumed run.
    seed = settings.seed
    if seed is None:
      seed = int.from_bytes(os.urandom(4), 'little')
    started = {'args': args, 'batch_seed': seed, 'settings': _fixed(settings)}
    path = os.path.join(os.path.expanduser(settings.out_dir),
                        'resume_' + artifacts.train_hash(args))
    shutil.rmtree(path, ignore_errors=True)
    write_file(os.path.join(path, 'started.json'), json.dumps(started).encode())
    return cls(path, started)

  @classmethod
  def find(cls, settings: TrainSettings) -> ResumeFolder:
    """The folder of the latest interrupted run with the same settings.

    Raises:
      UserError: there is none.
    """
    found = []
    interrupted = []
    for path, started in _started(os.path.expanduser(settings.out_dir)):
      unlike = [key for key, value in _fixed(settings).items()
                if started['settings'].get(key) != value]
      if not unlike:
        found.append((os.path.getmtime(path), path, started))
      else:
        interrupted.append(f'{os.path.basename(path)} (differs in '
                           f'{", ".join("--" + key for key in unlike)})')
    if not found:
      others = '; '.join(interrupted) or 'none'
      raise UserError(
          f'--resume: no interrupted run in {settings.out_dir} has these '
          f'settings. Interrupted runs there: {others}. Give the flags of the '
          'run to continue, or leave out --resume')
    path, started = max(found, key=lambda item: item[0])[1:]
    return cls(path, started)

  def remove(self) -> None:
    shutil.rmtree(self.path, ignore_errors=True)


def _fixed(settings: TrainSettings) -> dict[str, Any]:
  return {key: value for key, value in dataclasses.asdict(settings).items()
          if key not in _FREE_SETTINGS}


def _started(out_dir: str):
  """Yields (folder, content of its started.json) of every resume folder."""
  names = sorted(os.listdir(out_dir)) if os.path.isdir(out_dir) else []
  for name in names:
    path = os.path.join(out_dir, name)
    if name.startswith('resume_'):
      try:
        with open(os.path.join(path, 'started.json'), encoding='utf-8') as file:
          yield path, json.load(file)
      except (OSError, ValueError) as error:
        _log.warning('%s: cannot be resumed (%s)', path, error)


class KeepBest(tf.keras.callbacks.Callback):
  """Records every epoch, saves new best models, stops early.

  Best is the highest validation OPA, as in the baseline. After every epoch
  weights, optimizer, best weights and progress go into one checkpoint. The
  first best model is saved at once, later ones when saving takes no more than
  about a tenth of the time; `finish` saves the last.

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
    self.model_dir = artifacts.model_path(
        settings.out_dir, artifacts.train_hash(run_info['args']))
    self._settings = settings
    self._run_info = run_info
    self._next_save = 0.0  # On the clock of time.monotonic.
    self._best = [tf.Variable(variable, trainable=False)
                  for variable in model.trainable_variables]
    self._checkpoints = self._open_checkpoints()
    run_info['train_curve'] = self.progress.train_curve

  def _open_checkpoints(self) -> tf.train.CheckpointManager:
    """Prepares checkpoints; loads the last where the run is resumed."""
    optimizer = self.model.optimizer
    optimizer.build(self.model.trainable_variables)
    checkpoint = tf.train.Checkpoint(
        model=self.model, optimizer=optimizer, best=self._best,
        progress=_StoredProgress(self.progress))
    checkpoints = tf.train.CheckpointManager(
        checkpoint, self.folder.path, max_to_keep=1)
    last = checkpoints.latest_checkpoint
    if self._settings.resume and last:
      try:
        checkpoint.restore(last).assert_existing_objects_matched()
      except (ValueError, AssertionError, tf.errors.OpError) as error:
        raise UserError(
            f'{self.folder.path}: does not fit the model ({error}); the data '
            'or models.py changed since. Train without --resume') from error
    return checkpoints

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch_start = time.monotonic()

  def on_epoch_end(self, epoch, logs=None):
    progress = self.progress
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
      progress.stopped = self.model.stop_training = True
    progress.epochs = epoch + 1
    progress.seconds += time.monotonic() - self._epoch_start
    _log.info('epoch %d: loss %.4f, validation loss %.4f, OPA %.4f%s',
              epoch + 1, logs['loss'], logs['val_loss'], val_opa,
              ' (best so far)' if is_best else '')
    if is_best and time.monotonic() >= self._next_save:
      self._save()
    try:
      self._checkpoints.save()
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self.folder.path}: cannot be written ({error}). '
          f'{self.summary()}') from error

  def finish(self) -> None:
    """Gives the model its best weights, and saves it where that waited."""
    if self.progress.best_epoch < 0:
      return
    for best, variable in zip(self._best, self.model.trainable_variables):
      variable.assign(best)
    if self.progress.saved_epoch != self.progress.best_epoch:
      self._save()

  def _save(self) -> None:
    start = time.monotonic()
    artifacts.save_run(self.model, self._run_info, self._settings.out_dir)
    self._next_save = (1 + _SAVE_PAUSE) * time.monotonic() - _SAVE_PAUSE * start
    self.progress.saved_epoch = self.progress.best_epoch

  def summary(self) -> str:
    """Names the best model so far."""
    if self.progress.best_epoch < 0:
      return 'No epoch was finished, so there is no model'
    return (f'The best model so far (epoch {self.progress.best_epoch + 1}, '
            f'validation OPA {self.progress.best_val_opa:.4f}) is '
            f'{self.model_dir}')


class LossNotFiniteError(UserError):
  """Training cannot go on, and resuming would not help."""


class StopOnNaN(tf.keras.callbacks.Callback):
  """Ends training where the loss is not a finite number.

  It looks after each call of the compiled step, which does several steps.
  Keras' TerminateOnNaN would still validate and count the epoch.
  """

  def __init__(self, keep_best: KeepBest):
    super().__init__()
    self._keep_best = keep_best
    self._epoch = 0

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if not math.isfinite(logs['loss']):
      raise LossNotFiniteError(
          f'the loss became {logs["loss"]} in epoch {self._epoch + 1}, by step '
          f'{batch + 1}; training stopped. {self._keep_best.summary()}. Try a '
          'lower --lr, another --losses, or `check-data` on the data')


class ProgressBar(tf.keras.callbacks.Callback):
  """A bar of the steps of the epoch, with loss and OPA, on a terminal.

  tqdm's own callback counts calls, each of which does several steps.
  """

  def on_epoch_begin(self, epoch, logs=None):
    self._bar = tqdm(
        desc=f'epoch {epoch + 1} of {self.params["epochs"]}', unit='step',
        total=self.params['steps'], disable=None, leave=False)

  def on_train_batch_end(self, batch, logs=None):
    self._bar.set_postfix(logs, refresh=False)
    self._bar.update(batch + 1 - self._bar.n)

  def on_epoch_end(self, epoch, logs=None):
    self._bar.close()
