"""A model folder of an untrained model, made without training."""

from __future__ import annotations

import json

import numpy as np

from support import model_checks, tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.tasks import TILE, tile_batches

NAME = 'EarlyJoinSAGE'
KWARGS = {'num_gnns': 1, 'final_mlp_layers': 1, 'hidden_dim': 8}
# Of 8, 20, 5 and 1 configurations, the second with repetitions.
KERNELS = [tiny_kernels.learnable_kernel(
        f'net_{i}', np.random.default_rng(i), number)
    for i, number in enumerate((8, 20, 5, 1))]
KERNELS[1].config_feat[[3, 7, 19]] = KERNELS[1].config_feat[[2, 2, 4]]


def save(out_dir: str, name: str = NAME, kwargs: dict | None = None) -> str:
  """Writes model_<hash> and its run file; returns the folder's path."""
  kwargs = KWARGS if kwargs is None else kwargs
  stats = model_checks.stats_of(KERNELS)
  graph = tile_batches.kernel_graph(KERNELS[0], stats)
  model = model_checks.make(name, **kwargs)
  model(graph)
  args = {'model': name, 'model_kwargs_json': json.dumps(kwargs), 'configs': 10}
  return artifacts.save_run(model, {
      'args': args, 'feature_stats': stats.to_json(),
      'num_ops': model_checks.NUM_OPS}, str(out_dir), TILE)


def arrays_of(kernel: Kernel) -> dict[str, np.ndarray]:
  """What an exported model takes of one kernel."""
  return {name: getattr(kernel, name) for name in (
      'node_feat', 'node_opcode', 'edge_index', 'config_feat')}
