"""Measures `forward`: its scores, in memory, at the limit, growing.

Every function is a part of `speed.py`, runs in a process of its own and returns
rows: dicts of part, subject, case, measure, value and unit.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import speed_kernels
from replicated_join import ReplicatedEarlyJoinSAGE
from tpu_graphs_ext import load_models
from tpu_graphs_ext.baseline import checkout
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import batches, feature_stats, inputs

BASELINE_NAMES = ('EarlyJoinSAGE', 'EarlyJoinResGCN', 'LateJoinSAGE',
                  'LateJoinResGCN', 'MLP')
OURS = 'MyEarlyJoinSAGE'
REPEATS = 5
MIB = 2.0 ** 20


def row(part: str, subject: str, case: str, measure: str, value: float,
        unit: str) -> dict[str, Any]:
  return {'part': part, 'subject': subject, 'case': case, 'measure': measure,
          'value': float(value), 'unit': unit}


def median_seconds(function: Callable[[], Any],
                   repeats: int = REPEATS) -> float:
  """Median time of a call, after one that does not count."""
  return medians_in_turn([function], repeats)[0]


def medians_in_turn(functions: list[Callable[[], Any]],
                    repeats: int) -> list[float]:
  """`median_seconds` of each, measured in turn, as all see the same machine."""
  for function in functions:
    function()
  seconds = [[] for _ in functions]
  for _ in range(repeats):
    for function, measured in zip(functions, seconds):
      start = time.perf_counter()
      function()
      measured.append(time.perf_counter() - start)
  return [statistics.median(measured) for measured in seconds]


def built(name: str, kernels: list[Kernel]) -> tuple[Any, float]:
  """A model with its variables, and the seconds that its first call took.

  One that takes statistics is given those of the kernels.
  """
  tf.keras.utils.set_random_seed(0)
  kwargs = {}
  if load_models.takes(name, feature_stats.ARGUMENT):
    kwargs[feature_stats.ARGUMENT] = stats_of(kernels).to_json()
  model = load_models.build(name, 10, speed_kernels.NUM_OPS, kwargs)
  graph = graphs_of(kernels)[0]
  start = time.perf_counter()
  model.forward(graph, kernels[0].num_configs)
  return model, time.perf_counter() - start


def stats_of(kernels: list[Kernel]) -> FeatureStats:
  return FeatureStats.of_partition(Partition.from_kernels(
      [*kernels, speed_kernels.random_kernel(50, 50)]))


def graphs_of(kernels: list[Kernel]) -> list:
  stats = stats_of(kernels)
  return [batches.kernel_graph(kernel, stats) for kernel in kernels]


# --- Scores against the baseline's --------------------------------------------


def equality(root: str, data_root: str) -> list[dict[str, Any]]:
  """Scores of the baseline's models and of ours with the same weights.

  Over every kernel of the sample data's test split, and the real kernels that
  the baseline ships. Beside it stands how far the baseline is from itself when
  the nodes of each kernel come in another order, which changes nothing but the
  rounding. Without a checkout there is nothing to compare with.
  """
  rows = []
  if not root:
    return rows
  for case, source in (('sample test split', os.path.join(data_root, 'test')),
                       ('real kernels', os.path.join(
                           root, checkout.REAL_KERNELS))):
    kernels = list(inputs.read_kernels(source))
    stats = FeatureStats.of_partition(Partition.from_kernels(kernels))
    graphs, reordered = (
        [batches.kernel_graph(kernel, stats) for kernel in those]
        for those in (kernels, map(_in_another_order, kernels)))
    for name in BASELINE_NAMES:
      tf.keras.utils.set_random_seed(0)
      ours = load_models.build(name, 10, speed_kernels.NUM_OPS, {})
      ours.forward(graphs[0], kernels[0].num_configs)
      theirs = the_baselines(name, root, graphs, kernels)
      for target, source in zip(theirs.trainable_variables,
                                ours.trainable_variables):
        target.assign(source)
      of = f'{case}, {len(kernels)} kernels'
      rows.append(row('equality', name, of, 'largest difference', _difference(
          theirs, ours, graphs, graphs, kernels), 'of scores'))
      rows.append(row('equality', name, of, 'of the baseline from itself',
                      _difference(theirs, theirs, graphs, reordered, kernels),
                      'of scores'))
  return rows


def _in_another_order(kernel: Kernel) -> Kernel:
  """The kernel with its nodes from last to first."""
  last = len(kernel.node_opcode) - 1
  return dataclasses.replace(
      kernel, node_opcode=kernel.node_opcode[::-1].copy(),
      node_feat=kernel.node_feat[::-1].copy(),
      edge_index=last - kernel.edge_index)


def the_baselines(name, root, graphs, kernels):
  """The baseline's model of a name, or what stands in for its EarlyJoinSAGE."""
  if not root:
    return ReplicatedEarlyJoinSAGE(built('EarlyJoinSAGE', kernels)[0])
  if root not in sys.path:
    sys.path.insert(0, root)
  module = importlib.import_module('tpu_graphs.baselines.tiles.models')
  model = getattr(module, name)(10, speed_kernels.NUM_OPS)
  model.forward(graphs[0], kernels[0].num_configs)
  return model


