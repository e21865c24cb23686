"""Repetitions of a tile in `forward`: found exactly, and put last."""

import numpy as np
import pytest

from tpu_graphs_ext import load_models

models = load_models.models_module()


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
        np.argsort(marked)[100:],
        100 + np.argsort(scores[100:], kind='stable'))
