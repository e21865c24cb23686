"""Parts of the layout models by numbers worked out by hand."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_layouts
from tpu_graphs_ext import layout_models


def chain(node_counts, config_node, config_counts, edges, selected=None):
  """Inputs of which only numbers matter, edges (consumer, producer)."""
  nodes = sum(node_counts)
  consumer, producer = np.array(edges, np.int32).reshape(-1, 2).T
  return layout_models._Inputs(
      opcode=tf.zeros([nodes], tf.int32), node_feats=tf.zeros([nodes, 1]),
      selected=tf.constant([True] * nodes if selected is None else selected),
      node_counts=tf.constant(node_counts), consumer=tf.constant(consumer),
      producer=tf.constant(producer),
      config_feats=tf.zeros([len(config_node), 1, 1]),
      config_node=tf.constant(config_node, tf.int32),
      config_counts=tf.constant(config_counts))


def test_rounds_reach_neighbours_of_neighbours():
  """0 - 1 - 2 - 3 - 4, of which 1 has layouts."""
  graph = layout_models._Graph(chain(
      [5], [1], [1], [(1, 0), (2, 1), (3, 2), (4, 3)]))
  levels = layout_models._levels(graph, [graph.neighbours('both')], 2)
  assert [level.nodes.numpy().tolist() for level in levels] == [
      [1], [0, 1, 2], [0, 1, 2, 3]]
  assert levels[1].place.numpy().tolist() == [0, 1, 2, -1, -1]


def test_a_segment_has_its_own_nodes_edges_and_configurations():
  inputs = chain([3, 2], [0, 2, 4], [2, 1], [(1, 0), (2, 1), (4, 3)],
                 selected=[False, True, True, False, True])
  cut = layout_models._segment_of(inputs, keep_nodes=False)
  assert cut.node_counts.numpy().tolist() == [2, 1]
  assert cut.config_counts.numpy().tolist() == [1, 1]
  assert cut.config_node.numpy().tolist() == [1, 2]
  assert (cut.consumer.numpy().tolist(), cut.producer.numpy().tolist()) == (
      [1], [0])
  whole = layout_models._segment_of(inputs, keep_nodes=True)
  assert whole.node_counts.numpy().tolist() == [3, 2]
  assert whole.config_node.numpy().tolist() == [2, 4]


def test_padding_to_whole_layout_tiles():
  for minor, second, want in (
      (100, 8, 0.28),               # 100 of 128 lanes, all of 8 sublanes.
      (3, 100, 128 / 3 * 1.04 - 1),  # 3 of 128, 100 of 104.
      (8, 3, 16 * 4 / 3 - 1)):      # 8 of 128, 3 of 4.
    padding = layout_models._padding(
        tf.constant(minor, tf.float32), tf.constant(second, tf.float32))
    np.testing.assert_allclose(padding, want, rtol=1e-5)


CONVOLUTION, DOT, ADD, SLICE, CONCATENATE, PARAMETER, TRANSPOSE, TUPLE = (
    26, 34, 2, 92, 22, 63, 98, 99)
RESHAPE = layout_models._RESHAPE_OP


def tensors_of(opcodes, sizes, config_node, edges, dims=(0, 3, 2, 3, 0, 3)):
  """bfloat16 tensors; convolutions' `dims` are of [batch, ..., features]."""
  graph = layout_models._Graph(chain(
      [len(opcodes)], config_node, [len(config_node)], edges)._replace(
          opcode=tf.constant(opcodes)))
  raw = np.zeros([len(sizes), 140], np.float32)
  raw[:, 15] = 1
  raw[:, layout_models._CONVOLUTION] = dims
  for row, of in zip(raw, sizes):
    row[layout_models._SHAPE:layout_models._SHAPE + len(of)] = of
    row[layout_models._OWN_LAYOUT:][:2] = [len(of) - 1, len(of) - 2]
  return graph, layout_models._tensors_of(graph, tf.constant(raw))


