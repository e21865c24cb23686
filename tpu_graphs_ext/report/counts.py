"""What a configuration does: steps, bytes, padding, off features alone.

They are the counts that the models of models.py with tile geometry see, so
they stand beside a model's choice whether it has seen them or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.analytic import feature_loops, tile_counts
from tpu_graphs_ext.data.kernel import Kernel


class Count(NamedTuple):
  """One count of a configuration.

  Attributes:
    name: in `tile_counts.counts`, and of the field of `_Counts` in models.py.
    title: what a reader is told.
    unit: of the values; '' for a number of things.
  """
  name: str
  title: str
  unit: str = ''


# Those that a reader can follow; products of padding come last.
COUNTS = (
    Count('steps', 'steps'),
    Count('output_tiles', 'tiles of the output'),
    Count('kernel_tiles', "tiles of a product's filter"),
    Count('moved_bytes', 'bytes moved, re-reads and padding included', 'B'),
    Count('block_bytes', 'first transfer, one block of each tensor', 'B'),
    Count('pieces', 'contiguous pieces of all transfers'),
    Count('matrix_rows', 'rows through the matrix unit'),
    Count('footprint_bytes', 'on-chip memory, two blocks a tensor', 'B'),
    Count('tile_elements', 'elements of an output tile'),
    Count('padding', 'padded to whole layout tiles, times'),
    Count('rounding', 'padded to whole tiles of this size, times'))


def counts_of(kernel: Kernel, configs: Sequence[int],
              in_elements: bool) -> dict[str, np.ndarray]:
  """Name of a count -> float64 [configs].

  Args:
    kernel: features in their own units, all columns of the files.
    configs: rows of its configurations.
    in_elements: whether tile bounds count elements, not layout tiles.
  """
  loops = feature_loops.kernel_loops(kernel, in_elements)
  tiles = feature_loops.loop_tiles(loops, kernel.config_feat[list(configs)])
  found = tile_counts.counts(loops, tiles)
  return {count.name: found[count.name] for count in COUNTS}
