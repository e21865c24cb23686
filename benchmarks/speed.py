"""Measures speed and memory, side by side with the baseline.

  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python benchmarks/speed.py

Rows go to results/numbers.csv; each of `PARTS` is a table of its own.
`benchmarks/README.md` says what is measured.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.schema import NODE_GROUPS, OPCODES
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.tile import TrainSettings

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REFERENCE, OURS = 'EarlyJoinSAGE', 'MyEarlyJoinSAGE'
REPEATS, EPOCHS, KERNELS = 3, 5, 12
SERVED_TILES, CALLS = (16, 1000), 35
Rows = dict[str, dict[str, float]]  # Row -> column -> number.


def baseline() -> str:
  """The checkout to compare with, which also has the real kernels."""
  root = checkout.find()
  if not root:
    raise UserError(f'set {checkout.ROOT_VARIABLE} to a checkout of the '
                    'baseline, to compare with and for its real kernels')
  return root


def run_worker(name: str, *arguments: str, script: str = __file__,
               **variables: str) -> Any:
  """What a function of a script returns, in a process of its own.

  Raises:
    UserError: the process failed; its own messages are above.
  """
  done = subprocess.run(
      [sys.executable, script, '--worker', name, *arguments],
      stdout=subprocess.PIPE, check=False, encoding='utf-8',
      env={**os.environ, **variables})
  if done.returncode:
    raise UserError(f'measuring {name} {" ".join(arguments)} ended with exit '
                    f'code {done.returncode}; its own messages are above')
  return json.loads(done.stdout.splitlines()[-1])


def row_of(name: str, root: str) -> str:
  """The row of a model, of the checkout `root` or ours."""
  return f'baseline {name}' if root else name


# --- Kernels ------------------------------------------------------------------

NODE_COLUMNS, CONFIG_COLUMNS, NUM_OPS = 140, 24, 108
PARAMETERS = 0.2  # Of the nodes.
# Nodes of the 1261 held-out kernels of tile_xla_statistics.json.
NODE_SHARES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
NODE_QUANTILES = (2, 7, 19, 37, 58, 94, 154)
# The collection's facts give no quantiles of configurations, but their mean,
# 1683 a kernel in the test split, and their most, 10,000. Evenly spread on a
# logarithmic scale from 25 to 10,000 they have a mean of 1665.
FEWEST_CONFIGS, MOST_CONFIGS = 25, 10_000


def random_kernel(num_nodes: int, num_configs: int, seed: int = 0) -> Kernel:
  """A connected graph with 1.05 edges a node, as the real ones have.

  Sizes decide how long ranking takes, not values: features are uniform in
  [0, 1), so that normalising changes little.
  """
  rng = np.random.default_rng([seed, num_nodes, num_configs])
  consumers = np.arange(1, num_nodes)
  edges = np.stack([consumers, rng.integers(0, consumers)], 1)
  more = rng.integers(1, num_nodes, num_nodes // 16)
  edges = np.concatenate([edges, np.stack([more, rng.integers(0, more)], 1)])
  opcode = rng.integers(0, NUM_OPS, num_nodes).astype(np.uint8)
  opcode[rng.random(num_nodes) < PARAMETERS] = OPCODES['parameter']
  return Kernel(
      tile_id=f'random_{num_nodes}_{num_configs}',
      node_feat=rng.random((num_nodes, NODE_COLUMNS), np.float32),
      node_opcode=opcode,
      edge_index=np.unique(edges, axis=0).astype(np.int64),
      config_feat=rng.random((num_configs, CONFIG_COLUMNS), np.float32),
      runtime_ns=rng.integers(1000, 10**6, num_configs),
      normalizer_ns=np.full(num_configs, 1000, np.int64))


def like_the_collection(number: int) -> list[Kernel]:
  """`number` kernels at evenly spaced quantiles of nodes and configurations.

  The two are paired at random, but always in the same way.
  """
  shares = (np.arange(number) + 0.5) / number
  nodes = np.interp(shares, NODE_SHARES, NODE_QUANTILES).round().astype(int)
  configs = np.exp(np.interp(
      shares, (0, 1), np.log([FEWEST_CONFIGS, MOST_CONFIGS]))).astype(int)
  configs = np.random.default_rng(0).permutation(configs)
  return [random_kernel(n, c) for n, c in zip(nodes.tolist(),
                                              configs.tolist())]


# --- Ranking ------------------------------------------------------------------


def ranking(root: str) -> Rows:
  """Eager loop over kernels like the collection's, ours and the baseline's.

  Each process runs as its users run it: models.py changes a setting of
  TensorFlow that would make the baseline faster too in the same process. Times
  are of the processor, because the clock depends on what else runs.
  """
  rows = collections.defaultdict(dict)
  for onednn in ('0', '1'):
    runs = collections.defaultdict(list)
    for _ in range(REPEATS):  # In turn, so that all see the same machine.
      for name, own_root in ((REFERENCE, root), (REFERENCE, ''), (OURS, '')):
        runs[row_of(name, own_root)].append(run_worker(
            'rank_kernels', name, own_root, TF_ENABLE_ONEDNN_OPTS=onednn))
    seconds = {row: [*map(statistics.median, zip(*of_row))]
               for row, of_row in runs.items()}
    _, theirs = seconds[row_of(REFERENCE, root)]
    for row, (first_call, all_kernels) in seconds.items():
      rows[row].update({
          f'oneDNN {onednn}, first call, s': first_call,
          f'oneDNN {onednn}, all kernels, s': all_kernels,
          f'oneDNN {onednn}, all kernels, ratio': theirs / all_kernels})
  return rows


def rank_kernels(name: str, root: str) -> tuple[float, float]:
  """Seconds of the first call, and of all kernels after a warm-up."""
  kernels = like_the_collection(KERNELS)
  graphs = _graphs_of(kernels)
  start = time.perf_counter()
  model = _built(name, root, kernels, graphs[0])
  first_call = time.perf_counter() - start
  _rank_all(model, graphs, kernels)
  start = time.process_time()
  _rank_all(model, graphs, kernels)
  return first_call, time.process_time() - start


def _built(name: str, root: str, kernels: list[Kernel], graph):
  """Our model, or that of the checkout `root`, with its variables."""
  import tensorflow as tf

  from tpu_graphs_ext.tasks import feature_stats
  tf.keras.utils.set_random_seed(0)
  if root:
    sys.path.insert(0, root)
    module = importlib.import_module('tpu_graphs.baselines.tiles.models')
    model = getattr(module, name)(10, NUM_OPS)
  else:
    argument = feature_stats.ARGUMENT
    model = load_models.build(name, 10, NUM_OPS, {
        argument: _stats_of(kernels).to_json()} if load_models.takes(
            name, argument) else {})
  model.forward(graph, kernels[0].num_configs)
  return model


def _stats_of(kernels: list[Kernel]) -> FeatureStats:
  return FeatureStats.of_partition(Partition.from_kernels(
      [*kernels, random_kernel(50, 50)]))


def _graphs_of(kernels: list[Kernel]) -> list:
  from tpu_graphs_ext.tasks import tile_batches
  stats = _stats_of(kernels)
  return [tile_batches.kernel_graph(kernel, stats) for kernel in kernels]


def _rank_all(model, graphs, kernels) -> None:
  """What the baseline's evaluation script does with the kernels."""
  for graph, kernel in zip(graphs, kernels):
    model.forward(graph, kernel.num_configs).numpy()


