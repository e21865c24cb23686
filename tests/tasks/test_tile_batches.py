"""GraphTensors out of kernels, and batches for training."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_kernels
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches


@pytest.fixture(scope='module')
def partition() -> Partition:
  rng = np.random.default_rng(1)
  return Partition.from_kernels([
      tiny_kernels.learnable_kernel(f'net_{i}', rng, 4 + i)
      for i in range(11)])


@pytest.fixture(scope='module')
def stats(partition) -> FeatureStats:
  return FeatureStats.of_partition(partition)


def corner_stats() -> FeatureStats:
  return FeatureStats.of_partition(
      Partition.from_kernels(tiny_kernels.corner_cases()))


def flat(graph) -> dict:
  """Every tensor of a graph under one name, as NumPy."""
  values = {'context': graph.context.sizes}
  for name, nodes in graph.node_sets.items():
    values[name + '.sizes'] = nodes.sizes
    values |= {f'{name}.{key}': value for key, value in nodes.features.items()}
  for name, edges in graph.edge_sets.items():
    values |= {name + '.sizes': edges.sizes,
               name + '.source': edges.adjacency.source,
               name + '.target': edges.adjacency.target}
  return {name: value.numpy() for name, value in values.items()}


# ----------------------------------------------------------------- one graph


def test_kernel_graph_by_hand():
  kernel = tiny_kernels.chain()
  graph = flat(tile_batches.kernel_graph(kernel, corner_stats()))
  assert graph['context'].tolist() == [1]
  assert graph['op.op'].tolist() == [12, 13, 14]
  assert graph['op.sizes'].tolist() == [3]
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
  assert graph['config.normalizers'].tolist() == [1000, 1001, 1002, 1003]
  assert graph['config.sizes'].tolist() == [4]
  assert graph['g.tile_id'].tolist() == [b'chain_0']
  assert graph['feed.source'].tolist() == [1, 2]  # consumers
  assert graph['feed.target'].tolist() == [0, 1]  # producers
  assert graph['feed.sizes'].tolist() == [2]
  assert graph['g_op.source'].tolist() == [0, 0, 0]
  assert graph['g_op.target'].tolist() == [0, 1, 2]
  assert graph['g_config.source'].tolist() == [0, 0, 0, 0]
  assert graph['g_config.target'].tolist() == [0, 1, 2, 3]


def test_batch_graph_by_hand():
  graph = flat(tile_batches.batch_graph(
      [tiny_kernels.chain(), tiny_kernels.one_node(), tiny_kernels.diamond()],
      np.array([[3, 0], [1, 2], [4, 4]]), corner_stats()))
  assert graph['op.sizes'].tolist() == [3, 1, 4]
  assert graph['op.op'].tolist() == [12, 13, 14, 2, 22, 23, 24, 25]
  # The diamond's nodes follow 3 + 1 others; one_node has no edge.
  assert graph['feed.source'].tolist() == [1, 2, 5, 6, 7, 7]
  assert graph['feed.target'].tolist() == [0, 1, 4, 4, 5, 6]
  assert graph['feed.sizes'].tolist() == [2, 0, 4]
  assert graph['config.sizes'].tolist() == [2, 2, 2]
  assert graph['config.normalizers'].tolist() == [
      1003, 1000, 1001, 1002, 1004, 1004]
  assert graph['g_op.source'].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
  assert graph['g_config.source'].tolist() == [0, 0, 1, 1, 2, 2]
  assert graph['g_config.target'].tolist() == [0, 1, 2, 3, 4, 5]
  assert graph['g.tile_id'].tolist() == [b'chain_0', b'one_node_0',
                                         b'diamond_0']


@pytest.mark.parametrize('kernel', tiny_kernels.corner_cases(),
                         ids=lambda kernel: kernel.tile_id)
def test_corner_cases_have_one_graph_each(kernel):
  graph = tile_batches.kernel_graph(kernel, corner_stats())
  assert int(graph.num_components) == 1
  assert graph.node_sets['op'].sizes.numpy().tolist() == [kernel.num_nodes]
  assert graph.node_sets['config'].sizes.numpy().tolist() == [
      kernel.num_configs]
  assert graph.edge_sets['feed'].sizes.numpy().tolist() == [kernel.num_edges]


def test_kernel_graphs_equal_kernel_graph(partition, stats):
  dataset = tile_batches.kernel_graphs(partition, stats)
  assert int(dataset.cardinality()) == 11
  for kernel, graph in zip(partition, dataset):
    expected = flat(tile_batches.kernel_graph(kernel, stats))
    for name, value in flat(graph).items():
      np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_one_trace_serves_all_kernels(partition, stats):
  """The arrays of any kernel fit the signature of a compiled function."""
  traces = []

  @tf.function(input_signature=[tile_batches.array_signature(1, stats)])
  def count_nodes(arrays):
    traces.append(True)
    return tile_batches.graph_tensor(arrays).node_sets['op'].total_size

  for i in range(3):
    arrays = tile_batches.batch_arrays(
        partition, np.array([i]), np.arange(partition.num_configs[i])[None],
        stats)
    assert int(count_nodes(arrays)) == partition.num_nodes[i]
  assert len(traces) == 1


def test_features_of_another_width(stats):
  with pytest.raises(UserError, match='node_feat has 9 columns'):
    tile_batches.kernel_graph(tiny_kernels.chain(node_width=9), stats)


# ------------------------------------------------------------------ training


def epoch(dataset) -> list:
  return [(flat(graph), label.numpy()) for graph, label in dataset]


def names(batch_list) -> list:
  return [name for graph, _ in batch_list for name in graph['g.tile_id']]


def test_each_epoch_has_every_usable_kernel_once(partition, stats):
  # Kernels have 4 ... 14 configurations: nine have 6 or more, in 3 batches.
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=3, num_configs=6, seed=0)
  assert int(dataset.cardinality()) == 3
  first, second = epoch(dataset), epoch(dataset)
  usable = [f'net_{i}'.encode() for i in range(2, 11)]
  assert sorted(names(first)) == sorted(usable)
  assert sorted(names(second)) == sorted(usable)
  assert names(first) != names(second)


def test_incomplete_batch_is_left_out(partition, stats):
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=4, num_configs=6, seed=0)
  assert int(dataset.cardinality()) == len(epoch(dataset)) == 2


def test_batches_hold_what_their_kernels_hold(partition, stats):
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=3, num_configs=6, seed=0)
  by_name = {kernel.tile_id.encode(): kernel for kernel in partition}
  for graph, label in epoch(dataset):
    assert label.shape == (3, 6)
    assert label.dtype == np.float32
    np.testing.assert_array_equal(
        label.ravel(), graph['config.runtimes'].astype(np.float32))
    kernels = [by_name[name] for name in graph['g.tile_id']]
    # The runtime is 1000 (t + 1) ns, t in config column 0: it gives back
    # which configurations were drawn.
    drawn = []
    runtimes = graph['config.runtimes'] * graph['config.normalizers']
    for kernel, row in zip(kernels, runtimes.reshape(3, 6)):
      drawn.append([int(np.argmin(np.abs(kernel.runtime_ns - value)))
                    for value in row])
      assert len(set(drawn[-1])) == 6  # Without replacement.
    expected = flat(tile_batches.batch_graph(kernels, np.array(drawn), stats))
    for name, value in graph.items():
      np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_configs_are_drawn_anew_and_uniformly(partition, stats):
  # 6 of the 14 configurations of one kernel, 200 epochs: each is expected
  # 200 * 6 / 14 = 85.7 times, with a deviation of sqrt(200 p (1 - p)) = 7;
  # five deviations on either side fail once in a hundred thousand seeds.
  dataset = tile_batches.training_dataset(
      partition.select([10]), stats, batch_size=1, num_configs=6, seed=0)
  runtime_rel = partition.kernel(10).runtime_rel
  times = [0] * 14
  labels = dataset.map(lambda graph, label: label)
  for value in np.ravel([label for _ in range(200) for label in labels]):
    times[int(np.argmin(np.abs(runtime_rel - value)))] += 1
  assert sum(times) == 1200
  assert 50 < min(times) and max(times) < 121


def test_seed_fixes_every_epoch(partition, stats):
  def labels(seed, first_epoch=0):
    dataset = tile_batches.training_dataset(
        partition, stats, batch_size=3, num_configs=6, seed=seed,
        first_epoch=first_epoch)
    dataset = dataset.map(lambda graph, label: label)
    return [np.stack([label.numpy() for label in dataset]) for _ in range(2)]

  first = labels(seed=5)
  np.testing.assert_array_equal(first, labels(seed=5))
  assert not np.array_equal(first, labels(seed=6))
  assert not np.array_equal(labels(None), labels(None))
  # Training that resumes at epoch 1 goes on with what came second.
  np.testing.assert_array_equal(first[1], labels(seed=5, first_epoch=1)[0])


def test_without_shuffling_kernels_keep_their_order(partition, stats):
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=3, num_configs=6, shuffle=False, seed=0)
  first, second = epoch(dataset), epoch(dataset)
  assert names(first) == names(second) == [
      f'net_{i}'.encode() for i in range(2, 11)]
  assert not np.array_equal(first[0][1], second[0][1])


def test_too_few_kernels_for_a_batch(partition, stats):
  with pytest.raises(UserError, match='a batch needs 10 kernels with at least '
                     '6 configurations, but only 9 of 11'):
    tile_batches.training_dataset(
        partition, stats, batch_size=10, num_configs=6)


def test_a_kernel_with_fewer_gives_each_as_often_but_for_a_drawn_rest(
    partition, stats):
  """Kernel i has 4 + i configurations; 4 are too few here."""
  dataset = tile_batches.training_dataset(
      partition, stats, batch_size=1, num_configs=13, least_configs=5,
      shuffle=False, seed=0)
  drawn = [np.unique(label, return_counts=True)[1].tolist()
           for unused_graph, label in epoch(dataset)]
  assert len(drawn) == 10
  for configs, times in zip(range(5, 15), drawn):
    least, rest = divmod(13, configs)
    assert sorted(times) == (
        [least] * (configs - rest) * (least > 0) + [least + 1] * rest)


def test_spec_leaves_only_the_batch_size_fixed(partition, stats):
  graph_spec, label_spec = tile_batches.training_dataset(
      partition, stats, batch_size=3, num_configs=6).element_spec
  assert label_spec == tf.TensorSpec([3, 6], tf.float32)
  op = graph_spec.node_sets_spec['op']
  assert op.sizes_spec == tf.TensorSpec([3], tf.int64)
  # tiny_kernels keeps 3 of 140 and 1 of 24 columns constant.
  assert op.features_spec['feats'] == tf.TensorSpec([None, 137], tf.float32)
  config = graph_spec.node_sets_spec['config']
  assert config.features_spec['feats'] == tf.TensorSpec([None, 23], tf.float32)
  assert config.features_spec['runtimes'] == tf.TensorSpec([None], tf.float64)


def test_nothing_keeps_kernels_that_were_read():
  """TensorFlow keeps a dataset's functions; kernels hold open files."""
  partition = Partition.from_kernels(
      [tiny_kernels.diamond(), tiny_kernels.diamond()])
  stats = FeatureStats.of_partition(partition)
  gone = weakref.ref(partition)
  # The dataset keeps them: here nothing else does.
  ranked = iter(tile_batches.kernel_graphs(partition, stats))
  trained = iter(tile_batches.training_dataset(
      partition, stats, batch_size=2, num_configs=2).cache())
  del partition
  gc.collect()
  assert len(list(ranked)) == 2 and len(list(trained)) == 1
  del ranked, trained
  gc.collect()
  assert gone() is None
