"""The models to compare with, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from test_models_values import inputs, set_to_one

from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

models = load_models.models_module()
CHAIN = inputs([3], [(1, 0), (2, 1)], configs=2)  # x = 1, 2, 4; config 1, 2
# Node 2 consumes 0 and 1; node 3 stands alone. x = 1, 2, 4, 8
FORK = inputs([4], [(2, 0), (2, 1)])


def linear(layer, width=1):
  """The round without what `finish` does, all weights 1 and biases 0."""
  layer.build([None, width])
  layer.finish = lambda y: y
  return set_to_one(layer)


def variable(layer, name):
  match, = [v for v in layer.trainable_variables if name in v.name]
  return match


def test_graph_convolution_on_a_chain():
  """Edges and the diagonal give nodes 0, 1, 2 the row sums 2, 3, 2."""
  layer = linear(models._GCNRound(1, 'relu'))
  root = math.sqrt(2 * 3)
  expected = [1 + 1 / 2 + 2 / root,
              2 + 1 / root + 2 / 3 + 4 / root,
              4 + 2 / root + 4 / 2]
  x = CHAIN.node_feats
  graph = models._Graph(CHAIN)
  np.testing.assert_allclose(layer.update(graph, x)[:, 0], expected, rtol=1e-5)
  per_config = layer.update(graph, tf.stack([x, 10 * x], axis=1))
  np.testing.assert_allclose(
      per_config[:, 1, 0], np.multiply(expected, 10), rtol=1e-5)


@pytest.fixture
def one_head(monkeypatch):
  monkeypatch.setattr(models._GATRound, '_HEADS', 1)


def test_equal_attention_is_the_mean_over_neighbours(one_head):
  """Without logits, node 2 takes the mean of 1 and 2 from its producers, and
  nodes 0 and 1 take 4 from their consumer; x + [p + c + x]."""
  layer = linear(models._GATRound(1, 'relu'))
  for attend in (layer.attend_producers, layer.attend_consumers):
    variable(attend, 'attn_logits/kernel').assign([[0.]])
  y = layer.update(models._Graph(FORK), FORK.node_feats)
  np.testing.assert_allclose(
      y[:, 0], [1 + 4 + 1, 2 + 4 + 2, 4 + 1.5 + 4, 8 + 8], rtol=1e-5)


def test_attention_by_hand(one_head):
  """With weights of one, node 2 scores its producer u by x_2 + x_u, positive,
  so a_20 : a_21 = e^1 : e^2; configuration 2 has -x: leaky_relu scores 0.2
  times as high, a_20 : a_21 = e^-0.2 : e^-0.4."""
  layer = linear(models._GATRound(1, 'relu'))
  x = tf.stack([FORK.node_feats, -FORK.node_feats], axis=1)
  states = models._Graph(FORK).with_states(x)  # Node v, configuration c: 2v + c
  p = layer.attend_producers(states, edge_set_name='edges')[:, 0]
  first = (math.exp(1) * 1 + math.exp(2) * 2) / (math.exp(1) + math.exp(2))
  second = ((math.exp(-0.2) * -1 + math.exp(-0.4) * -2)
            / (math.exp(-0.2) + math.exp(-0.4)))
  np.testing.assert_allclose(p, [0, 0, 0, 0, first, second, 0, 0], rtol=1e-5)


def test_concat_pooling_with_a_late_join():
  """Own x plus the mean over producers: 1, 2 + 1, 4 + 2. Mean 10/3, max 6."""
  model = models.LateJoinConcatPoolSAGE(2, 5, widths=[1], head_widths=[])
  model._create_for(1, 1)
  set_to_one(model)
  np.testing.assert_allclose(
      model._rank(*CHAIN), [[10 / 3 + 6 + 1, 10 / 3 + 6 + 2]], rtol=1e-5)


# ------------------------------------------------------------------ ensemble

SMALL = {'hidden_dim': 8, 'node_rounds': 1}
MEMBERS = {'members': {'LateJoinGCN': SMALL}, 'copies': 2}


@pytest.fixture
def batch():
  kernels = checks.kernels()
  graph = tile_batches.batch_graph(
      kernels, np.tile(np.arange(10), (4, 1)), checks.stats_of(kernels))
  labels = np.stack([kernel.runtime_rel[:10] for kernel in kernels])
  return graph, tf.constant(labels, tf.float32)


def test_an_ensembles_score_is_the_mean_of_its_members(batch):
  model = models.EnsembleRanker(10, checks.NUM_OPS, **MEMBERS)
  graph, unused_labels = batch
  first, second = (member.forward(graph, 10) for member in model._members)
  assert np.abs(first - second).max() > 0.01
  np.testing.assert_allclose(
      model.forward(graph, 10), (first + second) / 2, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
      model(graph), sum(member(graph) for member in model._members) / 2,
      rtol=1e-5, atol=1e-5)


def test_an_ensemble_trains_each_member_by_its_own_loss(batch, monkeypatch):
  """The loss is a mean over 2 members: twice the rate takes them as far as
  each goes alone. The metric sees the averaged scores."""
  scored = models.LateJoinGCN.scores_and_own_loss

  def scores_and_squares(*arguments):
    scores, _ = scored(*arguments)
    return scores, tf.reduce_mean(scores ** 2)

  monkeypatch.setattr(
      models.LateJoinGCN, 'scores_and_own_loss', scores_and_squares)
  step = tf.data.Dataset.from_tensors(batch)
  ensemble = models.EnsembleRanker(
      10, checks.NUM_OPS, averaging=0.0, **MEMBERS)
  ensemble(batch[0])
  for member in ensemble._members:  # So that their regularisation counts.
    embeddings = member._op_embedding.embedding_layer.embeddings
    embeddings.assign(100 * embeddings)
  mean_scores = ensemble(batch[0]).numpy()
  losses = []
  alone = []
  for member in ensemble._members:
    model = load_models.build(
        'LateJoinGCN', 10, checks.NUM_OPS, {**SMALL, 'averaging': 0.0})
    model(batch[0])
    model.set_weights(member.get_weights())
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), run_eagerly=True)
    losses += model.fit(step, verbose=0).history['loss']
    alone.append(model)
  ensemble.compile(optimizer=tf.keras.optimizers.SGD(0.2), metrics=['mse'])
  history = ensemble.fit(step, verbose=0).history
  assert history['loss'][0] == pytest.approx(np.mean(losses), rel=1e-3)
  assert history['mse'][0] == pytest.approx(
      np.mean((mean_scores - batch[1]) ** 2), rel=1e-4)
  for member, model in zip(ensemble._members, alone):
    # But embeddings, whose regularisation is added to the loss once.
    for ours, theirs in zip(member.trainable_variables[1:],
                            model.trainable_variables[1:]):
      np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------- refusals


@pytest.mark.parametrize('name,kwargs,message', [
    ('EnsembleRanker', {'members': {'EarlyJoinGATT': {}}},
     "members must be one of .* got 'EarlyJoinGATT'"),
    ('EnsembleRanker', {'members': {'EarlyJoinGCN': {'objective': 'flags'}}},
     'without objective and averaging'),
    ('EarlyJoinGAT', {'hidden_dim': 6}, 'must be multiples of 4'),
    ('LateJoinConcatPoolSAGE', {'head_widths': [8, 0]},
     'head_widths must be an integer of at least 1; got 0'),
    ('AnalyticTileModel', {'feature_stats': None}, 'needs feature_stats'),
    ('MyEarlyJoinSAGE', {'sharpness': 'x'}, 'sharpness must be a positive'),
    ('MyEarlyJoinSAGE', {'objective': 'listmle_first'},
     'objective must be one of flags, listmle_fastest_first, '),
    ('MyEarlyJoinSAGE', {'hidden_activation': 'rellu'}, 'a function of tf.nn'),
    ('MyEarlyJoinSAGE', {'averaging': 1.0}, 'at least 0 and below 1'),
])
def test_wrong_arguments_are_refused_by_name(name, kwargs, message):
  with pytest.raises(UserError, match=message):
    load_models.build(name, 10, 5, kwargs)