# --- Memory -------------------------------------------------------------------


def memory(root: str) -> Rows:
  """`one_kernel` in a process for each case."""
  rows = {'TensorFlow alone': {
      'imported, MiB': run_worker('one_kernel', '', '0', '')}}
  for name, own_root in ((REFERENCE, root), (REFERENCE, ''), (OURS, '')):
    rows[row_of(name, own_root)] = {
        f'150 nodes x {configs} configs, MiB': run_worker(
            'one_kernel', name, str(configs), own_root)
        for configs in (1000, 10_000)}
  return rows


def one_kernel(name: str, configs: str, root: str) -> float:
  """Peak memory of a process that ranks one kernel of 150 nodes, MiB.

  Files are a part of it: the same libraries take 290 MiB on one machine and 350
  on another, by how much Linux maps at a time.
  """
  # Keras imports them where they are installed. The scripts need them, ranking
  # does not, and their memory would hide what the models take.
  sys.modules['pandas'] = sys.modules['scipy'] = None
  if not root:
    load_models.models_module()  # First of all, as in the scripts.
  if name:
    kernels = [random_kernel(150, int(configs))]
    graphs = _graphs_of(kernels)
    _rank_all(_built(name, root, kernels, graphs[0]), graphs, kernels)
  return peak_mib()


def peak_mib() -> float:
  """Most memory that this process has had, MiB.

  Where Linux keeps it for a program: `getrusage` counts what the process had
  before it started this program, as a copy of its parent.
  """
  with open('/proc/self/status', encoding='ascii') as file:
    (kib,) = (line.split()[1] for line in file if line.startswith('VmHWM'))
  return int(kib) / 1024


# --- Serving ------------------------------------------------------------------


def sample_root() -> str:
  """Sample data, written the first time."""
  return TILE.write_sample(os.path.join(PROJECT, 'out', 'speed_sample')).out


def serving(unused_root: str) -> Rows:
  """`new_kernels` for each model, with all threads and with one."""
  rows, data_root = collections.defaultdict(dict), sample_root()
  for name in (OURS, REFERENCE, 'AnalyticTileModel'):
    with tempfile.TemporaryDirectory() as folder:
      model_dir = run_worker('train_briefly', name, data_root, folder)
      for case, variables in (
          ('', {}), (', one thread', {'TF_NUM_INTRAOP_THREADS': '1'})):
        for tiles, milliseconds in zip(SERVED_TILES, run_worker(
            'new_kernels', name, model_dir, data_root, **variables)):
          rows[name][f'{tiles} tiles{case}, ms'] = milliseconds
  return rows


