"""What a configuration does: steps, bytes, padding, off features alone.

They are the counts that the models of models.py with tile geometry see, so
they stand beside a model's choice whether it has seen them or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel


class Count(NamedTuple):
  """One count of a configuration.

  Attributes:
    name: of the field of `_Counts` in models.py.
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
  import tensorflow as tf

  from tpu_graphs_ext import load_models
  models = load_models.models_module()
  raw_nodes = _wide(kernel.node_feat, len(schema.NODE_FEATURES))
  raw_configs = _wide(kernel.config_feat[list(configs)],
                      len(schema.CONFIG_FEATURES))
  edges = tf.constant(kernel.edge_index.reshape(-1, 2), tf.int32)
  inputs = models._Inputs(
      opcode=tf.constant(kernel.node_opcode.astype(np.int32)),
      node_feats=tf.constant(raw_nodes),
      node_counts=tf.constant([kernel.num_nodes], tf.int32),
      consumer=edges[:, 0], producer=edges[:, 1],
      config_feats=tf.constant(raw_configs[np.newaxis]))
  # Only the mark of elements is read of it, as the features are raw.
  width = len(schema.NODE_FEATURES) + len(schema.CONFIG_FEATURES)
  bounds = np.zeros((2, 2, width + 1), np.float32)
  bounds[..., -1] = in_elements
  geometry = models._Geometry(models._hardware('found'))
  loops = geometry.loops(models._Graph(inputs), inputs.node_feats,
                         models._Scaling(tf.constant(bounds)))
  found = geometry.counts(loops, geometry.tiles(loops, inputs.config_feats))
  return {count.name: np.asarray(getattr(found, count.name))[0].astype(float)
          for count in COUNTS}


def _wide(table: np.ndarray, width: int) -> np.ndarray:
  """Whole numbers float32 [rows, width]; columns that are missing are 0."""
  wide = np.zeros((len(table), width), np.float32)
  known = min(width, table.shape[1])
  wide[:, :known] = np.rint(table[:, :known])
  return wide
