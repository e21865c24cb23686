"""Programs as graphs, and what a training step is given."""

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_layouts
from tpu_graphs_ext.data import programs
from tpu_graphs_ext.tasks import layout_batches


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  return tiny_layouts.write_collection(str(tmp_path_factory.mktemp('npz')))


@pytest.fixture(scope='module')
def collection(root):
  return programs.read_collection(root, 'xla', 'random', min_configs=6)


def test_a_batch_is_the_graph_that_the_baselines_reader_makes(collection):
  train = collection.train
  arrays = [tiny_layouts.program(f'train {i}', 40 + 5 * i, 5 + i)
            for i in range(2)]
  selected = [np.arange(40) < 30, np.arange(45) >= 20]
  expected = tiny_layouts.graph(
      arrays, selected=selected, stats=collection.train.stats.to_json())
  graph = layout_batches.graph_tensor(layout_batches.batch_arrays(
      [train[0], train[1]], [np.arange(12)] * 2,
      [slice(0, 30), slice(20, 45)], train.stats))
  assert set(graph.node_sets) == set(expected.node_sets)
  assert set(graph.edge_sets) == set(expected.edge_sets)
  for name, node_set in expected.node_sets.items():
    np.testing.assert_array_equal(graph.node_sets[name].sizes, node_set.sizes)
    for feature, value in node_set.features.items():
      ours = graph.node_sets[name][feature]
      assert feature == 'runtimes' or ours.dtype == value.dtype, feature
      np.testing.assert_array_equal(ours, value)
  for name, edge_set in expected.edge_sets.items():
    ours = graph.edge_sets[name]
    assert ours.sizes.dtype == edge_set.sizes.dtype
    np.testing.assert_array_equal(ours.sizes, edge_set.sizes)
    for end in ('source', 'target'):
      np.testing.assert_array_equal(
          getattr(ours.adjacency, end), getattr(edge_set.adjacency, end))
  roots = graph.node_sets['g']
  assert roots['graph_id'].numpy().tolist() == [b'train_0', b'train_1']
  np.testing.assert_allclose(roots['kept_node_ratio'], [0.75, 25 / 45])


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
