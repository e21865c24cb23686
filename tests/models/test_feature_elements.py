"""Matrix products, tiles in elements, and columns of the axes: by hand."""

import numpy as np
import pytest

from support import feature_tiles
from support import model_checks as checks
from tpu_graphs_ext import load_models

models = load_models.models_module()
kernel_of = feature_tiles.kernel_of_nodes
counts_of = feature_tiles.counts_of
READ = 'parameter'


def dot_kernel(left, right, out, output_bounds, kernel_bounds=((),)):
  return kernel_of([(READ, left, []), (READ, right, []),
                    ('dot', out, [0, 1])], output_bounds, kernel_bounds)


# --- Matrix products ---------------------------------------------------------

def test_a_matrix_product():
  """[6, 10] x [10, 14], whole, in quarters, and with half of the summands."""
  counts = counts_of(dot_kernel(
      (6, 10), (10, 14), (6, 14), [(6, 14), (3, 7), (6, 14)],
      [(0, 0), (0, 0), (5, 0)]))
  expected = {
      'output_tiles': [1, 4, 1], 'kernel_tiles': [1, 1, 2],
      'steps': [1, 4, 2], 'streams': [3] * 3,
      # Left 60, right 140, result 84 elements; halves of each; half the sums.
      'block_bytes': [4 * 284, 4 * (30 + 70 + 21), 4 * (30 + 70 + 84)],
      # By quarters: the left in halves, each kept while the right comes anew.
      'moved_bytes': [4 * 284, 4 * (60 + 4 * 70 + 84), 4 * 284],
      'matrix_rows': [6 * 10 * 14] * 3,
      # Nothing but adding up the partial sums of the second step.
      'vector_registers': [0, 0, 84]}
  for name, values in expected.items():
    np.testing.assert_allclose(counts[name], values, err_msg=name)


# --- Tiles that count elements -----------------------------------------------


def test_elements_are_of_logical_dimensions():
  """[24, 64] stored by columns: the first dimension is the minor one."""
  by_columns = {'layout_minor_to_major': (0, 1)}
  counts = counts_of(kernel_of(
      [(READ, (24, 64), [], by_columns),
       ('negate', (24, 64), [0], by_columns)],
      [(24, 16), (6, 64), (24, 1)]))
  np.testing.assert_array_equal(counts['steps'], [4, 4, 64])
  # 16 whole columns are one piece; parts of columns are a piece each.
  np.testing.assert_array_equal(counts['pieces'], [2 * 4, 2 * 4 * 64, 2 * 64])


# The root of the sums of each row.
NORMS = [(READ, (4096, 32), []),
         ('reduce', (4096,), [0], {'dimensions': (1,)}), ('sqrt', (4096,), [1])]


def test_what_is_made_of_a_reduction_is_tiled_as_its_operand():
  counts = counts_of(kernel_of(NORMS, [(4096, 32), (1024, 16)]))
  np.testing.assert_array_equal(counts['steps'], [1, 8])
  np.testing.assert_array_equal(
      counts['block_bytes'], [4 * 33 * 4096, 4 * 17 * 1024])


# --- Columns of the axes -----------------------------------------------------


def all_columns_of(kernel, make=models._Columns.of_tiles):
  """float32 [configs, columns]."""
  geo, loops, cut = feature_tiles.tensorflow_tiles(
      kernel, checks.stats_of([kernel]), tiles='elements')
  columns = make(loops, cut, *geo.counts(loops, cut)).numpy()
  assert columns.shape[:2] == (1, kernel.num_configs)
  return columns[0]


def columns_of(kernel):
  """float32 [configs, columns of a dimension, 18].

  12 axes of the tiles and 6 dimensions of the largest input.
  """
  return all_columns_of(kernel)[:, :18 * 4].reshape(-1, 18, 4).transpose(
      0, 2, 1)


def test_columns_by_hand():
  """[24, 64] in tiles of 10 x 16: 3 x 4 of them, that cover 30 rows."""
  columns = columns_of(kernel_of(
      [(READ, (24, 64), []), ('negate', (24, 64), [0])],
      [(10, 16), (24, 64)]))[..., :12]
  minor, major = columns[0, :, 0], columns[0, :, 1]
  np.testing.assert_allclose(
      minor, [4 / 5, 2 / 5, 0, 4 / 7], rtol=1e-5)  # 16 is 2 to the 4th.
  np.testing.assert_allclose(major, [
      np.log2(10) / 5, np.log2(3) / 5, np.log2(30 / 24), 1 / 7], rtol=1e-5)
  whole = columns[1]
  np.testing.assert_allclose(whole[1], 0)  # One trip.
  np.testing.assert_allclose(whole[3, :2], [6 / 7, 3 / 7], rtol=1e-5)
  assert not columns[:, :, 2:].any()  # There are no further axes.


