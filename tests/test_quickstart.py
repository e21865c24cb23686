"""What quickstart.sh prints of the models that it trained."""

import types

from tpu_graphs_ext import quickstart
from tpu_graphs_ext.host import evaluate, results


def test_the_comparison_has_the_default_tile_and_a_random_choice(monkeypatch):
  errors = {'a': {1: 0.021, 5: 0.0, 10: 0.0}, 'b': {1: 0.4, 5: 0.2, 10: 0.1}}
  monkeypatch.setattr(evaluate, 'evaluate', lambda model_dir, *_, **__: (
      types.SimpleNamespace(micro={
          **results.by_k('slowdown', errors[model_dir]), 'random_1': 0.9,
          'random_5': 0.3, 'random_10': 0.08, 'default': 0.003, 'opa': 0.75,
          'kendall': 0.5})))
  table = quickstart.comparison('Title:', {'A': 'a', 'B': 'b'}, 'data', None)
  assert [line.split() for line in table.splitlines()] == [
      ['Title:'], ['top-1', 'top-5', 'top-10', 'OPA', 'tau'],
      ['A', '2.10', '%', '0.00', '%', '0.00', '%', '0.750', '0.500'],
      ['B', '40.00', '%', '20.00', '%', '10.00', '%', '0.750', '0.500'],
      ['default', 'tile', '0.30', '%'],
      ['random', 'choice', '90.00', '%', '30.00', '%', '8.00', '%']]
