"""Trains a model of any task, as the baseline's trainers do it.

What it writes is described in `artifacts`; the baseline's scripts read it. The
run file of the layout task has `final_kendall` and `final_opa` beside
`final_error`, {split: mean over programs}, and no test predictions, which are
as many as there are configurations: those are in the CSV alone.
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
  callbacks,
  curves,
  evaluate,
  outputs,
  predict,
  predictions_csv,
  resume,
  run_log,
  scoring,
)
from tpu_graphs_ext.host import results as tables
from tpu_graphs_ext.host import task as tasks
from tpu_graphs_ext.host.settings import Training, TrainSettings

__all__ = ['TrainResult', 'TrainSettings', 'train']

_log = logging.getLogger(__name__)

HOST = 'tpu_graphs_ext'
Callbacks = Sequence[tf.keras.callbacks.Callback]


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


def train(settings: Training, further: Callbacks = ()) -> TrainResult:
  """Trains, keeps the best epoch, evaluates it, and predicts the test split.

  With `settings.resume` a run that was broken off goes on, and one that is
  finished is only reported.

  Args:
    settings: `TrainSettings`, or those of another task.
    further: callbacks of Keras, which see the end of an epoch before it is
      kept; one that sets `model.stop_training` ends the run for good.

  Raises:
    UserError: data, model, settings or outputs cannot be used, or the loss
      became NaN; the best model up to then stays.
    KeyboardInterrupt: as it came; the log says how to resume.
  """
  with run_log.RunLog(settings) as log:
    result = _train(settings, further, log)
    if settings.plot:
      curves.write(settings.plot, result.run_info)
    log.write(result.text())
  return result


def _train(settings: Training, further: Callbacks,
           log: run_log.RunLog) -> TrainResult:
  """`train` without the picture and the closing lines of the log."""
  started = time.monotonic()
  task = tasks.find(settings)
  settings, splits = task.prepared(settings)
  if settings.test_mode == 'metrics':
    evaluate.require_labels(splits.test, os.path.join(
        settings.data_root, *task.collection(vars(settings)), 'test'), task)
  folder = resume.ResumeFolder.of(settings)
  if folder.finished:
    return _reported(folder.finished, task)
  # Weights, and what dropout throws.
  tf.keras.utils.set_random_seed(folder.seed)
  model = _compiled_model(settings, splits, task)
  run_info = _new_run_info(settings, splits, folder)
  run_info['seconds']['read'] = time.monotonic() - started
  _check_outputs(settings)
  with folder.held():
    log.open(run_log.path_of(folder.model_dir), resumed=not folder.is_new)
    kept = _Kept(settings, model, run_info, folder)
    with kept.if_broken_off():
      kept.fit(*task.datasets(settings, splits, folder.seed,
                              kept.progress.epochs), further)
      csv_path = _measure(run_info, splits, scoring.Ranker(
          # The baseline's trainer reports no numbers but with repetitions.
          model, splits.stats, splits.num_ops, folder.model_dir,
          keep_repeats=True, of_task=task.name, args=folder.args))
      run_info['seconds']['total'] = time.monotonic() - started
      run_path = artifacts.save_run_file(run_info, settings.out_dir)
      folder.remove()
  return TrainResult(folder.model_dir, run_path, csv_path, run_info)


def _compiled_model(settings: Training, splits: tasks.Splits,
                    task: tasks.Task) -> tf.keras.Model:
  """The model with its variables, and what the baseline compiles it with."""
  model = load_models.build(
      settings.model, settings.drawn_configs, splits.num_ops,
      settings.model_kwargs, task.models_file(settings.models_py),
      task.sample_graph(splits.stats))
  steps, rest = divmod(len(splits.train), settings.batch)
  model.compile(
      loss=task.loss(settings),
      optimizer=tf.keras.optimizers.Adam(
          learning_rate(settings, steps + (
              rest > 0 and not task.drops_last_batch)),
          clipnorm=settings.clip_norm),
      steps_per_execution=task.steps_per_call,
      metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
  if task.steps_per_call > 1:
    for name in ('train_step', 'test_step'):
      setattr(model, name, _traced_once(getattr(model, name)))
  return model


def _traced_once(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """A step that Keras, which traces the body of its loop twice, traces once."""
  traced = tf.function(step, reduce_retracing=True)

  def run(data):  # A plain function, so that no trace is saved with the model.
    return traced(data) if tf.inside_function() else step(data)

  return run


def learning_rate(settings: Training, steps: int) -> Any:
  """A number, or what gives one for each step of all epochs.

  Args:
    settings: of the run.
    steps: of an epoch.
  """
  if settings.lr_schedule == 'constant':
    return settings.lr
  return tf.keras.optimizers.schedules.CosineDecay(
      settings.lr, settings.epochs * steps)


def _new_run_info(settings: Training, splits: tasks.Splits,
                  folder: resume.ResumeFolder) -> dict[str, Any]:
  """The run file's content before the first epoch."""
  return {
      'train_curve': {},
      'final_error': {},
      'args': folder.args,
      'seed': folder.seed,
      'feature_stats': splits.stats.to_json(),
      'num_ops': splits.num_ops,
      'opcodes': splits.train.opcodes,
      'host': HOST,
      'versions': artifacts.versions(),
      'seconds': {},
      'settings': dataclasses.asdict(settings),
  }