def test_the_input_has_columns_even_if_the_output_is_larger():
  """Tiles of [1, 12, 64] of a [2, 24, 64] read [12, 64] of the [24, 64]."""
  columns = columns_of(kernel_of(
      [(READ, (24, 64), []), ('broadcast', (2, 24, 64), [0])],
      [(1, 12, 64)]))[..., 12:]
  np.testing.assert_allclose(
      columns[0, 0], [6 / 5, np.log2(12) / 5, 0, 0, 0, 0], rtol=1e-5)
  assert not columns[0, 1, 2:].any()  # Of a third dimension it has no 2 blocks.


def test_steps_by_hand():
  """Of [24, 64] read and written in 12 tiles of 8 x 16."""
  kernel = kernel_of([(READ, (24, 64), []), ('negate', (24, 64), [0])],
                     [(8, 16)])
  elements, steps, block, held = all_columns_of(kernel)[
      0, 18 * 4:].reshape(4, 12)
  # 128 elements are 2 to the 7th, a step is a factor of 4.
  np.testing.assert_allclose(elements, 3 * [1] + [.5] + 8 * [0])
  np.testing.assert_allclose(
      steps, [1, np.log2(12) / 2 - 1] + 10 * [0], rtol=1e-5)
  # Two blocks of 512 bytes, 2 to the 4th times 64; of each the next one too.
  np.testing.assert_allclose(block, 2 * [1] + 10 * [0])
  np.testing.assert_allclose(held, 2 * [1] + [.5] + 9 * [0])


# --- Columns of blocks that run side by side ---------------------------------


def block_columns_of(kernel):
  """The groups of the columns of the first configuration."""
  columns = all_columns_of(kernel, models._Columns.of_blocks)
  assert columns.shape[1] == 38
  waves, runs, summed, size, peaks, up, elements = np.split(
      columns[0], [4, 8, 10, 11, 29, 30])
  return {'waves': waves, 'runs': runs, 'summed': summed, 'bytes': size,
          'peaks': peaks.reshape(3, 6), 'up': up, 'elements': elements}


def peak(power):
  return [float(i == power) for i in range(3, 9)]


def test_block_columns_of_a_product_whose_operands_are_both_k_major():
  """[64, 96] x [96, 80], the latter stored by columns."""
  kernel = kernel_of(
      [(READ, (64, 96), []),
       (READ, (96, 80), [], {'layout_minor_to_major': (0, 1)}),
       ('dot', (64, 80), [0, 1])], [(16, 32)], [(8, 32)])
  columns = block_columns_of(kernel)
  # 4 x 3 of 132 cores: 11 times as many are idle or busy.
  np.testing.assert_allclose(columns['waves'], [
      np.log2(12) / 5, np.log2(11) / 2, 0, 12 / 132], rtol=1e-5, atol=1e-6)
  # 8 along K in both, of 4 bytes; 16 rows of them, and 32 columns.
  np.testing.assert_allclose(columns['runs'], [1, 4 / 5, 1, 1], rtol=1e-5)
  np.testing.assert_array_equal(columns['summed'], [1, 1])
  assert columns['bytes'] == 1
  # The tile's minor side, the other one, and K.
  np.testing.assert_allclose(columns['peaks'], [peak(5), peak(4), peak(3)],
                             atol=1e-5)
  np.testing.assert_allclose(columns['up'], 0, atol=1e-5)
  np.testing.assert_allclose(  # 512 are 2 to the 9th.
      columns['elements'], [0, 0, 0, 1, 0, 0, 0, 0], atol=1e-5)
  kernel.node_feat[1, 134:136] = (1, 0)  # Row by row: 32 are side by side.
  columns = block_columns_of(kernel)
  np.testing.assert_allclose(columns['runs'], [1, 4 / 5, 7 / 5, 3 / 5],
                             rtol=1e-5)
  np.testing.assert_array_equal(columns['summed'], [1, 0])


