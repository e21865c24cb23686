"""AnalyticTileModel and MyEarlyJoinSAGE: values, arguments, refusals."""

import math

import numpy as np
import pytest
import tensorflow as tf

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile_batches

models = load_models.models_module()
KERNELS = checks.kernels()
STATS = checks.stats_of(KERNELS)

# Round numbers, so that sums can be done by hand.
MACHINE = dict(launch_ns=100, wait_ns=10, step_ns=4, bytes_per_ns=1024,
               piece_ns=1, matrix_row_ns=2, vector_ns=3, unhidden=0.5,
               crowd_ns=5, lone_ns=7, partial_ns=6)
COUNTS = dict(steps=3, idle=1, moved_bytes=4096, pieces=6, crowding=1,
              all_tiles=2, matrix_rows=7, vector_registers=2, block_bytes=2048)


def counts(**counted):
  """Counts of one configuration, 0 but for those given."""
  return models._Counts(*(
      tf.constant([[float(counted.get(name, 0))]])
      for name in models._Counts._fields))


def hardware(**changes):
  return models._Hardware(**{**MACHINE, **changes})


def machine():
  layer = models._Machine(sharpness=10.0)
  layer.build(None)
  return layer


def test_analytic_time_by_hand():
  """Memory 4096 / 1024 + 6 = 10 ns, arithmetic 2 * 7 + 3 * 2 = 20 ns.

  100 + 4 * 3 + 20 + 0.5 * 10 + 2048 / 1024 = 139.
  """
  some = counts(**COUNTS)
  log_time, shares = machine()(some, hardware())
  assert log_time.numpy() == pytest.approx(math.log(139))
  # Of 100 + 12 + 10 + 20 + 2 = 144.
  np.testing.assert_allclose(
      shares[0, 0], np.array([100, 12, 10, 20, 2]) / 144, rtol=1e-5)
  layer = machine()
  layer.changes.assign(tf.fill(layer.changes.shape, 1e-3))
  assert float(layer.constants(hardware())['launch_ns']) == pytest.approx(
      100 * math.exp(0.01))  # By 1 %.
  # Twice the bandwidth: memory 2 + 6, first transfer 1.
  faster = hardware(bytes_per_ns=2048)
  assert machine()(some, faster)[0].numpy() == pytest.approx(
      math.log(100 + 12 + 20 + 0.5 * 8 + 1))


@pytest.mark.parametrize('changes, time', [
    # Two layout tiles, thrice as many in a tile as can move at full speed: 20
    # ns more, or 28 of an operation outside a fusion.
    (dict(crowding=3), 100 + 12 + 30 + 0.5 * 20 + 2),
    (dict(crowding=3, is_alone=1), 100 + 12 + 38 + 0.5 * 20 + 2),
    # Arithmetic 20 + 6 * 5 = 50 ns.
    (dict(partials=5), 100 + 12 + 50 + 0.5 * 10 + 2),
    (dict(waits=2), 100 + 12 + 10 * 2 + 10 + 0.5 * 20 + 2),
    # A half more steps than have a tile: all but the launch and the first
    # transfer takes as much longer.
    (dict(idle=1.5), 100 + 1.5 * (12 + 20 + 0.5 * 10) + 2)])
def test_crowded_and_idle_times_by_hand(changes, time):
  some = counts(**{**COUNTS, **changes})
  assert machine()(some, hardware())[0].numpy() == pytest.approx(math.log(time))


def test_the_correction_starts_at_exactly_zero():
  model = checks.make('MyEarlyJoinSAGE' + checks.RAW, sharpness=4.0)
  analytic = checks.make('AnalyticTileModel' + checks.RAW)
  for kernel in KERNELS:
    np.testing.assert_allclose(
        checks.scores_untraced(model, kernel, STATS),
        4 * checks.scores_untraced(analytic, kernel, STATS), rtol=1e-5)
  assert model.constants() == analytic.constants()


