"""When a choice of configurations follows from scores."""

import numpy as np
import pytest

from tpu_graphs_ext.course import agreement
from tpu_graphs_ext.course.agreement import DIFFERENT, OTHER_DATA

# Lowest first: 2, 0, 1, 3.
SCORES = {'a': np.array([0.2, 0.3, 0.1, 0.9])}


@pytest.mark.parametrize('places, expected', [
    ([2, 0, 1, 3], None),
    ([2, 0], None),  # Two places.
    ([2, 0, 1, 3, 0, 0], None),  # Six places, padded.
    ([2, 1, 0, 3], DIFFERENT), ([0, 2], DIFFERENT),
    ([2, 0, 1, 3, 1, 0], OTHER_DATA),  # Padded with something.
    ([2, 0, 1, 0, 0, 0], OTHER_DATA),  # Padded too early.
    ([2, 2], OTHER_DATA), ([2, 4], OTHER_DATA), ([-1, 2], OTHER_DATA)])
def test_one_kernel(places, expected):
  faults = agreement.differences({'a': places}, SCORES)
  assert faults == ({'a': expected} if expected else {})
  assert agreement.differences({'b': places}, SCORES) == {
      'a': OTHER_DATA, 'b': OTHER_DATA}


def test_equal_but_for_rounding():
  """The tolerance is 1e-5 of the largest score, or of the middle kernel's."""
  for second, kernels in ((1.0 + 5e-5, []), (1.0 + 5e-4, ['a'])):
    near = {'a': np.array([1.0, second, 10.0])}
    assert [*agreement.differences({'a': [1, 0, 2]}, near)] == kernels
  scores = {'a': np.array([0.0, 0.1]), 'b': np.array([0.0, 1.0]),
            'c': np.array([0.0, 1e6])}
  assert agreement.differences(
      {'a': [1, 0], 'b': [0, 1], 'c': [0, 1]}, scores) == {'a': DIFFERENT}
  scores['a'] /= 2e4  # 5e-6; the middle kernel's tolerance is 1e-5.
  assert not agreement.differences(
      {'a': [1, 0], 'b': [0, 1], 'c': [0, 1]}, scores)
