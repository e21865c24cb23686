"""A file of one small layout model, and training runs with it.

Given as --models_py, so that the host is tested without the real models.
"""

from __future__ import annotations

import tensorflow as tf


class TinyLayoutRanker(tf.keras.Model):
  """Scores = head(mean over configurable nodes of config features): linear.

  Args:
    num_configs: configurations of each program in training.
    num_ops: opcodes.
    width: of the hidden layer.
  """

  def __init__(self, num_configs: int, num_ops: int, width: int = 4):
    super().__init__()
    self._embedding = tf.keras.layers.Embedding(num_ops, width)
    self._node_layer = tf.keras.layers.Dense(width)
    self._config_layer = tf.keras.layers.Dense(width)
    self._head = tf.keras.layers.Dense(1)

  def forward(self, graph, num_configs):
    ops, configs = graph.node_sets['op'], graph.node_sets['nconfig']
    nodes = self._node_layer(tf.concat(
        [self._embedding(tf.cast(ops['op'], tf.int32)), ops['feats']], -1))
    of_config = graph.edge_sets['config'].adjacency.target
    hidden = tf.nn.relu(self._config_layer(configs['feats']) + tf.gather(
        nodes, of_config)[:, tf.newaxis])  # [configurable, configs, width]
    root = tf.repeat(tf.range(tf.size(configs.sizes)), configs.sizes)
    pooled = tf.math.segment_mean(hidden, root)  # [graphs, configs, width]
    return tf.squeeze(self._head(pooled), -1)

  def call(self, graph, training=False):
    return self.forward(graph, None)


def settings(data_root, out_dir, **changes):
  """Settings that train `TinyLayoutRanker` in a second or two."""
  from tpu_graphs_ext.tasks.layout import LayoutTrainSettings
  return LayoutTrainSettings(**{
      'model': 'TinyLayoutRanker', 'models_py': __file__, 'epochs': 2,
      'batch': 3, 'configs': 6, 'keep_nodes': 30, 'lr': 0.01, 'clip_norm': 1.0,
      'seed': 1, 'cache_dir': '', 'data_root': str(data_root),
      'out_dir': str(out_dir), **changes})


def trained(data_root, out_dir, **changes):
  """A run with `settings`, its few steps taken eagerly."""
  from support import eager_training
  from tpu_graphs_ext.engine import train
  with eager_training.eager_steps():
    return train.train(settings(data_root, out_dir, **changes))
