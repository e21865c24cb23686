"""How many threads an operation gets in the baseline's scripts."""

import ast
import itertools
import os
import pathlib
import sys

import pytest

from tpu_graphs_ext import load_models

VARIABLE = 'TF_NUM_INTRAOP_THREADS'
TRAINER, RANKER = '/somewhere/tiles_train.py', '/somewhere/tiles_evaluate.py'


@pytest.mark.parametrize('script, cores, threads, expected', [
    (TRAINER, 4, None, '1'), (TRAINER, 5, None, None), (RANKER, 3, None, None),
    (TRAINER, 2, '2', '2'),  # What is set already stays.
])
def test_on_few_cores_the_baselines_scripts_get_one(
    monkeypatch, script, cores, threads, expected):
  path = load_models.models_module().__file__
  tree = ast.parse(pathlib.Path(path).read_text())
  tree.body = list(itertools.takewhile(
      lambda node: not isinstance(node, ast.ClassDef), tree.body))
  variables = {} if threads is None else {VARIABLE: threads}
  monkeypatch.setattr(os, 'environ', variables)
  monkeypatch.setattr(os, 'cpu_count', lambda: cores)
  monkeypatch.setattr(sys, 'argv', [script])
  exec(compile(tree, path, 'exec'), {'__name__': 'head_of_models'})
  assert variables.get(VARIABLE) == expected
  assert variables.keys() <= {VARIABLE}  # models.py sets nothing else.
