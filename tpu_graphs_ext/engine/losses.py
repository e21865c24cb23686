"""The loss that a model is compiled with unless it brings its own."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf
import tensorflow_ranking as tfr

# Divides the scores before a ranking loss sees them.
TEMPERATURE = 10


class CombinedLoss(tf.keras.losses.Loss):
  """Weighted mean of losses:  sum_i w_i loss_i / sum_i w_i.

  The class name goes into the saved model, where the baseline's scripts look
  for their own class of that name; so it must be `CombinedLoss`, unregistered.
  Its constructor can be called without losses, as Keras does on loading; the
  weights then are lost, like in the baseline.

  Shapes: y_true (runtimes, lower is better) and y_pred float32
  [kernels, configs] -> scalar.
  """

  def __init__(
      self,
      weighted_losses: Optional[
          list[tuple[float, tf.keras.losses.Loss]]] = None,
      reduction: str = tf.keras.losses.Reduction.AUTO,
      name: Optional[str] = None):
    super().__init__(reduction=reduction, name=name)
    if weighted_losses is None:
      weighted_losses = [(1.0, _loss('ListMLELoss'))]
    total = sum(weight for weight, unused_loss in weighted_losses)
    self._weighted_losses = [
        (weight / total, loss) for weight, loss in weighted_losses]
    for unused_weight, part in self._weighted_losses:
      # As `compile` does: under a strategy Keras then leaves means to the host.
      part._allow_sum_over_batch_size = True

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.add_n([
        weight * loss(y_true, y_pred)
        for weight, loss in self._weighted_losses])


class ListMLE(tfr.keras.losses.ListMLELoss):
  """TensorFlow Ranking's, which draws equal runtimes in the order they come in.

  Its own order of them is drawn anew in each process, so a run that is resumed
  would not be the run that went on. They come in a random order anyway.
  """

  def __call__(self, y_true, y_pred, sample_weight=None):
    # Only the order of the labels counts; places have no equals.
    places = tf.argsort(tf.argsort(y_true))
    return super().__call__(
        tf.cast(places, tf.float32), y_pred, sample_weight)


def combined_loss(weighted_losses: list[tuple[str, float]]) -> CombinedLoss:
  """The loss of (name, weight) pairs; see `TrainSettings.weighted_losses`."""
  return CombinedLoss(
      [(weight, _loss(name)) for name, weight in weighted_losses])


def _loss(name: str) -> tf.keras.losses.Loss:
  if name == 'ListMLELoss':
    return ListMLE(temperature=TEMPERATURE)
  if name == 'PairwiseHingeLoss':
    return tfr.keras.losses.PairwiseHingeLoss(temperature=TEMPERATURE)
  return tf.keras.losses.MeanSquaredError()
