"""Programs as `GraphTensor`s, with the baseline's node sets, names and dtypes.

The graph of B programs, each with its own c configurations:
  node set `op`: `op` uint8 [nodes], `feats` float32 [nodes, F], `selected`
    bool [nodes]: in the training segment;
  node set `nconfig`: `feats` float32 [configurable, c, G];
  node set `g`: `graph_id` string [B], `runtimes` int64 [B, c] in ns,
    `kept_node_ratio` float32 [B], share of selected nodes;
  edge set `feed` (op -> op): source is the consumer, target the producer;
  edge set `config` (nconfig -> op); `sampled_feed` and `sampled_config`: the
    same between selected nodes;
  edge sets `g_op` and `g_config`: from each root to its nodes.
Sizes and indices are int32. F and G are the columns that normalising keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.programs import Program, Programs
from tpu_graphs_ext.tasks import tile_batches
from tpu_graphs_ext.tasks.tile_batches import Arrays, graph_arrays

# Labels are runtimes over this, in ns, as in the baseline.
LABEL_UNIT_NS = 1e7
# Configurations for a model at once: 64 MB of float32, beside which the
# program's own features are small; and of layouts that are counted at once.
SCORED_FLOATS, COUNTED_FLOATS = 1 << 24, 1 << 22
_EDGE_SETS = {  # As in `tile_batches`.
    'feed': ('op', 'op'), 'config': ('nconfig', 'op'),
    'sampled_feed': ('op', 'op'), 'sampled_config': ('nconfig', 'op'),
    'g_op': ('g', 'op'), 'g_config': ('g', 'nconfig')}


def program_graph(program: Program, configs: np.ndarray,
                  stats: FeatureStats) -> tfgnn.GraphTensor:
  """A program with configurations int64 [n], as a batch of one."""
  return graph_tensor(batch_arrays(
      [program], [configs], [slice(0, program.num_nodes)], stats))


def blocks(program: Program, floats: int) -> list[np.ndarray]:
  """All configurations in order, in blocks int64 [n] of about `floats` values.
  """
  at_once = max(1, floats // (
      program.num_configurable * len(program.bounds.config.minimum)))
  return np.split(np.arange(program.num_configs),
                  range(at_once, program.num_configs, at_once))


def training_dataset(
    programs: Programs, stats: FeatureStats, *, batch_size: int,
    num_configs: int, keep_nodes: int, seed: int, first_epoch: int = 0,
    anew: bool = True) -> tf.data.Dataset:
  """Batches of programs with a few configurations each, and their labels.

  Each pass draws a new order of the programs and of each program `num_configs`
  configurations, without replacement, fast ones with a higher probability
  (`drawn`), and one training segment of at most `keep_nodes` nodes, in the
  order of the file; -1 selects all. See `tile_batches.drawn_batches`. The last
  batch may be smaller. Only drawn configurations are read.

  All programs have at least `num_configs` configurations. The labels are
  float32 [programs, num_configs]: runtimes in 10 ms.
  """
  def batch_of(rng: np.random.Generator, programs: list[Program]) -> Arrays:
    return batch_arrays(
        programs, [drawn(rng, program, num_configs) for program in programs],
        [segment(rng, program.num_nodes, keep_nodes) for program in programs],
        stats)

  def with_label(arrays: dict[str, tf.Tensor]):
    label = tf.cast(arrays['g/runtimes'], tf.float32) / LABEL_UNIT_NS
    return graph_tensor(arrays), label

  example = batch_arrays(
      programs[:1], [np.arange(num_configs)], [slice(0, 1)], stats)
  return tile_batches.drawn_batches(
      programs, batch_of, example, with_label, np.arange(len(programs)),
      math.ceil(len(programs) / batch_size), batch_size, anew, seed,
      first_epoch)


def drawn(rng: np.random.Generator, program: Program,
          number: int) -> np.ndarray:
  """int64 [number] different configurations, preferably fast ones.

  The i-th fastest of n, from 0, has a weight of exp(1 - i / n), by the
  Gumbel-max trick. Source: the baseline's `to_graph_tensor`.
  """
  n = program.num_configs
  keys = 1 - np.arange(n) / n + rng.gumbel(size=n)
  best = np.argpartition(-keys, number - 1)[:number] if number < n else (
      np.arange(n))
  return program.fastest_first[best[np.argsort(-keys[best])]]


def segment(rng: np.random.Generator, num_nodes: int, keep_nodes: int) -> slice:
  """One of the segments of a program, drawn uniformly."""
  if keep_nodes < 0:
    return slice(0, num_nodes)
  start = int(rng.integers(math.ceil(num_nodes / keep_nodes))) * keep_nodes
  return slice(start, min(start + keep_nodes, num_nodes))


def batch_arrays(programs: Sequence[Program], configs: Sequence[np.ndarray],
                 segments: Sequence[slice], stats: FeatureStats) -> Arrays:
  """Reads and joins the arrays of a batch, for `graph_tensor`.

  For each program, `configs` int64 [c] are its configurations, and `segments`
  its selected nodes.
  """
  def in_each(kept: np.ndarray, root: np.ndarray) -> np.ndarray:
    return np.bincount(root[kept], minlength=len(programs)).astype(np.int32)

  graph = graph_arrays(programs, stats, np.int32)
  configurable = np.array(
      [program.num_configurable for program in programs], np.int32)
  config_root = np.repeat(
      np.arange(len(programs), dtype=np.int32), configurable)
  first_node = np.cumsum(graph['op/sizes']) - graph['op/sizes']
  selected = np.zeros(len(graph['op/op']), bool)
  for first, part in zip(first_node, segments):
    selected[first + part.start:first + part.stop] = True
  source, target = graph['feed/source'], graph['feed/target']
  ids = np.concatenate([
      first + program.node_config_ids
      for first, program in zip(first_node, programs)]).astype(np.int32)
  in_segment, is_sampled = selected[source] & selected[target], selected[ids]
  layouts = np.concatenate([  # [configurable, configs, columns]
      program.layouts(chosen).transpose(1, 0, 2)
      for program, chosen in zip(programs, configs)])
  return {
      **graph,
      'op/selected': selected,
      'nconfig/feats': stats.config.apply(
          layouts.reshape(-1, layouts.shape[-1]), 'node_config_feat'
      ).reshape(*layouts.shape[:2], -1),
      'nconfig/sizes': configurable,
      'g/graph_id': np.array(
          [program.name.encode() for program in programs], object),
      'g/runtimes': np.stack([program.runtime_ns[chosen]
                              for program, chosen in zip(programs, configs)]),
      'g/kept_node_ratio': np.float32([
          (part.stop - part.start) / program.num_nodes
          for part, program in zip(segments, programs)]),
      'config/target': ids,
      'sampled_feed/source': source[in_segment],
      'sampled_feed/target': target[in_segment],
      'sampled_feed/sizes': in_each(
          in_segment, graph['g_op/source'][source]),
      'sampled_config/source': np.flatnonzero(is_sampled).astype(np.int32),
      'sampled_config/target': ids[is_sampled],
      'sampled_config/sizes': in_each(is_sampled, config_root),
      'g_config/source': config_root,
  }


def graph_tensor(arrays: Mapping[str, tf.Tensor]) -> tfgnn.GraphTensor:
  """The arrays of a batch as the baseline's graph."""
  return tile_batches.joined(arrays, _EDGE_SETS)