def _check_outputs(settings: Training) -> None:
  """Tries every place that is written to, when it is early."""
  for flag, path, start, what in (
      ('--results_csv', settings.results_csv, predictions_csv.START,
       predictions_csv.WHAT),
      ('--csv_log', settings.csv_log, callbacks.CSV_LOG_START,
       'log of epochs')):
    if path:
      outputs.check_file(flag, path, start, what)
  if settings.plot:
    curves.check(settings.plot)
  if settings.tensorboard:
    outputs.check_folder('--tensorboard', settings.tensorboard)
  outputs.check_folder('--out_dir', settings.out_dir)


class _Kept:
  """The epochs of a run, and what is kept of them.

  Args:
    settings: of the run.
    model: built and compiled.
    run_info: the run file's content; its train_curve is kept up to date.
    folder: where checkpoints go; the run goes on from one that is there.

  Attributes:
    progress: how far the run is.
    saved: the best model on disk.
  """

  def __init__(self, settings: Training, model: tf.keras.Model,
               run_info: dict[str, Any], folder: resume.ResumeFolder):
    self.progress = callbacks.Progress()
    best = callbacks.BestWeights(self.progress, model)
    self.saved = callbacks.SaveBest(
        self.progress, best, model, run_info, folder.model_dir)
    checkpoints = callbacks.Checkpoints(
        self.progress, best, self.saved, folder, settings.resume)
    run_info['train_curve'] = self.progress.train_curve
    self._settings, self._run_info = settings, run_info
    self._folder = folder
    self._csv_log = [callbacks.CsvLog(self.progress, path)
                     for path in [settings.csv_log] if path]
    self._callbacks = [
        best, callbacks.StopEarly(self.progress, settings.early_stop),
        callbacks.Record(self.progress, settings.epochs, settings.batch),
        self.saved, checkpoints, *self._csv_log,
        callbacks.ProgressBar(settings.batch)]
    if settings.tensorboard:
      self._callbacks.append(tf.keras.callbacks.TensorBoard(
          os.path.expanduser(settings.tensorboard), write_graph=False))

  def fit(self, train_batches: tf.data.Dataset, valid_batches: tf.data.Dataset,
          further: Callbacks) -> None:
    """Runs the epochs that are left; the model then is the best of all."""
    epochs = self._settings.epochs
    self.saved.graph_spec = train_batches.element_spec[0]
    if not self.progress.stopped and self.progress.epochs < epochs:
      self.saved.model.fit(
          train_batches, validation_data=valid_batches, verbose=0,
          epochs=epochs, initial_epoch=self.progress.epochs,
          callbacks=[callbacks.StopOnNaN(), *further, *self._callbacks])
    self._finish()
    self._run_info['seconds']['train'] = self.progress.seconds

  def _finish(self) -> None:
    """Leaves the best epoch, if there is one, in the model and on disk."""
    self.saved.finish()
    for csv_log in self._csv_log[:self.progress.epochs]:
      csv_log.write()

  @contextlib.contextmanager
  def if_broken_off(self) -> Iterator[None]:
    """Keeps what can be kept where the epochs, or what follows, end early."""
    try:
      yield
    except callbacks.LossNotFiniteError as error:
      self._finish()
      self._folder.remove()
      self._draw()
      raise UserError(
          f'{error}. {self.saved.summary()}. Try a lower --lr, another '
          '--losses, or `check-data` on the data') from error
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
      raise UserError(
          f'out of memory or disk after epoch {self.progress.epochs} '
          f'({callbacks.first_line(error)}). {self.saved.summary()}. Lower '
          '--batch or --configs, or make room and run the same command with '
          '--resume') from error
    except KeyboardInterrupt:
      self._finish()
      _log.warning('interrupted after epoch %d. %s. To continue, run the same '
                   'command with --resume', self.progress.epochs,
                   self.saved.summary())
      self._draw()
      raise

  def _draw(self) -> None:
    """The picture of a run that has ended too early."""
    if self._settings.plot and self.progress.epochs:
      curves.write(self._settings.plot, self._run_info)


