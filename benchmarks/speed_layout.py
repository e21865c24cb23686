"""Measures the layout task's ResModel, side by side with the baseline's.

  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python benchmarks/speed_layout.py FILE.npz

FILE is a layout file of any size; the published ones have hundreds to tens of
thousands of nodes. Both models have the same weights and get the same graphs,
of the baseline's own reader, each in processes of its own, in turn:

  ranking   every configuration, 100 at a time, as layout_evaluate.py does it
  training  a step of layout_train.py at its default flags: the file 8 times,
            16 configurations each, segments of 5,000 nodes
  scores    largest difference of a score, over the largest score: between the
            two, and of each from the same in float64, for some configurations

Of both times, on the clock and of the processor, which other work on the
machine changes less, and memory: the peak of the process, most of which
TensorFlow takes before any model is there, and the peak beyond what the process
had when its graph was read.

Rows go to results/speed_layout.csv, where a part that is measured again
replaces its rows; results/speed_layout.md shows all.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from tqdm import tqdm

import exact_res_model
from machine import machine
from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ('part', 'file', 'measure', 'value', 'unit', 'machine', 'versions',
          'remark')
PARTS = ('ranking', 'training')
SIDES = ('baseline', 'ours')
# As the scripts' flags have it by default.
CHUNK, CONFIGS, BATCH, KEEP_NODES = 100, 16, 8, 5000
EXACT = 20  # Configurations that are also scored in float64.


def main(arguments: list[str] | None = None) -> int:
  """Measures and writes the table; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == ['--worker']:
    _work(*arguments[1:])
    return 0
  args = _parsed(arguments)
  try:
    root = checkout.find()
    if not root:
      raise UserError(f'{checkout.ROOT_VARIABLE} names no checkout of the '
                      'baseline to compare with')
    if not os.path.isfile(args.file):
      raise UserError(f'{args.file}: no such file; give an .npz of layouts')
    os.makedirs(args.out, exist_ok=True)
    for part in args.parts.split(','):
      if part not in PARTS:
        raise UserError(f'--parts={args.parts}: there is no part {part!r}; '
                        f'choose from {", ".join(PARTS)}')
      write_results(args.out, measured(part, root, args))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  print(os.path.join(args.out, 'speed_layout.md'))
  return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('file', metavar='FILE.npz')
  parser.add_argument('--parts', default=','.join(PARTS))
  parser.add_argument('--repeats', type=int, default=3,
                      help='processes of each side, in turn')
  parser.add_argument('--most_configs', type=int, default=-1,
                      help='rank no more than so many; -1: all')
  parser.add_argument('--remark', default='',
                      help='what else was going on, for the table')
  parser.add_argument('--out', default=os.path.join(HERE, 'results'))
  return parser.parse_args(arguments)


# --- Measuring ---------------------------------------------------------------


def measured(part: str, root: str, args: argparse.Namespace) -> list[dict]:
  """Rows of one part."""
  answers = {side: [] for side in SIDES}
  with tempfile.TemporaryDirectory() as folder:
    for repeat in tqdm(range(args.repeats), desc=part, disable=None):
      # Ours first, for it leaves its weights; then in turn.
      for side in SIDES[::-1] if repeat % 2 == 0 else SIDES:
        answers[side].append(_run(
            part, side, root, args.file, folder, str(args.most_configs)))
    rows = _compared(part, answers)
    if part == 'ranking':
      rows += _differences(folder)
  for row in rows:
    row.update(file=_title(args), machine=machine(), versions=_versions(),
               remark=args.remark)
  return rows


def _run(*arguments: str) -> dict[str, Any]:
  """What a process of one side answers."""
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
  found = subprocess.run(
      [sys.executable, os.path.abspath(__file__), '--worker', *arguments],
      stdout=subprocess.PIPE, encoding='utf-8', env=environment, check=False)
  if found.returncode:
    raise UserError(f'{arguments[0]} with {arguments[1]} ended before it was '
                    'done; its own messages are above')
  return json.loads(found.stdout.splitlines()[-1])


def _compared(part: str, answers: dict[str, list]) -> list[dict]:
  """Medians of both sides, and their ratios."""
  rows = []
  work = 'a step' if part == 'training' else 'all ranked'
  for key, name, unit in (
      ('seconds', work, 's'), ('processor', f'{work}, processor time', 's'),
      ('peak', 'peak of the process', 'MiB'),
      ('taken', 'peak beyond what it had before', 'MiB')):
    values = {side: statistics.median(each[key] for each in answers[side])
              for side in SIDES}
    rows += [_row(part, f'{name}, {side}', value, unit)
             for side, value in values.items()]
    rows.append(_row(part, f'{name}, baseline over ours',
                     values['baseline'] / max(values['ours'], 1e-9), 'times'))
  return rows


def _row(part: str, measure: str, value: float, unit: str) -> dict[str, Any]:
  return {'part': part, 'measure': measure, 'value': value, 'unit': unit}


def _differences(folder: str) -> list[dict]:
  """Of the scores that both sides left, and of what they were to be."""
  found = {name: np.load(os.path.join(folder, f'{name}.npy'))
           for name in (*SIDES, 'exact')}
  largest, exact = np.abs(found['baseline']).max(), found['exact']
  differences = {
      'largest difference': found['ours'] - found['baseline'],
      **{f'from float64, {side}': found[side][:len(exact)] - exact
         for side in SIDES}}
  return [_row('scores', 'largest score', float(largest), ''), *(
      _row('scores', name, float(np.abs(difference).max() / largest),
           'of the largest score')
      for name, difference in differences.items())]