def train_briefly(name: str, data_root: str, folder: str) -> str:
  from tpu_graphs_ext.engine import train
  return train.train(TrainSettings(
      model=name, data_root=data_root, epochs=1, seed=0, out_dir=folder,
      cache_dir='')).model_dir


def new_kernels(name: str, model_dir: str, data_root: str) -> list[float]:
  """Processor time of `CostModel.rank` for kernels that it has not seen, ms.

  They are one kernel of about 23 nodes whose root has other values of a column
  that training drops, so that no score is in the cache.
  """
  from tpu_graphs_ext import CostModel
  kernel = min((kernel for kernel in read.read_kernels(
      os.path.join(data_root, 'train')) if kernel.num_configs >= 1000),
               key=lambda kernel: abs(len(kernel.node_opcode) - 23))
  unused = NODE_GROUPS['is_stable'].start
  model, least = CostModel.load(model_dir), []
  for tiles in SERVED_TILES:
    seconds = []
    for call in range(CALLS):
      arrays = {'node_feat': kernel.node_feat.copy(),
                'node_opcode': kernel.node_opcode,
                'edge_index': kernel.edge_index,
                'config_feat': kernel.config_feat[:tiles]}
      arrays['node_feat'][-1, unused] = tiles + call
      start = time.process_time()
      model.rank(arrays)
      seconds.append(time.process_time() - start)
    least.append(1000 * min(seconds))
  return least


# --- Training -----------------------------------------------------------------

# Keras' line of an epoch, of which the first is left out: it has the tracing.
_EPOCH = re.compile(r' (\d+)(ms|s)/step - loss')


def training(root: str) -> Rows:
  """Milliseconds of a step, validation included, in three hosts.

  The baseline's unchanged script with its own models.py and with ours, and
  this package's engine, at default flags.
  """
  steps, data_root = collections.defaultdict(list), sample_root()
  for _ in range(5):  # In turn, so that all of them see the machine's moods.
    steps[REFERENCE, 'baseline, ms'] += _script_steps(
        root, data_root, None, REFERENCE)
    for name in (REFERENCE, OURS):
      steps[name, 'ours, unchanged script, ms'] += _script_steps(
          root, data_root, os.path.join(PROJECT, 'models.py'), name)
      steps[name, 'ours, own host, ms'] += run_worker(
          'host_steps', name, data_root)
  rows = collections.defaultdict(dict)
  for (name, column), milliseconds in steps.items():
    rows[name][column] = statistics.median(milliseconds)
  return rows


def _script_steps(root, data_root, models_py, name) -> list[float]:
  """Milliseconds a step of each epoch but the first, by tiles_train.py."""
  with tempfile.TemporaryDirectory() as folder:
    copy = checkout.working_copy(root, os.path.join(folder, 'copy'), models_py)
    log = os.path.join(folder, 'log')
    checkout.run_to_end('tiles_train.py', checkout.script_command([
        'tiles_train.py', f'--model={name}', f'--epochs={EPOCHS}',
        f'--data_root={data_root}', f'--out_dir={folder}/out',
        f'--cache_dir={folder}/cache']), log, cwd=copy)
    with open(log, encoding='utf-8') as file:
      epochs = _EPOCH.findall(file.read())
  return [float(value) * (1000 if unit == 's' else 1)
          for value, unit in epochs][1:]


def host_steps(name: str, data_root: str) -> list[float]:
  """Of each epoch but the first, by `tpu-graphs-ext train`."""
  import tensorflow as tf

  from tpu_graphs_ext.engine import threads, train
  threads.one_for_each_operation()
  begun, ended = [], []

  def end(epoch: int, unused_logs) -> None:
    ended.append(time.perf_counter())
    timer.model.stop_training = epoch == EPOCHS

  timer = tf.keras.callbacks.LambdaCallback(
      on_epoch_begin=lambda *_: begun.append(time.perf_counter()),
      on_epoch_end=end)
  with tempfile.TemporaryDirectory() as folder:
    train.train(TrainSettings(
        model=name, data_root=data_root, epochs=1000, seed=0,  # A long run.
        early_stop=0, out_dir=folder, cache_dir=folder + '/cache'),
        further=(timer,))
  steps = len(read.read_dataset(data_root, min_train_configs=10).train) // 10
  return (1000 / steps * np.subtract(ended, begun)[1:]).tolist()


PARTS = {part.__name__: part for part in (ranking, memory, training, serving)}


def main(arguments: list[str] | None = None) -> int:
  """Runs the chosen parts and writes their rows; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == ['--worker']:
    name, *arguments = arguments[1:]
    print(json.dumps(globals()[name](*arguments)))
    return 0
  import tables  # Not in a worker: it brings pandas, which takes memory.
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
  args = parser.parse_args(arguments)
  try:
    root = baseline()
    for part in args.parts:
      print(f'measuring {part}', file=sys.stderr)
      tables.put(f'speed-{part}', PARTS[part](root), 'models.py', shlex.join(
          ['python', 'benchmarks/speed.py', '--parts', part]), whole=True)
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
