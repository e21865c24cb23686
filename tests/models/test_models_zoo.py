"""Ensembles, and arguments that models refuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_models
from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError

models = load_models.models_module()
SMALL = {'hidden_dim': 8, 'node_rounds': 1, 'head_layers': 1}
MEMBERS = {'members': {'LateJoinGCN': SMALL}, 'copies': 2}


@pytest.fixture
def batch():
  kernels = checks.kernels()
  graph = checks.batch_of(kernels, checks.stats_of(kernels))
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


@pytest.mark.slow
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
  ensemble = models.EnsembleRanker(10, checks.NUM_OPS, averaging=0.0, **MEMBERS)
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


def test_another_policy_of_keras(monkeypatch):
  monkeypatch.setattr(tf.keras.mixed_precision, 'global_policy',
                      lambda: tf.keras.mixed_precision.Policy('mixed_float16'))
  with pytest.raises(UserError, match=r'in float32, .* is mixed_float16; set'):
    load_models.build('MLP', 10, 5, {})
  # Another's model may be made for it.
  load_models.build('TinyRanker', 10, 5, {}, tiny_models.__file__)
