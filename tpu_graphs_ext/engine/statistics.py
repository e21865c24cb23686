"""Confidence intervals for means over kernels, by the bootstrap.

Slowdowns are far from normal: most are near 0, a few are large. The bootstrap
assumes no distribution. Source: Efron and Tibshirani 1993, An Introduction to
the Bootstrap, chapter 13 (percentiles). Intervals are optimistic for few
values, and say nothing about kernels of other programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
# Values that are drawn at once: 8 MB, and as much for their indices.
_MOST_DRAWN = 1 << 20

Values = Union[Sequence[float], np.ndarray]


def bootstrap_interval(values: Values) -> tuple[float, float]:
  """95 % interval (low, high) of the mean, from 2,000 resamples.

  Equal values give equal intervals. NaN among the float [values] is left out;
  NaN twice for fewer than two values.
  """
  values = np.asarray(values, np.float64)
  values = values[~np.isnan(values)]
  if values.size < 2:
    return math.nan, math.nan
  from scipy import stats  # Takes a second, which not all need.
  means = stats.bootstrap(
      (values,), np.mean, n_resamples=RESAMPLES, method='percentile',
      batch=max(1, _MOST_DRAWN // values.size),
      random_state=np.random.default_rng(0)).bootstrap_distribution
  low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
  return float(low), float(high)


def paired_difference(a: Values, b: Values) -> tuple[float, float, float]:
  """Mean of a - b over kernels, and its interval: (mean, low, high).

  Pairing removes the differences between kernels, which are larger than those
  between models. `a` and `b` are float [kernels], a measure of the same kernels
  in the same order; pairs with a NaN are left out. NaN if too few are left.
  """
  difference = np.subtract(a, b, dtype=np.float64)
  difference = difference[~np.isnan(difference)]
  mean = float(difference.mean()) if difference.size else math.nan
  return (mean, *bootstrap_interval(difference))
