"""Adam in few operations, against Keras's own."""

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()
STEPS = 30


def trained(minimize, optimizer, embeds=True):
  """What variables and the optimizer's own variables come to."""
  rng = np.random.default_rng(0)
  table, kernel, bias = variables = [
      tf.Variable(rng.normal(size=shape), dtype=tf.float32)
      for shape in ([9, 5], [5, 4], [4])]
  trains = variables if embeds else variables[1:]

  @tf.function
  def step(number):
    with tf.GradientTape() as tape:
      x = tf.gather(table, [1, 2, 2, 8])  # The gradient of the table is sparse.
      loss = tf.reduce_sum(tf.sin(x @ kernel + bias) * number)
    minimize(optimizer, loss, trains, tape)

  for i in range(STEPS):
    step(tf.constant(float(i % 7 - 3)))
  return [variable.numpy() for variable in (*variables, *optimizer.variables)]


def of_keras(optimizer, loss, variables, tape):
  optimizer.minimize(loss, variables, tape=tape)


OPTIMIZERS = {  # And whether a part of their work is ours.
    'adam': (lambda: tf.keras.optimizers.Adam(1e-2), True),
    # Gradients are longer than this, and shorter than the next.
    'clipped': (lambda: tf.keras.optimizers.Adam(1e-2, clipnorm=1e-3), True),
    'hardly clipped': (
        lambda: tf.keras.optimizers.Adam(1e-2, clipnorm=1e3), True),
    'other rates': (lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.5),
        beta_1=0.5, beta_2=0.9, epsilon=1e-3), True),
    'amsgrad': (lambda: tf.keras.optimizers.Adam(1e-2, amsgrad=True), False),
    'decay': (lambda: tf.keras.optimizers.Adam(1e-2, weight_decay=0.1), False),
    'global': (
        lambda: tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.1), False),
    'values': (lambda: tf.keras.optimizers.Adam(1e-2, clipvalue=0.1), False),
    'averaged': (lambda: tf.keras.optimizers.Adam(
        1e-2, use_ema=True, ema_overwrite_frequency=3), False),
    'sgd': (lambda: tf.keras.optimizers.SGD(1e-2, clipnorm=1e-3), False)}


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_step_is_that_of_keras(name):
  make, is_plain = OPTIMIZERS[name]
  assert models._is_plain_adam(make()) is is_plain
  for ours, theirs in zip(trained(models._minimize, make()),
                          trained(of_keras, make())):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_variables_without_sparse_gradients():
  """One is left to Keras, which counts the steps."""
  make = OPTIMIZERS['clipped'][0]
  ours = trained(models._minimize, make(), embeds=False)
  for mine, theirs in zip(ours, trained(of_keras, make(), embeds=False)):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
  assert STEPS in [x for x in ours if x.shape == ()]


def test_what_has_no_gradient_stays(recwarn):
  unused, used = tf.Variable([1.0, 2.0]), tf.Variable([3.0])
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(used)
  models._minimize(
      tf.keras.optimizers.Adam(0.1), loss, [unused, used], tape)
  np.testing.assert_array_equal(unused, [1, 2])
  np.testing.assert_allclose(used, [2.9], rtol=1e-5)
  with tf.GradientTape() as tape:
    loss = tf.constant(1.0)
  with pytest.raises(ValueError, match='No gradients'):
    models._minimize(tf.keras.optimizers.Adam(0.1), loss, [used], tape)
