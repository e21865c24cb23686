"""Models against NumPy that copies configurations to nodes.

models.py computes the part of a node once a node and that of a configuration
once a configuration. Here each node gets a copy of each configuration, as in
the baseline, and weights are random, so that no factor can cancel.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()
RNG = np.random.default_rng(3)
NODES, NUM_OPS, CONFIGS = (5, 3), 7, 4
# (consumer, producer) of each kernel; a pair twice, and a node without any.
EDGES = ([(1, 0), (2, 0), (3, 0), (3, 1), (3, 1)], [(1, 0), (2, 1), (2, 0)])
FIRST = np.cumsum([0, *NODES])
OPCODE = RNG.integers(0, NUM_OPS, sum(NODES))
NODE_FEATS = RNG.normal(size=(sum(NODES), 2))
CONFIG_FEATS = RNG.normal(size=(len(NODES), CONFIGS, 3))


def randomised(name, **kwargs):
  model = getattr(models, name)(CONFIGS, NUM_OPS, op_embed_dim=4, **kwargs)
  model._create_for(NODE_FEATS.shape[-1], CONFIG_FEATS.shape[-1])
  model._repeats_last = False
  rng = np.random.default_rng(0)
  for variable in model.trainable_variables:  # Biases too.
    if 'feature_stats' not in variable.name:
      variable.assign(rng.normal(size=variable.shape))
  return model


def adjacency_of(nodes, pairs):
  """Numbers of edges, [producers, consumers]."""
  edges = np.zeros([nodes, nodes])
  for consumer, producer in pairs:
    edges[producer, consumer] += 1
  return edges


def scores_of(model):
  """float32 [kernels, configs]."""
  edges = np.concatenate([
      np.add(pairs, first) for pairs, first in zip(EDGES, FIRST)])
  return model._rank_in_chunks(*models._Inputs(
      *(tf.constant(x, tf.int32) for x in (OPCODE,)),
      tf.constant(NODE_FEATS, tf.float32),
      *(tf.constant(x, tf.int32) for x in (NODES, edges[:, 0], edges[:, 1])),
      tf.constant(CONFIG_FEATS, tf.float32))).numpy()


def activated(x):
  return np.where(x > 0, x, 0.2 * x)  # `tf.nn.leaky_relu`.


ADJACENCY = list(map(adjacency_of, NODES, EDGES))


def dense(layers, x):
  """Dense layers with the activation between them."""
  weights = layers.get_weights()
  for i in range(0, len(weights), 2):
    x = (activated(x) if i else x) @ weights[i] + weights[i + 1]
  return x


def sum_sage(model, x, consumers):
  for layer in model._gnn_layers:
    x = activated(dense(layer, np.concatenate(
        [(consumers + consumers.T) @ x, x], -1)))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
  return x.sum(1)


def concat_pool_sage(model, x, consumers):
  producers = consumers.T
  for i, layer in enumerate(model._gnn_layers):
    mean = producers @ x / np.maximum(1, producers.sum(1))[:, np.newaxis]
    x = dense(layer, np.concatenate([mean, x], -1))
    if i + 1 < len(model._gnn_layers):
      x = activated(x)
  return np.concatenate([x.mean(1), x.max(1)], -1)


def res_gcn(model, x, consumers):
  x = dense(model._prenet, x)
  average = (consumers + np.eye(len(consumers))) / (
      1 + consumers.sum(1))[:, np.newaxis]
  for layers in model._gc_layers:
    y = activated(x)
    terms = (average @ y, average.T @ y, y)
    x = x + (sum(map(dense, layers, terms)) if len(layers) == 3
             else dense(layers[0], sum(terms)))
  return activated(x).sum(1)


def mlp(model, x, consumers):
  return x.sum(1)


def expected_scores(model, encode, early):
  """[kernels, configs]."""
  embedded = model._op_embedding.embedding_layer.get_weights()[0][OPCODE]
  scores = []
  for kernel, consumers in enumerate(ADJACENCY):
    nodes = slice(*FIRST[kernel:kernel + 2])
    of_config = CONFIG_FEATS[kernel]
    columns = [np.tile(x[nodes], (CONFIGS, 1, 1)) for x in (
        (NODE_FEATS, embedded) if encode is mlp else (embedded, NODE_FEATS))]
    if early:  # Between the two.
      columns.insert(1, np.tile(
          of_config[:, np.newaxis], (1, NODES[kernel], 1)))
    pooled = encode(model, np.concatenate(columns, -1), consumers)
    scores.append(dense(model._postnet, pooled if early else np.concatenate(
        [pooled, of_config], -1))[:, 0])
  return np.array(scores)


# --- The new models ----------------------------------------------------------


def log_scales(x):
  return np.concatenate([
      np.sign(x) * np.log1p(s * np.abs(x)) / np.log1p(s)
      for s in (1e2, 1e4, 1e6)], -1)


def normed(layer, x):
  """act(LayerNorm(x)), with the layer's scale and shift."""
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
  return activated(x * layer.norm.scale.numpy() + layer.norm.shift.numpy())


def dense_norm(layer, x):
  return normed(layer, x @ layer.dense.kernel.numpy()
                + layer.dense.bias.numpy())


