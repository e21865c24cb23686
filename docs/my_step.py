"""A training step to rank the tiles of: two layers, gradient descent."""

import tensorflow as tf


def step(params, x, y):
  with tf.GradientTape() as tape:
    tape.watch(params)
    hidden = tf.nn.gelu(x @ params['w1'] + params['b1'])
    loss = tf.reduce_mean((hidden @ params['w2'] - y) ** 2)
  gradients = tape.gradient(loss, params)
  return loss, {name: params[name] - 0.1 * gradients[name] for name in params}


def step_arguments():
  params = {'w1': tf.TensorSpec([1024, 4096]), 'b1': tf.TensorSpec([4096]),
            'w2': tf.TensorSpec([4096, 1024])}
  return params, tf.TensorSpec([2048, 1024]), tf.TensorSpec([2048, 1024])
