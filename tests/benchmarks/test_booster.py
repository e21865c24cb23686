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
  groups = booster.columns(product(), IN_ELEMENTS)
  np.testing.assert_array_equal(
      booster.table([product()], IN_ELEMENTS),
      np.concatenate([*groups.values()], 1))
  # Six axes and their product, of the output, then of the operand.
  for group, of_output, of_kernel in (
      ('extents', [5, 300, 0, 0, 0, 0, 1500], [20, 300, 0, 0, 0, 0, 6000]),
      ('trips', [3, 3, 1, 1, 1, 1, 9], [3, 3, 1, 1, 1, 1, 9])):
    np.testing.assert_allclose(
        groups[group][0], booster.log(np.array(of_output + of_kernel)),
        rtol=1e-6)
  # 5 by 2 and 300 by 128 leave 1 and 44; 3 tiles of 2 cover 6 of 5, 3 of 128
  # cover 384 of 300.
  np.testing.assert_allclose(groups['remainders'][0, :12], [
      booster.log(1), booster.log(44), 0, 0, 0, 0,
      np.log2(6 / 5), np.log2(384 / 300), 0, 0, 0, 0], rtol=1e-6)
  # The most minor of the output is dimension 1, of the operand dimension 0.
  np.testing.assert_allclose(
      groups['minor'][0, [0, 18]], booster.log(np.array([128, 7])), rtol=1e-6)


def test_what_bounds_mean_is_read_off_the_largest():
  assert booster.reading_of([product()]) == IN_ELEMENTS
  tpu = kernel_of([('copy', [20, 300], [0, 1])], [], [[38, 1], [19, 1]])
  assert booster.reading_of([tpu]) == booster.Reading()


def test_a_reduction_is_tiled_as_its_operand():
  groups = booster.columns(kernel_of(
      [('parameter', [6, 512, 40], [2, 1, 0]), ('reduce', [6, 40], [1, 0])],
      [(1, 0)], [[6, 512, 40], [6, 256, 40]]), IN_ELEMENTS)
  assert groups['trips'][:, 1].tolist() == pytest.approx([1, np.log2(3)])
  assert not groups['extents'][:, 7:].any()


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
