"""EarlyJoinSAGE as the baseline computes it, for where there is no checkout.

Every node gets a copy of every configuration's features before the first layer,
the adjacency is applied edge by edge, and TensorFlow runs op by op. Scores are
those of `models.EarlyJoinSAGE`, whose weights it uses.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_gnn as tfgnn


class ReplicatedEarlyJoinSAGE:
  """Scores with the weights of a model, in the baseline's way.

  Args:
    model: `models.EarlyJoinSAGE` with its variables.
  """

  def __init__(self, model: Any):
    self.trainable_variables = model.trainable_variables

  def forward(self, graph: tfgnn.GraphTensor, num_configs: int) -> tf.Tensor:
    """Scores of one kernel, float32 [1, num_configs]."""
    embedding, *weights = self.trainable_variables
    layers = list(zip(weights[::2], weights[1::2]))
    ops = graph.node_sets['op']
    edges = graph.edge_sets['feed'].adjacency
    embedded = tf.gather(embedding, tf.cast(ops['op'], tf.int32))
    x = self._joined(embedded, ops['feats'],
                     graph.node_sets['config']['feats'], num_configs)
    for kernel, bias in layers[:3]:
      x = self._layer(x, edges.source, edges.target, kernel, bias)
    y = tf.reduce_sum(x, 0)  # [configs, width]
    for kernel, bias in layers[3:-1]:
      y = tf.nn.leaky_relu(y @ kernel + bias)
    kernel, bias = layers[-1]
    return tf.transpose(y @ kernel + bias)

  def _joined(self, embedded, node_feats, config_feats, num_configs):
    """[nodes, configs, E + G + F]: columns [opcode, config, node]."""
    nodes = tf.shape(node_feats)[0]
    return tf.concat([
        tf.repeat(embedded[:, tf.newaxis], num_configs, axis=1),
        tf.repeat(config_feats[tf.newaxis], nodes, axis=0),
        tf.repeat(node_feats[:, tf.newaxis], num_configs, axis=1)], -1)

  def _layer(self, x, source, target, kernel, bias):
    """leaky_relu([sum of neighbours, own] W + b), divided by its norm."""
    nodes = tf.cast(tf.shape(x)[0], tf.int64)
    neighbors = (
        tf.math.unsorted_segment_sum(tf.gather(x, source), target, nodes)
        + tf.math.unsorted_segment_sum(tf.gather(x, target), source, nodes))
    y = tf.concat([neighbors, x], -1) @ kernel + bias
    return tf.nn.l2_normalize(tf.nn.leaky_relu(y), axis=-1)
