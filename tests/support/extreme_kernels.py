"""Kernels at the edges of what a file may hold: sizes, features and times."""

from __future__ import annotations

import dataclasses

import numpy as np

from support import tiny_kernels
from tpu_graphs_ext.data.kernel import Kernel

HUGE = 1e30


def training_kernels() -> list[Kernel]:
  """Kernels to train on, with columns that are hard to scale.

  Of nodes and configurations: column 1 reaches 1e30, column 2 is negative,
  column 3 is constant, column 4 is constant but in one row. Runtimes run from
  1 to 1e12 ns, or are all equal; one kernel is a single node without edges.
  """
  rng = np.random.default_rng(0)
  kernels = [tiny_kernels.learnable_kernel(f'net_{i}', rng, 12)
             for i in range(6)]
  kernels.append(tiny_kernels.one_node(num_configs=12))
  kernels[0].runtime_ns[:] = np.logspace(0, 12, 12)
  kernels[1].runtime_ns[:] = 7
  kernels[2].normalizer_ns[:] = 10 ** 12
  for kernel in kernels:
    for features in (kernel.node_feat, kernel.config_feat):
      features[:, 1] = 0
      features[:, 2] *= -1
      features[:, 3] = 5
      features[:, 4] = 1
  for features in (kernels[0].node_feat, kernels[0].config_feat):
    features[0, 1] = HUGE
    features[1, 4] = 2
  return kernels


def kernels_to_rank() -> list[Kernel]:
  """Kernels with values far outside of what was trained on."""
  usual = tiny_kernels.learnable_kernel('usual_0', np.random.default_rng(1), 12)
  changed = [dataclasses.replace(
          usual, tile_id=f'all_{value:g}_0',
          node_feat=np.full_like(usual.node_feat, value),
          config_feat=np.full_like(usual.config_feat, value))
      for value in (HUGE, -HUGE, 0)]
  mixed = dataclasses.replace(
      usual, tile_id='mixed_0', node_feat=usual.node_feat.copy(),
      config_feat=usual.config_feat.copy())
  mixed.node_feat[::2] *= -1e20
  mixed.config_feat[::3] *= 1e25
  return [usual, *changed, mixed, tiny_kernels.one_node(),
          tiny_kernels.no_edges(), tiny_kernels.one_config(),
          tiny_kernels.identical_configs()]
