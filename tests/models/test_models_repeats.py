"""Repetitions of a tile in `forward`: found exactly, and put last."""

import numpy as np
import pytest

from tpu_graphs_ext import load_models

models = load_models.models_module()


def first_copies(*kernels):
  return models._first_copies(np.array(kernels, np.float32)).numpy()


def repeats_last(scores, tiles):
  """The scores of one kernel whose features are one column, `tiles`."""
  return models._with_repeats_last(
      np.array([scores], np.float32),
      np.array(tiles, np.float32)[np.newaxis, :, np.newaxis]).numpy()[0]


def test_first_copies_are_counted_through_the_batch_and_kept_apart():
  a, b, c = [0, 1], [1, 0], [1, 1]
  np.testing.assert_array_equal(
      first_copies([a, b, a, b], [c, a, c, c]), [[0, 1, 0, 1], [4, 5, 4, 4]])


def test_rows_that_differ_in_one_bit_are_two():
  near = np.nextafter(np.float32(0.1), np.float32(1))
  np.testing.assert_array_equal(
      first_copies([[5, 0.1], [5, near], [5, 0.1], [0.0, 1], [-0.0, 1]]),
      [[0, 1, 0, 3, 3]])


def test_without_any_column_all_are_alike():
  np.testing.assert_array_equal(
      models._first_copies(np.zeros([2, 3, 0], np.float32)),
      [[0, 0, 0], [3, 3, 3]])


def test_first_copies_of_ten_thousand_rows():
  """Powers of two and differences in one column alone, as in real tiles."""
  rng = np.random.default_rng(0)
  rows = 2.0 ** rng.integers(0, 6, [10_000, 21])
  rows[5_000:, :20] = 1  # Of these, 6 rows are unlike.
  rows[rng.permutation(5_000)[:1_000]] = rows[17]
  seen = {}
  expected = [seen.setdefault(row.tobytes(), i) for i, row in enumerate(rows)]
  np.testing.assert_array_equal(first_copies(rows), [expected])


def test_the_kth_repetition_is_k_steps_after_the_worst_tile():
  # Tiles 7 (score 5), 8 (1) and 9 (-8, the largest magnitude): a step is
  # 8 / 1024, and the worst is 5. The copies of 8 come first, then that of 7.
  step = 8 / 1024
  np.testing.assert_array_equal(
      repeats_last([5, 1, 1, -8, 5, 1], [7, 8, 8, 9, 7, 8]),
      [5, 1, 5 + step, -8, 5 + 3 * step, 5 + 2 * step])


def test_a_step_is_never_lost_in_small_numbers():
  """Processors may take numbers below 1e-38 for 0."""
  np.testing.assert_array_equal(
      repeats_last([1e-40, 0, 1e-40], [1, 2, 1]),
      np.float32([1e-40, 0, 1e-40 + 1 / 1024]))


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


def test_nothing_changes_where_all_or_none_are_alike():
  np.testing.assert_array_equal(repeats_last([3, 1, 2], [4, 4, 4]), [3, 1, 2])
  np.testing.assert_array_equal(repeats_last([3, 1, 2], [4, 5, 6]), [3, 1, 2])
  np.testing.assert_array_equal(repeats_last([3], [4]), [3])


def test_kernels_of_a_batch_have_places_of_their_own():
  scores = np.float32([[1, 2, 2], [30, 20, 30]])
  feats = np.float32([[[0], [1], [1]], [[0], [1], [0]]])
  np.testing.assert_array_equal(
      models._with_repeats_last(scores, feats),
      np.float32([[1, 2, 2 + 2 / 1024], [30, 20, 30 + 30 / 1024]]))


def test_scores_of_copies_that_were_rounded_apart_do_not_change_their_order():
  """The first copy speaks for its tile, wherever a chunk ended."""
  marked = repeats_last([1, 1.0000001, 0.9999999, 1], [8, 9, 9, 8])
  assert np.argsort(marked).tolist() == [0, 1, 3, 2]


def test_the_order_of_configurations_does_not_change_that_of_tiles():
  rng = np.random.default_rng(2)
  tiles = np.repeat(np.arange(40), rng.integers(1, 5, 40))
  scores = rng.permutation(40)[tiles]
  for _ in range(5):
    order = rng.permutation(tiles.size)
    best = np.argsort(repeats_last(scores[order], tiles[order]))
    np.testing.assert_array_equal(scores[order][best][:40], np.arange(40))
    assert (np.diff(scores[order][best][40:]) >= 0).all()
