"""AnalyticTileModel and HybridEarlyJoinSAGE: values, arguments, refusals."""

import math
import warnings

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

models = load_models.models_module()
NAMES = ('AnalyticTileModel', 'HybridEarlyJoinSAGE')
every_model = pytest.mark.parametrize('name', NAMES)
KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)

# Round numbers, so that sums can be done by hand.
MACHINE = dict(launch_ns=100, step_ns=10, bytes_per_ns=1024, piece_ns=1,
               matrix_row_ns=2, vector_ns=3, unhidden=0.5)


def counts(**given):
  """Counts of one configuration, 0 but for those given."""
  return models._Counts(*(
      tf.constant([[float(given.get(name, 0))]])
      for name in models._Counts._fields))


def hardware(**changes):
  return models._Hardware(**{**MACHINE, **changes})


def machine():
  layer = models._Machine(sharpness=10.0)
  layer.build_once()
  return layer


def test_analytic_time_by_hand():
  """Memory 4096 / 1024 + 6 = 10 ns, arithmetic 2 * 7 + 3 * 2 = 20 ns.

  100 + 10 * 2 * 3 + 20 + 0.5 * 10 + 2048 / 1024 = 187.
  """
  some = counts(streams=2, steps=3, moved_bytes=4096, pieces=6, matrix_rows=7,
                vector_registers=2, block_bytes=2048)
  log_time, shares = machine()(some, hardware())
  assert log_time.numpy() == pytest.approx(math.log(187))
  # Of 100 + 60 + 10 + 20 + 2 = 192.
  np.testing.assert_allclose(
      shares[0, 0], np.array([100, 60, 10, 20, 2]) / 192, rtol=1e-5)
  # Twice the bandwidth: memory 2 + 6, first transfer 1.
  faster = hardware(bytes_per_ns=2048)
  assert machine()(some, faster)[0].numpy() == pytest.approx(
      math.log(100 + 60 + 20 + 0.5 * 8 + 1))


def test_constants_are_positive_and_move_by_percent():
  layer = machine()
  layer.changes.assign([-1e-3, 1e-3, 0, 0, 0, 0, 50, 1e-3])
  constants = layer.constants(hardware())
  assert list(constants) == list(MACHINE)
  assert constants['launch_ns'].numpy() == pytest.approx(100 * math.exp(-.01))
  assert constants['step_ns'].numpy() == pytest.approx(10 * math.exp(.01))
  assert 0 < constants['unhidden'].numpy() < math.inf
  assert layer.sharpness().numpy() == pytest.approx(10 * math.exp(.01))


def test_constants_of_a_model_are_those_of_its_hardware():
  model = checks.make('AnalyticTileModel' + checks.RAW)
  assert model.constants() == pytest.approx({
      'launch_ns': 220, 'step_ns': 45, 'bytes_per_ns': 540, 'piece_ns': 3,
      'matrix_row_ns': 0.6, 'vector_ns': 0.9, 'unhidden': 0.05})
  slower = checks.make('AnalyticTileModel' + checks.RAW, hardware={
      'bytes_per_ns': 100, 'lanes': 64})
  assert slower.constants()['bytes_per_ns'] == 100
  assert slower.constants()['step_ns'] == 45
  assert checks.make('AnalyticTileModel').constants() == {}


def test_only_physical_constants_are_trained():
  model = checks.make('AnalyticTileModel' + checks.RAW)
  checks.scores_untraced(model, KERNELS[0], STATS)
  variable, = model.trainable_variables
  assert variable.shape == [len(model.constants())]


def test_the_correction_starts_at_exactly_zero():
  hybrid = checks.make('HybridEarlyJoinSAGE' + checks.RAW, sharpness=4.0)
  analytic = checks.make('AnalyticTileModel' + checks.RAW)
  for kernel in KERNELS:
    np.testing.assert_allclose(
        checks.scores_untraced(hybrid, kernel, STATS),
        4 * checks.scores_untraced(analytic, kernel, STATS), rtol=1e-5)
  assert hybrid.constants() == analytic.constants()


def test_a_model_tells_where_its_constants_started():
  model = checks.make('AnalyticTileModel' + checks.RAW,
                      hardware={'preset': 'tpu_v3', 'bytes_per_ns': 100})
  start = model.constants()
  model._machine.changes.assign(0.1 * tf.ones_like(model._machine.changes))
  assert model.constants(trained=False) == pytest.approx(start)
  assert model.constants()['bytes_per_ns'] == pytest.approx(100 * math.e)
  assert checks.make('AnalyticTileModel').constants(trained=False) == {}


def test_one_step_of_training_moves_the_correction_and_the_constants():
  hybrid = checks.make('HybridEarlyJoinSAGE' + checks.RAW)
  graph = tile_batches.batch_graph(KERNELS, np.tile(np.arange(10), (4, 1)), STATS)
  labels = np.stack([kernel.runtime_rel[:10] for kernel in KERNELS])
  hybrid.compile(optimizer='adam', run_eagerly=True)
  hybrid(graph)
  assert labels.dtype == np.float64  # As the baseline's trainer gives them.
  hybrid.fit(tf.data.Dataset.from_tensors((graph, labels)), verbose=0)
  assert np.abs(hybrid._scorer.kernel).max() > 0
  assert np.abs(hybrid._machine.changes).max() > 0


