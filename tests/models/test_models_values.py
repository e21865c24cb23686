"""Parts of models.py against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext import load_models

models = load_models.models_module()


def inputs(node_counts, edges=()):
  """Inputs of kernels with one node column: 1, 2, 4, 8 ... over all nodes.

  Edges are pairs (consumer, producer), numbered over all nodes.
  """
  edges = tf.reshape(tf.constant(edges, tf.int32), [-1, 2])
  places = tf.range(sum(node_counts), dtype=tf.float32)
  return models._Inputs(
      tf.zeros_like(places, tf.int32), 2 ** places[:, tf.newaxis],
      tf.constant(node_counts), edges[:, 0], edges[:, 1],
      tf.zeros([len(node_counts), 1, 1]))


@pytest.mark.parametrize('reduction,expected', [
    ('sum', [1 + 2 + 4, 8 + 16]), ('mean', [7 / 3, 12]), ('max', [4, 16]),
    ('min', [1, 8])])
def test_pooling_over_the_nodes_of_a_kernel(reduction, expected):
  for counts in ([3, 2], [3]):
    kernels = inputs(counts)
    np.testing.assert_allclose(
        models._Graph(kernels).pool(reduction, kernels.node_feats)[:, 0],
        expected[:len(counts)])


def test_validation_has_the_average_and_the_next_epoch_goes_on():
  """Weights 8, 4, 2 after three steps; d = 0, 1/10, 2/11, and then 3/12.

  a = 8;  a = 8/10 + 4 * 9/10 = 4.4;  a = 4.4 * 2/11 + 2 * 9/11 = 26.8 / 11.
  """
  weight = tf.Variable(0.0)
  average = models._RunningAverage(0.99, [weight])

  def epoch(goes_on_from, *steps):
    average.on_epoch_begin(0)
    assert weight.numpy() == goes_on_from
    for value in steps:
      weight.assign(value)
      average.update()
    average.on_test_begin()
    average.on_epoch_end(0)  # Already done.
    return weight.numpy()

  assert epoch(0.0, 8.0, 4.0, 2.0) == pytest.approx(26.8 / 11)
  assert epoch(2.0, 6.0) == pytest.approx(26.8 / 11 / 4 + 6 * 3 / 4)
  weight.assign(3.0)  # Other weights start a new average.
  assert epoch(3.0, 5.0) == 5.0
  assert epoch(5.0) == 5.0


# --- Attention ----------------------------------------------------------------

# Node 2 consumes 0 and 1; node 3 stands alone. x = 1, 2, 4, 8
FORK = inputs([4], [(2, 0), (2, 1)])


@pytest.fixture
def attention(monkeypatch):
  """A round of one head without what `finish` does, all weights 1, biases 0."""
  monkeypatch.setattr(models._GATRound, '_HEADS', 1)
  layer = models._GATRound(1, 'relu')
  layer.build([None, 1])
  layer.finish = lambda y: y
  for variable in layer.trainable_variables:
    is_weight = 'kernel' in variable.name
    variable.assign(tf.fill(variable.shape, 1. if is_weight else 0.))
  return layer


def test_equal_attention_is_the_mean_over_neighbours(attention):
  """Without logits, node 2 takes the mean of 1 and 2 from its producers, and
  nodes 0 and 1 take 4 from their consumer; x + [p + c + x]."""
  for variable in attention.trainable_variables:
    if 'attn_logits/kernel' in variable.name:
      variable.assign([[0.]])
  y = attention.update(models._Graph(FORK), FORK.node_feats)
  np.testing.assert_allclose(
      y[:, 0], [1 + 4 + 1, 2 + 4 + 2, 4 + 1.5 + 4, 8 + 8], rtol=1e-5)


def test_attention_by_hand(attention):
  """With weights of one, node 2 scores its producer u by x_2 + x_u, positive,
  so a_20 : a_21 = e^1 : e^2; configuration 2 has -x: leaky_relu scores 0.2
  times as high, a_20 : a_21 = e^-0.2 : e^-0.4."""
  x = tf.stack([FORK.node_feats, -FORK.node_feats], axis=1)
  states = models._Graph(FORK).with_states(x)  # Node v, configuration c: 2v + c
  p = attention.attend_producers(states, edge_set_name='edges')[:, 0]
  first = (math.exp(1) * 1 + math.exp(2) * 2) / (math.exp(1) + math.exp(2))
  second = ((math.exp(-0.2) * -1 + math.exp(-0.4) * -2)
            / (math.exp(-0.2) + math.exp(-0.4)))
  np.testing.assert_allclose(p, [0, 0, 0, 0, first, second, 0, 0], rtol=1e-5)


# --- Objectives ---------------------------------------------------------------

LOSSES = {name: loss for name, loss in models._OBJECTIVES.items() if loss}


LN_2, LN_4 = math.log(2), math.log(4)


def loss_of(name, labels, scores):
  return LOSSES[name]()(tf.constant(labels, tf.float32), scores)


@pytest.mark.parametrize('name, labels, scores, expected', [
    # Runtimes 1, 2, 4 and scores 0, ln 2, ln 4: utilities 1, 1/2, 1/4.
    # -log(1 / (1 + 1/2 + 1/4)) - log(1/2 / (1/2 + 1/4)) - log(1)
    ('listmle_fastest_first', [1, 2, 4], [0, LN_2, LN_4],
     math.log(7 / 4 * 3 / 2)),
    # A tie shares its denominator: runtimes 1, 1, both -log(u / (1 + 1/2)).
    ('listmle_fastest_first', [1, 1], [0, LN_2], math.log(3 / 2) + math.log(3)),
    # Also draws 4/7, 2/7, 1/7, which are 0, 1 and 2 (not 3) slower.
    ('listmle_and_slowdown', [1, 2, 4], [0, LN_2, LN_4],
     math.log(7 / 4 * 3 / 2) + 10 * (2 / 7 + 2 * 1 / 7)),
    # Scores become -1 and 1, whatever their scale; labels 0 and 1.
    *(('standardized_mse', [2, 5], scores, (1 + 0) / 2)
      for scores in ([1, 3], [100, 300], [7.0, 7.5])),
    # Logarithms 1 and 3, scores 2 and 8: errors 1 and 5, but for their mean.
    ('log_mse', [math.exp(1), math.exp(3)], [2, 8], 2 ** 2)])
def test_losses_by_hand(name, labels, scores, expected):
  loss = loss_of(name, [labels], tf.constant([scores], tf.float32))
  assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('name', LOSSES)
def test_values_are_finite_and_a_saved_loss_is_found_again(name):
  for labels, scores in (
      ([[1, 2, 3, 4]], [[0, 1e6, -1e6, 5e5]]),
      ([[4, 3, 2, 1]], [[0, 1e6, -1e6, 5e5]]),
      ([[2, 2, 2, 2]], [[1, 2, 3, 4]]), ([[1]], [[3]]),
      ([[1, 1, 2, 2]], [[1e6, 1e6, 1e6, 1e6]])):
    scores = tf.constant(scores, tf.float32)
    with tf.GradientTape() as tape:
      tape.watch(scores)
      value = loss_of(name, labels, scores)
    assert np.isfinite(value)
    assert np.isfinite(tape.gradient(value, scores)).all()
  saved = tf.keras.losses.serialize(LOSSES[name]())
  assert isinstance(tf.keras.losses.deserialize(saved), LOSSES[name])


def test_flags_keeps_the_hosts_loss():
  model = models.MyEarlyJoinSAGE(10, 5, objective='flags')
  model.compile(loss='mse')
  assert model.loss == 'mse'
  model = models.MyEarlyJoinSAGE(10, 5)
  model.compile(loss='mse')
  assert isinstance(model.loss, models.ListMLEFastestFirst)


# --- Adam in few operations, against Keras's own ------------------------------

STEPS = 30
OPTIMIZERS = {  # And whether a part of their work is ours.
    'clipped': (lambda: tf.keras.optimizers.Adam(1e-2, clipnorm=1e-3), True),
    'other rates': (lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.5),
        beta_1=0.5, beta_2=0.9, epsilon=1e-3, weight_decay=0.1), True),
    'amsgrad': (lambda: tf.keras.optimizers.Adam(1e-2, amsgrad=True), False),
    'sgd': (lambda: tf.keras.optimizers.SGD(1e-2, clipnorm=1e-3), False)}



def trained(optimizer):
  """What variables and the optimizer's own variables come to."""
  rng = np.random.default_rng(0)
  table, kernel, bias = variables = [
      tf.Variable(rng.normal(size=shape), dtype=tf.float32)
      for shape in ([9, 5], [5, 4], [4])]

  @tf.function
  def step(number):
    with tf.GradientTape() as tape:
      x = tf.gather(table, [1, 2, 2, 8])  # The gradient of the table is sparse.
      loss = tf.reduce_sum(tf.sin(x @ kernel + bias) * number)
    optimizer.minimize(loss, variables, tape=tape)

  for i in range(STEPS):
    step(tf.constant(float(i % 7 - 3)))
  return [variable.numpy() for variable in (*variables, *optimizer.variables)]


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_step_is_that_of_keras(name):
  make, is_ours = OPTIMIZERS[name]
  optimizer = make()
  models._use_one_operation(optimizer)
  assert ('update_step' in vars(optimizer)) is is_ours
  for mine, theirs in zip(trained(optimizer), trained(make())):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


