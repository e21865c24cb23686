"""Metrics against sums done by hand."""

import itertools
import math

import numpy as np
import pytest

from tpu_graphs_ext.engine import metrics


@pytest.mark.parametrize('k, expected', [
    (1, 1.0),   # Chosen: 2.0; 2.0 / 1.0 - 1.
    (2, 0.2),   # Chosen: 2.0 and 1.2; 1.2 / 1.0 - 1.
    (3, 0.0),   # All three.
    (9, 0.0),   # More than there are.
])
def test_top_k_slowdown(k, expected):
  runtime = np.array([1.0, 1.2, 2.0])
  scores = np.array([3.0, 2.0, 1.0])
  assert metrics.top_k_slowdown(runtime, scores, k) == pytest.approx(expected)


def test_equal_scores_keep_the_order_of_the_file():
  # Both have score 0: index 0 (3.0) is chosen, 3.0 / 2.0 - 1 = 0.5.
  assert metrics.top_k_slowdown([3.0, 2.0], np.zeros(2), 1) == 0.5
  np.testing.assert_array_equal(
      metrics.best_first(np.array([1, 0, 1, 0])), [1, 3, 0, 2])


def test_one_config_has_no_slowdown():
  assert metrics.top_k_slowdown([7.0], [0.0], 1) == 0.0


def test_slowdown_rejects_k_0_and_unlike_lengths():
  with pytest.raises(ValueError, match='k must be at least 1; got 0'):
    metrics.top_k_slowdown([1.0], [1.0], 0)
  with pytest.raises(ValueError, match=r'got shapes \(2,\) and \(1,\)'):
    metrics.top_k_slowdown([1.0, 2.0], [1.0], 1)
  with pytest.raises(ValueError, match='at least 1'):
    metrics.top_k_slowdown([], [], 1)


def test_pairs_with_ties():
  # Pairs by index. Runtimes 1 1 2 3, scores 0 5 5 4.
  #   01 runtime tied; 02 up, up; 03 up, up; 12 up, score tied; 13 up, down;
  #   23 up, down.
  counts = metrics.PairCounts.of([1, 1, 2, 3], [0, 5, 5, 4])
  assert counts == metrics.PairCounts(
      concordant=2, discordant=2, ordered_by_runtime=5, ordered_by_score=5)
  assert counts.opa == 2 / 5
  assert counts.kendall == 0.0


def test_perfect_and_opposite_order():
  assert metrics.ordered_pair_accuracy([1, 2, 3], [10, 20, 30]) == 1.0
  assert metrics.kendall_tau_b([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
  assert metrics.ordered_pair_accuracy([1, 2, 3], [3, 2, 1]) == 0.0
  assert metrics.kendall_tau_b([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)


def test_tau_b_corrects_for_a_tie():
  # Pairs: 01 up, up; 02 up, up; 12 up, tied. (2 - 0) / sqrt(3 * 2).
  assert metrics.kendall_tau_b([1, 2, 3], [0, 1, 1]) == pytest.approx(
      2 / math.sqrt(6))


def test_undefined_is_nan():
  assert math.isnan(metrics.ordered_pair_accuracy([5, 5], [1, 2]))
  assert math.isnan(metrics.kendall_tau_b([5, 5], [1, 2]))
  assert math.isnan(metrics.kendall_tau_b([1, 2], [3, 3]))
  assert metrics.ordered_pair_accuracy([1, 2], [3, 3]) == 0.0  # Ties: wrong.
  assert math.isnan(metrics.ordered_pair_accuracy([5], [1]))


def test_counts_equal_a_loop_over_all_pairs():
  rng = np.random.default_rng(0)
  for n in (1, 2, 7, 40, 65):
    runtime = rng.integers(0, max(2, n // 2), n)  # Many ties.
    scores = rng.integers(0, max(2, n // 3), n)
    agree = [np.sign(runtime[i] - runtime[j]) * np.sign(scores[i] - scores[j])
             for i, j in itertools.combinations(range(n), 2)]
    counts = metrics.PairCounts.of(runtime, scores)
    assert counts.concordant == sum(a > 0 for a in agree)
    assert counts.discordant == sum(a < 0 for a in agree)


def test_ten_thousand_configs_are_quick_and_exact():
  n = 10_000
  # The last moves to the front: n - 1 discordant pairs of n (n - 1) / 2.
  scores = np.roll(np.arange(n), 1)
  counts = metrics.PairCounts.of(np.arange(n), scores)
  assert counts.discordant == n - 1
  assert counts.concordant == n * (n - 1) // 2 - (n - 1)


@pytest.mark.parametrize('k, expected', [
    (1, 2 / 3),  # 1, 2 or 2: mean 5 / 3.
    (2, 1 / 3),  # {1, 2}, {1, 2}, {2, 2}: mean 4 / 3.
    (3, 0.0), (4, 0.0)])
def test_random_choice(k, expected):
  runtime = np.array([2.0, 1.0, 2.0])
  assert metrics.random_slowdown(
      runtime, np.zeros(3, bool), k) == pytest.approx(expected)


def test_random_choice_tries_repetitions_last():
  # Tiles 4 and 2; repetitions 1 and 3 of them.
  runtime = np.array([4.0, 2.0, 1.0, 3.0])
  repeats = np.array([False, False, True, True])
  # One: 4 or 2, mean 3. Two: both, 2. Three: with the 1, or with the 3, mean
  # of 1 and 2. Four: all, 1.
  for k, least in ((1, 3.0), (2, 2.0), (3, 1.5), (4, 1.0), (5, 1.0)):
    assert metrics.random_slowdown(
        runtime, repeats, k) == pytest.approx(least - 1)


def test_random_choice_equals_all_draws():
  rng = np.random.default_rng(0)
  runtime = rng.integers(1, 9, 7).astype(float)
  for k in range(1, 8):
    least = [min(drawn) for drawn in itertools.combinations(runtime, k)]
    assert metrics.random_slowdown(
        runtime, np.zeros(7, bool), k) == pytest.approx(
            np.mean(least) / runtime.min() - 1)


def test_random_choice_of_many():
  n, k = 20_000, 10
  # Of 1 .. n the least of k is (n + 1) / (k + 1) on average.
  assert metrics.random_slowdown(
      np.arange(1.0, n + 1), np.zeros(n, bool), k) == pytest.approx(
          (n + 1) / (k + 1) - 1)


def test_default_tile():
  # The default's own relative runtime is 1, listed or not.
  assert metrics.default_slowdown(np.array([1.0, 0.8, 2.0])) == pytest.approx(
      0.25)
  assert metrics.default_slowdown(np.array([2.0, 1.25])) == pytest.approx(-0.2)
