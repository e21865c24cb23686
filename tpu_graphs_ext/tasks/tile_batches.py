"""Kernels as `GraphTensor`s, with the baseline's node sets, names and dtypes.

Batches are cut from a partition's flat arrays with NumPy, and a whole batch
becomes one GraphTensor; nothing is built kernel by kernel.

The graph of a batch of B kernels, each with c configurations:
  node set `op`: `op` uint8 [nodes], `feats` float32 [nodes, F];
  node set `config`: `feats` float32 [B * c, G], `runtimes` float64 [B * c]
    (divided by the normalizers), `normalizers` int64 [B * c];
  node set `g`: `tile_id` string [B], one root node a kernel;
  edge set `feed` (op -> op): source is the consumer, target the producer;
  edge sets `g_op` and `g_config`: from each root to its nodes.
Sizes and indices are int64. F and G are the columns that normalising keeps.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats

# Batches made ahead of the model's step; of programs, each may have 100 MB.
PREFETCH = 2
Arrays = dict[str, np.ndarray]


def kernel_graph(kernel: Kernel, stats: FeatureStats) -> tfgnn.GraphTensor:
  """One kernel with all its configurations, as a batch of one component."""
  return batch_graph([kernel], np.arange(kernel.num_configs)[np.newaxis], stats)


def kernel_graphs(partition: Partition,
                  stats: FeatureStats) -> tf.data.Dataset:
  """`kernel_graph` of every kernel in order, made ahead of use."""
  def one_by_one(kernels: Partition) -> Iterator[Arrays]:
    for index, number in enumerate(kernels.num_configs):
      yield batch_arrays(kernels, np.array([index]),
                         np.arange(number)[np.newaxis], stats)

  return generated(partition, one_by_one,
                   _signature(partition, np.zeros(1, int), stats),
                   len(partition), graph_tensor)


def batch_graph(kernels: Sequence[Kernel], config_indices: np.ndarray,
                stats: FeatureStats) -> tfgnn.GraphTensor:
  """Several kernels as one graph, a component each.

  `config_indices` int [kernels, configs] are the configurations of each.
  """
  return graph_tensor(batch_arrays(
      Partition.from_kernels(kernels), np.arange(len(kernels)),
      np.asarray(config_indices), stats))


def training_dataset(
    partition: Partition, stats: FeatureStats, *, batch_size: int = 10,
    num_configs: int = 10, least_configs: int | None = None,
    shuffle: bool = True, seed: int | None = None, first_epoch: int = 0,
    redraw: bool = True) -> tf.data.Dataset:
  """Batches of kernels with a few configurations each, and their labels.

  Each pass over the dataset is one epoch: it draws a new order of the kernels
  and new configurations, uniformly and without replacement. A kernel with
  fewer than `num_configs` gives each equally often, but for a random rest; with
  fewer than `least_configs` it is left out, and so is an incomplete last batch.
  At least one batch must remain.

  Args:
    shuffle: False keeps the order of the kernels.
    seed: fixes the draws of every epoch; None differs in each process.
    first_epoch: number of the first pass, for training that resumes.
    redraw: False repeats the draws of the first pass in all.

  The labels are float32 [batch_size, num_configs]: runtimes over normalizers.
  """
  usable = np.flatnonzero(
      partition.num_configs >= (least_configs or num_configs))
  num_batches = len(usable) // batch_size
  entropy = np.random.SeedSequence(seed).entropy
  epochs = (itertools.count if redraw else itertools.repeat)(first_epoch)

  def one_epoch(kernels: Partition) -> Iterator[Arrays]:
    rng = np.random.default_rng([next(epochs), entropy])
    order = rng.permutation(usable) if shuffle else usable
    for chosen in order[:num_batches * batch_size].reshape(-1, batch_size):
      yield batch_arrays(kernels, chosen, np.stack([
          _drawn(rng, number, num_configs)
          for number in kernels.num_configs[chosen]]), stats)

  def with_label(arrays: dict[str, tf.Tensor]):
    label = tf.reshape(arrays['runtimes'], [batch_size, num_configs])
    return graph_tensor(arrays), tf.cast(label, tf.float32)

  return generated(partition, one_epoch,
                   _signature(partition, usable[:batch_size], stats),
                   num_batches, with_label)


def _drawn(rng: np.random.Generator, there: int, number: int) -> np.ndarray:
  """int64 [number] below `there`, each as often as the others, or once more."""
  if number <= there:
    return rng.choice(there, number, replace=False)
  whole, rest = divmod(number, there)
  return np.concatenate([np.tile(np.arange(there), whole),
                         rng.choice(there, rest, replace=False)])


def generated(owner: Any, make: Callable[[Any], Iterator[Arrays]],
              signature: dict[str, tf.TensorSpec], count: int,
              to_graph: Callable[..., Any]) -> tf.data.Dataset:
  """A dataset of `make(owner)`, anew in each pass, which keeps `owner` alive.

  TensorFlow keeps the functions of a dataset until the process ends. So they
  do not hold the owner, and with it memory and open files. `make` yields arrays
  as in `signature`, `count` times; `to_graph` makes an element of each.
  """
  known = weakref.ref(owner)
  dataset = tf.data.Dataset.from_generator(
      lambda: make(known()), output_signature=signature)
  dataset = dataset.apply(tf.data.experimental.assert_cardinality(count)).map(
      to_graph).prefetch(PREFETCH)
  # There is nothing to tune. The autotuner's thread sleeps twice as long each
  # time, and the end of an epoch waits for it: 0.66 s instead of 0.4 s.
  options = tf.data.Options()
  options.autotune.enabled = False
  dataset = dataset.with_options(options)
  dataset.owner = owner
  return dataset


def array_signature(arrays: Arrays, *fixed: str) -> dict[str, tf.TensorSpec]:
  """Shapes and dtypes of the arrays of any batch like this one.

  The first axis may have any length, except in arrays that are `fixed`. As the
  signature of a `tf.function` it makes one trace serve all batches.
  """
  return {
      name: tf.TensorSpec(
          [len(array) if name in fixed else None, *array.shape[1:]],
          tf.string if array.dtype == object else array.dtype)
      for name, array in arrays.items()}


def _signature(partition: Partition, chosen: np.ndarray,
               stats: FeatureStats) -> dict[str, tf.TensorSpec]:
  return array_signature(
      batch_arrays(partition, chosen, np.zeros([len(chosen), 1], int), stats),
      'op_sizes', 'feed_sizes', 'config_sizes', 'tile_id')


def batch_arrays(partition: Partition, chosen: np.ndarray,
                 configs: np.ndarray, stats: FeatureStats) -> Arrays:
  """Cuts the rows of a batch, for `graph_tensor`, out of the flat arrays.

  `chosen` int64 [batch] are the numbers of its kernels, `configs` int64 [batch,
  configs] their configurations, counted from 0 inside each kernel.
  """
  num_nodes = partition.num_nodes[chosen]
  num_edges = partition.num_edges[chosen]
  node_rows = _rows(partition.node_start[chosen], num_nodes)
  edge_rows = _rows(partition.edge_start[chosen], num_edges)
  config_rows = (partition.config_start[chosen, np.newaxis] + configs).ravel()
  # Nodes are renumbered: a kernel's first node follows the previous kernels'.
  first_node = np.cumsum(num_nodes) - num_nodes
  edges = partition.edge_index.take(edge_rows, axis=0)
  edges += np.repeat(first_node, num_edges)[:, np.newaxis]
  normalizers = partition.normalizer_ns.take(config_rows)
  kernel_number = np.arange(len(chosen))
  return {
      'op': partition.node_opcode.take(node_rows),
      'op_feats': stats.node.apply(
          partition.node_feat.take(node_rows, axis=0), 'node_feat'),
      'op_sizes': num_nodes,
      'op_graph': np.repeat(kernel_number, num_nodes),
      'consumer': edges[:, 0],
      'producer': edges[:, 1],
      'feed_sizes': num_edges,
      'config_feats': stats.config.apply(
          partition.config_feat.take(config_rows, axis=0), 'config_feat'),
      'runtimes': partition.runtime_ns.take(config_rows) / normalizers,
      'normalizers': normalizers,
      'config_sizes': np.full(len(chosen), configs.shape[1]),
      'config_graph': np.repeat(kernel_number, configs.shape[1]),
      'tile_id': np.array(
          [partition.tile_ids[i].encode() for i in chosen], object),
  }


def _rows(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Row numbers of several runs, one after another.

  starts [5, 20], counts [3, 2] -> [5, 6, 7, 20, 21].
  """
  before = np.cumsum(counts) - counts  # Rows of the runs before each.
  return np.repeat(starts - before, counts) + np.arange(counts.sum())


