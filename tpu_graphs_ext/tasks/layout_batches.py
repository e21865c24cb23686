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

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.programs import Program, Programs
from tpu_graphs_ext.tasks import tile_batches
from tpu_graphs_ext.tasks.tile_batches import Arrays, graph_arrays

# Labels are runtimes over this, in ns, as in the baseline.
LABEL_UNIT_NS = 1e7


_EDGE_SETS = {  # As in `tile_batches`.
    'feed': ('op', 'op'), 'config': ('nconfig', 'op'),
    'sampled_feed': ('op', 'op'), 'sampled_config': ('nconfig', 'op'),
    'g_op': ('g', 'op'), 'g_config': ('g', 'nconfig')}


def program_graph(program: Program, configs: np.ndarray,
                  stats: FeatureStats) -> tfgnn.GraphTensor:
  """A program with configurations int64 [n], as a batch of one."""
  return graph_tensor(batch_arrays(
      [program], [configs], [slice(0, program.num_nodes)], stats))


def training_dataset(
    programs: Programs, stats: FeatureStats, *, batch_size: int,
    num_configs: int, keep_nodes: int, seed: int, first_epoch: int = 0,
    shuffle: bool = True) -> tf.data.Dataset:
  """Batches of programs with a few configurations each, and their labels.

  Each pass over the dataset is one epoch. It draws a new order of the programs
  and of each program `num_configs` configurations, without replacement, fast
  ones with a higher probability (`drawn`), and one training segment of at most
  `keep_nodes` nodes, in the order of the file; -1 selects all. The last batch
  may be smaller. Only drawn configurations are read.

  All programs have at least `num_configs` configurations; `seed` and
  `first_epoch` are as in `tile_batches.training_dataset`. Without `shuffle` the
  programs keep their order, and each pass draws the same configurations, so
  that epochs compare. The labels are float32 [programs, num_configs]: runtimes
  in 10 ms.
  """
  epochs = itertools.count(first_epoch)

  def one_epoch(programs: Programs) -> Iterator[Arrays]:
    return epoch_arrays(
        programs, stats, [next(epochs) if shuffle else 0, seed], batch_size,
        num_configs, keep_nodes, shuffle)

  def with_label(arrays: dict[str, tf.Tensor]):
    label = tf.cast(arrays['g/runtimes'], tf.float32) / LABEL_UNIT_NS
    return graph_tensor(arrays), label

  signature = tile_batches.array_signature(batch_arrays(
      programs[:1], [np.arange(num_configs)], [slice(0, 1)], stats))
  return tile_batches.generated(programs, one_epoch, signature,
                   math.ceil(len(programs) / batch_size), with_label)


def epoch_arrays(
    programs: Programs, stats: FeatureStats, seed: Sequence[int],
    batch_size: int, num_configs: int, keep_nodes: int,
    shuffle: bool) -> Iterator[Arrays]:
  """The batches of one pass; see `training_dataset`."""
  rng, number = np.random.default_rng(seed), len(programs)
  order = rng.permutation(number) if shuffle else np.arange(number)
  for start in range(0, number, batch_size):
    chosen = [programs[i] for i in order[start:start + batch_size]]
    yield batch_arrays(
        chosen, [drawn(rng, program, num_configs) for program in chosen],
        [segment(rng, program.num_nodes, keep_nodes) for program in chosen],
        stats)


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


def segment(rng: np.random.Generator, num_nodes: int,
            keep_nodes: int) -> slice:
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
  # [configurable, configs, columns] of each program.
  layouts = [program.layouts(chosen).transpose(1, 0, 2)
             for program, chosen in zip(programs, configs)]
  return {
      **graph,
      'op/selected': selected,
      'nconfig/feats': np.concatenate([
          stats.config.apply(
              rows.reshape(-1, rows.shape[-1]), 'node_config_feat'
          ).reshape(*rows.shape[:2], -1) for rows in layouts]),
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
