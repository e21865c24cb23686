"""Metrics and intervals against sums done by hand."""

import itertools
import math

import numpy as np
import pytest

from tpu_graphs_ext.engine import metrics


def test_pairs_by_hand():
  # Pairs by index. Runtimes 1 1 2 3, scores 0 5 5 4.
  #   01 runtime tied; 02 up, up; 03 up, up; 12 up, score tied; 13 up, down;
  #   23 up, down: 2 concordant, 2 discordant, 5 of different runtime.
  assert metrics.pair_agreement([1, 1, 2, 3], [0, 5, 5, 4]) == (2 / 5, 0.0)
  assert metrics.pair_agreement([1, 2, 3], [10, 20, 30]) == (1.0, 1.0)
  assert metrics.pair_agreement([1, 2, 3], [3, 2, 1]) == (0.0, -1.0)
  # Pairs: 01 up, up; 02 up, up; 12 up, tied. (2 - 0) / sqrt(3 * 2).
  assert metrics.pair_agreement([1, 2, 3], [0, 1, 1])[1] == pytest.approx(
      2 / math.sqrt(6))
  assert all(map(math.isnan, metrics.pair_agreement([5, 5], [1, 2])))
  opa, tau = metrics.pair_agreement([1, 2], [3, 3])  # Ties count as wrong.
  assert opa == 0.0 and math.isnan(tau)


def test_pairs_equal_a_loop_over_all_pairs():
  rng = np.random.default_rng(0)
  for n in (7, 40, 65):
    runtime = rng.integers(0, max(2, n // 2), n)  # Many ties.
    scores = rng.integers(0, max(2, n // 3), n)
    agree = [np.sign(runtime[i] - runtime[j]) * np.sign(scores[i] - scores[j])
             for i, j in itertools.combinations(range(n), 2)]
    ordered = [sum(x != y for x, y in itertools.combinations(values, 2))
               for values in (runtime, scores)]
    assert metrics.pair_agreement(runtime, scores) == (
        sum(a > 0 for a in agree) / ordered[0],
        sum(agree) / math.sqrt(math.prod(ordered)))


def test_random_choice():
  # Tiles 4 and 2; duplicates 1 and 3 of them.
  # One: 4 or 2, mean 3. Two: both, 2. Three: with the 1, or with the 3, mean
  # of 1 and 2. Four: all, 1.
  for k, least in ((1, 3.0), (2, 2.0), (3, 1.5), (4, 1.0), (5, 1.0)):
    assert metrics.random_slowdown(
        np.array([4.0, 2.0, 1.0, 3.0]),
        np.array([False, False, True, True]), k) == pytest.approx(least - 1)
  runtime = np.random.default_rng(0).integers(1, 9, 7).astype(float)
  for k in range(1, 8):
    least = [min(drawn) for drawn in itertools.combinations(runtime, k)]
    assert metrics.random_slowdown(
        runtime, np.zeros(7, bool), k) == pytest.approx(
            np.mean(least) / runtime.min() - 1)
  n, k = 20_000, 10
  # Of 1 .. n the least of k is (n + 1) / (k + 1) on average.
  assert metrics.random_slowdown(
      np.arange(1.0, n + 1), np.zeros(n, bool), k) == pytest.approx(
          (n + 1) / (k + 1) - 1)


def test_intervals():
  # Means of two draws from 0 and 1: 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
  # So 95 % of them reach from 0 to 1. NaN is left out.
  assert metrics.bootstrap_interval([0, math.nan, 1]) == (0.0, 1.0)
  assert all(map(math.isnan, metrics.bootstrap_interval([math.nan, 7])))
  values = np.arange(1000.0)
  low, high = metrics.bootstrap_interval(values)
  # Mean 499.5, standard deviation sqrt((1000**2 - 1) / 12) = 288.7: of the
  # mean 288.7 / sqrt(1000) = 9.13, times 1.96 = 17.9.
  assert low == pytest.approx(499.5 - 17.9, abs=1.5)
  assert high == pytest.approx(499.5 + 17.9, abs=1.5)


def test_paired_differences():
  a = np.arange(50.0)  # Kernels differ by up to 49, the models by 1 or 2.
  b = a + np.tile([1, 2], 25)
  mean, low, high = metrics.paired_difference(a, b)
  assert mean == -1.5
  # Deviation of the differences 0.5, of their mean 0.5 / sqrt(50) = 0.0707,
  # times 1.96 = 0.139: apart, though their own intervals overlap.
  assert low == pytest.approx(-1.5 - 0.139, abs=0.03)
  assert high == pytest.approx(-1.5 + 0.139, abs=0.03)
