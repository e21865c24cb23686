"""What a tile does: steps, bytes and padding, from its features alone.

They are what the models with tile geometry compute, so a reader can compare
the chosen tile with the best one by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.analytic import feature_loops, tile_counts
from tpu_graphs_ext.data.kernel import Kernel

# Name in `tile_counts.counts` -> what a reader sees.
BYTES = {
    'moved_bytes': 'bytes moved, with re-reads and padding',
    'block_bytes': 'first transfer: one block of each tensor',
    'footprint_bytes': 'on-chip memory: two blocks a tensor'}
COUNTS = {
    'steps': 'steps', 'output_tiles': 'tiles of the output',
    'kernel_tiles': "tiles of a product's filter", **BYTES,
    'pieces': 'contiguous pieces of all transfers',
    'matrix_rows': 'rows through the matrix unit',
    'tile_elements': 'elements of an output tile',
    'padding': 'padding to whole layout tiles, factor',
    'rounding': 'padding to whole tiles of this size, factor'}


def counts_of(kernel: Kernel, configs: Sequence[int],
              in_elements: bool) -> dict[str, np.ndarray]:
  """What a reader sees -> float64 [configs].

  Counts that say nothing of a kernel, such as a padding of 1, are left out.

  Args:
    kernel: features in their own units, all columns of the files.
    configs: rows of its configurations.
    in_elements: whether tile bounds count elements, not layout tiles.
  """
  loops = feature_loops.kernel_loops(kernel, in_elements)
  tiles = feature_loops.loop_tiles(loops, kernel.config_feat[list(configs)])
  found = tile_counts.counts(loops, tiles)
  return {title: found[name] for name, title in COUNTS.items()
          if name == 'steps' or (found[name].any()
                                 and (found[name] != 1).any())}
