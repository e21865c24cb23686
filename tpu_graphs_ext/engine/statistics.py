"""How sure a mean over kernels is, by drawing the kernels again and again.

The slowdowns of kernels are far from a normal distribution: most are near 0,
a few are large. The bootstrap asks for no distribution. Source: Efron and
Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentiles).
The intervals are of kernels drawn like these; where all kernels are of one
program they say nothing of other programs. Of few values they come out too
narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Union

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
# Values that are drawn at once: 8 MB of them, and as much of their places.
_MOST_DRAWN = 1 << 20

Values = Union[Sequence[float], np.ndarray]


def bootstrap_interval(values: Values) -> tuple[float, float]:
  """Interval that holds 95 % of the means of resampled values.

  Each of 2,000 resamples draws as many values as there are, with replacement.
  Equal values give equal intervals.

  Args:
    values: float [values], in any order; NaN members are left out.

  Returns:
    (low, high) in the unit of the values; NaN twice where fewer than two
    values are left, as one value says nothing of how values differ.
  """
  values = np.asarray(values, np.float64)
  values = values[~np.isnan(values)]
  if values.size < 2:
    return math.nan, math.nan
  chance, found = np.random.default_rng(0), []
  at_once = max(1, _MOST_DRAWN // values.size)
  for done in range(0, RESAMPLES, at_once):
    shape = min(at_once, RESAMPLES - done), values.size
    found.append(values[chance.integers(values.size, size=shape)].mean(axis=1))
  low, high = np.quantile(
      np.concatenate(found), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
  return float(low), float(high)


def paired_difference(
    a: Union[Values, Mapping[str, float]],
    b: Union[Values, Mapping[str, float]]) -> tuple[float, float, float]:
  """Mean of a - b over kernels, with its interval.

  Pairs take the differences between kernels out, which are larger than those
  between models, so this tells models apart whose own intervals overlap.

  Args:
    a: a measure of each kernel: float [kernels], or tile id -> value.
    b: the same measure of the same kernels, in the same order or by the same
      ids. Pairs with a NaN are left out.

  Returns:
    (mean difference, low, high) in the unit of the measure. Chance alone, in
    which kernels these are, seldom gives an interval without 0 in it. NaN
    where there are too few pairs.

  Raises:
    ValueError: the two are not of the same kernels.
  """
  if isinstance(a, Mapping):
    if a.keys() != b.keys():
      raise ValueError(f'{len(a.keys() ^ b.keys())} kernels are only in one of '
                       'the two')
    a, b = [a[name] for name in a], [b[name] for name in a]
  difference = np.subtract(a, b, dtype=np.float64)
  difference = difference[~np.isnan(difference)]
  mean = float(difference.mean()) if difference.size else math.nan
  return (mean, *bootstrap_interval(difference))
