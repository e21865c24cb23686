"""Adam in few operations, against Keras's own."""

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()
STEPS = 30
OPTIMIZERS = {  # And whether a part of their work is ours.
    'clipped': (lambda: tf.keras.optimizers.Adam(1e-2, clipnorm=1e-3), True),
    'other rates': (lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.5),
        beta_1=0.5, beta_2=0.9, epsilon=1e-3, weight_decay=0.1), True),
    'amsgrad': (lambda: tf.keras.optimizers.Adam(1e-2, amsgrad=True), False),
    'sgd': (lambda: tf.keras.optimizers.SGD(1e-2, clipnorm=1e-3), False)}


def trained(optimizer):
  """What variables and the optimizer's own variables come to."""
  rng = np.random.default_rng(0)
  table, kernel, bias = variables = [
      tf.Variable(rng.normal(size=shape), dtype=tf.float32)
      for shape in ([9, 5], [5, 4], [4])]

  @tf.function
  def step(number):
    with tf.GradientTape() as tape:
      x = tf.gather(table, [1, 2, 2, 8])  # The gradient of the table is sparse.
      loss = tf.reduce_sum(tf.sin(x @ kernel + bias) * number)
    optimizer.minimize(loss, variables, tape=tape)

  for i in range(STEPS):
    step(tf.constant(float(i % 7 - 3)))
  return [variable.numpy() for variable in (*variables, *optimizer.variables)]


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_step_is_that_of_keras(name):
  make, is_ours = OPTIMIZERS[name]
  optimizer = make()
  models._use_one_operation(optimizer)
  assert ('update_step' in vars(optimizer)) is is_ours
  for mine, theirs in zip(trained(optimizer), trained(make())):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
