"""Synthetic measurements of one real kernel graph: tiles and their runtimes.

The graph is compiled HLO; the tile configurations are drawn from the kernel's
tile grid as on the real machine; the runtimes come from the analytic model of
`analytic/tpu.py` and are synthetic.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from tpu_graphs_ext.analytic import hlo_loops, tpu
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import features, tiles

# Candidates that the compiler's default and the sample are chosen from.
_MAX_POOL = 20_000
# Standard deviation of the logarithm of the compiler's own cost estimate.
_COMPILER_ERROR = 0.01
# The tuner gives up on runs that take so many times the fastest.
_TIMEOUT_FACTOR = 50
# A real file joins several tunings, each with the default once more. Four of 14
# kernels of up to 600 configurations have it twice, the others once; those of
# 807, 1,282 and 2,951 have it 9, 6 and 10 times. They repeat no other tile.
_MANY_CONFIGS = 600
_SECOND_CHANCE = 0.3
_COPIES = (5, 9)
# Reshapes have no tiles; their runs differ by chance alone, and by much.
_RESHAPE_NOISE = 0.15


def sample_kernel(module, tile_id: str, share: float, max_configs: int,
                  constants: tpu.TpuConstants, seed) -> Kernel | None:
  """A kernel with sampled tiles and synthetic runtimes.

  Args:
    module: `HloModuleProto` of one kernel.
    tile_id: name of the result.
    share: of the candidates that fit, how many are sampled; the real kernels
      have a tenth.
    max_configs: how many configurations at most, the default included.
    constants: the machine.
    seed: of the sample and the noise.

  Returns:
    The kernel, its default configuration first; None if fewer than two
    configurations fit.
  """
  chance = np.random.default_rng(seed)
  loops = hlo_loops.kernel_loops(module)
  if loops.grid.bounded:
    pool = _pool(loops, constants, chance)
    if len(pool) < 2:
      return None
    count = int(min(max_configs, len(pool), max(10, share * len(pool))))
    chosen, true_ns = _chosen(loops, pool, count, constants, chance)
  else:
    chosen, true_ns = _untiled(loops, constants, chance)
  config_feat = features.config_features(
      loops.grid.kernel_bounds(chosen), loops.grid.output_bounds(chosen))
  runtime_ns, normalizer_ns = _measured(true_ns, constants, chance)
  arrays = features.module_arrays(module)
  return Kernel(tile_id, arrays.node_feat, arrays.node_opcode,
                arrays.edge_index, config_feat, runtime_ns, normalizer_ns)


def num_candidates(module) -> int:
  """Tile configurations of a kernel, whether or not they fit on chip."""
  return math.prod(
      len(choice) for choice in tiles.tile_grid(module).choices())


def _pool(loops, constants, chance) -> np.ndarray:
  """int64 [candidates, axes]: distinct tiles that fit on chip."""
  # Some will not fit: look at more of them than the pool holds.
  return tiles.candidate_tiles(
      loops.grid, functools.partial(tpu.fits, loops, constants=constants),
      limit=_MAX_POOL, listed=4 * _MAX_POOL, chance=chance)


def _chosen(loops, pool, count, constants, chance):
  """The default, then a random sample in which it comes again."""
  pool_ns = tpu.kernel_ns(loops, pool, constants)
  in_time = pool_ns <= _TIMEOUT_FACTOR * pool_ns.min()
  pool, pool_ns = pool[in_time], pool_ns[in_time]
  estimate = pool_ns * np.exp(
      chance.normal(0, _COMPILER_ERROR, len(pool)))
  default = int(np.argmin(estimate))
  others = np.delete(np.arange(len(pool)), default)
  sample = chance.choice(others, min(count - 1, len(others)), replace=False)
  copies = int(chance.random() < _SECOND_CHANCE and len(sample) > 2)
  if 1 + len(sample) >= _MANY_CONFIGS:
    copies = int(chance.integers(*_COPIES, endpoint=True))
  # The sample is in random order, so other tiles than these are as likely.
  sample[:copies] = default
  rows = np.concatenate([[default], chance.permutation(sample)])
  return pool[rows], pool_ns[rows]


def _untiled(loops, constants, chance):
  """All-zero configurations of a reshape, which differ by chance alone."""
  none = np.zeros((int(chance.integers(2, 8)), 0), np.int64)
  whole = loops.grid.tiles(none, none)
  true_ns = 5 * tpu.kernel_ns(loops, whole, constants)
  true_ns *= np.exp(np.abs(chance.normal(0, _RESHAPE_NOISE, len(whole))))
  return whole, true_ns


def _measured(true_ns, constants, chance):
  """Runtimes, and the default's runtime on the machine of each run."""
  machines = int(chance.integers(1, 5))
  speed = np.exp(chance.normal(0, constants.machine_spread, machines))
  machine = chance.integers(machines, size=len(true_ns))
  machine[0] = 0
  runtime = tpu.measured_ns(
      true_ns * speed[machine], constants, chance)
  default = tpu.measured_ns(true_ns[0] * speed, constants, chance)
  default[0] = runtime[0]
  return runtime, default[machine]
