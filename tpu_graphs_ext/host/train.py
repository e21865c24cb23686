"""Trains a model from models.py, as the baseline's trainer does it.

What it writes is described in `artifacts`; the baseline's scripts read it.
`run` goes through the epochs and keeps, resumes and tells; what is of the tile
task alone is in `TileTask`, and the layout task has another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf
import tensorflow_ranking as tfr

from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import (
  artifacts,
  batches,
  curves,
  evaluate,
  feature_stats,
  losses,
  members,
  outputs,
  predict,
  predictions_csv,
  resume,
  run_log,
  scoring,
)
from tpu_graphs_ext.host.callbacks import (
  CSV_LOG_START,
  KeepBest,
  LossNotFiniteError,
  ProgressBar,
  StopOnNaN,
  first_line,
)
from tpu_graphs_ext.host.settings import TrainSettings
from tpu_graphs_ext.host.training_data import TrainingData

__all__ = ['TrainResult', 'TrainSettings', 'train']

_log = logging.getLogger(__name__)

HOST = 'tpu_graphs_ext'

# Configurations of each test kernel in the run file and in --results_csv.
TEST_CONFIGS = 10

# Training steps that TensorFlow does in one call; Python comes in between.
STEPS_PER_CALL = 10


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """What `train` returns: the artifacts of a finished run.

  Attributes:
    model_dir: the saved model of the best epoch.
    run_path: the run file.
    csv_path: test predictions, or None with test_mode 'metrics'.
    run_info: content of the run file.
  """
  model_dir: str
  run_path: str
  csv_path: Optional[str]
  run_info: dict[str, Any]

  def text(self) -> str:
    """Errors and paths, a line each."""
    lines = []
    for split, errors in self.run_info['final_error'].items():
      lines.append(f'{split} slowdown: ' + ', '.join(
          f'top-{k} {100 * error:.2f} %' for k, error in errors.items()))
    for split, tau in self.run_info.get('final_kendall', {}).items():
      lines.append(f"{split} Kendall's tau: " + (
          '-' if tau is None else f'{tau:.4f}'))
    curve = self.run_info['train_curve']
    lines.append(f'best validation OPA: {max(curve["val_opa"]):.4f} in '
                 f'{len(curve["epoch"])} epochs, '
                 f'{self.run_info["seconds"]["train"]:.1f} s')
    lines.append(f'model:       {self.model_dir}')
    lines.append(f'run file:    {self.run_path}')
    if self.csv_path:
      lines.append(f'predictions: {self.csv_path}')
    return '\n'.join(lines)


@dataclasses.dataclass
class TileTask:
  """What is of one task in training it; `run` asks for all of it in order.

  Attributes:
    callbacks: of Keras, further ones, which see the end of an epoch before it
      is kept; one that sets `model.stop_training` ends the run for good.
  """
  callbacks: Sequence[tf.keras.callbacks.Callback] = ()

  def prepared(self, settings: TrainSettings) -> tuple[
      TrainSettings, TrainingData]:
    """Reads the data; the settings may get statistics of them.

    Raises:
      UserError: data, model or settings cannot be used.
    """
    # Cheap checks first: a wrong name must not wait for the data.
    settings = members.joined(settings)
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_py)
    data = TrainingData.read(settings)
    if takes_stats:
      settings = feature_stats.given_to_model(
          settings, data.stats, data.every_train)
    return settings, data

  def check_outputs(self, settings: TrainSettings) -> None:
    """Raises a UserError where the predictions cannot be written."""
    if settings.results_csv:
      outputs.check_file('--results_csv', settings.results_csv,
                         predictions_csv.START, predictions_csv.WHAT)

  def compiled_model(self, settings: TrainSettings,
                     data: TrainingData) -> tf.keras.Model:
    """The model with its variables, and its loss, optimizer and metric."""
    return _compiled_model(settings, data)

  def datasets(
      self, settings: TrainSettings, data: TrainingData, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches to train on and to validate on, an epoch a pass."""
    sizes = dict(batch_size=settings.batch, num_configs=settings.drawn_configs,
                 least_configs=settings.configs, seed=seed)
    train_batches = batches.training_dataset(
        data.train, data.stats, first_epoch=first_epoch, **sizes)
    # One draw of configurations for all epochs, so that epochs compare.
    return train_batches, batches.training_dataset(
        data.validated, data.stats, shuffle=False, redraw=False,
        **sizes).cache()

  def measure(self, settings: TrainSettings, data: TrainingData,
              model: tf.keras.Model, name: str,
              run_info: dict[str, Any]) -> Optional[str]:
    """Adds errors and test predictions to `run_info`; the path of the CSV.

    Args:
      settings: of the run.
      data: its splits.
      model: with its best weights.
      name: stands in messages.
      run_info: the run file's content.
    """
    ranker = scoring.Ranker(
        model, data.stats, data.num_ops, name=name,
        keep_repeats=True)  # The baseline's trainer reports no other numbers.
    return _measure(settings, data, ranker, run_info)

  def reported(self, run: artifacts.Run) -> Optional[str]:
    """The path of the CSV of a finished run, which is there again then."""
    if 'test_predictions' not in run.info:
      return None
    csv_path = os.path.expanduser(run.info['args']['results_csv'])
    if not os.path.exists(csv_path):
      predictions_csv.write(csv_path, run.info['test_predictions'])
    return csv_path


