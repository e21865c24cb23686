"""What must hold for every model, as functions that tests call by name."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import tensorflow as tf

from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.tasks import tile_batches

NUM_OPS = 108
# Float32 sums in another order: the last bits differ.
CLOSE = dict(rtol=2e-5, atol=2e-5)
# Fewer and narrower layers, where the contract is as well tested by them: each
# model is traced and saved many times.
_ONE_ROUND = {'hidden_dim': 16, 'head_layers': 1, 'node_rounds': 1}
SMALL = {
    'EarlyJoinGCN': _ONE_ROUND, 'LateJoinGCN': _ONE_ROUND,
    'EarlyJoinGAT': _ONE_ROUND, 'LateJoinGAT': _ONE_ROUND,
    'EarlyJoinConcatPoolSAGE': {'widths': [32, 16], 'head_widths': [16]},
    'EnsembleRanker': {'copies': 2, 'members': {
        'EarlyJoinSAGE': {'num_gnns': 1, 'final_mlp_layers': 1}}},
}
# Ends the name of a model that is told what its features are scaled with.
RAW = ' with feature_stats'


def kernels(num_configs: int = 12) -> list[Kernel]:
  """A few random kernels with the same number of configurations."""
  rng = np.random.default_rng(5)
  return [tiny_kernels.learnable_kernel(f'net_{i}', rng, num_configs)
          for i in range(4)]


def stats_of(some_kernels: list[Kernel]) -> FeatureStats:
  return FeatureStats.of_partition(Partition.from_kernels(some_kernels))


def batch_of(some_kernels: list[Kernel], stats: FeatureStats,
             num_configs: int = 10):
  """A GraphTensor of the kernels with their first configurations."""
  return tile_batches.graph_tensor(tile_batches.batch_arrays(
      some_kernels, np.tile(np.arange(num_configs), (len(some_kernels), 1)),
      stats))


def make(name: str, seed: int = 1, stats: FeatureStats | None = None,
         tiles: str = 'layout tiles', **kwargs) -> tf.keras.Model:
  """The model with the arguments of `SMALL` where `kwargs` has no others.

  A name that ends in `RAW` is given `stats`, by default those of `kernels()`,
  and what `tiles` count.
  """
  # Without TensorFlow's own seed, which Keras's first weights do not depend on:
  # setting it makes TensorFlow forget every operation that it has prepared.
  with mock.patch('tensorflow.compat.v2.random.set_seed'):
    tf.keras.utils.set_random_seed(seed)
  small = SMALL.get(name.replace(RAW, ''), {})
  if name == 'MyEarlyJoinSAGE':
    small = _ONE_ROUND
  if name.endswith(RAW):
    name = name[:-len(RAW)]
    kwargs['feature_stats'] = {
        **(stats or stats_of(kernels())).to_json(), 'tiles': tiles}
  return load_models.build(name, 10, NUM_OPS, {**small, **kwargs})


def scores(model: tf.keras.Model, kernel: Kernel,
           stats: FeatureStats) -> np.ndarray:
  """Scores [configs] of one kernel, as the prediction script gets them."""
  graph = tile_batches.kernel_graph(kernel, stats)
  return model.forward(graph, kernel.num_configs).numpy()[0]


def scores_untraced(model: tf.keras.Model, kernel: Kernel,
                    stats: FeatureStats) -> np.ndarray:
  """The same without a trace: faster, where a model scores once or twice."""
  return model(tile_batches.kernel_graph(kernel, stats)).numpy()[0]


def copy_weights(model: tf.keras.Model, source: tf.keras.Model) -> None:
  """By position, as the baseline's scripts do."""
  assert len(model.trainable_variables) == len(source.trainable_variables)
  for variable, value in zip(
      model.trainable_variables, source.trainable_variables):
    assert variable.shape == value.shape
    variable.assign(value)


def permuted_configs(kernel: Kernel, order: np.ndarray) -> Kernel:
  return dataclasses.replace(
      kernel, config_feat=kernel.config_feat[order],
      runtime_ns=kernel.runtime_ns[order],
      normalizer_ns=kernel.normalizer_ns[order])


def renumbered_nodes(kernel: Kernel, order: np.ndarray) -> Kernel:
  """The same graph; node `order[i]` of the old one becomes node i."""
  place = np.argsort(order)
  return dataclasses.replace(
      kernel, node_feat=kernel.node_feat[order],
      node_opcode=kernel.node_opcode[order],
      edge_index=place[kernel.edge_index[::-1]])
