"""Quality of an order of configurations, and intervals of means.

Everywhere `runtime` float64 [configs] is measured time (in any unit, lower is
better) and `scores` float [configs] are predictions, lower = faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

import numpy as np

_MOST_DRAWN = 1 << 20  # Values at once: 8 MB, and as much for their indices.

Values = Union[Sequence[float], np.ndarray]


def slowdown_of(runtime: np.ndarray, chosen: np.ndarray) -> float:
  """How much slower the best of the chosen is than the best of all.

      slowdown = min(runtime[chosen]) / min(runtime) - 1

  `chosen` are indices. 0.2: the fastest of them is 20 % slower than the best.
  """
  best = runtime.min()
  return float((runtime[chosen].min() - best) / best)


def random_slowdown(runtime: np.ndarray, repeats: np.ndarray, k: int) -> float:
  """Expected `slowdown_of` k configurations drawn without replacement.

  Duplicates of a tile are drawn after all tiles, as a model's choices are:
  `repeats` bool [configs] are these. With the n runtimes sorted, r_1 the least,
  the least of k drawn is r_i with probability C(n - i, k - 1) / C(n, k).
  """
  best, tiles = runtime.min(), runtime[~repeats]
  if k <= tiles.size:
    least = _expected_least(tiles, k)
  else:  # All tiles for sure, and some of the duplicates.
    again = np.minimum(runtime[repeats], tiles.min())
    rest = min(k - tiles.size, again.size)
    least = _expected_least(again, rest) if rest else tiles.min()
  return float((least - best) / best)


def _expected_least(values: np.ndarray, k: int) -> float:
  """Mean of the least of k of the values, over all ways to draw them."""
  place = np.arange(1, values.size)
  # Each probability from the one before: C has more digits than a float.
  steps = np.maximum(values.size - place - k + 1, 0) / (values.size - place)
  chance = k / values.size * np.cumprod(np.concatenate([[1.0], steps]))
  # Differences from the least, so that equal values give exactly that.
  ordered = np.sort(values)
  return float(ordered[0] + chance @ (ordered - ordered[0]))


def pair_agreement(runtime: np.ndarray,
                   scores: np.ndarray) -> tuple[float, float]:
  """Ordered pair accuracy and Kendall's tau-b.

  Accuracy is the share of the pairs of different runtime that the scores order
  alike; equal scores count as wrong, as in TensorFlow Ranking's `OPAMetric`.
  Both are NaN where no two runtimes differ, tau also where no two scores do.

      tau_b = (concordant - discordant)
              / sqrt(pairs of different runtime * pairs of different score)
  """
  n = len(runtime)
  pairs = n * (n - 1) // 2
  tied_runtime, runtime = _tied_pairs(runtime)
  tied_score, scores = _tied_pairs(scores)
  tied_both, _ = _tied_pairs(n * runtime + scores)
  by_runtime, by_score = pairs - tied_runtime, pairs - tied_score
  ordered = by_runtime + by_score - pairs + tied_both
  surplus = 0  # Concordant less discordant pairs.
  if ordered:  # Then tau is defined.
    from scipy import stats  # Takes a second, which not all need.
    # For two values, only `exact` has a p-value to compute.
    surplus = round(math.sqrt(by_runtime * by_score) * stats.kendalltau(
        runtime, scores, method=('asymptotic' if n > 2 else 'exact')).statistic)
  concordant = ordered - (ordered - surplus) // 2
  return (concordant / by_runtime if by_runtime else math.nan,
          surplus / math.sqrt(by_runtime * by_score)
          if by_runtime and by_score else math.nan)


def _tied_pairs(values: np.ndarray) -> tuple[int, np.ndarray]:
  """Number of equal pairs, and dense ranks of the values: int64 [values]."""
  _, ranks, counts = np.unique(values, return_inverse=True, return_counts=True)
  return int((counts * (counts - 1) // 2).sum()), ranks.astype(np.int64)


def bootstrap_interval(values: Values) -> tuple[float, float]:
  """95 % interval (low, high) of the mean over kernels, optimistic for few.

  NaN is left out; NaN twice for fewer than two values.
  Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 13.
  """
  values = np.asarray(values, np.float64)
  values = values[~np.isnan(values)]
  if values.size < 2:
    return math.nan, math.nan
  from scipy import stats
  interval = stats.bootstrap(
      (values,), np.mean, n_resamples=2000, method='percentile',
      confidence_level=0.95, batch=max(1, _MOST_DRAWN // values.size),
      random_state=np.random.default_rng(0)).confidence_interval
  return float(interval.low), float(interval.high)


def paired_difference(a: Values, b: Values) -> tuple[float, float, float]:
  """Mean of a - b over kernels, and its interval: (mean, low, high).

  Pairs with a NaN are left out; NaN if too few are left.
  """
  difference = np.subtract(a, b, dtype=np.float64)
  difference = difference[~np.isnan(difference)]
  mean = float(difference.mean()) if difference.size else math.nan
  return (mean, *bootstrap_interval(difference))
