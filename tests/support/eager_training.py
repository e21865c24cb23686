"""Trainings that take no step traced, and save weights alone.

Tracing a few steps, or a model to save it, takes longer than to train it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

import tensorflow as tf

from support import tiny_models
from tpu_graphs_ext.engine import train


def save_weights(model: tf.keras.Model, path: str, **unused_flags) -> None:
  """In place of `tf.keras.Model.save`: all that this package reads again."""
  tf.train.Checkpoint(trainable_variables=model.trainable_variables).write(
      os.path.join(path, 'variables', 'variables'))


@contextlib.contextmanager
def eager_steps(whole: bool = False) -> Iterator[None]:
  """What is trained meanwhile takes its steps eagerly; the same ones.

  If `whole`, models are saved as ever, so that Keras can load them.
  """
  untraced = property(
      lambda unused_model: True, tf.keras.Model.run_eagerly.fset)
  save = tf.keras.Model.save if whole else save_weights
  with mock.patch.multiple(tf.keras.Model, run_eagerly=untraced, save=save):
    yield


def trained(data_root, out_dir, callbacks=(), whole: bool = False,
            **changes) -> train.TrainResult:
  """A run of `tiny_models.tiny_settings`."""
  with eager_steps(whole):
    return train.train(tiny_models.tiny_settings(
        data_root, out_dir, **changes), callbacks)