def test_the_operands_of_a_convolution_are_told_apart_by_their_sizes():
  """The filter comes first: its features are the output's, its batch is not."""
  _, tensors = tensors_of(
      [PARAMETER, ADD, CONVOLUTION],
      [[3, 3, 16, 32], [8, 9, 9, 16], [8, 9, 9, 32]], [2], [(2, 0), (2, 1)])
  assert tensors.node.numpy().tolist() == [[2, 1, 0]]


def test_the_last_request_decides_the_layout_of_connected_tensors():
  """1 reads 0, 4 the sum of that; 4 keeps its sizes, and 6 does not."""
  image, filter_ = [8, 16, 16, 32], [3, 3, 32, 32]
  opcodes = [PARAMETER, CONVOLUTION, PARAMETER, ADD, CONVOLUTION, PARAMETER,
             CONVOLUTION, PARAMETER]
  edges = [(1, 0), (1, 2), (3, 1), (4, 3), (4, 5), (6, 4), (6, 7)]

  def deciders(opcodes, sizes):
    return tensors_of(opcodes, sizes, [1, 4, 6], edges)[1].decider.numpy()

  sizes = [image, image, filter_, image, image, filter_, [8, 8, 8, 64],
           [3, 3, 32, 64]]
  # Tensors 3 * row + {output, input, kernel}; 7 is what the last one reads.
  assert deciders(opcodes, sizes).tolist() == [[7, 7, 2], [7, 7, 5], [6, 7, 8]]
  wider = [*sizes[:4], [8, 16, 16, 48], [3, 3, 32, 48], *sizes[6:]]
  assert deciders(opcodes, wider).tolist() == [[4, 4, 2], [7, 4, 5], [6, 7, 8]]
  # Of a concatenate other features pass; a slice hands nothing on.
  opcodes[3] = CONCATENATE
  assert deciders(opcodes, wider)[0].tolist() == [7, 7, 2]
  opcodes[3] = SLICE
  assert deciders(opcodes, sizes).tolist() == [[1, 1, 2], [7, 7, 5], [6, 7, 8]]


def test_where_a_reshape_asks_for_nothing_the_last_of_the_others_decides():
  """4 reshapes the sum of the product 2, for the product 6."""
  tensors = tensors_of(
      [PARAMETER, PARAMETER, DOT, ADD, RESHAPE, PARAMETER, DOT],
      [[8, 32], [32, 16], [8, 16], [8, 16], [8, 4, 4], [4, 4], [8, 4, 4]],
      [2, 4, 6], [(2, 0), (2, 1), (3, 2), (4, 3), (6, 4), (6, 5)])[1]
  # Third of a reshape is what it asks of its output.
  assert tensors.decider.numpy().tolist() == [[4, 1, 2], [7, 4, 3], [6, 7, 8]]
  assert tensors.fallback.numpy().tolist() == [[0, 1, 2], [7, 0, 3], [6, 7, 8]]


def closest(prices, minor, second):
  """What it costs if these dimensions are packed closest; 6: not asked."""
  return prices[0][:, :, 7 * minor + second]


def test_prices_of_products_and_reshapes():
  tall = [1024, 64]  # 2 ** 17 bytes are 2, and as many of padding, as stored.
  prices = layout_models._prices_of(*tensors_of(
      [PARAMETER, ADD, DOT, RESHAPE], [tall, tall, tall, [*tall, 1]], [2, 3],
      [(2, 0), (2, 1), (3, 2)]))
  # The reshape decides the product; last is what it is asked for, where
  # dimensions of size 1 do not count.
  for pair, want in (((6, 6), [[0.4, 0.4, 0], [0, 0, 0]]),
                     ((1, 0), [[0.4, 0.4, 0], [0, 0, 2]]),
                     ((0, 1), [[0, 1.2, 0], [0, 0, 8]])):
    np.testing.assert_allclose(closest(prices, *pair), want, rtol=1e-6)
  np.testing.assert_allclose(prices[1], [0.8, 2])
  prices = layout_models._prices_of(*tensors_of(
      [ADD, ADD, DOT, TRANSPOSE, RESHAPE], [[16, 16, 16, 16]] * 5, [2, 4],
      [(2, 0), (2, 1), (3, 2), (4, 3)]))
  np.testing.assert_allclose(closest(prices, 6, 6), [[0, 0, 0]] * 2)
  np.testing.assert_allclose(closest(prices, 0, 1)[1], [0, 0, 2])