def _measure(run_info: dict[str, Any], splits: tasks.Splits,
             ranker: scoring.Ranker) -> Optional[str]:
  """Adds errors and test predictions to `run_info`; returns the CSV's path."""
  seconds, task = run_info['seconds'], ranker.task
  start = time.monotonic()
  _add_errors(run_info, ranker, 'val', splits.valid, 'valid')
  seconds['validate'] = time.monotonic() - start
  start = time.monotonic()
  csv_path = None
  if run_info['settings']['test_mode'] == 'metrics':
    _add_errors(run_info, ranker, 'test', splits.test, 'test')
  else:
    csv_path = os.path.expanduser(run_info['args']['results_csv'])
    best: predictions_csv.Best = predict.best_configs(
        ranker, splits.test, task.test_configs)
    if task.test_configs is not None:
      run_info['test_predictions'] = dict(best)
      best = run_info['test_predictions']
    predictions_csv.write(csv_path, best, predict.id_prefix(ranker),
                          task.csv_end)
  seconds['test'] = time.monotonic() - start
  return csv_path


def _add_errors(run_info: dict[str, Any], ranker: scoring.Ranker, split: str,
                problems: tasks.Problems, what: str) -> None:
  """The means over a split that the run file has."""
  rows = evaluate.measure(ranker, problems, what)
  means = tables.nested(tables.Summary(rows, len(rows)).means)
  for measure, key in ranker.task.final:
    run_info.setdefault(key, {})[split] = means[measure]


def _reported(run: artifacts.Run, task: tasks.Task) -> TrainResult:
  """The result of a finished run, whose CSV is there again then."""
  csv_path = None
  if 'test' not in run.info['final_error']:
    csv_path = os.path.expanduser(run.info['args']['results_csv'])
    if os.path.exists(csv_path):
      pass
    elif 'test_predictions' in run.info:
      predictions_csv.write(csv_path, run.info['test_predictions'])
    else:
      names = {field.name for field in dataclasses.fields(task.loading)}
      predict.predict(run.model_dir, out=csv_path, loading=task.loading(**{
          name: value for name, value in run.info['settings'].items()
          if name in names}))
  return TrainResult(run.model_dir, artifacts.run_path_of(run.model_dir),
                     csv_path, run.info)
