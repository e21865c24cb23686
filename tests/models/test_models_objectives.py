"""The objectives of models.py: values by hand, stability, and saving."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_ranking as tfr

from tpu_graphs_ext import load_models

models = load_models.models_module()
LOSSES = {name: loss for name, loss in models._OBJECTIVES.items() if loss}
every_loss = pytest.mark.parametrize('name', LOSSES)


def value_and_gradient(name, labels, scores):
  labels, scores = (tf.constant(x, tf.float32) for x in (labels, scores))
  with tf.GradientTape() as tape:
    tape.watch(scores)
    value = LOSSES[name]()(labels, scores)
  return value.numpy(), tape.gradient(value, scores).numpy()


def test_fastest_first_by_hand():
  """Runtimes 1, 2, 4 and scores 0, ln 2, ln 4: utilities 1, 1/2, 1/4.

  -log(1 / (1 + 1/2 + 1/4)) - log(1/2 / (1/2 + 1/4)) - log(1) = log(7/4 * 3/2)
  """
  value, unused_gradient = value_and_gradient(
      'listmle_fastest_first', [[1, 2, 4]], [[0, math.log(2), math.log(4)]])
  assert value == pytest.approx(math.log(7 / 4 * 3 / 2))


def test_ties_share_a_denominator():
  """Runtimes 1, 1: both -log(u / (1 + 1/2)) = log(3/2) + log(3)."""
  value, unused_gradient = value_and_gradient(
      'listmle_fastest_first', [[1, 1]], [[0, math.log(2)]])
  assert value == pytest.approx(math.log(3 / 2) + math.log(3))


def test_standardized_mse_by_hand():
  """Scores 1 and 3 become -1 and 1, whatever their scale; labels 0 and 1."""
  for scores in ([[1, 3]], [[100, 300]], [[7.0, 7.5]]):
    value, unused_gradient = value_and_gradient(
        'standardized_mse', [[2, 5]], scores)
    assert value == pytest.approx((1 + 0) / 2, rel=1e-4)


def test_fastest_first_is_tensorflow_rankings_of_what_is_negated():
  rng = np.random.default_rng(0)
  labels = rng.random((5, 10)).astype(np.float32)
  scores = rng.normal(size=(5, 10)).astype(np.float32)
  theirs = tfr.keras.losses.ListMLELoss()(1 - labels, -scores).numpy()
  value, unused_gradient = value_and_gradient(
      'listmle_fastest_first', labels, scores)
  assert value == pytest.approx(theirs, rel=1e-5)


@every_loss
@pytest.mark.parametrize('labels,scores', [
    ([[1, 2, 3, 4]], [[0, 1e6, -1e6, 5e5]]),
    ([[4, 3, 2, 1]], [[0, 1e6, -1e6, 5e5]]),
    ([[2, 2, 2, 2]], [[1, 2, 3, 4]]),
    ([[1]], [[3]]),
    ([[1, 1, 2, 2]], [[1e6, 1e6, 1e6, 1e6]]),
])
def test_values_and_gradients_are_finite(name, labels, scores):
  value, gradient = value_and_gradient(name, labels, scores)
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()


@every_loss
def test_the_loss_is_a_mean_over_kernels(name):
  labels, scores = [[1, 2, 4], [3, 1, 2]], [[1, 3, 2], [1, 2, 4]]
  both = value_and_gradient(name, labels, scores)[0]
  apart = [value_and_gradient(name, [label], [score])[0]
           for label, score in zip(labels, scores)]
  assert both == pytest.approx(np.mean(apart), rel=1e-6)


@every_loss
def test_a_step_against_the_gradient_improves_the_order(name):
  """From equal scores, the fastest must go down and the slowest up."""
  gradient = value_and_gradient(name, [[1, 2, 4]], [[0.5, 0.5, 0.5]])[1][0]
  assert -gradient[0] < -gradient[2]


@every_loss
def test_configurations_in_another_order_have_the_same_loss(name):
  labels = np.array([[3, 1, 2, 2]], np.float32)
  scores = np.array([[0.1, 0.7, -0.4, 0.2]], np.float32)
  order = [2, 0, 3, 1]
  assert value_and_gradient(name, labels, scores)[0] == pytest.approx(
      value_and_gradient(name, labels[:, order], scores[:, order])[0])


@every_loss
def test_a_saved_loss_is_found_again(name):
  saved = tf.keras.losses.serialize(LOSSES[name]())
  assert isinstance(tf.keras.losses.deserialize(saved), LOSSES[name])


def test_flags_keeps_the_hosts_loss():
  model = models.MyEarlyJoinSAGE(10, 5, objective='flags')
  model.compile(loss='mse')
  assert model.loss == 'mse'
  model = models.MyEarlyJoinSAGE(10, 5)
  model.compile(loss='mse')
  assert isinstance(model.loss, models.ListMLEFastestFirst)
