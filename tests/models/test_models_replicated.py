"""The baseline's models against NumPy that copies configurations to nodes.

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
  for kernel, pairs in enumerate(EDGES):
    nodes = slice(*FIRST[kernel:kernel + 2])
    consumers = np.zeros([NODES[kernel]] * 2)  # [producers, consumers]
    for consumer, producer in pairs:
      consumers[producer, consumer] += 1
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


@pytest.mark.parametrize('name,encode,kwargs', [
    ('EarlyJoinSAGE', sum_sage, {'hidden_dim': 6}),
    ('LateJoinSAGE', sum_sage, {'hidden_dim': 6}),
    ('EarlyJoinResGCN', res_gcn, {'hidden_dim': 6}),
    ('EarlyJoinResGCN', res_gcn, {'hidden_dim': 6, 'directed': True}),
    ('LateJoinResGCN', res_gcn, {'hidden_dim': 6}),
    ('EarlyJoinConcatPoolSAGE', concat_pool_sage, {
        'widths': [6, 5], 'head_widths': [4], 'hidden_activation':
        'leaky_relu'}),
    ('MLP', mlp, {'hidden_dim': 6})])
def test_scores_are_those_of_replicated_columns(name, encode, kwargs):
  model = getattr(models, name)(CONFIGS, NUM_OPS, op_embed_dim=4, **kwargs)
  model._create_for(NODE_FEATS.shape[-1], CONFIG_FEATS.shape[-1])
  model._repeats_last = False
  rng = np.random.default_rng(0)
  for variable in model.trainable_variables:  # Biases too.
    variable.assign(rng.normal(size=variable.shape))
  expected = expected_scores(model, encode, name.startswith('Early'))
  assert expected.std(1).min() > 0.1
  np.testing.assert_allclose(scores_of(model), expected, rtol=1e-4, atol=1e-4)