def test_scores_move_the_sharpness_but_not_the_physical_constants():
  """Those follow the runtimes alone: an order of tiles says less of them."""
  model = checks.make('MyEarlyJoinSAGE' + checks.RAW)
  graph = tile_batches.kernel_graph(KERNELS[0], STATS)
  model(graph)
  model._scorer.kernel.assign(tf.ones_like(model._scorer.kernel))
  with tf.GradientTape(persistent=True) as tape:
    learned, log_times = model._learned_and_log_times(*model._encoded(
        models._inputs_of(graph), model._embedded(graph)))
    scores = model._sum(learned, log_times)
    score, log_time = tf.reduce_sum(scores), tf.reduce_sum(log_times)
  *constants, sharpness = tape.gradient(score, model._machine.changes).numpy()
  assert sharpness != 0
  assert not np.any(constants)
  *constants, sharpness = tape.gradient(
      log_time, model._machine.changes).numpy()
  assert sharpness == 0
  assert np.any(constants)


# --- Arguments ---------------------------------------------------------------


def test_statistics_of_other_data_are_refused():
  other = checks.stats_of([tiny_kernels.make_kernel(node_width=9)])
  model = checks.make('AnalyticTileModel' + checks.RAW, stats=other)
  with pytest.raises(UserError, match=(
      'AnalyticTileModel: feature_stats has 9 node columns that vary, but the '
      f'features have {STATS.node.num_used}; they are of other data')):
    load_models.create_variables(
        model, tile_batches.kernel_graph(KERNELS[0], STATS))


def test_statistics_of_another_form_are_refused():
  table = {'minimum': [0.0, 1.0], 'maximum': [1.0, 1.0]}
  for stats in (
      'x', {'node': table}, {'node': table, 'config': {'minimum': 3}},
      {'node': table, 'config': {'minimum': [0.0], 'maximum': [1.0, 2.0]}},
      {'node': table, 'config': {'minimum': ['a'], 'maximum': ['b']}},
      {'node': table, 'config': table, 'all_kernels': {'node': table}}):
    with pytest.raises(UserError, match='feature_stats must hold, under node'):
      load_models.build('MyEarlyJoinSAGE', 10, 5, {'feature_stats': stats})
  for tiles in ('element', None, True, ['x']):
    with pytest.raises(UserError, match='tiles must be one of layout tiles, '):
      load_models.build('MyEarlyJoinSAGE', 10, 5, {
          'feature_stats': {**STATS.to_json(), 'tiles': tiles}})


@pytest.mark.parametrize('sharpness,expected', [
    (20.0, 9), (5.0, 9 * 0.5 ** 2)])
def test_the_loss_has_the_mean_square_of_the_correction(sharpness, expected):
  """The correction's bias is 0 and then 3, so its square 9."""
  graph = tile_batches.kernel_graph(KERNELS[0], STATS)
  model = checks.make('MyEarlyJoinSAGE' + checks.RAW, sharpness=sharpness)
  labels = KERNELS[0].runtime_rel[np.newaxis]
  scores, without = model.scores_and_own_loss(graph, labels)
  # The scores are those of the time alone: its loss is that of its logarithm.
  without = float(without)
  assert without == pytest.approx(
      np.var(scores / sharpness - np.log(labels)), rel=1e-4)
  model._scorer.bias.assign([3.0])
  assert float(model.scores_and_own_loss(
      graph, labels)[1]) - without == pytest.approx(expected, rel=1e-4)


def test_statistics_are_read_exactly():
  """float32 through JSON, and back to whole numbers."""
  columns = np.array([[0, 3, 7], [2, 3, 812032], [1, 3, 128]], np.float32)
  table = checks.FeatureStats.from_json({
      'node': {'minimum': columns.min(0), 'maximum': columns.max(0)},
      'config': {'minimum': [0], 'maximum': [1]}})
  statistics = models._Statistics(table.to_json(), keeps=False)
  scaled = table.node.apply(columns)  # Without the constant column.
  assert scaled.shape == (3, 2)
  statistics.build(None)
  np.testing.assert_array_equal(
      statistics.raw('node', tf.constant(scaled)),
      np.pad(columns, [[0, 0], [0, 137]]))
