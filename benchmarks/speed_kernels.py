"""Random kernels with the sizes of the real tile collection.

Sizes decide how long ranking takes, and for models of tile geometry the number
of tensors that a kernel reads, its parameters; other values do not, so they are
random.
"""

from __future__ import annotations

import numpy as np

from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.schema import OPCODES

NODE_COLUMNS, CONFIG_COLUMNS, NUM_OPS = 140, 24, 108
PARAMETERS = 0.2  # Of the nodes.
# Nodes of the 1261 held-out kernels of tile_xla_statistics.json.
NODE_SHARES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
NODE_QUANTILES = (2, 7, 19, 37, 58, 94, 154)
# The collection's facts give no quantiles of configurations, but their mean,
# 1683 a kernel in the test split, and their most, 10,000. Evenly spread on a
# logarithmic scale from 25 to 10,000 they have a mean of 1665.
FEWEST_CONFIGS, MOST_CONFIGS = 25, 10_000


def random_kernel(num_nodes: int, num_configs: int, seed: int = 0) -> Kernel:
  """A connected graph with 1.05 edges a node, as the real ones have.

  Features are uniform in [0, 1), so that normalising changes little.
  """
  rng = np.random.default_rng([seed, num_nodes, num_configs])
  consumers = np.arange(1, num_nodes)
  edges = np.stack([consumers, rng.integers(0, consumers)], 1)
  more = rng.integers(1, num_nodes, num_nodes // 16)
  edges = np.concatenate([edges, np.stack([more, rng.integers(0, more)], 1)])
  opcode = rng.integers(0, NUM_OPS, num_nodes).astype(np.uint8)
  opcode[rng.random(num_nodes) < PARAMETERS] = OPCODES['parameter']
  return Kernel(
      tile_id=f'random_{num_nodes}_{num_configs}',
      node_feat=rng.random((num_nodes, NODE_COLUMNS), np.float32),
      node_opcode=opcode,
      edge_index=np.unique(edges, axis=0).astype(np.int64),
      config_feat=rng.random((num_configs, CONFIG_COLUMNS), np.float32),
      runtime_ns=rng.integers(1000, 10**6, num_configs),
      normalizer_ns=np.full(num_configs, 1000, np.int64))


def like_the_collection(number: int) -> list[Kernel]:
  """`number` kernels at evenly spaced quantiles of nodes and configurations.

  The two are paired at random, but always in the same way.
  """
  shares = (np.arange(number) + 0.5) / number
  nodes = np.interp(shares, NODE_SHARES, NODE_QUANTILES).round().astype(int)
  configs = np.exp(np.interp(
      shares, (0, 1), np.log([FEWEST_CONFIGS, MOST_CONFIGS]))).astype(int)
  configs = np.random.default_rng(0).permutation(configs)
  return [random_kernel(n, c) for n, c in zip(nodes.tolist(),
                                              configs.tolist())]
