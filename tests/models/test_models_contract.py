"""One contract for every public model of models.py."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine import train
from tpu_graphs_ext.sample import write
from tpu_graphs_ext.tasks import tile_batches
from tpu_graphs_ext.tasks.tile import TrainSettings

BASELINE = {
    'EarlyJoinSAGE', 'LateJoinSAGE', 'EarlyJoinResGCN', 'LateJoinResGCN', 'MLP'}
# A model of tile geometry is another one with feature_stats than without;
# AnalyticTileModel needs them.
CASES = [
    *sorted(BASELINE), 'MyEarlyJoinSAGE', 'MyEarlyJoinSAGE' + checks.RAW,
    'AnalyticTileModel' + checks.RAW, 'EarlyJoinGCN', 'LateJoinGCN',
    'EarlyJoinGAT', 'LateJoinGAT', 'LateJoinConcatPoolSAGE',
    'EarlyJoinConcatPoolSAGE', 'EnsembleRanker']
# Its layers are much like those of another model, and saving takes seconds.
SAVED_LIKE_ANOTHER = {
    'EarlyJoinSAGE', 'LateJoinSAGE', 'LateJoinResGCN', 'EarlyJoinGCN',
    'EarlyJoinGAT', 'EarlyJoinConcatPoolSAGE', 'LateJoinConcatPoolSAGE',
    'LateJoinGCN', 'MLP', 'MyEarlyJoinSAGE', 'AnalyticTileModel' + checks.RAW}
KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)
MANY_CONFIGS = checks.kernels(num_configs=50)[0]
ORDER = np.random.default_rng(0).permutation(KERNELS[0].num_configs)
SOME = np.array([7, 2, 3])
NARROW = tiny_kernels.make_kernel(node_width=9, config_width=3)
NARROW_STATS = checks.stats_of([NARROW])
# Repetition -> first copy, here and there: in one chunk of 16 and in others.
COPIES = {5: 4, 17: 3, 33: 3, 40: 39, 49: 16}


def graph_of(kernel):
  return tile_batches.kernel_graph(
      kernel, NARROW_STATS if kernel is NARROW else STATS)


def make(name, **changes):
  """Of the two that read geometry one counts elements, the other tiles."""
  is_mine = name.startswith('MyEarlyJoinSAGE')
  return checks.make(
      name, tiles='elements' if is_mine else 'layout tiles', **changes)


def scores_of(model, kernel) -> np.ndarray:
  """Scores [configs] of a kernel, as the prediction script gets them."""
  return model.forward(graph_of(kernel), kernel.num_configs).numpy()[0]


def assert_close(scores, expected):
  np.testing.assert_allclose(scores, expected, **checks.CLOSE)


# --- Properties of the scores of a model that is made and traced --------------


def one_finite_score_a_configuration(model, name):
  far = dataclasses.replace(KERNELS[0], node_feat=KERNELS[0].node_feat * -1e4,
                            config_feat=KERNELS[0].config_feat * 1e6)
  for kernel in [*tiny_kernels.corner_cases(), far]:
    scores = scores_of(model, kernel)
    assert scores.shape == (kernel.num_configs,)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all(), kernel.tile_id


def configurations_are_scored_alone_in_any_order(model, name):
  for order in (ORDER, SOME):
    assert_close(scores_of(model, checks.permuted_configs(KERNELS[0], order)),
                 scores_of(model, KERNELS[0])[order])


def numbering_of_nodes_and_order_of_edges_do_not_matter(model, name):
  for kernel in KERNELS:
    order = np.random.default_rng(0).permutation(kernel.num_nodes)
    assert_close(scores_of(model, checks.renumbered_nodes(kernel, order)),
                 scores_of(model, kernel))


def edges_matter_unless_it_is_an_mlp(model, name):
  largest = max(KERNELS, key=lambda kernel: kernel.num_nodes)
  fewer = dataclasses.replace(largest, edge_index=largest.edge_index[:1])
  same = np.allclose(scores_of(model, fewer), scores_of(model, largest),
                     rtol=1e-5)
  assert same == (name == 'MLP')


def kernels_of_a_batch_are_scored_alone_and_differ(model, name):
  scores = model.forward(checks.batch_of(KERNELS, STATS, 12), 12).numpy()
  for kernel, row in zip(KERNELS, scores):
    assert_close(row, scores_of(model, kernel))
  assert scores.std(axis=1).min() > 0
  assert scores.mean(axis=1).std() > 0


def chunks_give_the_scores_of_all_configurations_at_once(model, name):
  # 16 is the smallest chunk: 50 configurations make four, the last smaller.
  graph = graph_of(MANY_CONFIGS)
  assert_close(model.forward(graph, 50), model(graph, training=False))


def distinct_tiles_come_first_but_in_the_baselines_models(model, name):
  copies, of = map(list, zip(*COPIES.items()))
  tiles = [i for i in range(50) if i not in COPIES]
  repeated = checks.permuted_configs(
      MANY_CONFIGS, np.array([COPIES.get(i, i) for i in range(50)]))
  apart, scores = scores_of(model, MANY_CONFIGS), scores_of(model, repeated)
  assert_close(scores[tiles], apart[tiles])
  assert_close(model(graph_of(repeated), training=False)[0],  # As in training.
               [apart[COPIES.get(i, i)] for i in range(50)])
  if name in BASELINE:
    assert_close(scores[copies], scores[of])
  else:
    assert scores[copies].min() > scores[tiles].max()


def labels_do_not_reach_a_score(model, name):
  other = dataclasses.replace(
      KERNELS[0], runtime_ns=KERNELS[0].runtime_ns[::-1] * 7,
      normalizer_ns=np.ones_like(KERNELS[0].normalizer_ns))
  assert_close(scores_of(model, other), scores_of(model, KERNELS[0]))


PROPERTIES = [
    one_finite_score_a_configuration,
    configurations_are_scored_alone_in_any_order,
    numbering_of_nodes_and_order_of_edges_do_not_matter,
    edges_matter_unless_it_is_an_mlp,
    kernels_of_a_batch_are_scored_alone_and_differ,
    chunks_give_the_scores_of_all_configurations_at_once,
    distinct_tiles_come_first_but_in_the_baselines_models,
    labels_do_not_reach_a_score]


def test_all_names_are_there():
  assert set(load_models.model_names()) == {
      case.removesuffix(checks.RAW) for case in CASES}


@pytest.fixture(scope='module')
def scoring(name):
  """A model that scored a kernel, in small chunks, and what it has traced."""
  ranker = load_models.models_module()._Ranker
  traced, rank = [], ranker._rank_in_chunks
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(ranker, '_CHUNK_FLOATS', 1)
    patched.setattr(
        ranker, '_rank_in_chunks',
        lambda self, *tensors: traced.append(self) or rank(self, *tensors))
    model = make(name)
    scores_of(model, KERNELS[0])
  return model, traced


# Of the module, so that the tests of a model follow each other and share it.
every_model = functools.partial(pytest.mark.parametrize, 'name', scope='module')


@every_model(CASES)
def test_scores(name, scoring):
  """All properties by one trace. Small chunks, so that 50 make several."""
  model, traced = scoring
  for check in PROPERTIES:
    check(model, name)
  members = getattr(model, '_members', [model])
  assert [sum(ranker is member for ranker in traced) for member in members] == [
      1] * len(members)
  with pytest.raises(ValueError, match='the model was built for'):
    scores_of(model, NARROW)


@every_model(CASES)
def test_variables(name):
  """They are trainable, the same for every data, and all can learn."""
  # Seeds 1 and 2 start an attention whose logits are linear on these kernels.
  model = make(name, seed=4)
  graph = checks.batch_of(KERNELS, STATS, 12)
  load_models.create_variables(model, graph)
  assert model.trainable_variables
  assert not model.non_trainable_variables
  other = make(name, seed=4)
  load_models.create_variables(other, graph_of(KERNELS[1]))
  for a, b in zip(model.trainable_variables, other.trainable_variables):
    np.testing.assert_array_equal(a, b)
  narrow = make(name, stats=NARROW_STATS)
  load_models.create_variables(narrow, graph_of(NARROW))
  assert ([variable.shape.rank for variable in model.trainable_variables]
          == [variable.shape.rank for variable in narrow.trainable_variables])
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
    # Statistics are read and not trained; without them there is no analytic
    # time whose constants could change.
    if own_name != 'feature_stats' and (
        own_name != 'changes' or name.endswith(checks.RAW)):
      assert np.abs(gradient).max() > 0, variable.name


class CombinedLoss(tf.keras.losses.Loss):
  """Like the baseline's: unregistered, made without arguments."""

  def __init__(self, reduction=None, name=None):
    super().__init__()

  def call(self, y_true, y_pred):
    return tf.reduce_mean((y_true - y_pred) ** 2, -1)


