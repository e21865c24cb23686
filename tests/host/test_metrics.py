"""Metrics against sums done by hand."""

import itertools
import math

import numpy as np
import pytest

from tpu_graphs_ext.host import metrics


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
