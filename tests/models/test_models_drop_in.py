"""What models.py must be to take the place of the baseline's file."""

from __future__ import annotations

import numpy as np

from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.tasks import tile_batches


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
