"""A models.py of one small model, and training runs with it.

Given as --models_py, so that the host is tested without the real models.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow_gnn as tfgnn


class TinyRanker(tf.keras.Model):
  """Scores = head(node(mean of nodes) + config(config features)): linear.

  Args:
    num_configs: configurations of each kernel in training.
    num_ops: opcodes.
    width: of the hidden layer.
    nan_from_step: scores of training steps from this one on, counted from 1,
      are NaN; 0: never.
  """

  def __init__(self, num_configs: int, num_ops: int, width: int = 4,
               nan_from_step: int = 0):
    super().__init__()
    self._num_configs = num_configs
    self._nan_from_step = nan_from_step
    self._embedding = tf.keras.layers.Embedding(num_ops, width)
    self._node_layer = tf.keras.layers.Dense(width)
    self._config_layer = tf.keras.layers.Dense(width)
    self._head = tf.keras.layers.Dense(1)
    if nan_from_step:
      self._step = tf.Variable(0, trainable=False)

  def forward(self, graph, num_configs):
    ops = graph.node_sets['op']
    nodes = tf.concat(
        [self._embedding(tf.cast(ops['op'], tf.int32)), ops['feats']], -1)
    pooled = tfgnn.pool_nodes_to_context(
        graph, 'op', 'mean', feature_value=nodes)  # [kernels, columns]
    feats = graph.node_sets['config']['feats']
    feats = tf.reshape(feats, [-1, num_configs, feats.shape[-1]])
    hidden = self._node_layer(pooled)[:, tf.newaxis] + self._config_layer(feats)
    return tf.squeeze(self._head(hidden), -1)  # [kernels, configs]

  # It needs no AutoGraph, which would look into all of TF-GNN.
  @tf.autograph.experimental.do_not_convert
  def call(self, graph, training=False):
    scores = self.forward(graph, self._num_configs)
    if training and self._nan_from_step:
      self._step.assign_add(1)
      scores *= tf.where(self._step >= self._nan_from_step, float('nan'), 1.0)
    return scores


def tiny_settings(data_root, out_dir, **changes):
  """Settings that train `TinyRanker` in a second or two."""
  from tpu_graphs_ext.tasks.tile import TrainSettings
  return TrainSettings(**{
      'model': 'TinyRanker', 'models_py': __file__, 'epochs': 2, 'batch': 5,
      'configs': 6, 'lr': 0.01, 'clip_norm': 1.0, 'seed': 1, 'cache_dir': '',
      'data_root': str(data_root), 'out_dir': str(out_dir), **changes})
