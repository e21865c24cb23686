"""How good an order of configurations is, in plain NumPy.

Everywhere `runtime` float64 [configs] is measured time (in any unit, lower is
better) and `scores` float [configs] is what a model predicts, lower = faster.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

TOP_KS = (1, 5, 10)


def best_first(scores: np.ndarray) -> np.ndarray:
  """int64 [configs]: indices by ascending score; equal scores keep order."""
  return np.argsort(scores, kind='stable')


def top_k_slowdown(runtime: np.ndarray, scores: np.ndarray, k: int) -> float:
  """How much slower the best of the k chosen is than the best of all.

      slowdown = min(runtime[k lowest scores]) / min(runtime) - 1

  0.2 means: try the k configurations that the model likes most, keep the
  fastest, and it still is 20 % slower than the best there is. With k above the
  number of configurations nothing is missed and the slowdown is 0.

  Raises:
    ValueError: k < 1, no configurations, or the lengths differ.
  """
  runtime, scores = _pair(runtime, scores)
  if k < 1:
    raise ValueError(f'k must be at least 1; got {k}')
  return slowdown_of(runtime, best_first(scores)[:k])


def slowdown_of(runtime: np.ndarray, chosen: np.ndarray) -> float:
  """`top_k_slowdown` of the configurations with the indices `chosen`."""
  best = runtime.min()
  return float((runtime[chosen].min() - best) / best)


def default_slowdown(runtime_rel: np.ndarray) -> float:
  """How much slower the compiler's default tile is than the best of all.

      slowdown = 1 / min(runtime_rel) - 1

  Args:
    runtime_rel: float64 [configs], runtimes over that of the default tile,
      whose own is 1 thereby, wherever it is listed. Below 0 where the default
      is faster than all that are listed.
  """
  return float(1 / runtime_rel.min() - 1)


def random_slowdown(runtime: np.ndarray, repeats: np.ndarray,
                    k: int) -> float:
  """What `slowdown_of` is to be expected of k configurations drawn blindly.

  They are drawn without replacement, repetitions of a tile after all tiles, as
  a model's choices are. With the n runtimes sorted, r_1 the least, the least
  of k drawn is r_i with the chance C(n - i, k - 1) / C(n, k).

  Args:
    runtime: float64 [configs].
    repeats: bool [configs], which repeat the tile of an earlier one.
    k: at least 1; more than there are are all of them.
  """
  best, tiles = runtime.min(), runtime[~repeats]
  if k <= tiles.size:
    least = _expected_least(tiles, k)
  else:  # All tiles for sure, and some of the repetitions.
    again = np.minimum(runtime[repeats], tiles.min())
    rest = min(k - tiles.size, again.size)
    least = _expected_least(again, rest) if rest else tiles.min()
  return float((least - best) / best)


def _expected_least(values: np.ndarray, k: int) -> float:
  """Mean of the least of k of the values, over all ways to draw them."""
  place = np.arange(1, values.size)
  # Each chance from the one before: C has more digits than a float.
  steps = np.maximum(values.size - place - k + 1, 0) / (values.size - place)
  chance = k / values.size * np.cumprod(np.concatenate([[1.0], steps]))
  # Differences from the least, so that equal values give exactly that.
  ordered = np.sort(values)
  return float(ordered[0] + chance @ (ordered - ordered[0]))


@dataclasses.dataclass(frozen=True)
class PairCounts:
  """Pairs of configurations, by whether two orders agree on them.

  Attributes:
    concordant: runtime and score order the pair the same way.
    discordant: they order it the opposite way.
    ordered_by_runtime: pairs of unlike runtime.
    ordered_by_score: pairs of unlike score.
  """
  concordant: int
  discordant: int
  ordered_by_runtime: int
  ordered_by_score: int

  @classmethod
  def of(cls, runtime: np.ndarray, scores: np.ndarray) -> PairCounts:
    """Counts exactly."""
    runtime, scores = _pair(runtime, scores)
    n = runtime.size
    pairs = n * (n - 1) // 2
    tied_runtime, runtime = _tied_pairs(runtime)
    tied_score, scores = _tied_pairs(scores)
    tied_both, _ = _tied_pairs(n * runtime + scores)
    ordered = pairs - tied_runtime - tied_score + tied_both
    more = 0  # How many more are concordant than discordant.
    if ordered:  # Then tau is defined, and comes in O(n log n) time.
      from scipy import stats  # Takes a second, which not all need.
      # Of two values no other method gives a p-value, which nobody needs.
      tau = stats.kendalltau(runtime, scores, method=(
          'asymptotic' if n > 2 else 'exact')).statistic
      more = round(tau * math.sqrt(
          (pairs - tied_runtime) * (pairs - tied_score)))
    discordant = (ordered - more) // 2
    return cls(
        concordant=ordered - discordant,
        discordant=discordant,
        ordered_by_runtime=pairs - tied_runtime,
        ordered_by_score=pairs - tied_score)

  @property
  def opa(self) -> float:
    """Ordered pair accuracy; NaN where all runtimes are equal."""
    if not self.ordered_by_runtime:
      return math.nan
    return self.concordant / self.ordered_by_runtime

  @property
  def kendall(self) -> float:
    """Kendall's tau-b; NaN where all runtimes or all scores are equal."""
    if not self.ordered_by_runtime or not self.ordered_by_score:
      return math.nan
    return (self.concordant - self.discordant) / math.sqrt(
        self.ordered_by_runtime * self.ordered_by_score)


def ordered_pair_accuracy(runtime: np.ndarray, scores: np.ndarray) -> float:
  """Share of the pairs of unlike runtime that the scores order alike, 0..1.

  Equal scores on such a pair count as wrong, as in TensorFlow Ranking's
  `OPAMetric`. NaN where no two runtimes differ.
  """
  return PairCounts.of(runtime, scores).opa


def kendall_tau_b(runtime: np.ndarray, scores: np.ndarray) -> float:
  """Rank correlation of runtime and scores, -1..1, corrected for ties.

      tau_b = (concordant - discordant)
              / sqrt(pairs of unlike runtime * pairs of unlike score)

  NaN where all runtimes or all scores are equal.
  """
  return PairCounts.of(runtime, scores).kendall


def _pair(runtime, scores) -> tuple[np.ndarray, np.ndarray]:
  runtime = np.asarray(runtime, np.float64)
  scores = np.asarray(scores)
  if runtime.ndim != 1 or runtime.shape != scores.shape or not runtime.size:
    raise ValueError(
        'runtime and scores must be vectors of one length, at least 1; got '
        f'shapes {runtime.shape} and {scores.shape}')
  return runtime, scores


def _tied_pairs(values: np.ndarray) -> tuple[int, np.ndarray]:
  """How many pairs are equal, and dense ranks of the values: int64 [values]."""
  _, ranks, counts = np.unique(
      values, return_inverse=True, return_counts=True)
  return int((counts * (counts - 1) // 2).sum()), ranks.astype(np.int64)
