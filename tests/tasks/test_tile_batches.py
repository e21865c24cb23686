"""GraphTensors out of kernels, and batches for training."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from support import tiny_kernels
from support.dump_baseline_data import flat
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

CORNER_CASES = tiny_kernels.corner_cases()
CORNER_STATS = FeatureStats.of_partition(Partition.from_kernels(CORNER_CASES))


@pytest.fixture(scope='module')
def partition() -> Partition:
  rng = np.random.default_rng(1)
  return Partition.from_kernels([
      tiny_kernels.learnable_kernel(f'net_{i}', rng, 4 + i) for i in range(11)])


@pytest.fixture(scope='module')
def stats(partition) -> FeatureStats:
  return FeatureStats.of_partition(partition)


def test_kernel_graph_by_hand():
  graph = flat(tile_batches.kernel_graph(tiny_kernels.chain(), CORNER_STATS))
  # Column 0 of all corner cases spans 0 (one_node) to 50 + 2
  # (identical_configs); the chain has 10, 11, 12.
  np.testing.assert_allclose(
      graph['op.feats'][:, 0], [10 / 52, 11 / 52, 12 / 52], rtol=1e-6)
  assert graph['op.feats'].shape == (3, 140)
  # Column 0: 0 to 40 (one_config); the chain has 10, 12, 14, 16.
  np.testing.assert_allclose(
      graph['config.feats'][:, 0], [.25, .3, .35, .4], rtol=1e-6)
  # 1000 (10 + r + 1) over 1000 + r.
  np.testing.assert_allclose(
      graph['config.runtimes'],
      [11000 / 1000, 12000 / 1001, 13000 / 1002, 14000 / 1003])
  for name, expected in {
      'context': [1], 'op.op': [12, 13, 14], 'op.sizes': [3],
      'config.normalizers': [1000, 1001, 1002, 1003], 'config.sizes': [4],
      'g.tile_id': ['chain_0'],
      'feed.source': [1, 2],  # consumers
      'feed.target': [0, 1],  # producers
      'feed.sizes': [2], 'g_op.source': [0, 0, 0], 'g_op.target': [0, 1, 2],
      'g_config.source': [0, 0, 0, 0], 'g_config.target': [0, 1, 2, 3]}.items():
    assert graph[name].tolist() == expected, name
  with pytest.raises(UserError, match='node_feat has 9 columns'):
    tile_batches.kernel_graph(tiny_kernels.chain(node_width=9), CORNER_STATS)


def test_a_batch_by_hand():
  graph = flat(tile_batches.graph_tensor(tile_batches.batch_arrays(
      [tiny_kernels.chain(), tiny_kernels.one_node(), tiny_kernels.diamond()],
      np.array([[3, 0], [1, 2], [4, 4]]), CORNER_STATS)))
  for name, expected in {
      'op.sizes': [3, 1, 4], 'op.op': [12, 13, 14, 2, 22, 23, 24, 25],
      # The diamond's nodes follow 3 + 1 others; one_node has no edge.
      'feed.source': [1, 2, 5, 6, 7, 7], 'feed.target': [0, 1, 4, 4, 5, 6],
      'feed.sizes': [2, 0, 4], 'config.sizes': [2, 2, 2],
      'config.normalizers': [1003, 1000, 1001, 1002, 1004, 1004],
      'g_op.source': [0, 0, 0, 1, 2, 2, 2, 2],
      'g_config.source': [0, 0, 1, 1, 2, 2],
      'g_config.target': [0, 1, 2, 3, 4, 5],
      'g.tile_id': ['chain_0', 'one_node_0', 'diamond_0']}.items():
    assert graph[name].tolist() == expected, name


def test_kernel_graphs_equal_kernel_graph(partition, stats):
  dataset = tile_batches.kernel_graphs(partition, stats)
  assert int(dataset.cardinality()) == 11
  for kernel, graph in zip(partition, dataset):
    expected = flat(tile_batches.kernel_graph(kernel, stats))
    for name, value in flat(graph).items():
      np.testing.assert_array_equal(value, expected[name], err_msg=name)


def batches_of(partition, stats, passes=1, **changes) -> list:
  """(graph, labels) of each batch of some passes, as NumPy."""
  dataset = tile_batches.training_dataset(partition, stats, **{
      'batch_size': 3, 'num_configs': 6, 'seed': 0, **changes})
  return [[(flat(graph), label.numpy()) for graph, label in dataset]
          for _ in range(passes)]


def names(batch_list) -> list:
  return [name for graph, _ in batch_list for name in graph['g.tile_id']]


def test_each_epoch_has_every_usable_kernel_once(partition, stats):
  # Kernels have 4 ... 14 configurations: nine have 6 or more, in 3 batches.
  usable = [f'net_{i}' for i in range(2, 11)]
  first, second = batches_of(partition, stats, 2)
  assert len(first) == 3
  assert sorted(names(first)) == sorted(names(second)) == sorted(usable)
  assert names(first) != names(second)
  for graph, label in first:
    assert label.shape == (3, 6) and label.dtype == np.float32
    np.testing.assert_array_equal(
        label.ravel(), graph['config.runtimes'].astype(np.float32))
  first, second = batches_of(partition, stats, 2, anew=False)
  assert names(first) == names(second) == usable
  np.testing.assert_array_equal(first[0][1], second[0][1])
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=4, num_configs=6)  # The last is incomplete.
  assert int(dataset.cardinality()) == 2


def test_seed_fixes_every_epoch(partition, stats):
  def labels(seed, first_epoch=0):
    return [np.stack([label for _, label in batches]) for batches in batches_of(
        partition, stats, 2, seed=seed, first_epoch=first_epoch)]

  first = labels(seed=5)
  np.testing.assert_array_equal(first, labels(seed=5))
  assert not np.array_equal(first, labels(seed=6))
  # Training that resumes at epoch 1 continues with the second.
  np.testing.assert_array_equal(first[1], labels(seed=5, first_epoch=1)[0])


def test_a_kernel_with_fewer_gives_each_equally_often(partition, stats):
  """Kernel i has 4 + i configurations; 4 are too few here."""
  batches, = batches_of(partition, stats, batch_size=1, num_configs=13,
                        least_configs=5, anew=False)
  drawn = [np.unique(label, return_counts=True)[1] for _, label in batches]
  assert len(drawn) == 10
  for configs, times in zip(range(5, 15), drawn):
    least, rest = divmod(13, configs)
    drawn_least = [least] * (configs - rest) if least else []
    assert sorted(times) == drawn_least + [least + 1] * rest


def test_nothing_keeps_kernels_that_were_read():
  """TensorFlow keeps a dataset's functions; kernels hold open files."""
  partition = Partition.from_kernels(
      [tiny_kernels.diamond(), tiny_kernels.diamond()])
  stats = FeatureStats.of_partition(partition)
  gone = weakref.ref(partition)
  # Only the datasets keep them here.
  ranked = iter(tile_batches.kernel_graphs(partition, stats))
  trained = iter(tile_batches.training_dataset(
      partition, stats, batch_size=2, num_configs=2).cache())
  del partition
  gc.collect()
  assert len(list(ranked)) == 2 and len(list(trained)) == 1
  del ranked, trained
  gc.collect()
  assert gone() is None