@every_model([
    pytest.param(name, marks=pytest.mark.slow) if name in SAVED_LIKE_ANOTHER
    else name for name in CASES])
def test_trained_saved_and_copied_by_position(
    tmp_path, name, scoring, monkeypatch):
  """As the scripts do it. All variables are there before the first step."""
  model, steps = make(name, seed=2), []
  take_step = type(model).train_step
  monkeypatch.setattr(
      type(model), 'train_step', lambda self, data: steps.append(
          len(self.trainable_variables)) or take_step(self, data))
  # Eagerly: tracing the step would take longer than all the rest.
  model.compile(loss=CombinedLoss(), optimizer='adam', run_eagerly=True)
  labels = np.stack([kernel.runtime_rel[:10] for kernel in KERNELS])
  data = tf.data.Dataset.from_tensors(
      (checks.batch_of(KERNELS, STATS), labels.astype(np.float32)))
  model.fit(data, validation_data=data, verbose=0)
  assert steps == [len(model.trainable_variables)]
  model.save(tmp_path / 'model_x')
  with tf.keras.saving.custom_object_scope({'CombinedLoss': CombinedLoss}):
    saved = tf.keras.models.load_model(tmp_path / 'model_x')
  copied, _ = scoring
  checks.copy_weights(copied, saved)
  for kernel in KERNELS:
    assert_close(scores_of(copied, kernel),
                 checks.scores_untraced(model, kernel, STATS))


