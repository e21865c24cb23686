"""What a worker does with a trial: an ordinary training, and a record of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from typing import Any, Optional

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool, trials
from tpu_graphs_ext.sweep.trials import Record, Trial

_log = logging.getLogger(__name__)

# Between looks at a run that another process still trains: what a sweep that
# was killed had on a cluster goes on there.
_PAUSE_SECONDS = 2


def run(trial: Trial) -> Record:
  """Trains, or goes on where an earlier attempt was broken off.

  Raises:
    UserError: what `train` raises; the record then is as before it.
  """
  began = trials.read(trial.out, trial.key) or Record.of(trial)
  if began.is_over and began.state != trials.FAILED:
    return began
  record = dataclasses.replace(
      began, state=trials.STARTED, error='', attempts=began.attempts + 1)
  trials.write(trial.out, record)
  start = time.monotonic()
  with _quiet():
    watch, result = _trained(trial, resume=record.attempts > 1)
  record = dataclasses.replace(
      record, state=trials.STOPPED if watch and watch.has_stopped
      else trials.FINISHED, seconds=began.seconds + time.monotonic() - start,
      **_measured(trial.task, result))
  trials.write(trial.out, record)
  return record


def _trained(trial: Trial, resume: bool) -> tuple[Any, Any]:
  """(what may have stopped it, the result of `train`)."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tpu_graphs_ext.host import threads, train
  from tpu_graphs_ext.host.resume import InUseError
  from tpu_graphs_ext.layout.train import LayoutTask
  from tpu_graphs_ext.sweep import watching
  threads.one_for_each_operation()
  while True:
    watch = None
    task = (LayoutTask if trial.task == 'layout' else train.TileTask)(
        [watching.EndUnwanted()])
    if trial.prune:
      watch = watching.StopPoor(trial)
      task.callbacks.append(watch)
    try:
      return watch, train.run(trial.settings(resume), task)
    except InUseError:
      resume = True
      if not pool.is_wanted():
        raise
      time.sleep(_PAUSE_SECONDS)


def _measured(task: str, result: Any) -> dict[str, Any]:
  """The fields of a record that a finished run gives."""
  info = result.run_info
  opa = info['train_curve']['val_opa']
  best = max(range(len(opa)), key=opa.__getitem__)
  values: dict[str, Optional[float]] = {'opa': opa[best]}
  for k, slowdown in info['final_error'].get('val', {}).items():
    values[f'top{k}'] = slowdown
  if task == 'layout':
    values['kendall'] = info['final_kendall'].get('val')
  return {
      'run': os.path.basename(result.model_dir)[len('model_'):],
      'values': {name: float(value) for name, value in values.items()
                 if value is not None and math.isfinite(value)},
      'epochs': len(opa), 'best_epoch': best + 1,
      'parameters': _parameters(result.model_dir)}


def _parameters(model_dir: str) -> int:
  from tpu_graphs_ext.host import saved_weights
  return sum(math.prod(variable.shape) for variable
             in saved_weights.SavedWeights(model_dir).variables)


@contextlib.contextmanager
def _quiet():
  """Bars and prints of a trial go nowhere; its log file has what it says."""
  logger = logging.getLogger('tpu_graphs_ext')
  if logger.level == logging.NOTSET:
    logger.setLevel(logging.INFO)
  for name in ('tensorflow', 'absl'):
    logging.getLogger(name).setLevel(logging.ERROR)
  with open(os.devnull, 'w') as nowhere, contextlib.redirect_stderr(
      nowhere), contextlib.redirect_stdout(nowhere):
    yield


def failed(trial: Trial, error: str) -> Record:
  """Writes that a trial failed, and why."""
  began = trials.read(trial.out, trial.key) or Record.of(trial)
  record = dataclasses.replace(began, state=trials.FAILED, error=error)
  with contextlib.suppress(UserError):  # The disk is full: said elsewhere.
    trials.write(trial.out, record)
  return record
