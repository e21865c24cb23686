"""Measures the layout task's ResModel, side by side with the baseline's.

  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python benchmarks/speed_layout.py FILE.npz

FILE is a layout file of any size; the published ones have hundreds to tens of
thousands of nodes. Both models have the same weights and get the same graphs
from the baseline's own reader, each in processes of its own, in turn:

  ranking   every configuration, 100 at a time, as layout_evaluate.py does it
  training  a step of layout_train.py at its default flags: the file 8 times,
            16 configurations each, segments of 5,000 nodes
  scores    largest difference of a score, over the largest score

Memory is the peak beyond what the process had when its graph was read. The
rows go to results/numbers.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

import tables
from speed import baseline, peak_mib, run_worker
from tpu_graphs_ext.errors import UserError

SIDES = ('baseline', 'ours')
# As the scripts' flags have it by default.
CHUNK, CONFIGS, BATCH, KEEP_NODES = 100, 16, 8, 5000


def main(arguments: list[str] | None = None) -> int:
  """Measures and writes the table; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == ['--worker']:
    print(json.dumps(_work(*arguments[1:])))
    return 0
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('file', metavar='FILE.npz')
  parser.add_argument('--repeats', type=int, default=3,
                      help='processes of each side, in turn')
  parser.add_argument('--most_configs', type=int, default=-1,
                      help='rank no more than this many; -1: all')
  args = parser.parse_args(arguments)
  try:
    root = baseline()
    if not os.path.isfile(args.file):
      raise UserError(f'{args.file}: no such file; give an .npz of layouts')
    answers, difference = measured(root, args)
    tables.put('speed-layout', rows_of(answers), 'layout_models.py',
               shlex.join(['python', 'benchmarks/speed_layout.py', *arguments]),
               whole=True)
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  print(f'{_title(args)}; largest difference of a score: {difference:.2g} of '
        'the largest score')
  return 0


def measured(root: str, args) -> tuple[dict[str, list], float]:
  """Side -> answers of its processes; the largest difference of scores."""
  answers = {side: [] for side in SIDES}
  with tempfile.TemporaryDirectory() as folder:
    for repeat in tqdm(range(args.repeats), disable=None):
      # Ours first, because it leaves its weights; then in turn.
      for side in SIDES[::-1] if repeat % 2 == 0 else SIDES:
        answers[side].append(run_worker(
            side, root, args.file, folder, str(args.most_configs),
            script=__file__))
    theirs, ours = (np.load(os.path.join(folder, f'{side}.npy'))
                    for side in SIDES)
  return answers, float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def rows_of(answers: dict[str, list]) -> dict[str, dict[str, float]]:
  """Medians of both sides, and their ratios."""
  rows = {}
  for row in answers['ours'][0]:
    theirs, ours = (statistics.median(answer[row] for answer in answers[side])
                    for side in SIDES)
    rows[row] = {
        'baseline': theirs, 'ours': ours, 'ratio': theirs / max(ours, 1e-9)}
  return rows


def _title(args) -> str:
  with np.load(args.file) as stored:
    nodes = len(stored['node_opcode'])
    configs, configurable = stored['node_config_feat'].shape[:2]
  if args.most_configs > 0:
    configs = f'{min(configs, args.most_configs)} of {configs}'
  return (f'`{os.path.basename(args.file)}`: {nodes} nodes, {configurable} '
          f'configurable, {configs} configurations ranked')


# --- One process -------------------------------------------------------------


