"""Programs as graphs, and what a training step is given."""

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_layouts
from support.dump_baseline_data import flat
from tpu_graphs_ext.data import programs
from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.tasks import layout_batches


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  return tiny_layouts.write_collection(str(tmp_path_factory.mktemp('npz')))


@pytest.fixture(scope='module')
def collection(root):
  return programs.read_collection(root, 'xla', 'random', min_configs=6)


def test_a_batch_by_hand():
  """As the baseline's reader makes it: names, values and types."""
  def program(name, first, edges, ids, runtimes):
    nodes = first + np.arange(len(edges) + 1)
    layouts = first + np.arange(4 * len(ids)).reshape(2, len(ids), 2)
    return programs.Program(
        name, node_feat=np.stack([nodes, 0 * nodes], -1).astype(np.float32),
        node_opcode=nodes.astype(np.uint8), edge_index=np.array(edges),
        node_config_ids=np.array(ids), runtime_ns=np.array(runtimes),
        bounds=None, read_layouts=np.float32(layouts).__getitem__)

  stats = FeatureStats(ColumnStats(np.float32([0, 0]), np.float32([10, 0])),
                       ColumnStats(np.float32([0, 1]), np.float32([10, 11])))
  graph = flat(layout_batches.graph_tensor(layout_batches.batch_arrays(
      [program('a', 1, [(1, 0), (2, 1)], [0, 2], [30, 20]),
       program('b', 7, [(1, 0)], [1], [50, 60])],
      [np.array([1, 0]), np.array([0, 0])], [slice(1, 3), slice(0, 1)], stats)))
  for name, (dtype, expected) in {
      'context': ('i4', [1, 1]),
      'op.op': ('u1', [1, 2, 3, 7, 8]),
      'op.feats': ('f4', np.float32([[1], [2], [3], [7], [8]]) / 10),
      'op.selected': ('?', [False, True, True, True, False]),
      'op.sizes': ('i4', [3, 2]),
      # Configurations 1 and 0 of node 0, then of node 2; 0 twice in `b`.
      'nconfig.feats': ('f4', np.float32([
          [[5, 5], [1, 1]], [[7, 7], [3, 3]], [[7, 7], [7, 7]]]) / 10),
      'nconfig.sizes': ('i4', [2, 1]),
      'g.graph_id': ('U1', ['a', 'b']),
      'g.runtimes': ('i8', [[20, 30], [50, 50]]),
      'g.kept_node_ratio': ('f4', np.float32([2 / 3, 1 / 2])),
      'g.sizes': ('i4', [1, 1]),
      'feed.source': ('i4', [1, 2, 4]), 'feed.target': ('i4', [0, 1, 3]),
      'feed.sizes': ('i4', [2, 1]),
      'config.source': ('i4', [0, 1, 2]), 'config.target': ('i4', [0, 2, 4]),
      'config.sizes': ('i4', [2, 1]),
      'sampled_feed.source': ('i4', [2]), 'sampled_feed.target': ('i4', [1]),
      'sampled_feed.sizes': ('i4', [1, 0]),
      'sampled_config.source': ('i4', [1]),
      'sampled_config.target': ('i4', [2]),
      'sampled_config.sizes': ('i4', [1, 0]),
      'g_op.source': ('i4', [0, 0, 0, 1, 1]),
      'g_op.target': ('i4', [0, 1, 2, 3, 4]), 'g_op.sizes': ('i4', [3, 2]),
      'g_config.source': ('i4', [0, 0, 1]),
      'g_config.target': ('i4', [0, 1, 2]), 'g_config.sizes': ('i4', [2, 1]),
  }.items():
    np.testing.assert_array_equal(graph[name], expected, err_msg=name)
    assert graph.pop(name).dtype == dtype, name
  assert not graph


def passes(collection, number, **changes):
  """(programs, selected nodes, labels) of each batch of some passes."""
  dataset = layout_batches.training_dataset(
      collection.train, collection.train.stats, **{
          'batch_size': 3, 'num_configs': 6, 'keep_nodes': 30, 'seed': 5,
          **changes})
  assert len(dataset) == 2
  return [[(graph.node_sets['g']['graph_id'].numpy().tolist(),
            graph.node_sets['op']['selected'].numpy().tolist(),
            label.numpy().tolist()) for graph, label in dataset]
          for _ in range(number)]


def test_epochs_draw_anew_and_the_same_again_from_a_seed(collection):
  first, second = passes(collection, 2)
  assert [len(names) for names, *_ in first] == [3, 1]
  assert passes(collection, 1) == [first] != [second]
  assert passes(collection, 1, first_epoch=1) == [second]  # As resumed.
  assert passes(collection, 1, seed=6) != [first]
  in_order, again = passes(collection, 2, keep_nodes=-1, anew=False)
  assert in_order == again
  assert all(all(nodes) for _, nodes, _ in in_order)
  assert in_order[0][0] == [b'train_0', b'train_1', b'train_2']


def test_no_configuration_is_drawn_twice(collection):
  (_, labels), = layout_batches.training_dataset(
      collection.valid, collection.train.stats, batch_size=8, num_configs=12,
      keep_nodes=-1, seed=0, anew=False)
  assert labels.dtype == tf.float32
  for program, row in zip(collection.valid, labels.numpy()):
    np.testing.assert_allclose(
        sorted(row), np.sort(program.runtime_ns) / 1e7, rtol=1e-6)


def test_fast_configurations_are_drawn_sooner(collection):
  program, rng = collection.train[0], np.random.default_rng(0)
  drawn = np.array([
      layout_batches.drawn(rng, program, 1)[0] for _ in range(6000)])
  place = np.argsort(program.fastest_first)  # Of each configuration.
  share = np.bincount(place[drawn], minlength=12) / len(drawn)
  # In proportion to exp(-i / 12): 11 places make a factor of exp(11 / 12).
  expected = np.exp(-np.arange(12) / 12)
  np.testing.assert_allclose(share, expected / expected.sum(), atol=0.02)


def test_segments():
  rng = np.random.default_rng(0)
  segments = [layout_batches.segment(rng, 70, 30) for _ in range(50)]
  assert {(part.start, part.stop) for part in segments} == {
      (0, 30), (30, 60), (60, 70)}
  assert layout_batches.segment(rng, 70, -1) == slice(0, 70)