def dense_first(layer, x):
  """With statistics unknown, the rows of the raw columns are not used."""
  return normed(layer, x @ layer.dense.kernel.numpy()[:x.shape[-1]]
                + layer.dense.bias.numpy())


def joined(layer, a, b):
  """A `_GatedJoin`."""
  (w_a, b_a), (w_g, b_g), (w_b,) = (part.get_weights() for part in (
      layer.added, layer.gate, layer.joined))
  return normed(layer, a @ w_a + b_a + (1 + a @ w_g + b_g) * (b @ w_b))


def round_of(layer, x, consumers):
  """A `_SAGERound` or a `_GCNRound`; x [configs, nodes, width]."""
  if isinstance(layer, models._SAGERound):
    means = [edges @ x / np.maximum(1, edges.sum(1))[:, np.newaxis]
             for edges in (consumers.T, consumers)]
    return x + dense_norm(layer, np.concatenate([*means, x], -1))
  adjacency = consumers + consumers.T + np.eye(len(consumers))
  scale = adjacency.sum(1) ** -0.5
  return x + dense_norm(layer, scale[:, np.newaxis] * adjacency * scale @ x)


def tile_ranker_scores(model):
  """[kernels, configs]."""
  embedded = model._op_embedding.embedding_layer.get_weights()[0][OPCODE]
  columns = [log_scales(NODE_FEATS), embedded]
  if not isinstance(model, models.MyEarlyJoinSAGE):
    columns.reverse()
  scores = []
  for kernel, consumers in enumerate(ADJACENCY):
    nodes = slice(*FIRST[kernel:kernel + 2])
    h = dense_first(model._node_encoder, np.concatenate(
        [x[nodes] for x in columns], -1))
    h = np.tile(h, (CONFIGS, 1, 1))  # [configs, nodes, width]
    for layer in model._node_rounds:
      h = round_of(layer, h, consumers)
    z = dense_first(model._config_encoder, log_scales(CONFIG_FEATS[kernel]))
    if model._early:
      h = joined(model._join, h, z[:, np.newaxis])
      h = round_of(model._joint_round, h, consumers)
    k = dense_norm(model._kernel_encoder, np.concatenate(
        [h.mean(1), h.max(1), h.sum(1)], -1))
    z = k if model._early else z
    for layer in model._head:
      z = z + joined(layer, k, z)
    scores.append(dense(model._scorer, z)[:, 0])
  return np.array(scores)


@pytest.mark.parametrize('name,kwargs', [
    ('MyEarlyJoinSAGE', {'feature_stats': None, 'node_rounds': 2}),
    ('EarlyJoinGCN', {'joint_dim': 5}), ('LateJoinGCN', {})])
def test_scores_of_tile_rankers(name, kwargs):
  model = randomised(name, hidden_dim=6, **kwargs)
  expected = tile_ranker_scores(model)
  assert expected.std(1).min() > 0.1
  np.testing.assert_allclose(scores_of(model), expected, rtol=1e-4, atol=1e-4)


def test_first_layers_on_columns_in_their_own_units():
  """Rows of weights: scaled columns, embedded opcodes, columns in own units.

  With statistics the scaled ones are not used; 1,023 is 1 on their scale.
  """
  model = randomised('MyEarlyJoinSAGE', hidden_dim=6, feature_stats=None)
  model._statistics.known = lambda: tf.constant(True)
  layer = model._node_encoder
  feats, embedded = RNG.normal(size=(2, 3, 2)).astype(np.float32)
  raw = tf.constant([[0.0, 1023.0, -1023.0]] * 3)
  layer.dense.kernel = layer.dense.kernel[:6 + 2 + 3]  # A table of 3 columns.
  used = np.concatenate([embedded, [[0, 1, -1]] * 3], -1)
  np.testing.assert_allclose(
      model._first(layer, feats, [models._log_raw(raw)], [embedded]),
      normed(layer, used @ layer.dense.kernel.numpy()[6:]
             + layer.dense.bias.numpy()), rtol=1e-4)


# --- The baseline's ----------------------------------------------------------


@pytest.mark.parametrize('name,encode,kwargs', [
    ('EarlyJoinSAGE', sum_sage, {'hidden_dim': 6}),
    ('LateJoinSAGE', sum_sage, {'hidden_dim': 6}),
    ('EarlyJoinResGCN', res_gcn, {'hidden_dim': 6}),
    ('EarlyJoinResGCN', res_gcn, {'hidden_dim': 6, 'directed': True}),
    ('LateJoinResGCN', res_gcn, {'hidden_dim': 6}),
    *((f'{join}JoinConcatPoolSAGE', concat_pool_sage, {
        'widths': [6, 5], 'head_widths': [4], 'hidden_activation':
        'leaky_relu'}) for join in ('Early', 'Late')),
    ('MLP', mlp, {'hidden_dim': 6})])
def test_scores_are_those_of_replicated_columns(name, encode, kwargs):
  model = randomised(name, **kwargs)
  expected = expected_scores(model, encode, name.startswith('Early'))
  assert expected.std(1).min() > 0.1
  np.testing.assert_allclose(scores_of(model), expected, rtol=1e-4, atol=1e-4)