def test_prices_of_convolutions():
  image = [8, 16, 16, 32]  # 2, and 6 of padding.
  nodes = ([ADD, PARAMETER, CONVOLUTION, ADD],
           [image, [3, 3, 32, 32], image, image], [2])
  edges = [(2, 0), (2, 1), (3, 2)]
  prices = layout_models._prices_of(*tensors_of(*nodes, edges))
  np.testing.assert_allclose(closest(prices, 6, 6), [[6, 6, 0]])
  # 16 of 128 lanes; a filter that is stored in another way.
  np.testing.assert_allclose(
      closest(prices, 2, 3), [[14, 15.2, 0.8]], rtol=1e-6)
  # The layout of what the program returns is settled before.
  nodes[0][3] = TUPLE
  for some in (edges, edges[:2]):
    prices = layout_models._prices_of(*tensors_of(*nodes, some))
    np.testing.assert_allclose(closest(prices, 6, 6), [[0, 6, 0]])


def test_a_filters_gradient_costs_its_multiplications():
  prices = layout_models._prices_of(*tensors_of(
      [ADD, ADD, CONVOLUTION], [[64, 1024], [64, 1024], [16, 16]], [2],
      [(2, 0), (2, 1)], dims=[3, 0, 0, 3, 2, 3]))  # Swapped.
  # sqrt(2 ** 16 * 2 ** 16 * 2 ** 8) is 2 ** 20; two bytes an element.
  np.testing.assert_allclose(
      closest(prices, 0, 1), [[7 * 10 * 2 ** 4, 2, 2]], rtol=1e-5)


def test_costs_of_decided_layouts():
  of_one = layout_models._Tensors(
      tf.zeros([1, 3], tf.int32), tf.constant([[[8., 100, 0, 0, 0, 0]] * 3]),
      tf.ones([1, 3]), tf.constant([False]), tf.constant([[[0, 1]] * 3]),
      tf.constant([[1, 1, 2]]),  # What the node reads decides its output,
      tf.constant([[2, 1, 2]]))  # and, if it asks for nothing, the kernel.
  table = np.zeros([1, 3, 49], np.float32)
  table[0, :, 42:] = [[1], [10], [100]]  # Not asked.
  table[0, :, 1] = [2, 20, 200]          # 0, then 1.
  for asked, want in (
      ([-1, -1, -1, -1, -1, -1], 111), ([0, 1, -1, -1, -1, -1], 111),
      ([-1, -1, 0, 1, -1, -1], 122), ([-1, -1, -1, -1, 0, 1], 212),
      ([-1, -1, 0, 1, 0, 1], 222)):
    costs = layout_models._costs(
        tf.constant([[asked]]), of_one, tf.constant(table))
    np.testing.assert_allclose(costs, [[want]], rtol=1e-6)


def test_features_in_their_own_units_again():
  program = tiny_layouts.program('a')
  stats = tiny_layouts.bounds([program])
  graph = tiny_layouts.graph([program], stats)
  node, config = (graph.node_sets[name]['feats'] for name in ('op', 'nconfig'))
  layer = layout_models._Statistics(
      stats, node=node.shape[-1], config=config.shape[-1])
  np.testing.assert_array_equal(layer.raw('node', node), program['node_feat'])
  np.testing.assert_array_equal(
      layer.raw('config', config),
      program['node_config_feat'].transpose(1, 0, 2))


@pytest.fixture
def running(monkeypatch):
  """Makes the flags of a script of the baseline that is running."""
  def run(**flags):
    flags = types.SimpleNamespace(is_parsed=lambda: True, **flags)
    monkeypatch.setitem(layout_models.sys.modules, 'absl.flags',
                        types.SimpleNamespace(FLAGS=flags))
  return run