def _work(side: str, root: str, path: str, folder: str,
          most_configs: str) -> dict[str, float]:
  """Measures one side once: row of the table -> number."""
  sys.path.insert(0, root)
  if side == 'ours':  # Before the baseline's, as in the scripts.
    from tpu_graphs_ext import layout_models as models
    data = _reader()
  else:
    data = _reader()
    from tpu_graphs.baselines.layout import models
  import tensorflow as tf
  tf.keras.utils.set_random_seed(0)
  partition = _partition(data, path)
  model = models.ResModel(
      CONFIGS, int(tf.reduce_max(partition.node_opcode)) + 1)
  graph = partition.get_item(0).to_graph_tensor()
  model.forward(data.sub_configs(graph, slice(0, 2)), num_configs=2)
  _share_weights(model, side, folder)
  return {**_ranking(data, model, graph, int(most_configs),
                     os.path.join(folder, f'{side}.npy')),
          **_training(model, partition)}


@contextlib.contextmanager
def _measured(part: str, runs: int = 1) -> Iterator[dict[str, float]]:
  """Seconds of a run of its block, and the block's memory, in the dict."""
  with contextlib.suppress(OSError):  # Linux then counts the peak anew.
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
      file.write('5')
  had, start, costs = peak_mib(), time.perf_counter(), {}
  yield costs
  costs[f'{part}, time, s'] = (time.perf_counter() - start) / runs
  costs[f'{part}, memory, MiB'] = peak_mib() - had


def _reader():
  """The baseline's reader, which is steered by flags."""
  from absl import flags
  from tpu_graphs.baselines.layout import data
  flags.FLAGS(sys.argv[:1])
  return data


def _partition(data, path: str):
  """One file as the baseline reads it, scaled by its own statistics."""
  partition = data.NpzDatasetPartition()
  with np.load(path) as stored:
    arrays = dict(stored)
  if not arrays['config_runtime'].any():
    arrays['config_runtime'] += 1 + np.arange(len(arrays['config_runtime']))
  partition.add_npz_file('file', arrays, min_configs=2)
  partition.finalize()
  scale = data.NpzDataset(partition, partition, partition)
  for table in ('node_feat', 'node_config_feat'):
    values = getattr(partition, table)
    setattr(partition, table, scale._apply_normalizer(
        values, *scale._get_normalizer(values)))
  return partition


def _share_weights(model, side: str, folder: str) -> None:
  """Ours leaves its weights, and every process takes them."""
  path = os.path.join(folder, 'weights.npz')
  if side == 'ours' and not os.path.exists(path):
    np.savez(path, *(weight.numpy() for weight in model.trainable_variables))
  with np.load(path) as stored:
    for weight, name in zip(model.trainable_variables, stored.files):
      weight.assign(stored[name])


def _ranking(data, model, graph, most_configs: int,
             path: str) -> dict[str, float]:
  """Of all chunks; the first chunk also runs once before."""
  count = graph.node_sets['g']['runtimes'].shape[-1]
  count = min(count, most_configs) if most_configs > 0 else count

  def scored(start):
    end = min(start + CHUNK, count)
    return model.forward(data.sub_configs(graph, slice(start, end)),
                         num_configs=end - start)[0].numpy()

  scored(0)
  with _measured('ranking') as costs:
    scores = np.concatenate([scored(at) for at in range(0, count, CHUNK)])
  np.save(path, scores)
  return costs


def _training(model, partition, steps: int = 3) -> dict[str, float]:
  """Of a step, after the first."""
  import tensorflow as tf
  import tensorflow_gnn as tfgnn
  import tensorflow_ranking as tfr

  def with_label(graph):
    return graph, tf.cast(
        graph.node_sets['g']['runtimes'], tf.float32) / 1e7

  batches = (partition.get_graph_tensors_dataset(
      CONFIGS, max_nodes=KEEP_NODES).repeat(BATCH).batch(BATCH)
             .map(tfgnn.GraphTensor.merge_batch_to_components).map(with_label))
  model.compile(
      loss=tfr.keras.losses.ListMLELoss(),
      optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3, clipnorm=1e-2),
      metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
  model.fit(batches, verbose=0)
  with _measured('training', steps) as costs:
    model.fit(batches.repeat(steps), verbose=0)
  return costs


if __name__ == '__main__':
  sys.exit(main())
