"""The columns of LightGBM by hand, and its rows where it is installed."""

import numpy as np
import pytest

import booster
import pretrained
from support import feature_tiles, tiny_kernels
from tpu_graphs_ext.data import read

IN_ELEMENTS = booster.Reading(in_elements=True)


def product():
  """[5, 20] x [20, 300], the second one stored column after column."""
  return feature_tiles.kernel_of_nodes(
      [('parameter', (5, 20), []),
       ('parameter', (20, 300), [], {'layout_minor_to_major': (0, 1)}),
       ('dot', (5, 300), [0, 1])],
      [(2, 128), (5, 300)], [(7, 128), (20, 300)])


def test_extents_by_what_bounds_mean():
  for in_elements, extents, minor_first in (
      (True, [20, 300], [0, 1]),
      # The second most minor: ceil(300 / 8); the most minor: ceil(20 / 128).
      (False, [38, 1], [1, 0])):
    reading = booster.Reading(in_elements)
    sizes, places = reading.extents(product().node_feat[1])
    assert sizes.tolist() == extents and places == minor_first
  assert booster.reading_of([product()]) == IN_ELEMENTS


def test_columns_of_the_axes():
  groups = booster.columns(product(), IN_ELEMENTS)
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


def test_odd_kernels_have_finite_columns():
  for kernel in tiny_kernels.corner_cases():
    for reading in (booster.Reading(), IN_ELEMENTS):
      assert np.isfinite(booster.table([kernel], reading)).all()


def test_lightgbm_is_measured_like_a_model(tmp_path):
  pytest.importorskip('lightgbm', reason='LightGBM is not installed')
  root = tiny_kernels.write_data_root(tmp_path / 'data')
  ranker = pretrained.trees(str(root), 4, 100)
  for split in ('valid', 'test_labelled'):
    # The runtimes follow the first column of the configurations.
    assert pretrained.measured(
        ranker, read.read_kernels(str(root / split))).mean['opa'] > 0.85
  assert ranker.best % booster.EVERY == 0
