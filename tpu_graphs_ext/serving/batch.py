"""Several kernels in one call, of any numbers of configurations, and checks.

Who calls a served model has no Python of this package, so what is wrong with
the tensors is said by the program itself: `InvalidArgumentError` with a text.

    node_feat     float32 [nodes, 140]    of all kernels, one after another
    node_opcode   uint8 [nodes]
    edge_index    int64 [edges, 2]        (consumer, producer), nodes counted
                                          through the whole batch
    config_feat   float32 [configs, 24]   of all kernels, one after another
    node_splits   int64 [kernels + 1]     kernel k has the nodes from
                                          node_splits[k] to node_splits[k + 1]
    config_splits int64 [kernels + 1]     the same of configurations

Empty `node_splits` mean that there is one kernel, empty `config_splits` that
all kernels have equally many configurations.
"""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.serving import program

OUTPUT = 'scores'
# Gives {'scores': float32 [configs]}, lower is faster.
ScoringFunction = Callable[..., dict[str, tf.Tensor]]
_AT_ONCE = 2  # Kernels: one fills the gaps that the other leaves on the cores.


def input_specs(ranker: scoring.Ranker) -> tuple[tf.TensorSpec, ...]:
  """Shapes and types of a batch; the splits may be left out."""
  return (*program.input_specs(ranker),
          *(tf.TensorSpec([None], tf.int64, name)
            for name in ('node_splits', 'config_splits')))


def one_function(ranker: scoring.Ranker) -> ScoringFunction:
  """A function of one kernel's tensors that checks them first."""
  of_kernel = program.kernel_function(ranker)

  def scores(node_feat, node_opcode, edge_index, config_feat):
    tensors = _shaped(
        ranker, node_feat, node_opcode, edge_index, config_feat)
    with tf.control_dependencies(_faults_of_tensors(*tensors)):
      return {OUTPUT: _finite(of_kernel(*map(tf.identity, tensors)))}

  return scores


def batch_function(ranker: scoring.Ranker) -> ScoringFunction:
  """A function of the tensors of several kernels.

  Each kernel is scored by itself, as `forward` scores it.
  """
  of_kernel = program.kernel_function(ranker)
  none = tf.constant([], tf.int64)  # Eager: what a signature has by default.

  def scores(node_feat, node_opcode, edge_index, config_feat,
             node_splits=none, config_splits=none):
    tensors = _shaped(
        ranker, node_feat, node_opcode, edge_index, config_feat)
    nodes, configs = (tf.shape(tensors[i], tf.int64)[0] for i in (0, 3))
    splits = _whole_splits(nodes, configs, node_splits, config_splits)
    with tf.control_dependencies(
        _faults_of_tensors(*tensors)
        + _faults_of_splits(nodes, configs, *splits)):
      node_splits, config_splits = map(tf.identity, splits)
    with tf.control_dependencies([_fault_of_edges(tensors[2], node_splits)]):
      tensors = tuple(map(tf.identity, tensors))
    edge_index, edge_splits = _by_kernel(tensors[2], node_splits)
    return {OUTPUT: _finite(_one_by_one(
        of_kernel, (*tensors[:2], edge_index, tensors[3]),
        (node_splits, node_splits, edge_splits, config_splits)))}

  return scores


def _one_by_one(of_kernel: program.KernelFunction, tensors: tuple,
                splits: tuple) -> tf.Tensor:
  """The scores of every kernel, one after another: float32 [configs]."""
  kernels = tf.size(splits[0]) - 1

  def score(k, found):
    node_feat, opcode, edges, config_feat = (
        tensor[split[k]:split[k + 1]]
        for tensor, split in zip(tensors, splits))
    own = of_kernel(node_feat, opcode, edges - splits[0][k], config_feat)
    return k + 1, found.write(k, own)

  found = tf.TensorArray(
      tf.float32, kernels, infer_shape=False, element_shape=[None])
  return tf.while_loop(
      lambda k, unused_found: k < kernels, score, (0, found),
      parallel_iterations=_AT_ONCE)[1].concat()


