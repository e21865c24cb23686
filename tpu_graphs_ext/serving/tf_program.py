"""A trained model as a TensorFlow program on plain tensors in their own units.

The program takes element types that the model never saw for others, drops the
columns that training dropped, scales the rest, turns opcodes that the model
never saw into 0, and calls the model's `forward`. Once traced it needs neither
this package nor TF-GNN.
"""

from __future__ import annotations

import tensorflow as tf

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import ColumnStats
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError, reason_of
from tpu_graphs_ext.tasks import tile_batches

OUTPUT = 'scores'


def compiled(ranker: scoring.Ranker, for_export: bool = False
             ) -> tf.types.experimental.PolymorphicFunction:
  """The model's `forward` for one kernel, traced once for all sizes.

  It takes the four tensors and returns float32 [configs], lower is faster.
  `for_export` it returns {'scores': ...}, and raises `InvalidArgumentError` for
  tensors that make no sense.

  Raises UserError if the model cannot be traced.
  """
  node, config = (len(stats.minimum)
                  for stats in (ranker.stats.node, ranker.stats.config))
  specs = (tf.TensorSpec([None, node], tf.float32, 'node_feat'),
           tf.TensorSpec([None], tf.uint8, 'node_opcode'),
           tf.TensorSpec([None, 2], tf.int64, 'edge_index'),
           tf.TensorSpec([None, config], tf.float32, 'config_feat'))

  def scores(node_feat, node_opcode, edge_index, config_feat):
    tensors = node_feat, node_opcode, edge_index, config_feat
    if not for_export:
      return _scores(ranker, *tensors)
    outputs = _scores(ranker, *_checked(specs, *tensors))
    outputs, = _after_checks([outputs], (
        _is_finite(outputs), 'the model gives scores that are NaN or infinite'))
    return {OUTPUT: outputs}

  # The package's own models need no AutoGraph, which makes tracing slow.
  ours = load_models.models_module().__name__
  program = tf.function(scores, input_signature=specs, autograph=type(
      ranker.model).__module__ != ours)
  try:
    program.get_concrete_function()
  except Exception as error:  # A user's models.py may raise anything.
    raise UserError(
        f'{ranker.name}: forward of {type(ranker.model).__name__} cannot be '
        f'compiled for kernels of any size ({type(error).__name__}: '
        f'{reason_of(error)}); it must use TensorFlow operations alone, and '
        'take num_configs as a tensor') from error
  return program


def _scores(ranker: scoring.Ranker, node_feat, node_opcode, edge_index,
            config_feat) -> tf.Tensor:
  opcode = tf.where(tf.cast(node_opcode, tf.int32) < ranker.num_ops,
                    node_opcode, tf.zeros_like(node_opcode))
  node_graph = tf.zeros_like(node_opcode, tf.int64)  # All of kernel 0.
  config_graph = tf.zeros_like(config_feat[:, 0], tf.int64)
  graph = tile_batches.graph_tensor({
      'op/op': opcode,
      'op/feats': _scaled(ranker.stats.node, tile_batches.in_known_types(
          ranker.stats.node, node_feat)),
      'op/sizes': tf.shape(node_feat, tf.int64)[:1],
      'feed/source': edge_index[:, 0],
      'feed/target': edge_index[:, 1],
      'feed/sizes': tf.shape(edge_index, tf.int64)[:1],
      'config/feats': _scaled(ranker.stats.config, config_feat),
      'config/runtimes': tf.ones_like(config_graph, tf.float64),  # Never read.
      'config/normalizers': tf.ones_like(config_graph),
      'config/sizes': tf.shape(config_feat, tf.int64)[:1],
      'g/tile_id': tf.constant([b'']),
      'g_op/source': node_graph,
      'g_config/source': config_graph,
  })
  return tf.reshape(ranker.model.forward(graph, tf.shape(config_feat)[0]), [-1])


def _scaled(stats: ColumnStats, table: tf.Tensor) -> tf.Tensor:
  """What `stats.apply` gives, to the last bit."""
  columns, low, width = stats.scale
  return (tf.gather(table, columns, axis=1) - low) / width


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
  return _after_checks(
      tensors,
      (nodes > 0, 'node_feat has no rows; a kernel has at least one node'),
      (tf.equal(nodes, opcodes), 'node_feat and node_opcode must have one row '
       'for each node; they have', nodes, opcodes),
      (tf.shape(config_feat)[0] > 0, 'config_feat has no rows; a kernel has at '
       'least one configuration'),
      (tf.equal(tf.size(edge_index), 0) | ((low >= 0) & (high < nodes)),
       'edge_index must hold nodes of the kernel, counted from 0; least, '
       'largest and number of nodes are', low, high, nodes),
      *((_is_finite(table), f'{name} has values that are NaN or infinite')
        for name, table in (('node_feat', node_feat),
                            ('config_feat', config_feat))))


def _after_checks(tensors: list[tf.Tensor], *checks: tuple) -> list[tf.Tensor]:
  """The tensors; fails with a check's texts and values unless it is true."""
  with tf.control_dependencies([
      tf.debugging.Assert(condition, texts_and_values, summarize=8)
      for condition, *texts_and_values in checks]):
    return [tf.identity(tensor) for tensor in tensors]


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
  return tf.reduce_all(tf.math.is_finite(tensor))
