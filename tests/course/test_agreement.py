"""When a choice of configurations follows from scores."""

import numpy as np
import pytest

from tpu_graphs_ext.course import agreement

# Lowest first: 2, 0, 1, 3.
SCORES = {'a': np.array([0.2, 0.3, 0.1, 0.9])}


@pytest.mark.parametrize('places, expected', [
    ([2, 0, 1, 3], 'same'),
    ([2, 0], 'same'),  # Two places.
    ([2, 0, 1, 3, 0, 0], 'same'),  # Six places, padded.
    ([2, 1, 0, 3], 'different'), ([0, 2], 'different'),
    ([2, 0, 1, 3, 1, 0], 'impossible'),  # Padded with something.
    ([2, 0, 1, 0, 0, 0], 'impossible'),  # Padded too early.
    ([2, 2], 'impossible'), ([2, 4], 'impossible'), ([-1, 2], 'impossible')])
def test_one_kernel(places, expected):
  found = agreement.compare({'a': places}, SCORES)
  assert getattr(found, expected) == ['a']
  assert found.odd == ([] if expected == 'same' else ['a'])


def test_equal_but_for_rounding():
  """The tolerance is 1e-5 of the largest score: 1e-4 of 10."""
  near = {'a': np.array([1.0, 1.0 + 5e-5, 10.0])}
  assert not agreement.compare({'a': [1, 0, 2]}, near).odd
  far = {'a': np.array([1.0, 1.0 + 5e-4, 10.0])}
  assert agreement.compare({'a': [1, 0, 2]}, far).odd == ['a']


def test_one_large_kernel_does_not_hide_another():
  """The tolerance of a is 1e-5 of the middle kernel's size, 1."""
  scores = {'a': np.array([0.0, 0.1]), 'b': np.array([0.0, 1.0]),
            'c': np.array([0.0, 1e6])}
  found = agreement.compare({'a': [1, 0], 'b': [0, 1], 'c': [0, 1]}, scores)
  assert (found.same, found.different) == (['b', 'c'], ['a'])


def test_unknown_and_missing():
  found = agreement.compare({'b': [0, 1]}, SCORES)
  assert (found.unknown, found.missing, found.same) == (['b'], ['a'], [])
