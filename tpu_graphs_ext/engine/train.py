"""Trains a model of any task as the baseline does; see `artifacts`."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from typing import Any, Optional

import tensorflow as tf

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import (
  artifacts,
  callbacks,
  evaluate,
  origin,
  predictions_csv,
  rank,
  results,
  resume,
  scoring,
)
from tpu_graphs_ext.engine.settings import Training, checked
from tpu_graphs_ext.engine.task import Splits

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """The artifacts of a finished run."""
  model_dir: str  # The saved model of the best epoch.
  run_path: str  # The run file.
  csv_path: Optional[str]  # Test predictions; None where there are none.
  run_info: dict[str, Any]  # Content of the run file.

  def text(self) -> str:
    """Errors and paths, a line each."""
    lines = [f'{split} slowdown: ' + ', '.join(
        f'top-{k} {100 * error:.2f} %' for k, error in errors.items())
             for split, errors in self.run_info['final_error'].items()]
    for split, tau in self.run_info.get('final_kendall', {}).items():
      lines.append(f"{split} Kendall's tau: "
                   f'{"-" if tau is None else format(tau, ".4f")}')
    curve = self.run_info['train_curve']
    lines += [f'best validation OPA: {max(curve["val_opa"]):.4f} in '
              f'{len(curve["epoch"])} epochs, '
              f'{self.run_info["seconds"]["train"]:.1f} s',
              f'model:       {self.model_dir}',
              'run file:    ' + os.path.join(os.path.dirname(
                  self.model_dir), os.path.basename(self.run_path))]
    if self.csv_path:
      lines.append(f'predictions: {self.csv_path}')
    return '\n'.join(lines)


@checked
def train(settings: Training, further: callbacks.Further = ()) -> TrainResult:
  """Trains, keeps the best epoch, evaluates it, and predicts the test split.

  With `settings.resume` an interrupted run continues, and a finished one is
  only reported. `further` Keras callbacks see the end of an epoch before it is
  kept; one that sets `model.stop_training` ends the run for good.

  Raises:
    UserError: data, model, settings or outputs cannot be used, or the loss
      became NaN; the best model up to then stays.
    KeyboardInterrupt: as it came; a warning says how to resume.
  """
  started = time.monotonic()
  task = settings.task
  settings, splits = task.prepared(settings)
  for split in schema.SPLITS[:3 if settings.test_mode == 'metrics' else 2]:
    evaluate.require_labels(getattr(splits, split), os.path.join(
        settings.data_root, *task.collection({}, settings), split), task)
  folder = resume.ResumeFolder(settings)
  if settings.resume and folder.is_new:
    if run := resume.finished_run(settings, folder.origin):
      _log.info('--resume: this run is finished')
      csv_path = os.path.expanduser(run.info['args']['results_csv'])
      return TrainResult(
          run.model_dir, artifacts.run_path_of(run.model_dir),
          csv_path if os.path.exists(csv_path) else None, run.info)
    _log.info('--resume: no interrupted run with these settings, this '
              'models.py and this data in %s; starting a new one',
              settings.out_dir)
  csv_path = (os.path.expanduser(folder.args['results_csv'])
              if settings.test_mode == 'predictions' else None)
  tf.keras.utils.set_random_seed(folder.seed)  # Of weights and dropout.
  model = task.compiled_model(settings, splits)
  run_info = _new_run_info(settings, splits, folder)
  run_info['seconds']['read'] = time.monotonic() - started
  _check_outputs(settings)
  origin.remember(folder.origin.source)
  with folder.held():
    epochs = callbacks.Epochs(settings, model, run_info, folder)
    with epochs.saved_if_interrupted():
      epochs.fit(*task.datasets(settings, splits, folder.seed,
                                epochs.progress.epochs), further)
      _measure(csv_path, run_info, splits, scoring.Ranker(
          # The baseline's trainer leaves duplicates in their places.
          model, splits.stats, splits.num_ops, task, folder.model_dir,
          keep_repeats=True, args=folder.args))
      run_info['seconds']['total'] = time.monotonic() - started
      run_path = artifacts.save_run_file(run_info, settings.out_dir, task)
      folder.is_over = True
  return TrainResult(folder.model_dir, run_path, csv_path, run_info)


def _check_outputs(settings: Training) -> None:
  """Tries to write every output, before the time is spent."""
  if path := settings.results_csv:
    files.Output('--results_csv', *predictions_csv.KIND).check(path)
  for name in ('tensorboard', 'out_dir'):
    if path := getattr(settings, name):
      files.check_folder('--' + name, path)


def _new_run_info(settings: Training, splits: Splits,
                  folder: resume.ResumeFolder) -> dict[str, Any]:
  return {
      'train_curve': {},
      'final_error': {},
      'task': settings.task.name,
      'args': folder.args,
      'seed': folder.seed,
      'feature_stats': splits.stats.to_json(),
      'num_ops': splits.num_ops,
      'opcodes': splits.train.opcodes,
      **folder.origin.info,
      'host': 'tpu_graphs_ext',
      'versions': artifacts.versions(),
      'seconds': {},
      # Full paths: later commands may have another working folder.
      'settings': {
          name: files.full_path(value)
          if value and name in ('data_root', 'cache_dir') else value
          for name, value in dataclasses.asdict(settings).items()},
  }


def _measure(csv_path: Optional[str], run_info: dict[str, Any],
             splits: Splits, ranker: scoring.Ranker) -> None:
  """Adds errors to `run_info`, and test predictions or the test's errors."""
  seconds, start = run_info['seconds'], time.monotonic()
  measured = {'val': splits.valid}
  if csv_path is None:
    measured['test'] = splits.test
  for split, problems in measured.items():
    rows = evaluate.measure(ranker, problems, split)
    means = results.nested(results.Summary(rows, len(rows)).means)
    for measure, key in ranker.task.final:
      run_info.setdefault(key, {})[split] = means[measure]
  seconds['validate'] = time.monotonic() - start
  if csv_path is not None:
    count = ranker.task.test_configs
    best = rank.write_csv(csv_path, ranker, splits.test, count)
    if count is not None:
      run_info['test_predictions'] = best
    seconds['test'] = time.monotonic() - start - seconds['validate']