# --- Duplicates of a tile in `forward` ----------------------------------------

def repeats_last(scores, tiles):
  """The scores of one kernel whose features are one column, `tiles`."""
  return models._with_repeats_last(
      np.array([scores], np.float32),
      np.array(tiles, np.float32)[np.newaxis, :, np.newaxis]).numpy()[0]


def test_copies_are_equal_rows_of_one_kernel():
  """Rows that differ in one bit are two tiles."""
  a, b, c = [5, 0.1], [5, np.nextafter(np.float32(0.1), np.float32(1))], [0, 1]
  tiles = np.array([[a, b, a, c], [c, a, c, [-0.0, 1]]], np.float32)
  scores = np.array([[1, 2, 1, 4], [4, 2, 4, 4]], np.float32)
  step = 4 / 1024
  np.testing.assert_array_equal(
      models._with_repeats_last(scores, tiles),
      [[1, 2, 4 + step, 4], [4, 2, 4 + step, 4 + 2 * step]])


def test_the_kth_repetition_is_k_steps_after_the_worst_tile():
  # Tiles 7 (score 5), 8 (1) and 9 (-8, the largest magnitude): a step is
  # 8 / 1024, and the worst is 5. The copies of 8 come first, then that of 7.
  step = 8 / 1024
  np.testing.assert_array_equal(
      repeats_last([5, 1, 1, -8, 5, 1], [7, 8, 8, 9, 7, 8]),
      [5, 1, 5 + step, -8, 5 + 3 * step, 5 + 2 * step])
  for tiles in ([4, 4, 4], [4, 5, 6]):  # All or none are alike.
    np.testing.assert_array_equal(repeats_last([3, 1, 2], tiles), [3, 1, 2])


@pytest.mark.parametrize('size', [1e-30, 1.0, 1e5, 1e30, 3.3e38])
def test_any_size_of_scores_stays_finite_and_in_order(size):
  rng = np.random.default_rng(1)
  tiles = np.concatenate([np.arange(100), rng.integers(0, 100, 9_900)])
  scores = (size * rng.uniform(-1, 1, 100)).astype(np.float32)[tiles]
  marked = repeats_last(scores, tiles)
  assert np.isfinite(marked).all()
  np.testing.assert_array_equal(marked[:100], scores[:100])
  assert marked[100:].min() > marked[:100].max()
  if size < 1e31:  # Above, they meet at the largest number.
    np.testing.assert_array_equal(
        np.argsort(marked)[100:], 100 + np.argsort(scores[100:], kind='stable'))
