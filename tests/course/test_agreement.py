"""When a choice of configurations follows from scores."""

import numpy as np
import pytest

from tpu_graphs_ext.course import agreement
from tpu_graphs_ext.course.agreement import DIFFERENT, IMPOSSIBLE

# Lowest first: 2, 0, 1, 3.
SCORES = {'a': np.array([0.2, 0.3, 0.1, 0.9])}


@pytest.mark.parametrize('places, expected', [
    ([2, 0, 1, 3], None),
    ([2, 0], None),  # Two places.
    ([2, 0, 1, 3, 0, 0], None),  # Six places, padded.
    ([2, 1, 0, 3], DIFFERENT), ([0, 2], DIFFERENT),
    ([2, 0, 1, 3, 1, 0], IMPOSSIBLE),  # Padded with something.
    ([2, 0, 1, 0, 0, 0], IMPOSSIBLE),  # Padded too early.
    ([2, 2], IMPOSSIBLE), ([2, 4], IMPOSSIBLE), ([-1, 2], IMPOSSIBLE)])
def test_one_kernel(places, expected):
  found = agreement.differences({'a': places}, SCORES)
  assert found == ({'a': expected} if expected else {})
  assert agreement.differences({'b': places}, SCORES) == {
      'b': agreement.UNKNOWN, 'a': agreement.MISSING}


def test_equal_but_for_rounding():
  """The tolerance is 1e-5 of the largest score: 1e-4 of 10."""
  near = {'a': np.array([1.0, 1.0 + 5e-5, 10.0])}
  assert not agreement.differences({'a': [1, 0, 2]}, near)
  far = {'a': np.array([1.0, 1.0 + 5e-4, 10.0])}
  assert [*agreement.differences({'a': [1, 0, 2]}, far)] == ['a']


def test_one_large_kernel_does_not_hide_another():
  """The tolerance of a is 1e-5 of the middle kernel's size, 1."""
  scores = {'a': np.array([0.0, 0.1]), 'b': np.array([0.0, 1.0]),
            'c': np.array([0.0, 1e6])}
  assert agreement.differences(
      {'a': [1, 0], 'b': [0, 1], 'c': [0, 1]}, scores) == {'a': DIFFERENT}
