"""The columns of LightGBM by hand, and its rows where it is installed."""

import sys

import numpy as np
import pytest

from support import tiny_kernels
from support.places import BENCHMARKS
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import evaluate

sys.path.insert(0, str(BENCHMARKS))

import accuracy_run
import booster

IN_ELEMENTS = booster.Reading(in_elements=True, logical=True)


def kernel_of(nodes, edges, output_bounds, kernel_bounds=(), runtime=None):
  """A kernel of (opcode, shape, minor_to_major), and rows of bounds."""
  feat = np.zeros((len(nodes), len(schema.NODE_FEATURES)), np.float32)
  for row, (_, shape, minor_to_major) in zip(feat, nodes):
    for group, values in (('shape_dimensions', shape),
                          ('layout_minor_to_major', minor_to_major)):
      start = schema.NODE_GROUPS[group].start
      row[start:start + len(values)] = values
  config = np.zeros((len(output_bounds), len(schema.CONFIG_FEATURES)),
                    np.float32)
  for group, rows in (('output_bounds', output_bounds),
                      ('kernel_bounds', kernel_bounds)):
    start = schema.CONFIG_GROUPS[group].start
    for row, values in zip(config, rows):
      row[start:start + len(values)] = values
  runtime = np.array(runtime or [1] * len(config), np.int64)
  return Kernel(
      'net_0', feat,
      np.array([schema.OPCODES[opcode] for opcode, *_ in nodes], np.uint8),
      np.array(edges, np.int64).reshape(-1, 2), config, runtime,
      np.ones_like(runtime))


def product():
  """[5, 20] x [20, 300], the second one stored column after column."""
  return kernel_of(
      [('parameter', [5, 20], [1, 0]), ('parameter', [20, 300], [0, 1]),
       ('dot', [5, 300], [1, 0])],
      [(2, 0), (2, 1)], [[2, 128], [5, 300]], [[7, 128], [20, 300]])


def by_name(kernel, reading=IN_ELEMENTS):
  """Name of a column -> its values; all together are the table."""
  groups = booster.columns(kernel, reading)
  table = booster.table([kernel], reading)
  np.testing.assert_array_equal(table, np.concatenate([*groups.values()], 1))
  assert table.dtype == np.float32
  axes = [f'{tensor}_{axis}' for tensor in ('output', 'kernel')
          for axis in [*range(6), 'product']]
  names = {
      **{pool: schema.NODE_FEATURES for pool in ('root', 'max', 'sum')},
      'opcodes': [schema.OPCODE_NAMES.get(number, number)
                  for number in range(schema.NUM_OPCODES)],
      'bounds': schema.CONFIG_FEATURES, 'extents': axes, 'trips': axes,
      'remainders': [f'{tensor}_{what}_{axis}' for tensor in (
          'output', 'kernel') for what in ('mod', 'waste')
                     for axis in range(6)],
      'minor': [f'{tensor}_{what}_{place}' for tensor in ('output', 'kernel')
                for what in ('bound', 'extent', 'trips')
                for place in range(6)]}
  assert list(names) == list(groups)
  return {f'{group}.{name}': column for group in groups
          for name, column in zip(names[group], groups[group].T)}


@pytest.mark.parametrize('in_elements, logical, extents, minor_first', [
    (True, True, [20, 300], [0, 1]),
    (True, False, [300, 20], [1, 0]),
    # Dimension 1 is the second most minor: ceil(300 / 8); the most minor has
    # ceil(20 / 128).
    (False, False, [38, 1], [1, 0]),
    (False, True, [1, 38], [0, 1])])
def test_extents_by_what_bounds_mean(in_elements, logical, extents,
                                     minor_first):
  reading = booster.Reading(in_elements, logical)
  found, places = reading.extents(product().node_feat[1])
  assert found.tolist() == extents and places == minor_first


