"""What a worker does with a trial: an ordinary training."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from typing import Any

from tpu_graphs_ext.sweep import pool, study
from tpu_graphs_ext.sweep.trials import Trial

# Between looks at a run that another process still trains: what a sweep that
# was killed had on a cluster continues there.
_PAUSE_SECONDS = 2


def run(trial: Trial) -> tuple[str, dict[str, Any]]:
  """Trains, or continues where an earlier attempt was broken off.

  Returns:
    (`study.FINISHED` or `study.STOPPED`, what was measured: the run's hash,
    goal -> value on the validation split, epochs, the best of them from 1,
    trainable numbers of the model, seconds of this attempt).

  Raises:
    UserError: what `train` raises.
  """
  start = time.monotonic()
  with _quiet():
    curve, result = _trained(trial)
  info = result.run_info
  opa = info['train_curve']['val_opa']
  best = max(range(len(opa)), key=opa.__getitem__)
  values = {'opa': opa[best], **{
      f'top{k}': slowdown
      for k, slowdown in info['final_error'].get('val', {}).items()}}
  if trial.task == 'layout':
    values['kendall'] = info['final_kendall'].get('val')
  return study.STOPPED if curve and curve.is_poor else study.FINISHED, {
      'run': os.path.basename(result.model_dir)[len('model_'):],
      'values': {name: float(value) for name, value in values.items()
                 if value is not None and math.isfinite(value)},
      'epochs': len(opa), 'best_epoch': best + 1,
      'parameters': _parameters(result.model_dir),
      'seconds': time.monotonic() - start}


def _trained(trial: Trial) -> tuple[Any, Any]:
  """(the curve of a trial that may be stopped, the result of `train`)."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tpu_graphs_ext.engine import threads, train
  from tpu_graphs_ext.engine.resume import InUseError
  threads.one_for_each_operation()
  while True:
    curve = study.Curve(trial) if trial.prune else None
    try:
      return curve, train.train(trial.settings(), [_ending(curve)])
    except InUseError:
      if not pool.is_wanted():
        raise
      time.sleep(_PAUSE_SECONDS)


def _ending(curve: Any) -> Any:
  """A callback that ends a poor run, or breaks off one that nobody wants."""
  import tensorflow as tf

  class Ending(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      if not pool.is_wanted():
        raise KeyboardInterrupt  # The run can be resumed.

    def on_epoch_end(self, epoch, logs=None):
      self.on_train_batch_end(epoch)
      if curve and curve.add(epoch + 1, float(logs['val_opa_metric'])):
        self.model.stop_training = True

  return Ending()


def _parameters(model_dir: str) -> int:
  from tpu_graphs_ext.engine import saved_weights
  return sum(value.size for _, value in saved_weights.read(model_dir))


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