def test_blocks_along_a_reduction_do_not_run_side_by_side():
  """Each row of [1000, 512] less its sum: a program takes whole rows."""
  kernel = kernel_of(
      [(READ, (1000, 512), []),
       ('reduce', (1000,), [0], {'dimensions': (1,)}),
       ('broadcast', (1000, 512), [1]), ('subtract', (1000, 512), [0, 2])],
      [(3, 48)])
  columns = block_columns_of(kernel)
  # 334 of 132 take 3 waves of 396; without a reduction it would be 3674.
  np.testing.assert_allclose(columns['waves'], [
      np.log2(334) / 5, np.log2(396 / 334) / 2, np.log2(3) / 5, 1], rtol=1e-5)
  run = np.log2(48 * 4) / 5
  np.testing.assert_allclose(
      columns['runs'], 2 * [run, np.log2(3) / 5], rtol=1e-5)
  assert not columns['summed'].any()
  half = np.log2(48) - 5  # Between 32 and 64; 3 is below all peaks.
  between = [0, 0, 1 - half, half, 0, 0]
  np.testing.assert_allclose(  # 48 and 3 up to 64 and 4.
      columns['up'], 2 * np.log2(4 / 3), rtol=1e-4)
  part = np.log2(144) - 7
  np.testing.assert_allclose(
      columns['elements'], [0, 1 - part, part, 0, 0, 0, 0, 0], rtol=1e-4,
      atol=1e-5)
  np.testing.assert_allclose(columns['peaks'], [between, peak(3), between],
                             rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('tiles,sees', [
    ('layout tiles', False), ('elements', True)])
def test_only_models_of_elements_see_them(tiles, sees):
  """They share the weights of scaled columns, which are not used then."""
  kernel = dot_kernel((64, 96), (96, 80), (64, 80), [(16, 32), (32, 16)],
                      [(8, 32), (8, 16)])
  stats = checks.stats_of([kernel])
  model = checks.make('MyEarlyJoinSAGE' + checks.RAW, stats=stats, tiles=tiles)
  checks.scores_untraced(model, kernel, stats)
  rng = np.random.default_rng(0)
  model._scorer.kernel.assign(rng.normal(size=model._scorer.kernel.shape))
  before = checks.scores_untraced(model, kernel, stats)
  shared = model._config_encoder.dense.kernel[:3 * stats.config.num_used]
  shared.assign(-shared)
  assert (np.abs(checks.scores_untraced(model, kernel, stats) - before).max()
          > 1e-3) == sees


def test_the_analytic_time_counts_whole_waves_of_elements():
  """133 tiles take the 132 cores twice; of layout tiles there is one core."""
  kernel = kernel_of([(READ, (133, 64), []), ('tanh', (133, 64), [0])],
                     [(1, 64), (133, 64)])
  stats = checks.stats_of([kernel])
  for tiles, work in (('elements', np.array([2 / (133 / 132), 132])),
                      ('layout tiles', np.ones(2))):
    model = checks.make(
        'AnalyticTileModel' + checks.RAW, stats=stats, tiles=tiles)
    scores = checks.scores_untraced(model, kernel, stats)
    c, n = model.constants(), counts_of(kernel, tiles)
    memory = (c['wait_ns'] * n['waits'] + n['moved_bytes'] / c['bytes_per_ns']
              + c['piece_ns'] * work * n['pieces'])
    vector = c['vector_ns'] * work * n['vector_registers']
    np.testing.assert_allclose(np.exp(scores), (
        c['launch_ns'] + c['step_ns'] * work * n['steps'] * (
            n['streams'] if tiles == 'elements' else 1)
        + n['block_bytes'] / c['bytes_per_ns'] + np.maximum(memory, vector)
        + c['unhidden'] * np.minimum(memory, vector)), rtol=1e-4)


# A tensor [16, 6, 40] with its last two dimensions exchanged, and a row.
TURNED = [(READ, (16, 6, 40), []), ('negate', (16, 6, 40), [0]),
          ('transpose', (16, 40, 6), [1], {'dimensions': (0, 2, 1)}),
          (READ, (6,), []), ('broadcast', (16, 40, 6), [3]),
          ('add', (16, 40, 6), [2, 4])]


def test_what_is_read_before_a_transposition_is_turned():
  """A tile [8, 10, 3] of the result reads [8, 3, 10] of the operand."""
  kernel = kernel_of(TURNED, [(8, 10, 3), (16, 40, 1)])
  counts = counts_of(kernel)
  np.testing.assert_array_equal(counts['steps'], [16, 6])
  np.testing.assert_array_equal(
      counts['block_bytes'], [4 * (240 + 3 + 240), 4 * (640 + 1 + 640)])
  # Runs of the operand: 8 x 3 of 10, and 16 of 40; of the row 1; of the
  # result: 8 x 10 of 3, and 16 x 40 of 1. The row's comes back with each step.
  np.testing.assert_array_equal(
      counts['pieces'], [16 * (24 + 1 + 80), 6 * (16 + 1 + 640)])
  columns = columns_of(kernel)[..., 12:]
  # Most minor first: log2 of what is read, and of the number of blocks.
  np.testing.assert_allclose(columns[0, :2, :3], np.log2(
      [[10, 3, 8], [4, 2, 2]]) / 5, rtol=1e-5)
  np.testing.assert_allclose(columns[1, :2, :3], np.log2(
      [[40, 1, 16], [1, 6, 1]]) / 5, rtol=1e-5, atol=1e-6)
  assert not columns[:, :, 3:].any()


# --- Which of the two --------------------------------------------------------


def copies(tile, sizes=(24, 64)):
  return kernel_of([(READ, sizes, []), ('negate', sizes, [0])], [tile])


def vote_of(kernel):
  return models.vote_of_tiles(kernel.node_feat, kernel.config_feat.max(0))


@pytest.mark.parametrize('sizes,tile,vote', [
    ((24, 64), (24, 64), 1),  # [3, 1] layout tiles: both bounds exceed it.
    ((24, 64), (3, 1), -1),   # Fits both; whole in layout tiles alone.
    ((24, 640), (2, 2), 0),   # Fits both, and is whole in neither.
    ((512, 512), (16, 16), 1),  # .001 of the elements; [64, 4] layout tiles.
    ((50, 4096), (64, 64), 1),  # Exceeds one side, of [7, 32] both.
    ((5000,), (4,), 0), ((5000,), (5,), -1), ((5000,), (6,), 1),
    ((2, 16, 4, 256), (2, 16, 1, 2), -1),  # 4 rows make one layout tile.
    ((24, 64), (0, 0), 0), ((24, 64), (8,), 0)])
def test_a_kernel_votes_by_what_its_bounds_exceed(sizes, tile, vote):
  assert vote_of(copies(tile, sizes)) == vote


def test_a_vote_reads_bounds_in_memory_order_only_as_layout_tiles():
  """[1000, 16] stored column by column has 2 x 8 layout tiles."""
  kernel = copies((2, 8), (1000, 16))
  assert vote_of(kernel) == 1  # Stored row by row: 125 x 1.
  kernel.node_feat[:, 134:136] = (0, 1)
  assert vote_of(kernel) == -1


def test_tables_of_other_widths_have_no_vote():
  kernel = copies((24, 64))
  assert models.vote_of_tiles(
      kernel.node_feat[:, :30], kernel.config_feat.max(0)) == 0


def test_what_tiles_count_is_what_most_kernels_say():
  for votes, tiles in (([1, 1, -1], 'elements'), ([1, -1, -1], 'layout tiles'),
                       ([1, 0, 0, 0], 'elements'), ([0], 'layout tiles'),
                       ([1, -1], 'layout tiles'), ([], 'layout tiles')):
    assert models.what_tiles_count(votes)[0] == tiles
  assert models.what_tiles_count([1, 0, 1, -1])[1] == (
      'of 4 kernels, 2 have bounds that suit their tensors better in elements, '
      '1 in layout tiles')


@pytest.mark.parametrize('name', ['AnalyticTileModel', 'MyEarlyJoinSAGE'])
def test_the_machine_is_the_one_of_the_tiles(name):
  for tiles, lanes, vector_ns in (('layout tiles', 128, 0.9),
                                  ('elements', 1, 0.9 / 1024)):
    model = checks.make(name + checks.RAW, tiles=tiles)
    model._statistics.build(None)
    model._machine.build(None)
    hardware = models._Geometry.hardware(model._statistics)
    assert float(hardware.lanes) == lanes
    assert model.constants()['vector_ns'] == pytest.approx(vector_ns)