def test_columns_of_the_axes():
  columns = by_name(product())
  log = booster.log

  def are(name, first, second):
    np.testing.assert_allclose(columns[name], [first, second], rtol=1e-6)

  for axis, (extent, trips, mod) in enumerate(((5, 3, 1), (300, 3, 44))):
    are(f'extents.output_{axis}', log(extent), log(extent))
    are(f'trips.output_{axis}', log(trips), log(1))
    are(f'remainders.output_mod_{axis}', log(mod), 0)
  are('extents.output_product', log(1500), log(1500))
  are('trips.output_product', log(9), log(1))
  # 3 tiles of 2 cover 6 of 5; 3 of 128 cover 384 of 300.
  are('remainders.output_waste_0', np.log2(6 / 5), 0)
  are('remainders.output_waste_1', np.log2(384 / 300), 0)
  # 20 by 7 and 300 by 128.
  are('trips.kernel_product', log(3 * 3), log(1))
  are('remainders.kernel_mod_0', log(6), 0)
  # The most minor of the output is dimension 1, of the operand dimension 0.
  are('minor.output_bound_0', log(128), log(300))
  are('minor.kernel_bound_0', log(7), log(20))
  are('minor.kernel_extent_1', log(300), log(300))
  are('minor.kernel_trips_1', log(3), log(1))
  # Axes that are not there.
  are('extents.output_2', 0, 0)
  are('remainders.output_waste_2', 0, 0)


def test_what_bounds_mean_is_read_off_the_largest():
  assert booster.reading_of([product()]) == IN_ELEMENTS
  tpu = kernel_of([('copy', [20, 300], [0, 1])], [], [[38, 1], [19, 1]])
  assert booster.reading_of([tpu]) == booster.Reading()


def test_a_reduction_is_tiled_as_its_operand():
  nodes = [('parameter', [6, 512, 40], [2, 1, 0]), ('constant', [], []),
           ('reduce', [6, 40], [1, 0]), ('negate', [6, 40], [1, 0])]
  columns = by_name(kernel_of(
      nodes, [(2, 0), (2, 1), (3, 2)], [[6, 512, 40], [6, 256, 40]]))
  assert columns['extents.output_1'].tolist() == pytest.approx(
      [np.log2(513)] * 2)
  assert columns['trips.output_1'].tolist() == pytest.approx([1, np.log2(3)])
  assert not columns['extents.kernel_0'].any()


def test_odd_kernels_have_finite_columns():
  for kernel in tiny_kernels.corner_cases():
    for reading in booster.READINGS:
      assert np.isfinite(booster.table([kernel], reading)).all()


def test_lightgbm_is_a_row(tmp_path):
  pytest.importorskip('lightgbm', reason='LightGBM is not installed')
  root = tiny_kernels.write_data_root(tmp_path / 'data')
  row = accuracy_run.run(accuracy_run.RunSpec(
      'tile', 'tiny', str(root), 'LightGBM', 'LightGBM', '{"trees": 100}', 4,
      1, '', '', str(tmp_path / 'run'), '', 1))
  assert (row['valid_kernels'], row['test_kernels']) == (12, 6)
  # The runtimes follow the first column of the configurations.
  assert row['valid_micro_opa'] > 0.9 and row['test_micro_opa'] > 0.9
  assert 'lightgbm ' in row['versions']
  assert row['best_epoch'] % booster.EVERY == 0


class OutputBounds:
  """Stands in for trees: a configuration's score is its first bound."""

  def predict(self, rows, **_):
    before = 3 * len(schema.NODE_FEATURES) + schema.NUM_OPCODES
    return -rows[:, before + schema.CONFIG_GROUPS['output_bounds'].start]


def test_a_booster_is_measured_as_a_ranker_is():
  # The largest bound is the fastest; it is there twice, and counts once.
  kernel = kernel_of([('copy', [8, 8], [1, 0])], [],
                     [[8, 8], [8, 8], [4, 8], [2, 8]], runtime=[1, 1, 4, 2])
  trained = booster.Booster(
      OutputBounds(), IN_ELEMENTS, booster.Settings(), 50, 1.5)
  result, = evaluate.measure(trained, [kernel], 'these').itertuples()
  assert (result.configs, result.repeats) == (4, 1)
  # Of five pairs that differ, one is wrong: that of bounds 4 and 2.
  assert result.opa == pytest.approx(4 / 5)
  assert result.slowdown_1 == 0
