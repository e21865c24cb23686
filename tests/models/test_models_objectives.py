"""The objectives of models.py: values by hand, stability, and saving."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()
LOSSES = {name: loss for name, loss in models._OBJECTIVES.items() if loss}


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
  # A tie shares its denominator: runtimes 1, 1, both -log(u / (1 + 1/2)).
  value, unused_gradient = value_and_gradient(
      'listmle_fastest_first', [[1, 1]], [[0, math.log(2)]])
  assert value == pytest.approx(math.log(3 / 2) + math.log(3))


def test_the_expected_slowdown_by_hand():
  """As above: draws 4/7, 2/7, 1/7, which are 0, 1 and 2 (not 3) slower."""
  value, unused_gradient = value_and_gradient(
      'listmle_and_slowdown', [[1, 2, 4]], [[0, math.log(2), math.log(4)]])
  assert value == pytest.approx(
      math.log(7 / 4 * 3 / 2) + 10 * (2 / 7 + 2 * 1 / 7))


def test_standardized_mse_by_hand():
  """Scores 1 and 3 become -1 and 1, whatever their scale; labels 0 and 1."""
  for scores in ([[1, 3]], [[100, 300]], [[7.0, 7.5]]):
    value, unused_gradient = value_and_gradient(
        'standardized_mse', [[2, 5]], scores)
    assert value == pytest.approx((1 + 0) / 2, rel=1e-4)


def test_log_mse_by_hand():
  """Logarithms 1 and 3, scores 2 and 8: errors 1 and 5, but for their mean."""
  value, unused_gradient = value_and_gradient(
      'log_mse', [[math.exp(1), math.exp(3)]], [[2, 8]])
  assert value == pytest.approx(2 ** 2, rel=1e-5)


@pytest.mark.parametrize('name', LOSSES)
def test_values_are_finite_and_a_saved_loss_is_found_again(name):
  for labels, scores in (
      ([[1, 2, 3, 4]], [[0, 1e6, -1e6, 5e5]]),
      ([[4, 3, 2, 1]], [[0, 1e6, -1e6, 5e5]]),
      ([[2, 2, 2, 2]], [[1, 2, 3, 4]]), ([[1]], [[3]]),
      ([[1, 1, 2, 2]], [[1e6, 1e6, 1e6, 1e6]])):
    value, gradient = value_and_gradient(name, labels, scores)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
  saved = tf.keras.losses.serialize(LOSSES[name]())
  assert isinstance(tf.keras.losses.deserialize(saved), LOSSES[name])


def test_flags_keeps_the_hosts_loss():
  model = models.MyEarlyJoinSAGE(10, 5, objective='flags')
  model.compile(loss='mse')
  assert model.loss == 'mse'
  model = models.MyEarlyJoinSAGE(10, 5)
  model.compile(loss='mse')
  assert isinstance(model.loss, models.ListMLEFastestFirst)
