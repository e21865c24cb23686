"""Intervals of means over kernels."""

import math

import numpy as np
import pytest

from tpu_graphs_ext.engine import statistics


def test_an_interval_of_two_values():
  # Means of two draws from 0 and 1: 0, 1/2, 1 with chances 1/4, 1/2, 1/4. So
  # 95 % of them reach from 0 to 1.
  assert statistics.bootstrap_interval([0, 1]) == (0.0, 1.0)


def test_equal_values_leave_no_doubt():
  assert statistics.bootstrap_interval([0.25] * 9) == (0.25, 0.25)


def test_an_interval_of_many_values_is_that_of_the_normal_distribution(
    monkeypatch):
  values = np.arange(1000.0)
  low, high = statistics.bootstrap_interval(values)
  # Mean 499.5, standard deviation sqrt((1000**2 - 1) / 12) = 288.7: of the
  # mean 288.7 / sqrt(1000) = 9.13, times 1.96 = 17.9.
  assert low == pytest.approx(499.5 - 17.9, abs=1.5)
  assert high == pytest.approx(499.5 + 17.9, abs=1.5)
  # 130 resamples at once instead of 1048: they are the same.
  monkeypatch.setattr(statistics, '_MOST_DRAWN', 130_000)
  assert statistics.bootstrap_interval(values) == (low, high)


def test_what_is_undefined_is_left_out():
  assert statistics.bootstrap_interval([0, math.nan, 1]) == (0.0, 1.0)
  for few in ([], [7], [math.nan, 7]):
    assert all(map(math.isnan, statistics.bootstrap_interval(few)))


def test_pairs_tell_models_apart_whose_intervals_overlap():
  a = np.arange(50.0)  # Kernels differ by up to 49, the models by 1 or 2.
  b = a + np.tile([1, 2], 25)
  mean, low, high = statistics.paired_difference(a, b)
  assert mean == -1.5
  # Deviation of the differences 0.5, of their mean 0.5 / sqrt(50) = 0.0707,
  # times 1.96 = 0.139.
  assert low == pytest.approx(-1.5 - 0.139, abs=0.03)
  assert high == pytest.approx(-1.5 + 0.139, abs=0.03)
  assert (statistics.bootstrap_interval(a)[1]
          > statistics.bootstrap_interval(b)[0])


def test_pairs_by_name():
  a = {'net_0': 5.0, 'net_1': 1.0, 'net_2': math.nan}
  b = {'net_2': 9.0, 'net_1': 0.0, 'net_0': 2.0}
  # 5 - 2 = 3 and 1 - 0 = 1; the third is undefined.
  assert statistics.paired_difference(a, b) == (2.0, 1.0, 3.0)
  mean, low, high = statistics.paired_difference({'x': 4}, {'x': 3})
  assert mean == 1.0 and math.isnan(low) and math.isnan(high)
  assert math.isnan(statistics.paired_difference({}, {})[0])


def test_pairs_are_of_the_same_kernels():
  with pytest.raises(ValueError, match='2 kernels are only in one of the two'):
    statistics.paired_difference({'net_0': 1.0}, {'net_1': 1.0})
  with pytest.raises(ValueError):
    statistics.paired_difference([1, 2, 3], [1, 2])
