"""Keras callbacks of a trial: it ends when it is poor, or nobody wants it."""

from __future__ import annotations

import tensorflow as tf

from tpu_graphs_ext.sweep import pool, pruning
from tpu_graphs_ext.sweep.trials import Trial


class EndUnwanted(tf.keras.callbacks.Callback):
  """Breaks the run off, to be resumed, where its sweep is gone."""

  def on_epoch_end(self, epoch, logs=None):
    if not pool.is_wanted():
      raise KeyboardInterrupt

  on_train_batch_end = on_epoch_end


class StopPoor(tf.keras.callbacks.Callback):
  """Ends the run, which is then measured, where its curve is poor.

  Args:
    trial: with a `prune`.

  Attributes:
    has_stopped: whether it did, now or before the run was resumed.
  """

  def __init__(self, trial: Trial):
    super().__init__()
    self._curve = pruning.Curve(trial)

  @property
  def has_stopped(self) -> bool:
    return self._curve.is_poor

  def on_epoch_end(self, epoch, logs=None):
    if self._curve.add(epoch + 1, float(logs['val_opa_metric'])):
      self.model.stop_training = True

  def on_train_end(self, logs=None):
    self._curve.end()