@pytest.fixture(scope='module')
def sample_root(tmp_path_factory):
  out = str(tmp_path_factory.mktemp('sample') / 'data')
  write.write_sample_data(out, kernels=120)
  return out


# The baseline's five are as good as they are.
@pytest.mark.slow
@pytest.mark.parametrize('name', [
    name for name in load_models.model_names() if name not in BASELINE])
def test_two_epochs_without_nan_rank_better_than_chance(
    monkeypatch, sample_root, tmp_path, name):
  if name != 'EnsembleRanker':  # Of the others, the test above saves each.
    monkeypatch.setattr(
        tf.keras.Model, 'save', lambda unused_self, path, **_: None)
  result = train.train(TrainSettings(
      model=name, epochs=2, lr=1e-2, batch=2, seed=1, cache_dir='',
      data_root=sample_root, out_dir=str(tmp_path)))
  curve = result.run_info['train_curve']
  assert len(curve['epoch']) == 2
  assert all(np.isfinite(values).all() for values in curve.values())
  # By chance: 0.5, give or take 0.03 for 17 lists of 10 configurations.
  assert max(curve['val_opa']) > 0.6


def test_loop_nests_are_traced_once_for_all_models(monkeypatch):
  def scores():
    model = checks.make('AnalyticTileModel' + checks.RAW)
    return model.forward(checks.batch_of(KERNELS, STATS), 10)

  expected = scores()
  monkeypatch.delattr(load_models.models_module(), '_Nodes')
  np.testing.assert_array_equal(scores(), expected)


@pytest.mark.slow
def test_later_epochs_and_savings_trace_nothing(tmp_path, monkeypatch):
  """Traces of geometry take most of the time of a short run."""
  models = load_models.models_module()
  made, tiles = [], models._Geometry.tiles
  monkeypatch.setattr(models._Geometry, 'tiles',
                      lambda *args: made.append(args) or tiles(*args))
  model = checks.make('AnalyticTileModel' + checks.RAW, averaging=.9)
  model.compile(loss=CombinedLoss(), optimizer=tf.keras.optimizers.Adam(1e-3))
  data = tf.data.Dataset.from_tensors(
      (checks.batch_of(KERNELS, STATS), np.ones((4, 10), np.float32)))
  for _ in range(2):
    model.fit(data.repeat(2), validation_data=data, epochs=2, verbose=0)
    model.save(tmp_path / 'model_x')
    assert len(made) == 2  # Of a step and of a call, which is saved, too.


@pytest.mark.parametrize('name', ['EarlyJoinSAGE', 'MyEarlyJoinSAGE'])
def test_memory_does_not_grow_with_configurations(monkeypatch, name):
  """No tensor [nodes, chunk, width] is larger than `_CHUNK_FLOATS`."""
  models = load_models.models_module()
  kernel = tiny_kernels.make_kernel(num_nodes=40, num_configs=2000)
  kernel.node_opcode[:] %= checks.NUM_OPS
  graph = tile_batches.kernel_graph(kernel, checks.stats_of([kernel]))
  model, widths = checks.make(name), []
  load_models.create_variables(model, graph)
  score = type(model)._score
  monkeypatch.setattr(models._Ranker, '_CHUNK_FLOATS', 2 ** 17)
  monkeypatch.setattr(
      type(model), '_score', lambda self, graph, encoded, config_feats:
      widths.append(config_feats.shape[1]) or score(
          self, graph, encoded, config_feats))
  model._rank_in_chunks(*models._inputs_of(graph))
  assert sum(widths) == 2000
  states = 40 if model._early else 1
  assert max(widths) * states * model._state_width <= 2 ** 17
