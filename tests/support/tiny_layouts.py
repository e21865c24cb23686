"""Small programs with layouts, as files and as the graphs models are given."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext.data import schema

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


def write_collection(root: str, source: str = 'xla', search: str = 'random',
                     train: int = 4, configs: int = 12) -> str:
  """Files of all splits below `root`, which is returned."""
  for split, number in (('train', train), ('valid', 2), ('test', 2)):
    folder = os.path.join(root, source, search, split)
    os.makedirs(folder)
    for i in range(number):
      np.savez_compressed(os.path.join(folder, f'{split}_{i}.npz'), **program(
              f'{split} {i}', nodes=40 + 5 * i, configurable=5 + i,
              configs=configs, labelled=split != 'test'))
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


def _scaled(x: np.ndarray, of: dict) -> np.ndarray:
  low, high = np.float32(of['minimum']), np.float32(of['maximum'])
  used = low != high
  return ((x - low)[..., used] / (high - low)[used]).astype(np.float32)


def graph(programs: Sequence[dict], stats: dict | None = None,
          selected: Sequence | None = None):
  """A batch as the baseline's reader makes it: a GraphTensor, scaled to [0, 1].

  Args:
    programs: what `program` gives, with equal numbers of configurations.
    stats: what `bounds` gives; None: those of `programs`.
    selected: for each program its nodes that are learned from; None: all.
  """
  import tensorflow_gnn as tfgnn  # Not for tests of files alone.
  mask = np.concatenate(
      [np.ones(len(program['node_opcode']), bool) for program in programs]
      if selected is None else selected)
  return tfgnn.GraphTensor.from_pieces(
      node_sets=_node_sets(programs, stats or bounds(programs), mask),
      edge_sets=_edge_sets(programs, mask))


def _counts(programs: Sequence[dict], key: str) -> list[int]:
  return [len(program[key]) for program in programs]


def _node_sets(programs: Sequence[dict], stats: dict, mask: np.ndarray) -> dict:
  """`mask` bool [nodes]: those that are learned from."""
  import tensorflow as tf
  import tensorflow_gnn as tfgnn

  def node_set(sizes, **features):
    return tfgnn.NodeSet.from_fields(
        sizes=tf.constant(sizes, tf.int32), features=features)

  return {'op': node_set(
          _counts(programs, 'node_opcode'),
          op=tf.concat([program['node_opcode'] for program in programs], 0),
          feats=tf.concat([_scaled(program['node_feat'], stats['node'])
                           for program in programs], 0),
          selected=tf.constant(mask)), 'nconfig': node_set(
          _counts(programs, 'node_config_ids'), feats=tf.concat([
              _scaled(program['node_config_feat'], stats['config'])
              .transpose(1, 0, 2) for program in programs], 0)),
      'g': node_set([1] * len(programs), runtimes=tf.stack([
          program['config_runtime'] for program in programs]))}


def _edge_sets(programs: Sequence[dict], mask: np.ndarray) -> dict:
  """Edges between all nodes, and in `sampled_`... those of the mask alone."""
  import tensorflow as tf
  import tensorflow_gnn as tfgnn

  def edge_set(start, end, source, target, sizes):
    return tfgnn.EdgeSet.from_fields(
        sizes=tf.constant(sizes, tf.int32),
        adjacency=tfgnn.Adjacency.from_indices(
            source=(start, tf.constant(source, tf.int32)),
            target=(end, tf.constant(target, tf.int32))))

  def counted(keep, counts):
    return [int(part.sum()) for part in np.split(keep, np.cumsum(counts)[:-1])]

  nodes, edge_counts, config_counts = (_counts(programs, key) for key in (
      'node_opcode', 'edge_index', 'node_config_ids'))
  starts = np.cumsum([0, *nodes])
  edges, ids = (np.concatenate([
      program[key] + start for program, start in zip(programs, starts)])
                for key in ('edge_index', 'node_config_ids'))
  in_segment, is_selected = mask[edges].all(-1), mask[ids]
  places = range(len(programs))
  return {
      'feed': edge_set('op', 'op', *edges.T, edge_counts),
      'sampled_feed': edge_set('op', 'op', *edges[in_segment].T,
                               counted(in_segment, edge_counts)),
      'config': edge_set('nconfig', 'op', range(len(ids)), ids, config_counts),
      'sampled_config': edge_set(
          'nconfig', 'op', np.flatnonzero(is_selected), ids[is_selected],
          counted(is_selected, config_counts)),
      'g_op': edge_set('g', 'op', np.repeat(places, nodes), range(len(mask)),
                       nodes),
      'g_config': edge_set('g', 'nconfig', np.repeat(places, config_counts),
                           range(len(ids)), config_counts)}
