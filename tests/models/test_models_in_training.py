"""What layers do in training alone, such as dropout."""

import numpy as np
import tensorflow as tf

from support import model_checks as checks
from tpu_graphs_ext import models
from tpu_graphs_ext.tasks import tile_batches

KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)


class TripleInTraining(models.MLP):
  """Its scores, times 3 in training."""

  def _score(self, graph, encoded, config_feats):
    factor = 3.0 if graph.training else 1.0
    return factor * super()._score(graph, encoded, config_feats)


class TripleKernelInTraining(models.MyEarlyJoinSAGE):
  """Its learned scores, times 3 in training; there are no statistics."""

  def _encode(self, graph, embedded, node_feats):
    encoded = super()._encode(graph, embedded, node_feats)
    return encoded, 3.0 if graph.training else 1.0

  def _learned_and_log_times(self, graph, encoded, config_feats):
    encoded, factor = encoded
    learned, log_times = super()._learned_and_log_times(
        graph, encoded, config_feats)
    return factor * learned, log_times


def in_function(model, graph, training):
  return tf.function(lambda graph: model(graph, training=training),
                     autograph=False)(graph)


def assert_triple(triple, scores) -> None:
  assert float(tf.reduce_max(tf.abs(scores))) > 0.01
  np.testing.assert_allclose(triple, 3 * scores, **checks.CLOSE)


def test_every_way_to_score_knows_whether_it_trains():
  graph = checks.batch_of(KERNELS, STATS)
  tf.keras.utils.set_random_seed(1)
  model = TripleInTraining(10, checks.NUM_OPS)
  # First of all in a function, where nothing is known of the model yet.
  tripled = in_function(model, graph, True)
  scores = model(graph)
  for single in (in_function(model, graph, False), model.forward(graph, 10)):
    np.testing.assert_allclose(single, scores, **checks.CLOSE)
  for triple in (tripled, in_function(model, graph, True),
                 model(graph, training=True),
                 model.scores_and_own_loss(graph, tf.ones([4, 10]))[0]):
    assert_triple(triple, scores)


def test_a_model_with_a_loss_of_its_own_knows_too():
  graph = checks.batch_of(KERNELS, STATS)
  model = TripleKernelInTraining(
      10, checks.NUM_OPS, hidden_dim=8, head_layers=1)
  assert_triple(model.scores_and_own_loss(graph, tf.ones([4, 10]))[0],
                model(graph))


def test_a_model_that_does_not_ask_is_traced_once(monkeypatch):
  """For both, and however often Keras asks, as when it saves."""
  traces = []
  score = models.MLP._score
  monkeypatch.setattr(models.MLP, '_score', lambda *arguments: (
      traces.append(1), score(*arguments))[1])
  model = checks.make('MLP')
  graph = tile_batches.kernel_graph(KERNELS[0], STATS)
  for training in (True, False, True):
    in_function(model, graph, training)
  assert len(traces) == 1