def _title(args: argparse.Namespace) -> str:
  """The file and its sizes."""
  with np.load(args.file) as stored:
    nodes = len(stored['node_opcode'])
    configs, configurable = stored['node_config_feat'].shape[:2]
  if args.most_configs > 0:
    configs = f'{min(configs, args.most_configs)} of {configs}'
  parts = os.path.abspath(args.file).split(os.sep)[-4:]
  return (f'{"/".join(parts)}: {nodes} nodes, {configurable} configurable, '
          f'{configs} configurations')


def _versions() -> str:
  from tpu_graphs_ext.engine import artifacts
  return ', '.join(f'{name} {version}'
                   for name, version in artifacts.versions().items())


# --- One process -------------------------------------------------------------


def _work(part: str, side: str, root: str, path: str, folder: str,
          most_configs: str) -> None:
  """Measures one side once, and prints JSON."""
  sys.path.insert(0, root)
  if side == 'ours':  # First of all, as in the scripts.
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
  memory = _Memory()
  model.forward(data.sub_configs(graph, slice(0, 2)), num_configs=2)
  _share_weights(model, side, folder)
  if part == 'ranking':
    times = _ranking(data, model, graph, int(most_configs),
                     os.path.join(folder, f'{side}.npy'))
  else:
    times = _training(model, partition)
  print(json.dumps({**times, **memory.found()}))
  exact = os.path.join(folder, 'exact.npy')
  if part == 'ranking' and not os.path.exists(exact):
    np.save(exact, _exact(model, data.sub_configs(
        graph, slice(0, EXACT if int(most_configs) < 0
                     else min(EXACT, int(most_configs))))))


def _exact(model, graph) -> np.ndarray:
  """float64 [configs]: the scores of a graph, as they were to be."""
  ops, configs = (graph.node_sets[name] for name in ('op', 'nconfig'))
  feed, config = (graph.edge_sets[name].adjacency
                  for name in ('feed', 'config'))
  order = np.argsort(config.source.numpy())
  return exact_res_model.scores(
      [weight.numpy() for weight in model.trainable_variables],
      ops['op'].numpy(), ops['feats'].numpy(),
      np.stack([feed.source.numpy(), feed.target.numpy()], -1),
      config.target.numpy()[order], configs['feats'].numpy())


class _Memory:
  """The memory that a process takes from now on, MiB."""

  def __init__(self):
    from speed_ranking import peak_mib, status_mib
    self._peak_mib, self._earlier = peak_mib, peak_mib()
    self._had = status_mib('VmRSS')
    with contextlib.suppress(OSError):  # Linux then counts the peak anew.
      with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')

  def found(self) -> dict[str, float]:
    """Peak of the process, and the peak since then over what it had then."""
    peak = self._peak_mib()
    return {'peak': max(self._earlier, peak), 'taken': peak - self._had}


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
  """Times of all chunks; the first chunk also runs once before."""
  count = graph.node_sets['g']['runtimes'].shape[-1]
  count = min(count, most_configs) if most_configs > 0 else count

  def scored(start):
    end = min(start + CHUNK, count)
    return model.forward(data.sub_configs(graph, slice(start, end)),
                         num_configs=end - start)[0].numpy()

  scored(0)
  start = _clocks()
  scores = np.concatenate([scored(at) for at in range(0, count, CHUNK)])
  times = _since(start)
  np.save(path, scores)
  return times


def _clocks() -> tuple[float, float]:
  return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> dict[str, float]:
  """Seconds on the clock and of the processor."""
  return {name: now - then for name, now, then in zip(
      ('seconds', 'processor'), _clocks(), start)}


def _training(model, partition, steps: int = 3) -> dict[str, float]:
  """Times of a step, the medians of several after the first."""
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
  found = []
  for _ in range(1 + steps):
    start = _clocks()
    model.fit(batches, verbose=0)
    found.append(_since(start))
  return {name: statistics.median(times[name] for times in found[1:])
          for name in found[0]}


# --- Results -----------------------------------------------------------------


def write_results(folder: str, rows: list[dict]) -> None:
  """Replaces what was measured of these files in the CSV; writes the table."""
  path, kept = os.path.join(folder, 'speed_layout.csv'), []
  if os.path.exists(path):
    new = {(row['part'], row['file']) for row in rows}
    with open(path, encoding='utf-8', newline='') as file:
      kept = [row for row in csv.DictReader(file)
              if (row['part'], row['file']) not in new]
  for row in rows:
    row['value'] = f'{row["value"]:.6g}'
  text = io.StringIO()
  writer = csv.DictWriter(text, FIELDS, lineterminator='\n')
  writer.writeheader()
  writer.writerows(kept + rows)
  files.write_file(path, text.getvalue().encode())
  files.write_file(os.path.join(folder, 'speed_layout.md'),
                   markdown(kept + rows).encode())


def markdown(rows: list[dict]) -> str:
  """A table for each file, and what it was measured on."""
  lines = ['# Speed and memory of the layout task\'s ResModel', '',
           'Written by `benchmarks/speed_layout.py`, which says what is '
           'measured.', '']
  for file in dict.fromkeys(row['file'] for row in rows):
    own = [row for row in rows if row['file'] == file]
    lines += [f'## {file}', '', '| part | measure | value | unit |',
              '| --- | --- | ---: | --- |']
    lines += [f'| {row["part"]} | {row["measure"]} | '
              f'{float(row["value"]):.4g} | {row["unit"]} |' for row in own]
    lines += [''] + [f'- {text}' for text in dict.fromkeys(
        '; '.join(filter(None, (row['machine'], row['versions'],
                                row['remark']))) for row in own)] + ['']
  return '\n'.join(lines)


if __name__ == '__main__':
  sys.exit(main())
