"""A compiled kernel -> a kernel with tiles and runtimes, as if measured."""

from __future__ import annotations

import numpy as np

from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features
from tpu_graphs_ext.sample.kernels import CompiledKernel

# A real file joins several tunings, each with the default once more. Four of 14
# kernels of up to 600 configurations have it twice, the others once; those of
# 807, 1,282 and 2,951 have it 9, 6 and 10 times. They repeat no other tile.
_MANY_CONFIGS = 600
_SECOND_CHANCE = 0.3
_COPIES = (5, 9)
# Two runs of one tile differed by 0.03, 0.08 and 3.8 %: most scatter little,
# some are disturbed. Standard deviation of the logarithm; share and mean
# slowdown of the disturbed runs.
_REPEAT_NOISE = 0.0005
_DISTURBED_SHARE, _DISTURBED_BY = 0.03, 0.04


def sample_kernel(compiled: CompiledKernel, tile_id: str, clock_ghz: float,
                  noise: bool, seed) -> Kernel:
  """The kernel with its tiles in random order, the default first.

  Args:
    compiled: the kernel.
    tile_id: name of the result.
    clock_ghz: cycles of a nanosecond.
    noise: whether the runtimes scatter.
    seed: for order and noise.
  """
  chance = np.random.default_rng(seed)
  rows = _rows(len(compiled.cycles), compiled.default, chance)
  runtime = compiled.cycles[rows] / clock_ghz
  if noise:
    runtime = runtime * _scatter(len(rows), chance)
  runtime = np.maximum(1, np.rint(runtime)).astype(np.int64)
  config_feat = features.config_features(
      compiled.kernel_bounds[rows], compiled.output_bounds[rows])
  return Kernel(tile_id, compiled.node_feat, compiled.node_opcode,
                compiled.edge_index, config_feat, runtime,
                np.full_like(runtime, runtime[0]))


def _rows(count: int, default: int, chance) -> np.ndarray:
  """Numbers of the tiles: the default, then all others and its copies."""
  copies = int(chance.random() < _SECOND_CHANCE)
  if count >= _MANY_CONFIGS:
    copies = int(chance.integers(*_COPIES, endpoint=True))
  others = np.delete(np.arange(count), default)
  others = np.concatenate([others, np.full(copies, default)])
  return np.concatenate([[default], chance.permutation(others)])


def _scatter(count: int, chance) -> np.ndarray:
  disturbed = chance.random(count) < _DISTURBED_SHARE
  return np.exp(chance.normal(0, _REPEAT_NOISE, count)) + (
      disturbed * chance.exponential(_DISTURBED_BY, count))