def test_scores_move_the_sharpness_but_not_the_physical_constants():
  """Those follow the runtimes alone: an order of tiles says less of them."""
  hybrid = checks.make('HybridEarlyJoinSAGE' + checks.RAW)
  graph = tile_batches.kernel_graph(KERNELS[0], STATS)
  hybrid(graph)
  with tf.GradientTape(persistent=True) as tape:
    learned, log_times = hybrid._learned_and_log_times(*hybrid._encoded(graph))
    scores = hybrid._sum(learned, log_times)
    score, log_time = tf.reduce_sum(scores), tf.reduce_sum(log_times)
  *constants, sharpness = tape.gradient(score, hybrid._machine.changes).numpy()
  assert sharpness != 0
  assert not np.any(constants)
  *constants, sharpness = tape.gradient(
      log_time, hybrid._machine.changes).numpy()
  assert sharpness == 0
  assert np.any(constants)


def test_where_the_time_is_of_no_use_the_sharpness_falls():
  """Labels are the reverse of the analytic order."""
  hybrid = checks.make('HybridEarlyJoinSAGE' + checks.RAW)
  graph = tile_batches.batch_graph(KERNELS, np.tile(np.arange(10), (4, 1)), STATS)
  # Other tests train hybrids eagerly; here the step is traced.
  hybrid.compile(optimizer=tf.keras.optimizers.Adam(1e-3))
  hybrid(graph)
  labels = 1 / tf.exp(
      hybrid._learned_and_log_times(*hybrid._encoded(graph))[1])
  before = float(hybrid._machine.sharpness())
  hybrid.fit(tf.data.Dataset.from_tensors((graph, labels)).repeat(10),
             verbose=0)
  # 10 steps of 1e-3 at a rate of 10, averaged at the end: about exp(-0.05).
  assert float(hybrid._machine.sharpness()) < 0.98 * before


def test_my_model_is_the_hybrid_where_it_has_feature_stats():
  hybrid, mine = (
      checks.make(name + checks.RAW, hidden_dim=16, sharpness=3.0)
      for name in ('HybridEarlyJoinSAGE', 'MyEarlyJoinSAGE'))
  for model in (hybrid, mine):
    model(tile_batches.kernel_graph(KERNELS[0], STATS))
    model._scorer.bias.assign([0.5])
  np.testing.assert_allclose(
      checks.scores_untraced(mine, KERNELS[0], STATS),
      checks.scores_untraced(hybrid, KERNELS[0], STATS), rtol=1e-5)


def test_my_model_starts_less_sure_of_the_time():
  sharpness = {}
  for name in ('HybridEarlyJoinSAGE', 'MyEarlyJoinSAGE'):
    model = checks.make(name + checks.RAW, hidden_dim=16)
    model(tile_batches.kernel_graph(KERNELS[0], STATS))
    sharpness[name] = float(model._machine.sharpness())
  assert sharpness == pytest.approx(
      {'HybridEarlyJoinSAGE': 10, 'MyEarlyJoinSAGE': 2})


def test_my_model_says_nothing_without_feature_stats(recwarn):
  checks.make('MyEarlyJoinSAGE')
  assert not [w for w in recwarn if 'feature_stats' in str(w.message)]


def test_it_learns_the_constants_of_another_machine():
  """Labels are the analytic times with a fifth of the bandwidth."""
  stats = checks.stats_of(KERNELS)
  graph = tile_batches.batch_graph(KERNELS, np.tile(np.arange(10), (4, 1)), stats)
  other = checks.make('AnalyticTileModel' + checks.RAW,
                      hardware={'bytes_per_ns': 108.0, 'step_ns': 90.0})
  times = tf.exp(other(graph))
  model = checks.make('AnalyticTileModel' + checks.RAW)
  model.compile(optimizer=tf.keras.optimizers.Adam(1e-2))
  step = tf.data.Dataset.from_tensors((graph, times)).repeat(60)
  losses = model.fit(step, verbose=0, epochs=2).history['loss']
  assert losses[1] < losses[0] / 2


# --- Arguments ---------------------------------------------------------------


@every_model
def test_without_statistics_it_says_so_once(name):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('default')
    checks.make(name)
  messages = [str(warning.message) for warning in caught]
  assert len(messages) == 1
  assert f'{name} has no feature_stats' in messages[0]
  assert 'tpu-graphs-ext stats --data_root DIR' in messages[0]
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    checks.make(name + checks.RAW)