def train(settings: TrainSettings) -> TrainResult:
  """Trains, keeps the best epoch, evaluates it, and predicts the test split.

  With `settings.resume` a run that was broken off goes on, and one that is
  finished is only reported.

  Raises:
    UserError: data, model, settings or outputs cannot be used, or the loss
      became NaN; the best model up to then stays.
    KeyboardInterrupt: as it came; the log says how to resume.
  """
  return run(settings, TileTask())


def run(settings: Any, task: Any) -> TrainResult:
  """`train` of any task.

  Args:
    settings: those of the task, such as `TrainSettings`.
    task: what is of its own in it, such as a `TileTask`.
  """
  with run_log.RunLog(settings) as log:
    result = _train(settings, log, task)
    if settings.plot:
      curves.write(settings.plot, result.run_info)
    log.write(result.text())
  return result


def _train(settings: Any, log: run_log.RunLog, task: Any) -> TrainResult:
  """`train` without the picture and the closing lines of the log."""
  started = time.monotonic()
  settings, data = task.prepared(settings)
  folder = resume.ResumeFolder.of(settings)
  if folder.finished:
    return _finished(folder.finished, task)
  # Weights, and what dropout throws.
  tf.keras.utils.set_random_seed(folder.seed)
  model = task.compiled_model(settings, data)
  run_info = _new_run_info(settings, folder, data)
  run_info['seconds']['read'] = time.monotonic() - started
  with contextlib.ExitStack() as stack:
    _begin(settings, folder, task, log, stack)
    keep_best = KeepBest(settings, model, run_info, folder)
    with _kept_if_broken_off(settings, keep_best):
      _fit(settings, data, keep_best, task)
      csv_path = _measure_best(settings, data, keep_best, task)
      run_info['seconds']['total'] = time.monotonic() - started
      run_path = artifacts.save_run_file(run_info, settings.out_dir)
      folder.remove()
      return TrainResult(keep_best.model_dir, run_path, csv_path, run_info)


def _finished(run: artifacts.Run, task: Any) -> TrainResult:
  return TrainResult(run.model_dir, artifacts.run_path_of(run.model_dir),
                     task.reported(run), run.info)


def _begin(settings: Any, folder: resume.ResumeFolder, task: Any,
           log: run_log.RunLog, stack: contextlib.ExitStack) -> None:
  """Takes the folder of the run, and opens its log."""
  task.check_outputs(settings)
  _check_outputs(settings)
  stack.enter_context(folder.held())
  log.open(run_log.path_of(artifacts.model_path(
      settings.out_dir, artifacts.train_hash(folder.args))),
           resumed=not folder.is_new)


def _measure_best(settings: Any, data: Any, keep_best: KeepBest,
                  task: Any) -> Optional[str]:
  """What comes after the epochs; returns the path of the CSV."""
  keep_best.finish()
  keep_best.run_info['seconds']['train'] = keep_best.progress.seconds
  return task.measure(settings, data, keep_best.model, keep_best.model_dir,
                      keep_best.run_info)


@contextlib.contextmanager
def _kept_if_broken_off(settings: Any, keep_best: KeepBest) -> Iterator[None]:
  """Keeps what can be kept where the epochs, or what follows, end early."""
  run_info = keep_best.run_info
  try:
    yield
  except LossNotFiniteError as error:
    keep_best.finish()
    keep_best.folder.remove()
    _draw_so_far(settings, run_info)
    raise UserError(
        f'{error}. {keep_best.summary()}. Try a lower --lr, another --losses, '
        'or `check-data` on the data') from error
  except (MemoryError, tf.errors.ResourceExhaustedError) as error:
    raise UserError(
        f'out of memory or disk after epoch {keep_best.progress.epochs} '
        f'({first_line(error)}). {keep_best.summary()}. Lower --batch or '
        '--configs, or make room and run the same command with --resume'
    ) from error
  except KeyboardInterrupt:
    keep_best.finish()
    _log.warning('interrupted after epoch %d. %s. To continue, run the same '
                 'command with --resume', keep_best.progress.epochs,
                 keep_best.summary())
    _draw_so_far(settings, run_info)
    raise