def test_statistics_of_what_the_script_reads(running, tmp_path, caplog):
  program = tiny_layouts.program('a')
  name = hashlib.md5(b'data/xla/random/train:6:-1:False').hexdigest()
  np.savez(tmp_path / f'{name}-cache.npz', node_feat=program['node_feat'],
           node_config_feat=program['node_config_feat'].reshape(-1, 18))
  flags = dict(data_root='data', source='xla', search='random', configs=6,
               max_configs=-1, toy_data=False, keep_nodes=5)
  running(**flags, cache_dir=str(tmp_path))
  assert layout_models._of_running_script() == tiny_layouts.bounds([program])
  running(**flags, cache_dir='')
  assert layout_models._of_running_script() is None
  assert '--cache_dir is empty' in caplog.text


def test_the_scripts_flags_are_honoured(running):
  for name in ('LayoutGAT', 'ResModel'):
    running(model=name, keep_nodes=5,
            model_kwargs_json='{"dropout": "fullgraph", "hidden_dim": 12}')
    model = layout_models.ResModel(3, 9)
    assert type(model) is layout_models._MODELS[name]
    assert (model.dropout, model._width) == ('fullgraph', 12)
  running(model='LateJoinSAGE')  # A script of the tile task.
  assert type(layout_models.ResModel(3, 9)) is layout_models.ResModel


def test_flags_that_cannot_be_meant(running):
  for flags, said in (
      ({'model': 'MyLayoutSAG'}, "--model must be one of .* 'MyLayoutSAG'"),
      ({'model_kwargs_json': '{'}, 'must be a JSON object'),
      ({'model_kwargs_json': '{"hiden_dim": 3}'}, "argument 'hiden_dim'")):
    running(**{'model': 'ResModel', 'keep_nodes': 5, 'model_kwargs_json': '',
               **flags})
    with pytest.raises((TypeError, ValueError), match=said):
      layout_models.ResModel(3, 9)


def test_a_model_is_evaluated_as_what_it_was_trained(running, tmp_path):
  for name in ('LayoutGCN', 'LayoutGAT'):
    with gzip.open(tmp_path / f'run_{name}.jsonz', 'wt') as file:
      json.dump({'args': {'model': name}}, file)
  running(dirs=f'{tmp_path}/model_LayoutGCN', secret_path='')
  model = layout_models.ResModel(num_configs=3, num_ops=9, hidden_dim=12)
  assert type(model) is layout_models.LayoutGCN and model._width == 12
  running(dirs=f'{tmp_path}/model_LayoutGCN,{tmp_path}/model_LayoutGAT',
          secret_path='')
  with pytest.raises(ValueError, match='one kind at a time'):
    layout_models.ResModel(num_configs=3, num_ops=9)


def test_objectives():
  for name, scores, want in (
      # exp(2), 1 and 1 are left, then 1 and 1.
      ('ListMLEFastestFirst', [-2, 0, 0],
       math.log(math.exp(2) + 2) - 2 + math.log(2)),
      # Labels 0, 1/2 and 1.
      ('LayoutMinMaxMSE', [0, 1, 1], 1 / 12)):
    loss = getattr(layout_models, name)()
    assert float(loss(tf.constant([[1., 2., 3.]]), tf.constant(
        [scores], tf.float32))) == pytest.approx(want, rel=1e-5)
  # Equal runtimes say nothing, and the noise of repeated runs is no order.
  assert float(loss(tf.ones([1, 3]), tf.zeros([1, 3]))) == 0
  loss = layout_models.ListMLEFastestFirst()
  scores = tf.constant([[0.5, -1, 2]])
  values = [float(loss(tf.constant([labels]), scores)) for labels in (
      [1., 1., 2.], [1., 1.00005, 2.], [1.00005, 1., 2.], [1.0002, 1., 2.])]
  assert values[0] == values[1] == values[2] > values[3]
