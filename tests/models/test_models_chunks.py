"""Ranking takes no more memory the more configurations there are."""

import numpy as np
import pytest

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.tasks import tile_batches


@pytest.mark.parametrize('name', [
    'EarlyJoinSAGE', 'EarlyLateJoinSAGE', 'MyEarlyJoinSAGE'])
def test_a_chunk_is_of_the_same_size_whatever_the_configurations(
    monkeypatch, name):
  """No tensor [nodes, chunk, width] is larger than `_CHUNK_FLOATS`."""
  models = load_models.models_module()
  kernels = [
      tiny_kernels.make_kernel(num_nodes=40, num_configs=configs)
      for configs in (10, 500, 2000)]
  for kernel in kernels:
    kernel.node_opcode[:] %= checks.NUM_OPS
  stats = checks.stats_of(kernels)
  model = checks.make(name)
  graphs = [tile_batches.kernel_graph(kernel, stats) for kernel in kernels]
  model(graphs[0])
  monkeypatch.setattr(models._Ranker, '_CHUNK_FLOATS', 2 ** 17)
  widths = []
  score = type(model)._score

  def seen(self, graph, encoded, config_feats):
    scores = score(self, graph, encoded, config_feats)
    widths.append(scores.shape[1])  # [kernels, chunk]
    return scores

  monkeypatch.setattr(type(model), '_score', seen)
  for graph, kernel in zip(graphs, kernels):
    widths.clear()
    scores = model._rank_in_chunks(*models._inputs_of(graph))
    assert sum(widths) == kernel.num_configs == np.shape(scores)[1]
    states = 40 if model._early else 1
    assert max(widths) * states * model._state_width <= 2 ** 17