def graph_tensor(arrays: dict[str, tf.Tensor]) -> tfgnn.GraphTensor:
  """Names the arrays of a batch as the baseline's graph does."""
  def from_root(name):
    root = arrays[name + '_graph']
    return (arrays[name + '_sizes'], ('g', root),
            (name, tf.range(tf.size(root, out_type=tf.int64))))

  one_each = tf.ones_like(arrays['op_sizes'])
  return joined(
      one_each, {
          'op': (arrays['op_sizes'],
                 {'op': arrays['op'], 'feats': arrays['op_feats']}),
          'config': (arrays['config_sizes'],
                     {'feats': arrays['config_feats'],
                      'runtimes': arrays['runtimes'],
                      'normalizers': arrays['normalizers']}),
          'g': (one_each, {'tile_id': arrays['tile_id']})},
      {'feed': (arrays['feed_sizes'], ('op', arrays['consumer']),
                ('op', arrays['producer'])),
       'g_op': from_root('op'), 'g_config': from_root('config')})


def joined(one_each: tf.Tensor, node_sets: dict[str, tuple],
           edge_sets: dict[str, tuple]) -> tfgnn.GraphTensor:
  """A graph of (sizes, features), and of (sizes, source, target) of edges.

  An end of edges is (node set, indices); `one_each` has a 1 for each component.
  """
  return tfgnn.GraphTensor.from_pieces(
      context=tfgnn.Context.from_fields(sizes=one_each),
      node_sets={
          name: tfgnn.NodeSet.from_fields(sizes=sizes, features=features)
          for name, (sizes, features) in node_sets.items()},
      edge_sets={
          name: tfgnn.EdgeSet.from_fields(
              sizes=sizes, adjacency=tfgnn.Adjacency.from_indices(*ends))
          for name, (sizes, *ends) in edge_sets.items()})
