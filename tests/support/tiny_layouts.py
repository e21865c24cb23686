"""Small programs with layouts, as files and as the graphs models are given."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.programs import Program

NUM_OPS = schema.NUM_OPCODES
_CONFIGURABLE = tuple(
    schema.OPCODES[name] for name in ('convolution', 'dot', 'reshape'))


def program(name: str, nodes: int = 40, configurable: int = 6,
            configs: int = 12, labelled: bool = True) -> dict:
  """The arrays of one file: a chain of nodes with some edges more.

  The more configurable nodes have their tensors' own layout, the faster the
  program is, the larger ones first.
  """
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  rank = 3
  sizes = 2 ** rng.integers(3, 9, (nodes, rank))
  order = np.stack([rng.permutation(rank) for _ in range(nodes)])
  feat = np.zeros((nodes, len(schema.NODE_FEATURES)))
  feat[:, :4] = rng.integers(0, 9, (nodes, 4))
  feat[:, 2] %= 2
  feat[:, 3] = 1 - feat[:, 2]  # One of two element types.
  column = schema.NODE_GROUPS
  feat[:, column['shape_dimensions']] = np.concatenate([
      sizes, np.zeros((nodes, 3)), sizes.sum(-1, keepdims=True),
      sizes.prod(-1, keepdims=True)], -1)
  feat[:, column['layout_minor_to_major']] = np.pad(order, ((0, 0), (0, 3)))
  ids = np.sort(rng.choice(np.arange(2, nodes), configurable, replace=False))
  opcode = rng.integers(1, NUM_OPS, nodes)
  opcode[ids] = rng.choice(_CONFIGURABLE, configurable)
  edges = {(v, v - 1) for v in range(1, nodes)} | {
      (v, int(rng.integers(0, v))) for v in range(2, nodes, 3)}
  chosen = np.full((configs, configurable, 3, 6), schema.LAYOUT_PADDING)
  chosen[..., :rank] = rng.permuted(np.broadcast_to(
      np.arange(rank), (configs, configurable, 3, rank)), axis=-1)
  alike = (chosen[:, :, 0, :rank] == order[ids]).all(-1)
  cost = (~alike * np.log2(sizes[ids].prod(-1))).sum(-1)
  runtime = (1e8 * (1 + cost / 100) + np.arange(configs)).astype(np.int64)
  return {
      'node_feat': feat.astype(np.float32),
      'node_opcode': opcode.astype(np.uint8),
      'edge_index': np.array(sorted(edges), np.int64),
      'node_config_feat': chosen.reshape(configs, configurable, 18).astype(
          np.float32), 'node_config_ids': ids.astype(np.int64),
      'config_runtime': runtime if labelled else 0 * runtime,
      'node_splits': np.array([[0, nodes]], np.int64),
  }


def write_collection(root: str) -> str:
  """Files of all splits below `root`, which is returned."""
  for split, number in (('train', 4), ('valid', 2), ('test', 2)):
    folder = os.path.join(root, 'xla', 'random', split)
    os.makedirs(folder)
    for i in range(number):
      np.savez_compressed(os.path.join(folder, f'{split}_{i}.npz'), **program(
          f'{split} {i}', 40 + 5 * i, 5 + i, labelled=split != 'test'))
  return root


def bounds(programs: Sequence[dict]) -> dict:
  """{'node': {'minimum': [...], 'maximum': [...]}, 'config': ...}."""
  tables = {
      table: np.concatenate([
          program[key].reshape(-1, program[key].shape[-1])
          for program in programs])
      for table, key in (('node', 'node_feat'), ('config', 'node_config_feat'))}
  return {table: {'minimum': rows.min(0).tolist(),
                  'maximum': rows.max(0).tolist()}
          for table, rows in tables.items()}


def graph(programs: Sequence[dict], stats: dict | None = None,
          selected: Sequence[np.ndarray] | None = None):
  """All configurations of some programs as a batch: a GraphTensor.

  Args:
    programs: what `program` gives, with equal numbers of configurations.
    stats: what `bounds` gives, to scale with; None: those of `programs`.
    selected: bool [nodes] for each program, where the nodes of the training
      segment are true; None: all.
  """
  from tpu_graphs_ext.tasks import layout_batches  # Imports TensorFlow.
  stats = FeatureStats.from_json(stats or bounds(programs))
  segments = [slice(0, len(each['node_opcode'])) for each in programs]
  if selected:
    ends = [np.flatnonzero(mask)[[0, -1]] for mask in selected]
    segments = [slice(first, last + 1) for first, last in ends]
  return layout_batches.graph_tensor(layout_batches.batch_arrays(
      [Program('', **{name: each[name] for name in (
          'node_feat', 'node_opcode', 'edge_index', 'node_config_ids')},
               runtime_ns=each['config_runtime'], bounds=stats,
               read_layouts=each['node_config_feat'].__getitem__)
       for each in programs],
      [np.arange(len(each['config_runtime'])) for each in programs],
      segments, stats))
