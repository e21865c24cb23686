"""A model to train, with its variables, loss, optimizer and metric."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_gnn as tfgnn
import tensorflow_ranking as tfr

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import Training

TEMPERATURE = 10  # Divides the scores before a ranking loss sees them.


def model(settings: Training, num_ops: int, graph: tfgnn.GraphTensor,
          loss: tf.keras.losses.Loss, steps: int,
          steps_per_call: int = 1) -> tf.keras.Model:
  """A compiled model, like the baseline's, with variables for `graph`.

  `loss` is for a model without its own; `steps` are those of an epoch, and
  `steps_per_call` those in a call of TensorFlow.
  """
  built = load_models.build(
      settings.model, settings.drawn_configs, num_ops, settings.model_kwargs,
      settings.models_file, graph, tried=True)
  learning_rate = settings.lr
  if settings.lr_schedule == 'cosine':
    learning_rate = tf.keras.optimizers.schedules.CosineDecay(
        settings.lr, settings.epochs * steps)
  built.compile(
      loss=loss,
      optimizer=tf.keras.optimizers.Adam(
          learning_rate, clipnorm=settings.clip_norm),
      steps_per_execution=steps_per_call,
      metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
  return built


class CombinedLoss(tf.keras.losses.Loss):
  """Weighted mean of losses, given as (name, weight).

  Not registered, because the baseline's scripts look in the saved model for
  their own class of this name; Keras loads it without losses.
  """

  def __init__(self, weighted_losses: Sequence[tuple[str, float]]):
    super().__init__()
    total = sum(weight for _, weight in weighted_losses)
    self._weighted_losses = [
        (weight / total, _loss(name)) for name, weight in weighted_losses]

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.add_n([
        weight * loss(y_true, y_pred)
        for weight, loss in self._weighted_losses])


class ListMLE(tfr.keras.losses.ListMLELoss):
  """TensorFlow Ranking's, but equal runtimes keep their order in the batch.

  TensorFlow Ranking shuffles them anew in each process, so a resumed run would
  differ from an uninterrupted one.
  """

  def __call__(self, y_true, y_pred, sample_weight=None):
    # Only the order of the labels counts; places have no equals.
    places = tf.argsort(tf.argsort(y_true))
    return super().__call__(tf.cast(places, tf.float32), y_pred, sample_weight)


def _loss(name: str) -> tf.keras.losses.Loss:
  if name == 'MSE':
    return tf.keras.losses.MeanSquaredError()
  return {'ListMLELoss': ListMLE,
          'PairwiseHingeLoss': tfr.keras.losses.PairwiseHingeLoss,
          }[name](temperature=TEMPERATURE)