def _whole_splits(nodes: tf.Tensor, configs: tf.Tensor, node_splits: tf.Tensor,
                  config_splits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The splits as they are meant where they are empty."""
  node_splits = tf.cond(
      tf.size(node_splits) > 0, lambda: node_splits,
      lambda: tf.stack([tf.zeros_like(nodes), nodes]))
  kernels = tf.maximum(tf.size(node_splits, tf.int64) - 1, 1)
  config_splits = tf.cond(
      tf.size(config_splits) > 0, lambda: config_splits,
      lambda: tf.range(kernels + 1) * (configs // kernels))
  return node_splits, config_splits


def _by_kernel(edge_index: tf.Tensor, node_splits: tf.Tensor) -> tuple:
  """Edges in the order of their kernels, and the splits of that order."""
  kernel = tf.searchsorted(
      node_splits, edge_index[:, 0], side='right', out_type=tf.int64) - 1
  order = tf.argsort(kernel, stable=True)
  return tf.gather(edge_index, order), tf.searchsorted(
      tf.gather(kernel, order), tf.range(tf.size(node_splits, tf.int64)),
      out_type=tf.int64)


# --- What may be wrong --------------------------------------------------------


def _shaped(ranker: scoring.Ranker, *tensors: tf.Tensor) -> tuple:
  """The tensors, whose shapes are looked at when the program runs.

  The static shapes alone bind nobody but callers in Python.
  """
  return tuple(
      tf.ensure_shape(tensor, spec.shape, name=spec.name)
      for tensor, spec in zip(tensors, program.input_specs(ranker)))


def _holds(condition: tf.Tensor, text: str, *values: tf.Tensor):
  """An operation that fails with the text and the values."""
  return tf.debugging.Assert(condition, [text, *values], summarize=8)


def _faults_of_tensors(node_feat: tf.Tensor, node_opcode: tf.Tensor,
                       edge_index: tf.Tensor, config_feat: tf.Tensor) -> list:
  """Checks that do not know of kernels."""
  nodes = tf.shape(node_feat, tf.int64)[0]
  opcodes = tf.size(node_opcode, tf.int64)
  low, high = tf.reduce_min(edge_index), tf.reduce_max(edge_index)
  some = tf.size(edge_index) > 0
  return [
      _holds(nodes > 0, 'node_feat has no rows; a kernel has at least one '
             'node'),
      _holds(tf.equal(nodes, opcodes), 'node_feat and node_opcode must have '
             'one row a node; they have', nodes, opcodes),
      _holds(tf.shape(config_feat)[0] > 0, 'config_feat has no rows; a kernel '
             'has at least one configuration'),
      _holds(~some | ((low >= 0) & (high < nodes)), 'edge_index must hold '
             'nodes of the batch, counted from 0; least, largest and number '
             'of nodes are', low, high, nodes),
      *(_holds(tf.reduce_all(tf.math.is_finite(table)),
               f'{name} has values that are NaN or infinite')
        for name, table in (('node_feat', node_feat),
                            ('config_feat', config_feat)))]


def _faults_of_splits(nodes: tf.Tensor, configs: tf.Tensor,
                      node_splits: tf.Tensor,
                      config_splits: tf.Tensor) -> list:
  """Checks of whole splits."""
  checks = [_holds(
      tf.equal(tf.size(node_splits), tf.size(config_splits)),
      'node_splits and config_splits must have one entry more than there are '
      'kernels; they have', tf.size(node_splits), tf.size(config_splits))]
  for name, splits, rows, what in (
      ('node_splits', node_splits, nodes, 'nodes'),
      ('config_splits', config_splits, configs, 'configurations')):
    rises = tf.reduce_all(splits[1:] > splits[:-1])
    checks.append(_holds(
        rises & tf.reduce_all(tf.equal(splits[:1], 0))
        & tf.reduce_all(tf.equal(splits[-1:], rows))
        & (tf.size(splits) > 1),
        f'{name} must begin with 0, rise, and end with the number of {what} '
        '(empty config_splits: equally many of each kernel); that number and '
        'the splits are', rows, splits))
  return checks


def _fault_of_edges(edge_index: tf.Tensor, node_splits: tf.Tensor):
  """The check that both ends of an edge are of one kernel."""
  ends = tf.reshape(tf.searchsorted(
      node_splits, tf.reshape(edge_index, [-1]), side='right'), [-1, 2])
  return _holds(
      tf.reduce_all(tf.equal(ends[:, 0], ends[:, 1])), 'edge_index has an edge '
      'between two kernels; nodes are counted through the whole batch, so to '
      "each kernel's own numbers belongs its entry of node_splits, which are",
      node_splits)


def _finite(scores: tf.Tensor) -> tf.Tensor:
  """The scores, none of which is NaN."""
  with tf.control_dependencies([_holds(
      tf.reduce_all(tf.math.is_finite(scores)),
      'the model gives scores that are NaN or infinite')]):
    return tf.identity(scores)
