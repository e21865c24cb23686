"""One contract for every public model of models.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.host import batches

MODELS = load_models.model_names()
# Models of tile geometry are another model with feature_stats than without.
CASES = MODELS + [name + checks.RAW for name in MODELS
                  if load_models.takes(name, 'feature_stats')]
# Its layers are those of another model, and saving takes seconds.
SAVED_LIKE_ANOTHER = {
    'LateJoinSAGE', 'LateJoinResGCN', 'LateJoinGCN', 'LateJoinGAT',
    'EarlyLateJoinSAGE', 'WideSAGE', 'EarlyJoinConcatPoolSAGE',
    'HybridEarlyJoinSAGE'}


def for_models(slow=()):
  """Runs a test for each case, right after the other tests of that case."""
  return pytest.mark.parametrize('name', [
      pytest.param(name, marks=pytest.mark.slow) if name in slow else name
      for name in CASES], scope='module')


every_model = for_models()
KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)


@pytest.fixture(scope='module')
def traces():
  """A list that grows by one whenever a model's ranking is traced."""
  ranker = load_models.models_module()._Ranker
  found, traced = [], ranker._rank_in_chunks
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        ranker, '_rank_in_chunks',
        lambda self, *tensors: found.append(1) or traced(self, *tensors))
    yield found


@pytest.fixture(scope='module')
def model(name, traces) -> tf.keras.Model:
  """One that all tests of a case share, so that it is traced once."""
  traces.clear()
  model = checks.make(name)
  checks.scores(model, KERNELS[0], STATS)
  return model


def test_all_names_are_there():
  assert set(MODELS) == {
      'EarlyJoinSAGE', 'LateJoinSAGE', 'EarlyJoinResGCN', 'LateJoinResGCN',
      'MLP', 'MyEarlyJoinSAGE', 'EarlyJoinGCN', 'LateJoinGCN', 'EarlyJoinGAT',
      'LateJoinGAT', 'EarlyLateJoinSAGE', 'WideSAGE', 'LateJoinConcatPoolSAGE',
      'EarlyJoinConcatPoolSAGE', 'EnsembleRanker', 'AnalyticTileModel',
      'HybridEarlyJoinSAGE'}


@every_model
def test_corner_cases_get_one_finite_score_a_configuration(model):
  for kernel in tiny_kernels.corner_cases():
    scores = checks.scores(model, kernel, STATS)
    assert scores.shape == (kernel.num_configs,)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all(), kernel.tile_id


@every_model
def test_features_far_outside_the_train_range_give_finite_scores(model):
  kernel = dataclasses.replace(
      KERNELS[0], node_feat=KERNELS[0].node_feat * -1e4,
      config_feat=KERNELS[0].config_feat * 1e6)
  assert np.isfinite(checks.scores(model, kernel, STATS)).all()


@every_model
def test_scores_differ_between_configurations_and_kernels(model):
  scores = checks.batch_scores(model, KERNELS, STATS)
  assert scores.std(axis=1).min() > 0
  assert scores.mean(axis=1).std() > 0


@every_model
def test_permuted_configurations_have_permuted_scores(model):
  order = np.random.default_rng(0).permutation(KERNELS[0].num_configs)
  np.testing.assert_allclose(
      checks.scores(model, checks.permuted_configs(KERNELS[0], order), STATS),
      checks.scores(model, KERNELS[0], STATS)[order], **checks.CLOSE)


@every_model
def test_numbering_of_nodes_and_order_of_edges_do_not_matter(model):
  for kernel in KERNELS:
    order = np.random.default_rng(0).permutation(kernel.num_nodes)
    np.testing.assert_allclose(
        checks.scores(model, checks.renumbered_nodes(kernel, order), STATS),
        checks.scores(model, kernel, STATS), **checks.CLOSE)


@every_model
def test_edges_matter_unless_the_model_is_an_mlp(model, name):
  kernel = max(KERNELS, key=lambda kernel: kernel.num_nodes)
  fewer = dataclasses.replace(kernel, edge_index=kernel.edge_index[:1])
  same = np.allclose(checks.scores(model, fewer, STATS),
                     checks.scores(model, kernel, STATS), rtol=1e-6)
  assert same == (name == 'MLP')


@every_model
def test_other_kernels_of_the_batch_do_not_matter(model):
  together = checks.batch_scores(model, KERNELS, STATS)
  for kernel, scores in zip(KERNELS, together):
    np.testing.assert_allclose(
        scores, checks.scores(model, kernel, STATS), **checks.CLOSE)


