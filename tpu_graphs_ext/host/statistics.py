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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
# Values that are drawn at once: 8 MB of them, and as much of their places.
_MOST_DRAWN = 1 << 20

Values = Union[Sequence[float], np.ndarray]


def bootstrap_interval(
    values: Values, *, statistic: Callable[..., Any] = np.mean,
    level: float = LEVEL, resamples: int = RESAMPLES,
    seed: int = 0) -> tuple[float, float]:
  """Interval that holds `level` of the statistics of resampled values.

  Each resample draws as many values as there are, with replacement. Equal
  arguments give equal intervals.

  Args:
    values: float [values], in any order; NaN members are left out.
    statistic: float [resamples, values], axis=1 -> float [resamples], as
      `np.mean` and `np.median`.
    level: part of the resamples between the two ends, above 0 and below 1.
    resamples: how many, at least 1.
    seed: of the draw.

  Returns:
    (low, high) in the unit of the values; NaN twice where fewer than two
    values are left, as one value says nothing of how values differ.

  Raises:
    ValueError: values are no vector, or level or resamples out of range.
  """
  values = np.asarray(values, np.float64)
  if values.ndim != 1:
    raise ValueError(f'values must be a vector; got shape {values.shape}')
  if not 0 < level < 1:
    raise ValueError(f'level must be above 0 and below 1; got {level}')
  if resamples < 1:
    raise ValueError(f'resamples must be at least 1; got {resamples}')
  values = values[~np.isnan(values)]
  if values.size < 2:
    return math.nan, math.nan
  chance = np.random.default_rng(seed)
  at_once = max(1, _MOST_DRAWN // values.size)
  found = []
  for done in range(0, resamples, at_once):
    shape = min(at_once, resamples - done), values.size
    places = chance.integers(values.size, size=shape)
    found.append(statistic(values[places], axis=1))
  low, high = np.quantile(
      np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
  return float(low), float(high)


def paired_difference(
    a: Union[Values, Mapping[str, float]],
    b: Union[Values, Mapping[str, float]], *, level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0) -> tuple[float, float, float]:
  """Mean of a - b over kernels, with its interval.

  Pairs take the differences between kernels out, which are larger than those
  between models, so this tells models apart whose own intervals overlap.

  Args:
    a: a measure of each kernel: float [kernels], or tile id -> value.
    b: the same measure of the same kernels, in the same order or by the same
      ids. Pairs with a NaN are left out.
    level: see `bootstrap_interval`, as of the other two.
    resamples: of the pairs.
    seed: of the draw.

  Returns:
    (mean difference, low, high) in the unit of the measure. Chance alone, in
    which kernels these are, seldom gives an interval without 0 in it. NaN
    where there are too few pairs.

  Raises:
    ValueError: the two are not of the same kernels.
  """
  if isinstance(a, Mapping) != isinstance(b, Mapping):
    raise ValueError('one of the two has names of kernels, the other has none')
  if isinstance(a, Mapping):
    unlike = sorted(set(a) ^ set(b))
    if unlike:
      raise ValueError(f'{len(unlike)} kernels are only in one of the two, '
                       f'first {unlike[0]}')
    a, b = [a[name] for name in a], [b[name] for name in a]
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  if a.shape != b.shape or a.ndim != 1:
    raise ValueError('a and b must be vectors of one length; got shapes '
                     f'{a.shape} and {b.shape}')
  difference = a - b
  difference = difference[~np.isnan(difference)]
  mean = float(difference.mean()) if difference.size else math.nan
  return (mean, *bootstrap_interval(
      difference, level=level, resamples=resamples, seed=seed))
