"""Training in which no step is traced: for a few it takes longer to trace.

They are the same steps, and the model is saved as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import tensorflow as tf

from support import tiny_models
from tpu_graphs_ext.engine import train


@contextlib.contextmanager
def eager_steps() -> Iterator[None]:
  """What is trained meanwhile takes its steps eagerly."""
  untraced = property(
      lambda unused_model: True, tf.keras.Model.run_eagerly.fset)
  with mock.patch.object(tf.keras.Model, 'run_eagerly', untraced):
    yield


def trained(data_root, out_dir, callbacks=(), **changes) -> train.TrainResult:
  """A run of `tiny_models.tiny_settings`."""
  with eager_steps():
    return train.train(tiny_models.tiny_settings(
        data_root, out_dir, **changes), callbacks)