@every_model
def test_other_configurations_do_not_matter(model):
  some = np.array([7, 2, 3])
  np.testing.assert_allclose(
      checks.scores(model, checks.permuted_configs(KERNELS[0], some), STATS),
      checks.scores(model, KERNELS[0], STATS)[some], **checks.CLOSE)


@every_model
def test_one_trace_serves_every_kernel_and_one_every_batch(model, traces):
  """Counted are the traces of the tests before this one too."""
  for kernel in tiny_kernels.corner_cases():
    checks.scores(model, kernel, STATS)
  for number in (2, 3, 4):
    checks.batch_scores(model, KERNELS[:number], STATS)
  assert len(traces) == 2 * len(getattr(model, '_members', [model]))


@every_model
def test_chunks_give_the_scores_of_all_configurations_at_once(
    monkeypatch, name):
  # 16 is the smallest chunk: 50 configurations make three full ones and a
  # part, in two blocks of two.
  kernel = checks.kernels(num_configs=50)[0]
  graph = batches.kernel_graph(kernel, STATS)
  model = checks.make(name)
  ranker = load_models.models_module()._Ranker
  monkeypatch.setattr(ranker, '_CHUNK_FLOATS', 1)
  monkeypatch.setattr(ranker, '_BLOCK', 20)
  np.testing.assert_allclose(
      model.forward(graph, 50), model(graph, training=False), **checks.CLOSE)


@every_model
def test_labels_do_not_reach_a_score(model):
  other = dataclasses.replace(
      KERNELS[0], runtime_ns=KERNELS[0].runtime_ns[::-1] * 7,
      normalizer_ns=np.ones_like(KERNELS[0].normalizer_ns))
  np.testing.assert_array_equal(
      checks.scores(model, other, STATS),
      checks.scores(model, KERNELS[0], STATS))


@every_model
def test_the_state_is_trainable_variables_alone(model):
  assert model.trainable_variables
  assert not model.non_trainable_variables


@every_model
def test_every_variable_gets_a_finite_gradient(name):
  model = checks.make(name)
  every_config = np.tile(np.arange(12), (len(KERNELS), 1))
  graph = batches.batch_graph(KERNELS, every_config, STATS)
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
  other = checks.make_with_variables(name, KERNELS[1], STATS)
  for a, b in zip(model.trainable_variables, other.trainable_variables):
    np.testing.assert_array_equal(a, b)


@every_model
def test_variable_order_does_not_depend_on_column_counts(model, name):
  narrow_kernel = tiny_kernels.make_kernel(node_width=9, config_width=3)
  narrow = checks.make_with_variables(
      name, narrow_kernel, checks.stats_of([narrow_kernel]))
  assert ([variable.shape.rank for variable in model.trainable_variables]
          == [variable.shape.rank for variable in narrow.trainable_variables])


@every_model
def test_other_column_counts_than_at_first_are_refused(model):
  kernel = tiny_kernels.make_kernel(node_width=9, config_width=3)
  with pytest.raises(ValueError, match='the model was built for'):
    checks.scores(model, kernel, checks.stats_of([kernel]))


@for_models(slow=SAVED_LIKE_ANOTHER)
def test_saved_and_copied_by_position_keeps_the_scores(
    tmp_path, host_loss, name):
  model = checks.make(name)
  # Eagerly: tracing the step would take longer than all the rest.
  model.compile(loss=host_loss(), optimizer='adam', run_eagerly=True)
  every_config = np.tile(np.arange(10), (len(KERNELS), 1))
  graph = batches.batch_graph(KERNELS, every_config, STATS)
  labels = np.stack([kernel.runtime_rel[:10] for kernel in KERNELS])
  step = tf.data.Dataset.from_tensors((graph, labels.astype(np.float32)))
  model.fit(step, verbose=0)
  model.save(tmp_path / 'model_x')
  with tf.keras.saving.custom_object_scope({'CombinedLoss': host_loss}):
    saved = tf.keras.models.load_model(tmp_path / 'model_x')
  copied = checks.copied_like_the_scripts(name, saved, KERNELS[1], STATS)
  for kernel in KERNELS:
    np.testing.assert_array_equal(
        checks.scores(copied, kernel, STATS),
        checks.scores(model, kernel, STATS))


@pytest.fixture
def host_loss():
  """A loss class like the baseline's: unregistered, made without arguments."""
  class CombinedLoss(tf.keras.losses.Loss):
    def __init__(self, reduction=None, name=None):
      super().__init__()

    def call(self, y_true, y_pred):
      return tf.reduce_mean((y_true - y_pred) ** 2, -1)

  return CombinedLoss
