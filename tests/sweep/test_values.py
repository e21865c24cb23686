"""Values, lists and ranges of a grid."""

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import values


def points(given):
  return values.parsed(given, 'g.json: x', is_search=False).tested()


@pytest.mark.parametrize('given, expected', [
    (3, [3]), ('cosine', ['cosine']), (None, [None]), ([1, 2.5], [1, 2.5]),
    ([[1], {'a': 2}], [[1], {'a': 2}]), ({'value': [1, 2]}, [[1, 2]]),
    ({'min': 1, 'max': 4, 'step': 1}, [1, 2, 3, 4]),
    ({'min': 1, 'max': 4, 'step': 2}, [1, 3]),
    ({'min': 0, 'max': 0.3, 'step': 0.1}, [0, 0.1, 0.2, 0.30000000000000004]),
    ({'min': 1e-4, 'max': 1e-2, 'count': 3, 'log': True}, [1e-4, 1e-3, 1e-2]),
    ({'min': 8, 'max': 128, 'count': 5, 'log': True}, [8, 16, 32, 64, 128]),
    ({'min': 1, 'max': 3, 'count': 9}, [1, 2, 3]),  # Whole ones, once each.
])
def test_points_of_a_grid(given, expected):
  found = points(given)
  assert list(found) == expected
  assert list(map(type, found))[-1] is type(expected[-1])


@pytest.mark.parametrize('given, said', [
    ([], 'g.json: x: is an empty list'),
    ([1, 2, 1], 'g.json: x: has 1 twice'),
    ({'min': 1, 'max': 2, 'cuont': 2}, "unknown key 'cuont'; did you mean "
                                       'count'),
    ({'a': 1}, 'write an object that is itself the value as {"value"'),
    ({'min': 1}, "g.json: x: is a range without 'max'"),
    ({'min': 'a', 'max': 2}, "g.json: x.min: must be a number; got 'a'"),
    ({'min': True, 'max': 2}, 'g.json: x.min: must be a number; got True'),
    ({'min': 2, 'max': 2, 'step': 1}, 'min must be below max; got 2 and 2'),
    ({'min': 1, 'max': 2}, 'g.json: x: how many numbers?'),
    ({'min': 1, 'max': 2, 'count': 1}, 'g.json: x.count: must be a whole'),
    ({'min': 1, 'max': 2, 'step': 0}, 'g.json: x.step: must be above 0'),
    ({'min': 1, 'max': 2, 'step': 1e-9}, 'x.step: gives more than 10000'),
    ({'min': 1, 'max': 2, 'step': 1, 'count': 2}, 'step goes with neither'),
    ({'min': 0, 'max': 2, 'count': 2, 'log': True}, 'x.min: must be above 0'),
    ({'min': 1, 'max': 2, 'log': 'yes'}, "x.log: must be true or false; got"),
])
def test_what_is_no_value(given, said):
  with pytest.raises(UserError) as caught:
    points(given)
  assert said in str(caught.value)


def test_a_search_needs_no_points():
  found = values.parsed({'min': 1, 'max': 2}, 'g.json: x', is_search=True)
  assert found.tested() == (1, 2)
  with pytest.raises(UserError, match='a search draws between'):
    values.parsed({'min': 1, 'max': 2, 'count': 3}, 'g.json: x', is_search=True)


class Trial:
  """Stands for Optuna's: draws the last there is, and notes how."""

  def __init__(self):
    self.asked = []

  def suggest_categorical(self, name, choices):
    self.asked.append((name, choices))
    return choices[-1]

  def suggest_int(self, name, low, high, **options):
    self.asked.append((name, low, high, options))
    return high

  suggest_float = suggest_int


@pytest.mark.parametrize('given, asked, drawn', [
    (7, [], 7),
    ([[1], 2], [('x', ['[1]', '2'])], 2),
    ({'min': 1, 'max': 9, 'step': 2}, [('x', 1, 9, {'step': 2})], 9),
    ({'min': 0.5, 'max': 9, 'log': True}, [('x', 0.5, 9, {'log': True})], 9),
])
def test_what_a_search_asks(given, asked, drawn):
  trial = Trial()
  assert values.parsed(given, '', is_search=True).drawn(
      trial, 'x') == drawn
  assert trial.asked == asked
