"""Parts of models.py against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()


def inputs(node_counts, edges, configs=1):
  """Inputs of kernels with one node column: 1, 2, 4, 8 ... over all nodes.

  Args:
    node_counts: nodes of each kernel.
    edges: pairs (consumer, producer), numbered over all nodes.
    configs: configurations of each kernel; one column, 1, 2, 3 ... over all.
  """
  nodes, kernels = sum(node_counts), len(node_counts)
  edges = np.array(edges, np.int32).reshape(-1, 2)
  return models._Inputs(
      opcode=tf.zeros([nodes], tf.int32),
      node_feats=tf.constant(2.0 ** np.arange(nodes)[:, np.newaxis],
                             tf.float32),
      node_counts=tf.constant(node_counts, tf.int32),
      consumer=tf.constant(edges[:, 0]),
      producer=tf.constant(edges[:, 1]),
      config_feats=tf.reshape(
          tf.range(1, kernels * configs + 1, dtype=tf.float32),
          [kernels, configs, 1]))


def set_to_one(layer):
  """All weights 1 and biases 0."""
  for variable in layer.trainable_variables:
    is_weight = 'kernel' in variable.name
    variable.assign(tf.fill(variable.shape, 1. if is_weight else 0.))
  return layer


# A chain 0 -> 1 -> 2, where 1 and 2 consume, and a pair 3 -> 4.
CHAIN_AND_PAIR = inputs([3, 2], [(1, 0), (2, 1), (4, 3)])


@pytest.mark.parametrize('of,expected', [
    # x = 1, 2, 4 | 8, 16
    ('consumers', [2, 4, 0, 16, 0]),
    ('producers', [0, 1, 2, 0, 8]),
    ('both', [2, 1 + 4, 2, 16, 8]),
])
def test_sums_over_neighbours(of, expected):
  graph = models._Graph(CHAIN_AND_PAIR)
  x = CHAIN_AND_PAIR.node_feats
  np.testing.assert_array_equal(graph.sum_of(of, x)[:, 0], expected)
  per_config = tf.stack([x, 10 * x], axis=1)  # [nodes, configs, 1]
  np.testing.assert_array_equal(
      graph.sum_of(of, per_config)[:, 1, 0], np.multiply(expected, 10))


def test_means_over_neighbours_are_zero_without_neighbours():
  graph = models._Graph(CHAIN_AND_PAIR)
  np.testing.assert_array_equal(
      graph.mean_of('both', CHAIN_AND_PAIR.node_feats)[:, 0],
      [2, (1 + 4) / 2, 2, 16, 8])
  lonely = inputs([2], [])
  np.testing.assert_array_equal(
      models._Graph(lonely).mean_of('both', lonely.node_feats)[:, 0], [0, 0])


@pytest.mark.parametrize('reduction,expected', [
    ('sum', [1 + 2 + 4, 8 + 16]), ('mean', [7 / 3, 12]), ('max', [4, 16]),
    ('min', [1, 8])])
def test_pooling_over_the_nodes_of_a_kernel(reduction, expected):
  graph = models._Graph(CHAIN_AND_PAIR)
  np.testing.assert_allclose(
      graph.pool(reduction, CHAIN_AND_PAIR.node_feats)[:, 0], expected)
  chain = inputs([3], [(1, 0), (2, 1)])
  np.testing.assert_allclose(
      models._Graph(chain).pool(reduction, chain.node_feats)[:, 0],
      expected[:1])


def test_log_scales_keep_the_sign_and_end_at_one():
  x = tf.constant([[0., 1., -1., 0.01]])
  np.testing.assert_allclose(
      models._log_scales(x)[:, :4],
      [[0, 1, -1, math.log(2) / math.log(101)]], rtol=1e-5)


def test_layer_norm_by_hand():
  layer = models._LayerNorm()
  # Mean 3, variance (4 + 0 + 4) / 3: deviations -2, 0, 2 over 1.63299.
  np.testing.assert_allclose(
      layer(tf.constant([[1., 3., 5.]])), [[-1.224745, 0, 1.224745]],
      rtol=1e-5, atol=1e-5)


def test_a_gated_join_by_hand():
  """A and B are 1, 0 in the columns, G is 3, 3, biases 0: with a = 2 and b = 5
  the sum is [2, 0] + (1 + 6) * [5, 0] = [37, 0], normalised [1, -1]; with b of
  -5, [-33, 0]: [-1, 1]."""
  join = models._GatedJoin(2, 'relu')
  join.build([None, 1])
  for layer, weights in ((join.added, [[1., 0]]), (join.gate, [[3., 3]]),
                         (join.joined, [[1., 0]])):
    layer.kernel.assign(weights)
  fixed = join.fixed(tf.constant([[[2.]]]))
  np.testing.assert_allclose(
      join.finish(fixed, join.joined(tf.constant([[[5.], [-5.]]]))),
      [[[1, 0], [0, 1]]], atol=1e-5)


def test_validation_has_the_average_and_the_next_epoch_goes_on():
  """Weights 8, 4, 2 after three steps; d = 0, 1/10, 2/11, and then 3/12.

  a = 8;  a = 8/10 + 4 * 9/10 = 4.4;  a = 4.4 * 2/11 + 2 * 9/11 = 26.8 / 11.
  """
  weight = tf.Variable(0.0)
  average = models._RunningAverage(0.99, [weight])

  def epoch(goes_on_from, *steps):
    average.on_epoch_begin(0)
    assert weight.numpy() == goes_on_from
    for value in steps:
      weight.assign(value)
      average.update()
    average.on_test_begin()
    average.on_epoch_end(0)  # Already done.
    return weight.numpy()

  assert epoch(0.0, 8.0, 4.0, 2.0) == pytest.approx(26.8 / 11)
  assert epoch(2.0, 6.0) == pytest.approx(26.8 / 11 / 4 + 6 * 3 / 4)
  weight.assign(3.0)  # Other weights start a new average.
  assert epoch(3.0, 5.0) == 5.0
  assert epoch(5.0) == 5.0
