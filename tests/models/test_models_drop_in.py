"""What models.py must be to take the place of the baseline's file."""

from __future__ import annotations

import ast
import sys

import numpy as np
import pytest

from support import model_checks as checks
from support.places import PROJECT
from tpu_graphs_ext import load_models
from tpu_graphs_ext.tasks import tile_batches

ALLOWED = {'numpy', 'tensorflow', 'tensorflow_gnn'}


def imported_modules(source: str) -> set[str]:
  """Top-level names of all modules that a file imports, wherever it does."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names |= {alias.name.split('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names.add('.' if node.level else node.module.split('.')[0])
  return names


@pytest.mark.skipif(sys.version_info < (3, 10),
                    reason='sys.stdlib_module_names came with Python 3.10')
def test_it_imports_nothing_but_what_the_graders_have_installed():
  names = imported_modules((PROJECT / 'models.py').read_text())
  assert names - set(sys.stdlib_module_names) == ALLOWED


def test_the_package_reaches_the_one_copy():
  assert (PROJECT / 'tpu_graphs_ext' / 'models.py').samefile(
      PROJECT / 'models.py')


def test_the_layout_baselines_op_embedding_is_there():
  module = load_models.models_module()
  kernel = checks.kernels()[0]
  graph = tile_batches.kernel_graph(kernel, checks.stats_of([kernel]))
  layer = module._OpEmbedding(checks.NUM_OPS, 5)
  embedded = layer(graph).node_sets['op']['op_e']
  table = layer.embedding_layer.embeddings.numpy()
  np.testing.assert_array_equal(embedded, table[kernel.node_opcode])


def test_the_layout_baselines_mlp_is_there():
  """Two layers of ones without bias on [1, 2]: 2 * relu(3) = 6."""
  module = load_models.models_module()
  mlp = module._mlp([2, 1], 'relu', use_bias=False)
  x = np.array([[1., 2.]], np.float32)
  mlp(x)
  assert [weight.shape for weight in mlp.weights] == [(2, 2), (2, 1)]
  for weight in mlp.weights:
    weight.assign(np.ones(weight.shape))
  np.testing.assert_array_equal(mlp(x), [[6.]])
