"""Kernels as `GraphTensor`s, with the baseline's node sets, names and dtypes.

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

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, Partition, Problem, Problems
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.hlo import tiles

# Batches made ahead of the model's step; of programs, each may have 100 MB.
PREFETCH = 2
Arrays = dict[str, np.ndarray]
# Edge set -> the node sets of its source and target.
_EDGE_SETS = {'feed': ('op', 'op'), 'g_op': ('g', 'op'),
              'g_config': ('g', 'config')}
# Arrays with an entry a kernel.
_FIXED = 'op/sizes', 'feed/sizes', 'config/sizes', 'g/tile_id'
# In this order they stand for types of as many bytes.
_STAND_INS = ('BF16', 'U8', 'PRED')


def in_known_types(stats: ColumnStats, node_feat: tf.Tensor) -> tf.Tensor:
  """float32 [nodes, columns], with element types that training had.

  Without the column of its type, which training drops, an element counts as
  four bytes. So a type of as many bytes stands for it, if training had one. For
  products of 4- and 8-bit numbers, that raises Kendall's tau from .86 to .92 on
  a v6e, from .89 to .94 on a v7x (benchmarks/notes.md).
  """
  names = schema.ELEMENT_TYPES
  first = schema.NODE_COLUMN['shape_element_type_is_invalid_type']
  end = first + len(names)
  if len(stats.minimum) < len(schema.NODE_FEATURES):
    return node_feat  # Columns of another featurizer.
  known = dict(zip(names, stats.maximum[first:end] > 0))
  counts_as = np.eye(len(names), dtype=np.float32)
  for row, name in enumerate(names):
    size = tiles.element_bytes(name)
    others = [other for other in _STAND_INS
              if known[other] and tiles.element_bytes(other) == size]
    if others and not known[name]:
      counts_as[row] = np.equal(names, others[0])
  return tf.concat([node_feat[:, :first], tf.matmul(
      node_feat[:, first:end], counts_as), node_feat[:, end:]], 1)


def with_known_types(kernel: Kernel, stats: FeatureStats) -> Kernel:
  """The kernel with `in_known_types`; itself if it has no others."""
  node_feat = in_known_types(stats.node, kernel.node_feat).numpy()
  return kernel if np.array_equal(node_feat, kernel.node_feat) else (
      dataclasses.replace(kernel, node_feat=node_feat))


def kernel_graph(kernel: Kernel, stats: FeatureStats) -> tfgnn.GraphTensor:
  """One kernel with all its configurations, as a batch of one component."""
  arrays = batch_arrays([kernel], [np.arange(kernel.num_configs)], stats)
  # TF-GNN's checks in Python take twice the time of a traced function.
  return _traced_graph(tuple((name, array.dtype, array.shape[1:])
                             for name, array in arrays.items()))(arrays)


@functools.cache
def _traced_graph(columns: tuple) -> Callable[[Arrays], tfgnn.GraphTensor]:
  """`graph_tensor` of one kernel, from (name, dtype, columns) of its arrays."""
  return tf.function(graph_tensor, autograph=False, input_signature=[{
      name: _spec(dtype, shape, 1 if name in _FIXED else None)
      for name, dtype, shape in columns}])


def kernel_graphs(partition: Partition, stats: FeatureStats) -> tf.data.Dataset:
  """`kernel_graph` of every kernel in order, as a dataset."""
  def alone(unused_rng, kernels: list[Kernel]) -> Arrays:
    return batch_arrays(kernels, [np.arange(kernels[0].num_configs)], stats)

  return drawn_batches(
      partition, alone, _example(partition, 1, stats), graph_tensor,
      np.arange(len(partition)), len(partition), 1, anew=False, fixed=_FIXED)


def training_dataset(
    partition: Partition, stats: FeatureStats, *, batch_size: int = 10,
    num_configs: int = 10, least_configs: int | None = None,
    anew: bool = True, seed: int = 0, first_epoch: int = 0) -> tf.data.Dataset:
  """Batches of kernels with a few configurations each, and their labels.

  Each pass draws a new order of the kernels and new configurations, uniformly
  and without replacement; see `drawn_batches`. A kernel with fewer than
  `num_configs` gives each equally often, but for a random rest; with fewer than
  `least_configs` it is left out, and so is an incomplete last batch. At least
  one batch must remain.

  The labels are float32 [batch_size, num_configs]: runtimes over normalizers.
  """
  def batch_of(rng: np.random.Generator, kernels: list[Kernel]) -> Arrays:
    return batch_arrays(
        kernels, [_drawn(rng, kernel.num_configs, num_configs)
                  for kernel in kernels], stats)

  def with_label(arrays: dict[str, tf.Tensor]):
    label = tf.reshape(arrays['config/runtimes'], [batch_size, num_configs])
    return graph_tensor(arrays), tf.cast(label, tf.float32)

  usable = np.flatnonzero(
      partition.num_configs >= (least_configs or num_configs))
  return drawn_batches(
      partition, batch_of, _example(partition, batch_size, stats), with_label,
      usable, len(usable) // batch_size, batch_size, anew, seed, first_epoch,
      _FIXED)


def drawn_batches(
    problems: Problems, batch_of: Callable[[Any, list], Arrays],
    example: Arrays, to_graph: Callable[..., Any], usable: np.ndarray,
    num_batches: int, batch_size: int, anew: bool, seed: int = 0,
    first_epoch: int = 0, fixed: Sequence[str] = ()) -> tf.data.Dataset:
  """Batches of the `usable` problems, each once in a pass, which is an epoch.

  `seed` fixes the order of the problems in every epoch, and what `batch_of`
  draws with its generator. Without `anew` they keep their order, and each pass
  draws the same, so that epochs compare. `first_epoch` is the number of the
  first pass, for training that resumes.

  Batches are arrays like `example`, whose first axis may have any length unless
  they are `fixed`; `to_graph` makes an element of each.
  """
  epochs = itertools.count(first_epoch) if anew else itertools.repeat(0)
  # TensorFlow keeps a dataset's functions until the process ends, so they do
  # not hold the problems, their memory and open files; the dataset does.
  known = weakref.ref(problems)

  def one_epoch() -> Iterator[Arrays]:
    there = known()
    rng = np.random.default_rng([next(epochs), seed])
    order = rng.permutation(usable) if anew else usable
    for first in range(0, num_batches * batch_size, batch_size):
      yield batch_of(rng, [there[i] for i in order[first:first + batch_size]])

  dataset = tf.data.Dataset.from_generator(one_epoch, output_signature={
      name: _spec(array.dtype, array.shape[1:],
                  len(array) if name in fixed else None)
      for name, array in example.items()})
  dataset = dataset.apply(tf.data.experimental.assert_cardinality(
      num_batches)).map(to_graph).prefetch(PREFETCH)
  # There is nothing to tune. The autotuner's thread sleeps twice as long each
  # time, and the end of an epoch waits for it: 0.66 s instead of 0.4 s.
  options = tf.data.Options()
  options.autotune.enabled = False
  dataset = dataset.with_options(options)
  dataset.owner = problems
  return dataset


def _drawn(rng: np.random.Generator, there: int, number: int) -> np.ndarray:
  """int64 [number] below `there`, each as often as the others, or once more."""
  if number <= there:
    return rng.choice(there, number, replace=False)
  whole, rest = divmod(number, there)
  return np.concatenate([np.tile(np.arange(there), whole),
                         rng.choice(there, rest, replace=False)])


def _spec(dtype: np.dtype, columns: tuple, rows: int | None) -> tf.TensorSpec:
  return tf.TensorSpec(
      [rows, *columns], tf.string if dtype.hasobject else dtype)


def batch_arrays(kernels: Sequence[Kernel], configs: Sequence[np.ndarray],
                 stats: FeatureStats) -> Arrays:
  """The arrays of a batch, for `graph_tensor`.

  `configs` are configurations of each kernel, as many of each, int64 [c].
  """
  def chosen(name: str) -> np.ndarray:
    return np.concatenate([getattr(kernel, name).take(rows, axis=0)
                           for kernel, rows in zip(kernels, configs)])

  normalizers, count = chosen('normalizer_ns'), len(configs[0])
  return {
      **graph_arrays(kernels, stats, np.int64),
      'config/feats': stats.config.apply(chosen('config_feat'), 'config_feat'),
      'config/runtimes': chosen('runtime_ns') / normalizers,
      'config/normalizers': normalizers,
      'config/sizes': np.full(len(kernels), count), 'g/tile_id': np.array(
          [kernel.tile_id.encode() for kernel in kernels], object),
      'g_config/source': np.repeat(np.arange(len(kernels)), count),
  }


def graph_arrays(problems: Sequence[Problem], stats: FeatureStats,
                 dtype: type) -> Arrays:
  """Nodes and edges of a batch of either task; sizes and indices of `dtype`."""
  def joined_rows(name: str) -> np.ndarray:
    return np.concatenate([getattr(problem, name) for problem in problems])

  nodes, edges = (
      np.array([getattr(problem, name) for problem in problems], dtype)
      for name in ('num_nodes', 'num_edges'))
  # A problem's nodes follow those of the ones before it.
  first_node = np.repeat(np.cumsum(nodes) - nodes, edges)
  edge_index = (joined_rows('edge_index') + first_node[:, np.newaxis]).astype(
      dtype, copy=False)
  return {
      'op/op': joined_rows('node_opcode'),
      'op/feats': stats.node.apply(joined_rows('node_feat'), 'node_feat'),
      'op/sizes': nodes, 'feed/source': edge_index[:, 0],
      'feed/target': edge_index[:, 1], 'feed/sizes': edges,
      'g_op/source': np.repeat(np.arange(len(problems), dtype=dtype), nodes),
  }


def _example(partition: Partition, batch_size: int,
             stats: FeatureStats) -> Arrays:
  return batch_arrays(batch_size * partition[:1], batch_size * [[0]], stats)


def graph_tensor(arrays: Mapping[str, tf.Tensor]) -> tfgnn.GraphTensor:
  """The arrays of a batch as the baseline's graph."""
  return joined(arrays, _EDGE_SETS)