def _draw_so_far(settings: Any, run_info: dict[str, Any]) -> None:
  """The picture of a run that has ended too early."""
  if settings.plot and run_info['train_curve']['epoch']:
    curves.write(settings.plot, run_info)


def _new_run_info(settings: Any, folder: resume.ResumeFolder,
                  data: Any) -> dict[str, Any]:
  """The run file's content before the first epoch."""
  return {
      'train_curve': {},
      'final_error': {},
      'args': folder.args,
      'seed': folder.seed,
      'feature_stats': data.stats.to_json(),
      'num_ops': data.num_ops,
      'opcodes': data.train.opcodes,
      'host': HOST,
      'versions': artifacts.versions(),
      'seconds': {},
      'settings': dataclasses.asdict(settings),
  }


def _check_outputs(settings: Any) -> None:
  """Tries every place that is written to, when it is early."""
  if settings.csv_log:
    outputs.check_file(
        '--csv_log', settings.csv_log, CSV_LOG_START, 'log of epochs')
  if settings.plot:
    curves.check(settings.plot)
  if settings.tensorboard:
    outputs.check_folder('--tensorboard', settings.tensorboard)
  outputs.check_folder('--out_dir', settings.out_dir)


def _compiled_model(settings: TrainSettings,
                    data: TrainingData) -> tf.keras.Model:
  """The model with its variables, and what the baseline compiles it with."""
  model = load_models.build(
      settings.model, settings.drawn_configs, data.num_ops,
      settings.model_kwargs, settings.models_py,
      batches.kernel_graph(data.train.kernel(0), data.stats))
  model.compile(
      loss=losses.combined_loss(settings.weighted_losses),
      optimizer=tf.keras.optimizers.Adam(
          _learning_rate(settings, data), clipnorm=settings.clip_norm),
      steps_per_execution=STEPS_PER_CALL,
      metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
  for name in ('train_step', 'test_step'):
    setattr(model, name, _traced_once(getattr(model, name)))
  return model


def _traced_once(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """A step that Keras, which traces the body of its loop twice, traces once."""
  traced = tf.function(step, reduce_retracing=True)

  def run(data):  # A plain function, so that no trace is saved with the model.
    return traced(data) if tf.inside_function() else step(data)

  return run


def _learning_rate(settings: TrainSettings, data: TrainingData) -> Any:
  return learning_rate(settings, len(data.train) // settings.batch)


def learning_rate(settings: Any, steps: int) -> Any:
  """A number, or what gives one for each step of all epochs.

  Args:
    settings: with lr, lr_schedule and epochs.
    steps: of an epoch.
  """
  if settings.lr_schedule == 'constant':
    return settings.lr
  return tf.keras.optimizers.schedules.CosineDecay(
      settings.lr, settings.epochs * steps)


def _fit(settings: Any, data: Any, keep_best: KeepBest,
         task: Any = None) -> None:
  """Runs the epochs that are left."""
  first_epoch = keep_best.progress.epochs
  task = task or TileTask()
  fed = task.datasets(settings, data, keep_best.folder.seed, first_epoch)
  keep_best.graph_spec = fed[0].element_spec[0]
  if keep_best.progress.stopped or first_epoch >= settings.epochs:
    return
  callbacks = [
      StopOnNaN(), *task.callbacks, keep_best, ProgressBar(settings)]
  if settings.tensorboard:
    callbacks.append(tf.keras.callbacks.TensorBoard(
        os.path.expanduser(settings.tensorboard), write_graph=False))
  keep_best.model.fit(
      fed[0], validation_data=fed[1], verbose=0, epochs=settings.epochs,
      initial_epoch=first_epoch, callbacks=callbacks)


def _measure(settings: TrainSettings, data: TrainingData,
             ranker: scoring.Ranker, run_info: dict[str, Any]) -> Optional[str]:
  """Adds errors and test predictions to `run_info`; returns the CSV's path."""
  seconds = run_info['seconds']
  start = time.monotonic()
  run_info['final_error']['val'] = evaluate.top_errors(
      ranker, data.valid, 'valid')
  seconds['validate'] = time.monotonic() - start
  start = time.monotonic()
  csv_path = None
  if settings.test_mode == 'metrics':
    run_info['final_error']['test'] = evaluate.top_errors(
        ranker, data.test, 'test')
  else:
    csv_path = os.path.expanduser(run_info['args']['results_csv'])
    best = predict.best_configs(ranker, data.test, TEST_CONFIGS)
    run_info['test_predictions'] = best
    predictions_csv.write(csv_path, best)
  seconds['test'] = time.monotonic() - start
  return csv_path
