"""A trained model as one TensorFlow program, from features in their own units.

The columns that training dropped are dropped, the rest is scaled, opcodes that
the model never saw become 0, and the model's `forward` does the rest. What
goes in and out are plain tensors, so the program needs neither this package
nor TF-GNN once it is traced.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import ColumnStats
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

# A function of node_feat, node_opcode, edge_index and config_feat.
KernelFunction = Callable[..., tf.Tensor]


def input_specs(ranker: scoring.Ranker) -> tuple[tf.TensorSpec, ...]:
  """Shapes and types of one kernel's arrays, as the files store them."""
  return (
      tf.TensorSpec(
          [None, len(ranker.stats.node.minimum)], tf.float32, 'node_feat'),
      tf.TensorSpec([None], tf.uint8, 'node_opcode'),
      tf.TensorSpec([None, 2], tf.int64, 'edge_index'),
      tf.TensorSpec(
          [None, len(ranker.stats.config.minimum)], tf.float32,
          'config_feat'))


def kernel_function(ranker: scoring.Ranker) -> KernelFunction:
  """What scores one kernel, to be traced.

  It takes float32 [nodes, node columns], uint8 [nodes], int64 [edges, 2] and
  float32 [configs, config columns], and gives float32 [configs]: `forward`'s
  scores, lower is faster.
  """
  forward, num_ops = ranker.model.forward, ranker.num_ops

  def scores(node_feat, node_opcode, edge_index, config_feat):
    opcode = tf.where(tf.cast(node_opcode, tf.int32) < num_ops, node_opcode,
                      tf.zeros_like(node_opcode))
    of_nodes = tf.zeros_like(node_opcode, tf.int64)  # All of kernel 0.
    of_configs = tf.zeros_like(config_feat[:, 0], tf.int64)
    graph = tile_batches.graph_tensor({
        'op': opcode,
        'op_feats': _scaled(ranker.stats.node, node_feat),
        'op_sizes': tf.shape(node_feat, tf.int64)[:1],
        'op_graph': of_nodes,
        'consumer': edge_index[:, 0],
        'producer': edge_index[:, 1],
        'feed_sizes': tf.shape(edge_index, tf.int64)[:1],
        'config_feats': _scaled(ranker.stats.config, config_feat),
        'runtimes': tf.ones_like(of_configs, tf.float64),  # No model reads it.
        'normalizers': tf.ones_like(of_configs),
        'config_sizes': tf.shape(config_feat, tf.int64)[:1],
        'config_graph': of_configs,
        'tile_id': tf.constant([b'']),
    })
    return tf.reshape(forward(graph, tf.shape(config_feat)[0]), [-1])

  return scores


def _scaled(stats: ColumnStats, table: tf.Tensor) -> tf.Tensor:
  """What `stats.apply` gives, to the last bit."""
  columns, low, width = stats.scale
  return (tf.gather(table, columns, axis=1) - low) / width


def compiled(ranker: scoring.Ranker, function: Callable[..., Any],
             specs: tuple[tf.TensorSpec, ...]
             ) -> tf.types.experimental.PolymorphicFunction:
  """A function of a ranker's model, traced once for all sizes.

  Raises:
    UserError: the model cannot be traced.
  """
  # The package's own models need no AutoGraph, which makes tracing slow.
  own = type(ranker.model).__module__ == load_models.models_module().__name__
  program = tf.function(function, input_signature=specs, autograph=not own)
  try:
    program.get_concrete_function()
  except Exception as error:  # Whatever a models.py of somebody's raises.
    reason = ' '.join(str(error).split())[:300]
    raise UserError(
        f'{ranker.name}: forward of {type(ranker.model).__name__} cannot be '
        f'compiled for kernels of any size ({type(error).__name__}: {reason});'
        ' it must use TensorFlow operations alone, and take num_configs as a '
        'tensor') from error
  return program
