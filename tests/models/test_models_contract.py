"""One contract for every public model of models.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.tasks import tile_batches

MODELS = load_models.model_names()
# Models of tile geometry are another model with feature_stats than without.
CASES = MODELS + [name + checks.RAW for name in MODELS
                  if load_models.takes(name, 'feature_stats')]
BASELINE = {
    'EarlyJoinSAGE', 'LateJoinSAGE', 'EarlyJoinResGCN', 'LateJoinResGCN', 'MLP'}
# Its layers are those of another model, and saving takes seconds.
SAVED_LIKE_ANOTHER = {
    'LateJoinSAGE', 'LateJoinResGCN', 'LateJoinGCN', 'LateJoinGAT',
    'EarlyLateJoinSAGE', 'WideSAGE', 'EarlyJoinConcatPoolSAGE',
    'HybridEarlyJoinSAGE', 'HybridEarlyJoinSAGE' + checks.RAW,
    'EnsembleRanker' + checks.RAW}


def for_models(slow=()):
  """Runs a test for each case, right after the other tests of that case."""
  return pytest.mark.parametrize('name', [
      pytest.param(name, marks=pytest.mark.slow) if name in slow else name
      for name in CASES], scope='module')


every_model = for_models()
KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)
CORNER_CASES = tiny_kernels.corner_cases()
MANY_CONFIGS = checks.kernels(num_configs=50)[0]
ORDER = np.random.default_rng(0).permutation(KERNELS[0].num_configs)
SOME = np.array([7, 2, 3])
FAR_OUTSIDE = dataclasses.replace(
    KERNELS[0], node_feat=KERNELS[0].node_feat * -1e4,
    config_feat=KERNELS[0].config_feat * 1e6)
# Repetition -> first copy, here and there: in one chunk of 16, in later ones,
# and in another block of two chunks.
COPIES = {5: 4, 17: 3, 33: 3, 40: 39, 49: 16}
WITH_COPIES = checks.permuted_configs(
    MANY_CONFIGS, np.array([COPIES.get(i, i) for i in range(50)]))
PERMUTED = checks.permuted_configs(KERNELS[0], ORDER)
SELECTED = checks.permuted_configs(KERNELS[0], SOME)
RENUMBERED = [
    checks.renumbered_nodes(
        kernel, np.random.default_rng(0).permutation(kernel.num_nodes))
    for kernel in KERNELS]
OTHER_LABELS = dataclasses.replace(
    KERNELS[0], runtime_ns=KERNELS[0].runtime_ns[::-1] * 7,
    normalizer_ns=np.ones_like(KERNELS[0].normalizer_ns))
LARGEST = max(KERNELS, key=lambda kernel: kernel.num_nodes)
FEWER_EDGES = dataclasses.replace(LARGEST, edge_index=LARGEST.edge_index[:1])
NARROW = tiny_kernels.make_kernel(node_width=9, config_width=3)
NARROW_STATS = checks.stats_of([NARROW])


class Graphs:
  """GraphTensors of this module's kernels, which every case scores again.

  Making one takes ten times as long as scoring it.
  """

  def __init__(self):
    self._made = {}  # Ids of kernels that live as long as this; numbers.

  def of(self, kernel):
    """The graph of one kernel."""
    if id(kernel) not in self._made:
      self._made[id(kernel)] = tile_batches.kernel_graph(
          kernel, NARROW_STATS if kernel is NARROW else STATS)
    return self._made[id(kernel)]

  def of_first(self, number, num_configs=12):
    """The graph of the first few of `KERNELS` and their configurations."""
    key = number, num_configs
    if key not in self._made:
      self._made[key] = tile_batches.batch_graph(
          KERNELS[:number], np.tile(np.arange(num_configs), (number, 1)),
          STATS)
    return self._made[key]


GRAPHS = Graphs()


def scores_of(model, kernel) -> np.ndarray:
  """Scores [configs] of a kernel, as the prediction script gets them."""
  return model.forward(GRAPHS.of(kernel), kernel.num_configs).numpy()[0]


def batch_scores(model, number=4) -> np.ndarray:
  """Scores [number, 12] of the first few of `KERNELS` at once."""
  return model.forward(GRAPHS.of_first(number), 12).numpy()


@pytest.fixture(scope='module')
def traces():
  """A list that grows by the model whenever a model's ranking is traced.

  Chunks are small, so that a few configurations make several.
  """
  ranker = load_models.models_module()._Ranker
  found, traced = [], ranker._rank_in_chunks
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        ranker, '_rank_in_chunks',
        lambda self, *tensors: found.append(self) or traced(self, *tensors))
    patch.setattr(ranker, '_CHUNK_FLOATS', 1)
    yield found


@pytest.fixture(scope='module')
def model(name, traces) -> tf.keras.Model:
  """One that all tests of a case share, so that it is traced once."""
  traces.clear()
  model = checks.make(name)
  scores_of(model, KERNELS[0])
  return model


def test_all_names_are_there():
  assert set(MODELS) == BASELINE | {
      'MyEarlyJoinSAGE', 'EarlyJoinGCN', 'LateJoinGCN', 'EarlyJoinGAT',
      'LateJoinGAT', 'EarlyLateJoinSAGE', 'WideSAGE', 'LateJoinConcatPoolSAGE',
      'EarlyJoinConcatPoolSAGE', 'EnsembleRanker', 'AnalyticTileModel',
      'HybridEarlyJoinSAGE'}


@every_model
def test_corner_cases_get_one_finite_score_a_configuration(model):
  for kernel in CORNER_CASES:
    scores = scores_of(model, kernel)
    assert scores.shape == (kernel.num_configs,)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all(), kernel.tile_id


@every_model
def test_features_far_outside_the_train_range_give_finite_scores(model):
  assert np.isfinite(scores_of(model, FAR_OUTSIDE)).all()


@every_model
def test_scores_differ_between_configurations_and_kernels(model):
  scores = batch_scores(model)
  assert scores.std(axis=1).min() > 0
  assert scores.mean(axis=1).std() > 0


@every_model
def test_permuted_configurations_have_permuted_scores(model):
  np.testing.assert_allclose(
      scores_of(model, PERMUTED), scores_of(model, KERNELS[0])[ORDER],
      **checks.CLOSE)


@every_model
def test_numbering_of_nodes_and_order_of_edges_do_not_matter(model):
  for kernel, renumbered in zip(KERNELS, RENUMBERED):
    np.testing.assert_allclose(
        scores_of(model, renumbered), scores_of(model, kernel), **checks.CLOSE)


@every_model
def test_edges_matter_unless_the_model_is_an_mlp(model, name):
  same = np.allclose(scores_of(model, FEWER_EDGES), scores_of(model, LARGEST),
                     rtol=1e-5)
  assert same == (name == 'MLP')


@every_model
def test_other_kernels_of_the_batch_do_not_matter(model):
  for kernel, scores in zip(KERNELS, batch_scores(model)):
    np.testing.assert_allclose(
        scores, scores_of(model, kernel), **checks.CLOSE)


@every_model
def test_other_configurations_do_not_matter(model):
  np.testing.assert_allclose(
      scores_of(model, SELECTED), scores_of(model, KERNELS[0])[SOME],
      **checks.CLOSE)


@every_model
def test_one_trace_serves_every_batch(model, traces):
  """Counted are the traces of the tests before this one too."""
  for kernel in CORNER_CASES:
    scores_of(model, kernel)
  for number in (2, 3, 4):
    batch_scores(model, number)
  members = getattr(model, '_members', [model])
  assert [sum(traced is member for traced in traces)
          for member in members] == [1] * len(members)


@every_model
def test_chunks_give_the_scores_of_all_configurations_at_once(model):
  # 16 is the smallest chunk: 50 configurations make four of 13, the last less.
  graph = GRAPHS.of(MANY_CONFIGS)
  np.testing.assert_allclose(
      model.forward(graph, 50), model(graph, training=False), **checks.CLOSE)


@every_model
def test_distinct_tiles_come_first_but_in_the_baselines_models(model, name):
  copies, of = map(list, zip(*COPIES.items()))
  tiles = [i for i in range(50) if i not in COPIES]
  apart = scores_of(model, MANY_CONFIGS)
  scores = scores_of(model, WITH_COPIES)
  np.testing.assert_allclose(scores[tiles], apart[tiles], **checks.CLOSE)
  np.testing.assert_allclose(  # In training nothing changes.
      model(GRAPHS.of(WITH_COPIES), training=False)[0],
      [apart[COPIES.get(i, i)] for i in range(50)], **checks.CLOSE)
  if name in BASELINE:
    np.testing.assert_allclose(scores[copies], scores[of], **checks.CLOSE)
  else:
    assert scores[copies].min() > scores[tiles].max()
    assert np.argsort(scores)[-5:].tolist() == sorted(
        copies, key=lambda copy: (scores[COPIES[copy]], copy))


@every_model
def test_labels_do_not_reach_a_score(model):
  np.testing.assert_allclose(
      scores_of(model, OTHER_LABELS), scores_of(model, KERNELS[0]),
      **checks.CLOSE)


@every_model
def test_the_state_is_trainable_variables_alone(model):
  assert model.trainable_variables
  assert not model.non_trainable_variables


@every_model
def test_every_variable_gets_a_finite_gradient(name):
  # Seeds 1 and 2 start an attention whose logits are linear on these kernels.
  model = checks.make(name, seed=4)
  graph = GRAPHS.of_first(4)
  model(graph)
  for variable in model.trainable_variables:
    # Away from the start, where a correction may be exactly zero.
    variable.assign_add(tf.random.normal(variable.shape, stddev=0.01))
  with tf.GradientTape() as tape:
    scores = model(graph, training=True)
    loss = tf.reduce_sum(scores * np.linspace(-1, 2, 12))
  for variable, gradient in zip(
      model.trainable_variables,
      tape.gradient(loss, model.trainable_variables)):
    assert gradient is not None, variable.name
    gradient = tf.convert_to_tensor(gradient)
    assert np.isfinite(gradient).all(), variable.name
    own_name = variable.name.split('/')[-1].split(':')[0]
    if own_name not in checks.moved_by_other_means(name):
      assert np.abs(gradient).max() > 0, variable.name


@every_model
def test_one_seed_gives_one_model_whatever_the_data(model, name):
  other = checks.make_with_variables(name, GRAPHS.of(KERNELS[1]))
  for a, b in zip(model.trainable_variables, other.trainable_variables):
    np.testing.assert_array_equal(a, b)


@every_model
def test_variable_order_does_not_depend_on_column_counts(model, name):
  narrow = checks.make_with_variables(name, GRAPHS.of(NARROW), NARROW_STATS)
  assert ([variable.shape.rank for variable in model.trainable_variables]
          == [variable.shape.rank for variable in narrow.trainable_variables])


@every_model
def test_other_column_counts_than_at_first_are_refused(model):
  with pytest.raises(ValueError, match='the model was built for'):
    scores_of(model, NARROW)


@every_model
def test_all_variables_are_there_before_the_first_step(
    model, name, host_loss, monkeypatch):
  new, found = checks.make(name, stats=STATS), []
  monkeypatch.setattr(tf.keras.Model, 'fit', lambda self, *_, **__:
                      found.extend([*self.trainable_variables,
                                    len(self.optimizer.variables)]))
  new.compile(loss=host_loss(), optimizer='adam')
  new.fit(tf.data.Dataset.from_tensors(
      (GRAPHS.of_first(4, 10), np.zeros((4, 10), np.float32))))
  # Adam has two for each besides its counts.
  assert found.pop() >= 2 * len(found)
  assert [variable.shape for variable in found] == [
      variable.shape for variable in model.trainable_variables]


def test_the_first_step_is_traced_once(host_loss, monkeypatch):
  model = checks.make('MyEarlyJoinSAGE', stats=STATS)
  loss_step, steps = type(model)._loss_step, []

  def counted(self, data):
    steps.append(tf.executing_eagerly())
    return loss_step(self, data)

  monkeypatch.setattr(type(model), '_loss_step', counted)
  model.compile(loss=host_loss(), optimizer=tf.keras.optimizers.Adam(1e-3))
  data = tf.data.Dataset.from_tensors(
      (GRAPHS.of_first(4, 10), np.ones((4, 10), np.float32)))
  model.fit(data.repeat(2), epochs=2, verbose=0)
  assert steps == [False]


@pytest.fixture
def trained(model, host_loss):
  """The model of the case after a step of training, which is taken back."""
  weights = model.get_weights()
  # Eagerly: tracing the step would take longer than all the rest.
  model.compile(loss=host_loss(), optimizer='adam', run_eagerly=True)
  labels = np.stack([kernel.runtime_rel[:10] for kernel in KERNELS])
  data = tf.data.Dataset.from_tensors(
      (GRAPHS.of_first(4, 10), labels.astype(np.float32)))
  model.fit(data, validation_data=data, verbose=0)  # As either host does.
  yield model
  model.set_weights(weights)


@for_models(slow=SAVED_LIKE_ANOTHER)
def test_saved_and_copied_by_position_keeps_the_scores(
    tmp_path, host_loss, trained, name):
  trained.save(tmp_path / 'model_x')
  with tf.keras.saving.custom_object_scope({'CombinedLoss': host_loss}):
    saved = tf.keras.models.load_model(tmp_path / 'model_x')
  copied = checks.copied_like_the_scripts(name, saved, KERNELS[1], STATS)
  for kernel in KERNELS:
    np.testing.assert_allclose(
        scores_of(copied, kernel), scores_of(trained, kernel), **checks.CLOSE)


@pytest.fixture
def host_loss():
  """A loss class like the baseline's: unregistered, made without arguments."""
  class CombinedLoss(tf.keras.losses.Loss):
    def __init__(self, reduction=None, name=None):
      super().__init__()

    def call(self, y_true, y_pred):
      return tf.reduce_mean((y_true - y_pred) ** 2, -1)

  return CombinedLoss
