"""A model to train, with its variables, loss, optimizer and metric."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
import tensorflow_gnn as tfgnn
import tensorflow_ranking as tfr

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import Training


def model(settings: Training, num_ops: int, graph: tfgnn.GraphTensor,
          loss: tf.keras.losses.Loss, steps: int,
          steps_per_call: int = 1) -> tf.keras.Model:
  """What the baseline compiles.

  Args:
    settings: of the run.
    num_ops: rows of an embedding of the opcodes.
    graph: creates the variables.
    loss: of a model that brings none of its own, as MyEarlyJoinSAGE does.
    steps: of an epoch.
    steps_per_call: training steps that TensorFlow does in one call; Python
      comes in between.

  Raises:
    UserError: there is no such model, or it refuses its arguments.
  """
  built = load_models.build(
      settings.model, settings.drawn_configs, num_ops, settings.model_kwargs,
      settings.models_file, graph)
  built.compile(
      loss=loss,
      optimizer=tf.keras.optimizers.Adam(
          learning_rate(settings, steps), clipnorm=settings.clip_norm),
      steps_per_execution=steps_per_call,
      metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
  if steps_per_call > 1:
    for name in ('train_step', 'test_step'):
      setattr(built, name, _traced_once(getattr(built, name)))
  return built


def _traced_once(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """A step that Keras, which traces the body of its loop twice, traces once."""
  traced = tf.function(step, reduce_retracing=True)

  def run(data):  # A plain function, so that no trace is saved with the model.
    return traced(data) if tf.inside_function() else step(data)

  return run


def learning_rate(settings: Training, steps: int) -> Any:
  """A number, or what gives one for each of the `steps` of all epochs."""
  if settings.lr_schedule == 'constant':
    return settings.lr
  return tf.keras.optimizers.schedules.CosineDecay(
      settings.lr, settings.epochs * steps)
