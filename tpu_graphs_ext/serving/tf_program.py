"""A trained model as a TensorFlow program on plain tensors in their own units.

The program drops the columns that training dropped, scales the rest, turns
opcodes that the model never saw into 0, and calls the model's `forward`. Once
traced it needs neither this package nor TF-GNN, so it checks its tensors itself
and raises `InvalidArgumentError` with a message.

    node_feat     float32 [nodes, 140]
    node_opcode   uint8 [nodes]
    edge_index    int64 [edges, 2], (consumer, producer)
    config_feat   float32 [configs, 24]
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import ColumnStats
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

OUTPUT = 'scores'
# node_feat, node_opcode, edge_index, config_feat -> float32 [configs].
KernelFunction = Callable[..., tf.Tensor]
# The same -> {'scores': float32 [configs]}; lower is faster.
ScoringFunction = Callable[..., dict[str, tf.Tensor]]


def kernel_specs(ranker: scoring.Ranker) -> tuple[tf.TensorSpec, ...]:
  """Shapes and types of one kernel's arrays, as the files store them."""
  node, config = (len(stats.minimum)
                  for stats in (ranker.stats.node, ranker.stats.config))
  return (tf.TensorSpec([None, node], tf.float32, 'node_feat'),
          tf.TensorSpec([None], tf.uint8, 'node_opcode'),
          tf.TensorSpec([None, 2], tf.int64, 'edge_index'),
          tf.TensorSpec([None, config], tf.float32, 'config_feat'))


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
  except Exception as error:  # A user's models.py may raise anything.
    reason = ' '.join(str(error).split())[:300]
    raise UserError(
        f'{ranker.name}: forward of {type(ranker.model).__name__} cannot be '
        f'compiled for kernels of any size ({type(error).__name__}: {reason});'
        ' it must use TensorFlow operations alone, and take num_configs as a '
        'tensor') from error
  return program


def kernel_function(ranker: scoring.Ranker) -> KernelFunction:
  """Scores one kernel with the model's `forward`; to be traced."""
  forward, num_ops = ranker.model.forward, ranker.num_ops

  def scores(node_feat, node_opcode, edge_index, config_feat):
    opcode = tf.where(tf.cast(node_opcode, tf.int32) < num_ops, node_opcode,
                      tf.zeros_like(node_opcode))
    node_graph = tf.zeros_like(node_opcode, tf.int64)  # All of kernel 0.
    config_graph = tf.zeros_like(config_feat[:, 0], tf.int64)
    graph = tile_batches.graph_tensor({
        'op': opcode,
        'op_feats': _scaled(ranker.stats.node, node_feat),
        'op_sizes': tf.shape(node_feat, tf.int64)[:1],
        'op_graph': node_graph,
        'consumer': edge_index[:, 0],
        'producer': edge_index[:, 1],
        'feed_sizes': tf.shape(edge_index, tf.int64)[:1],
        'config_feats': _scaled(ranker.stats.config, config_feat),
        'runtimes': tf.ones_like(config_graph, tf.float64),  # Never read.
        'normalizers': tf.ones_like(config_graph),
        'config_sizes': tf.shape(config_feat, tf.int64)[:1],
        'config_graph': config_graph,
        'tile_id': tf.constant([b'']),
    })
    return tf.reshape(forward(graph, tf.shape(config_feat)[0]), [-1])

  return scores


def _scaled(stats: ColumnStats, table: tf.Tensor) -> tf.Tensor:
  """What `stats.apply` gives, to the last bit."""
  columns, low, width = stats.scale
  return (tf.gather(table, columns, axis=1) - low) / width


def checked_kernel_function(ranker: scoring.Ranker) -> ScoringFunction:
  """Checks one kernel's tensors, then scores it."""
  score, specs = kernel_function(ranker), kernel_specs(ranker)

  def scores(node_feat, node_opcode, edge_index, config_feat):
    tensors = _checked(specs, node_feat, node_opcode, edge_index, config_feat)
    return {OUTPUT: _finite(score(*tensors))}

  return scores


# --- Checks -------------------------------------------------------------------


def _check(condition: tf.Tensor, text: str, *values: tf.Tensor):
  """An operation that fails with the text and the values."""
  return tf.debugging.Assert(condition, [text, *values], summarize=8)


def _passed(checks: list, *tensors: tf.Tensor) -> list[tf.Tensor]:
  with tf.control_dependencies(checks):
    return [tf.identity(tensor) for tensor in tensors]


def _checked(specs: tuple[tf.TensorSpec, ...],
             *tensors: tf.Tensor) -> list[tf.Tensor]:
  """The four tensors of a kernel, after checks."""
  # Static shapes bind only Python; these are checked when the program runs.
  tensors = [tf.ensure_shape(tensor, spec.shape, name=spec.name)
             for tensor, spec in zip(tensors, specs)]
  node_feat, node_opcode, edge_index, config_feat = tensors
  nodes = tf.shape(node_feat, tf.int64)[0]
  opcodes = tf.size(node_opcode, tf.int64)
  low, high = tf.reduce_min(edge_index), tf.reduce_max(edge_index)
  return _passed([
      _check(nodes > 0, 'node_feat has no rows; a kernel has at least one '
             'node'),
      _check(tf.equal(nodes, opcodes), 'node_feat and node_opcode must have '
             'one row for each node; they have', nodes, opcodes),
      _check(tf.shape(config_feat)[0] > 0, 'config_feat has no rows; a kernel '
             'has at least one configuration'),
      _check(tf.equal(tf.size(edge_index), 0) | ((low >= 0) & (high < nodes)),
             'edge_index must hold nodes of the kernel, counted from 0; least, '
             'largest and number of nodes are', low, high, nodes),
      *(_check(tf.reduce_all(tf.math.is_finite(table)),
               f'{name} has values that are NaN or infinite')
        for name, table in (('node_feat', node_feat),
                            ('config_feat', config_feat)))], *tensors)


def _finite(scores: tf.Tensor) -> tf.Tensor:
  return _passed([_check(
      tf.reduce_all(tf.math.is_finite(scores)),
      'the model gives scores that are NaN or infinite')], scores)[0]