def joined(arrays: Mapping[str, tf.Tensor],
           edge_sets: Mapping[str, tuple[str, str]]) -> tfgnn.GraphTensor:
  """A graph of arrays with names such as 'op/feats', 'feed/source'.

  `edge_sets` names the node sets at both ends of each edge set. Where an end
  has no array, each node of its set has one edge, in order.
  """
  of = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
  one_each = of['g/sizes'] = tf.ones_like(of['op/sizes'])
  node_sets: dict[str, dict[str, tf.Tensor]] = {}
  for name, tensor in of.items():
    node_set, _, feature = name.partition('/')
    if node_set not in edge_sets:
      node_sets.setdefault(node_set, {})[feature] = tensor
  return tfgnn.GraphTensor.from_pieces(
      context=tfgnn.Context.from_fields(sizes=one_each), node_sets={
          name: tfgnn.NodeSet.from_fields(
              sizes=features.pop('sizes'), features=features)
          for name, features in node_sets.items()},
      edge_sets={name: _edges(of, name, ends)
                 for name, ends in edge_sets.items()})


def _edges(of: Mapping[str, tf.Tensor], name: str,
           node_sets: tuple[str, str]) -> tfgnn.EdgeSet:
  sizes = of.get(name + '/sizes')
  ends = [of.get(f'{name}/{end}') for end in ('source', 'target')]
  for i, node_set in enumerate(node_sets):
    if ends[i] is None:
      other = ends[1 - i]
      ends[i] = tf.range(tf.size(other, other.dtype))
      sizes = of[node_set + '/sizes']
  return tfgnn.EdgeSet.from_fields(
      sizes=sizes, adjacency=tfgnn.Adjacency.from_indices(
          *zip(node_sets, ends)))