@every_model
def test_statistics_of_other_data_are_refused(name):
  other = checks.stats_of([tiny_kernels.make_kernel(node_width=9)])
  model = checks.make(name + checks.RAW, stats=other)
  used = STATS.node.num_used
  with pytest.raises(ValueError, match=(
      f'feature_stats has 9 node columns that vary, but the features have '
      f'{used}; they are of other data')):
    checks.scores(model, KERNELS[0], STATS)
  with pytest.raises(UserError, match=f'{name}: feature_stats has 9 node'):
    load_models.create_variables(
        model, tile_batches.kernel_graph(KERNELS[0], STATS))


TABLE = {'minimum': [0.0, 1.0], 'maximum': [1.0, 1.0]}


@every_model
@pytest.mark.parametrize('stats', [
    {}, [], 'x', {'node': TABLE}, {'node': TABLE, 'config': {}},
    {'node': TABLE, 'config': {'minimum': [0.0], 'maximum': [1.0, 2.0]}},
    {'node': TABLE, 'config': {'minimum': 3, 'maximum': 4}},
    {'node': TABLE, 'config': {'minimum': ['a'], 'maximum': ['b']}},
    {'node': TABLE, 'config': {**TABLE, 'used': [True, True]}},
    {'node': TABLE, 'config': TABLE, 'all_kernels': {'node': TABLE}}])
def test_statistics_that_are_none_are_refused(name, stats):
  with pytest.raises(UserError, match='feature_stats must hold, under node'):
    load_models.build(name, 10, 5, {'feature_stats': stats})


@every_model
@pytest.mark.parametrize('hardware,message', [
    ('tpu_v4', "hardware must be one of found, tpu_v3; got 'tpu_v4'"),
    ({'preset': 'x'}, "hardware must be one of found, tpu_v3; got 'x'"),
    ({'bandwidth': 3}, "hardware must be one of lanes.*; got 'bandwidth'"),
    ({'step_ns': 0}, 'hardware: step_ns must be a positive number; got 0'),
    ({'lanes': True}, 'lanes must be a positive number; got True')])
def test_wrong_hardware_is_refused(name, hardware, message):
  with pytest.raises(UserError, match=message):
    load_models.build(name, 10, 5, {'hardware': hardware})


@every_model
@pytest.mark.parametrize('tiles', ['element', 'Elements', None, True, ['x']])
def test_tiles_that_count_neither_are_refused(name, tiles):
  stats = {**STATS.to_json(), 'tiles': tiles}
  with pytest.raises(UserError, match=(
      'feature_stats: tiles must be one of layout tiles, elements; got')):
    load_models.build(name, 10, 5, {'feature_stats': stats})


@pytest.mark.parametrize('argument,value,rule', [
    ('sharpness', 0, 'positive'), ('sharpness', 'x', 'positive'),
    ('caution', -1, 'non-negative')])
def test_wrong_weights_are_refused(argument, value, rule):
  with pytest.raises(UserError, match=f'{argument} must be a {rule} number'):
    load_models.build('HybridEarlyJoinSAGE', 10, 5, {argument: value})


@pytest.mark.parametrize('sharpness,expected', [
    (10.0, 2 * 9), (20.0, 2 * 9), (5.0, 2 * 9 * 0.5 ** 2)])
def test_caution_is_the_weight_of_the_mean_square_of_the_correction(
    sharpness, expected):
  """The correction's bias is 3, so its square 9."""
  graph = tile_batches.kernel_graph(KERNELS[0], STATS)
  losses = []
  for caution in (0.0, 2.0):
    model = checks.make('HybridEarlyJoinSAGE' + checks.RAW, caution=caution,
                        sharpness=sharpness)
    model(graph)
    model._scorer.bias.assign([3.0])
    labels = KERNELS[0].runtime_rel[np.newaxis]
    losses.append(float(model.scores_and_own_loss(graph, labels)[1]))
  assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-4)


def test_statistics_are_read_exactly():
  """float32 through JSON, and back to whole numbers."""
  columns = np.array([[0, 3, 7], [2, 3, 812032], [1, 3, 128]], np.float32)
  table = checks.FeatureStats.from_json({
      'node': {'minimum': columns.min(0), 'maximum': columns.max(0)},
      'config': {'minimum': [0], 'maximum': [1]}})
  statistics = models._Statistics(table.to_json(), keeps=False)
  scaled = table.node.apply(columns)  # Without the constant column.
  assert scaled.shape == (3, 2)
  statistics.build_once()
  np.testing.assert_array_equal(
      statistics.read().raw('node', tf.constant(scaled)),
      np.pad(columns, [[0, 0], [0, 137]]))


def test_a_model_traces_its_geometry_once(monkeypatch):
  made = []

  class Counted(models._Nodes):
    def __init__(self, *args):
      made.append(args)
      super().__init__(*args)

  monkeypatch.setattr(models, '_Nodes', Counted)
  for seed in (1, 2):
    model = checks.make(f'AnalyticTileModel{checks.RAW}', seed=seed)
    for kernel in KERNELS[:2]:
      checks.scores(model, kernel, STATS)
  assert len(made) == 2