def rank_all(model, graphs, kernels) -> list[np.ndarray]:
  """What the baseline's evaluation script does with the kernels."""
  return [model.forward(graph, kernel.num_configs).numpy()
          for graph, kernel in zip(graphs, kernels)]


def _difference(theirs, ours, their_graphs, our_graphs, kernels) -> float:
  """Largest difference of a score, over the largest score of its kernel."""
  worst = 0.0
  for their_graph, our_graph, kernel in zip(
      their_graphs, our_graphs, kernels):
    a = theirs.forward(their_graph, kernel.num_configs).numpy()
    b = ours.forward(our_graph, kernel.num_configs).numpy()
    worst = max(worst, float(np.abs(a - b).max() / np.abs(a).max()))
  return worst


# --- Memory and chunks --------------------------------------------------------


def peak_mib() -> float:
  """Most memory that this process has had, MiB.

  Where Linux keeps it for a program: `getrusage` counts what the process had
  before it started this program, as a copy of its parent.
  """
  return status_mib('VmHWM') or (
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def status_mib(field: str) -> float:
  """A field of what Linux says of this process, MiB; 0 where it says nothing.
  """
  try:
    with open('/proc/self/status', encoding='ascii') as file:
      (kib,) = (line.split()[1] for line in file if line.startswith(field))
    return int(kib) / 1024
  except (OSError, ValueError):
    return 0.0


def _memory_rows(subject: str, case: str) -> list[dict[str, Any]]:
  """The peak, and what part of it files are: the same libraries take 290 MiB
  of it on one machine and 350 on another, by how much Linux maps at a time."""
  return [
      row('memory', subject, case, 'peak of the process', peak_mib(), 'MiB'),
      row('memory', subject, case, 'of it mapped files',
          status_mib('RssFile'), 'MiB')]


def one_kernel(name: str, nodes: int, configs: int,
               root: str = '') -> list[dict[str, Any]]:
  """Peak memory of a process that ranks one kernel.

  `root` is a checkout whose own model of that name does it.
  """
  if not root:
    load_models.models_module()  # First of all, as in the scripts.
  kernel = speed_kernels.random_kernel(nodes, configs)
  (graph,) = graphs_of([kernel])
  if root:
    model = the_baselines(name, root, [graph], [kernel])
  else:
    model, _ = built(name, [kernel])
  rank_all(model, [graph], [kernel])
  return _memory_rows(f'baseline {name}' if root else name,
                      f'{nodes} nodes x {configs} configs')


def memory(worker: list[str], root: str) -> list[dict[str, Any]]:
  """`one_kernel` in a process for each case, and the time over chunk sizes."""
  rows = _memory_rows('TensorFlow alone', 'imported')
  for name in ('EarlyJoinSAGE', OURS):
    for configs in (100, 1000, 10_000):
      rows += run_worker(worker, 'one_kernel', name, '150', str(configs))
  if root:
    for configs in (1000, 10_000):
      rows += run_worker(
          worker, 'one_kernel', 'EarlyJoinSAGE', '150', str(configs), root)
  return rows + _chunks()


def run_worker(worker: list[str], *arguments: str) -> list[dict[str, Any]]:
  """Rows that a process of `speed.py` prints as JSON in its last line.

  Args:
    worker: its command, to which the arguments are added.

  Raises:
    UserError: the process failed; its own messages are above.
  """
  done = subprocess.run([*worker, *arguments], stdout=subprocess.PIPE,
                        check=False, encoding='utf-8')
  if done.returncode:
    raise UserError(f'measuring {" ".join(arguments)} ended with exit code '
                    f'{done.returncode}; its own messages are above')
  return json.loads(done.stdout.splitlines()[-1])


def _chunks() -> list[dict[str, Any]]:
  """Time of 150 nodes x 10,000 configs for chunks of different sizes."""
  models = load_models.models_module()
  kernel = speed_kernels.random_kernel(150, 10_000)
  graph = graphs_of([kernel])
  rows = []
  chosen = models._Ranker._CHUNK_FLOATS
  sizes = sorted({2 ** power for power in range(16, 24)} | {chosen})
  for name in ('EarlyJoinSAGE', OURS):
    loops = []
    for floats in sizes:
      models._Ranker._CHUNK_FLOATS = floats
      loops.append(functools.partial(
          rank_all, built(name, [kernel])[0], graph, [kernel]))
      loops[-1]()  # Traced with this size.
    seconds = dict(zip(sizes, medians_in_turn(loops, REPEATS)))
    rows += [row('chunks', name, f'{floats // 2 ** 10} Ki floats', 'time',
                 seconds[floats], 's') for floats in sizes]
    rows.append(row('chunks', name, 'the size in use', 'over the fastest',
                    seconds[chosen] / min(seconds.values()), 'times'))
  models._Ranker._CHUNK_FLOATS = chosen
  return rows


# --- Repetitions last ---------------------------------------------------------


def repeats() -> list[dict[str, Any]]:
  """100 nodes x 10,000 configs, with repetitions found and put last or not."""
  kernel = speed_kernels.random_kernel(100, 10_000)
  kernel.config_feat[::1000] = kernel.config_feat[0]
  graph, case = graphs_of([kernel]), '100 nodes x 10,000 configs'
  rows = []
  for name in (OURS, 'EarlyJoinGCN', 'LateJoinGCN'):
    models = [built(name, [kernel])[0] for _ in range(2)]
    models[1]._repeats_last = False
    models[1]._rank = models[1]._compiled_rank()
    last, kept = medians_in_turn(
        [functools.partial(rank_all, model, graph, [kernel])
         for model in models], REPEATS)
    rows += [
        row('repeats', name, case, 'repetitions where they are', 1e3 * kept,
            'ms'),
        row('repeats', name, case, 'repetitions last', 1e3 * last, 'ms'),
        row('repeats', name, case, 'more', 100 * (last / kept - 1), '%')]
  return rows


# --- Near the limit -----------------------------------------------------------


def limit() -> list[dict[str, Any]]:
  """EarlyJoinSAGE on 40 nodes x 1842 configs against what the machine can."""
  flops, bandwidth = _matmul_rate(), _copy_rate()
  kernel = speed_kernels.random_kernel(40, 1842)
  model, _ = built('EarlyJoinSAGE', [kernel])
  seconds = median_seconds(functools.partial(
      rank_all, model, graphs_of([kernel]), [kernel]), 20)
  operations, moved = _needed(kernel)
  ideal = max(operations / flops, moved / bandwidth)
  subject, case = 'EarlyJoinSAGE', '40 nodes x 1842 configs'
  return [
      row('limit', 'machine', 'product of 2048 x 2048 matrices', 'rate',
          flops / 1e9, 'GFLOP/s'),
      row('limit', 'machine', 'copy of 256 MiB', 'rate', bandwidth / 1e9,
          'GB/s'),
      row('limit', subject, case, 'operations', operations / 1e9, 'GFLOP'),
      row('limit', subject, case, 'bytes', moved / 1e6, 'MB'),
      row('limit', subject, case, 'operations at that rate',
          1e3 * operations / flops, 'ms'),
      row('limit', subject, case, 'bytes at that rate',
          1e3 * moved / bandwidth, 'ms'),
      row('limit', subject, case, 'measured', 1e3 * seconds, 'ms'),
      row('limit', subject, case, 'measured over needed', seconds / ideal,
          'times')]


def _matmul_rate() -> float:
  """Floating-point operations a second of a large matrix product."""
  a = tf.random.uniform([2048, 2048])
  product = tf.function(lambda: tf.reduce_sum(a @ a))
  return 2 * 2048 ** 3 / median_seconds(lambda: product().numpy())


def _copy_rate() -> float:
  """Bytes a second, read and written, of a copy that no cache holds."""
  source = np.ones(2 ** 26, np.float32)
  target = np.empty_like(source)
  return 2 * source.nbytes / median_seconds(lambda: np.copyto(target, source))


def _needed(kernel: Kernel) -> tuple[float, float]:
  """Operations and bytes that EarlyJoinSAGE cannot do without.

  Operations: layer 1 on nodes and on configs apart; layers 2 and 3 on both, a
  product of [128, 64] each and one addition per edge, direction and column;
  the head. Bytes: each layer's states, [nodes, configs, 64], written once and
  read once, and the config features in.
  """
  nodes, configs, width = kernel.num_nodes, kernel.num_configs, 64
  states = nodes * configs * width
  first = 2 * 2 * width * (nodes * (64 + speed_kernels.NODE_COLUMNS)
                           + configs * speed_kernels.CONFIG_COLUMNS)
  layers = 2 * (states * 2 * 2 * width
                + 2 * kernel.num_edges * configs * width)
  head = configs * (2 * 2 * width * width + 2 * width)
  moved = 4 * (3 * 2 * states + configs * speed_kernels.CONFIG_COLUMNS)
  return first + layers + head, moved


# --- Growth -------------------------------------------------------------------


def growth(worker: list[str]) -> list[dict[str, Any]]:
  """Time over configurations and over nodes, and memory at the ends."""
  rows = []
  sizes = {
      'configs': [(40, c) for c in (10, 30, 100, 300, 1000, 3000, 10_000)],
      'nodes': [(n, 1000) for n in (5, 15, 50, 150, 300, 500)]}
  for name in ('EarlyJoinSAGE', OURS):
    for axis, pairs in sizes.items():
      number, seconds = [], []
      for nodes, configs in pairs:
        kernel = speed_kernels.random_kernel(nodes, configs)
        model, _ = built(name, [kernel])
        taken = median_seconds(functools.partial(
            rank_all, model, graphs_of([kernel]), [kernel]))
        number.append(configs if axis == 'configs' else nodes)
        seconds.append(taken)
        rows.append(row('growth', name, f'{axis} {number[-1]}', 'time',
                        1e3 * taken, 'ms'))
      rows.append(row('growth', name, f'{axis}, upper half', 'slope',
                      _slope(number, seconds), 'of logarithms'))
  for nodes, configs in ((40, 10), (40, 10_000), (5, 1000), (500, 1000)):
    for measured in run_worker(worker, 'one_kernel', OURS, str(nodes),
                               str(configs)):
      rows.append({**measured, 'part': 'growth'})
  return rows


def _slope(numbers: list[float], seconds: list[float]) -> float:
  """Slope on logarithmic axes over the larger half; 1 is linear growth."""
  half = len(numbers) // 2
  return np.polyfit(np.log(numbers[half:]), np.log(seconds[half:]), 1)[0]
