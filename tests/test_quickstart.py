"""What quickstart.sh prints of the models that it trained."""

import types

from tpu_graphs_ext import quickstart
from tpu_graphs_ext.engine import evaluate, results

ERRORS = {'a': {1: 0.021, 5: 0.0, 10: 0.0}, 'b': {1: 0.4, 5: 0.2, 10: 0.1}}


def found(monkeypatch):
  monkeypatch.setattr(evaluate, 'evaluate', lambda model_dir, *_, **__: (
      types.SimpleNamespace(micro={
          **results.by_k('slowdown', ERRORS[model_dir]), 'random_1': 0.9,
          'random_5': 0.3, 'random_10': 0.08, 'default': 0.003, 'opa': 0.75,
          'kendall': 0.5})))
  return quickstart.measured(
      {'MyEarlyJoinSAGE': 'a', 'EarlyJoinSAGE': 'b'}, 'data', None)


def test_the_comparison_has_the_default_tile_and_a_random_choice(monkeypatch):
  table = quickstart.comparison('Title:', found(monkeypatch))
  assert [line.split() for line in table.splitlines()] == [
      ['Title:'], ['top-1', 'top-5', 'top-10', 'OPA', 'tau'],
      ['MyEarlyJoinSAGE', '2.10', '%', '0.00', '%', '0.00', '%', '0.750',
       '0.500'],
      ['EarlyJoinSAGE', '40.00', '%', '20.00', '%', '10.00', '%', '0.750',
       '0.500'],
      ['default', 'tile', '0.30', '%'],
      ['random', 'choice', '90.00', '%', '30.00', '%', '8.00', '%']]


def test_it_ends_with_what_to_conclude(monkeypatch):
  assert ' '.join(quickstart.conclusion(found(monkeypatch)).split()) == (
      'Of five tiles the best is 0.00 % slower than the fastest of all where '
      'MyEarlyJoinSAGE chooses, 20.00 % where EarlyJoinSAGE does, and 30.00 % '
      "by chance. With one tile to try, take the compiler's default.")
