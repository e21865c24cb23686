"""Measures `forward`: its scores, in memory, at the limit, growing.

Every function is a part of `speed.py`, runs in a process of its own and returns
rows: dicts of part, subject, case, measure, value and unit.
"""

from __future__ import annotations

import dataclasses
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
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import feature_stats, kernel_inputs, tile_batches

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
  return [tile_batches.kernel_graph(kernel, stats) for kernel in kernels]


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
    kernels = list(kernel_inputs.read_kernels(source))
    stats = FeatureStats.of_partition(Partition.from_kernels(kernels))
    graphs, reordered = (
        [tile_batches.kernel_graph(kernel, stats) for kernel in those]
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


# --- Memory -------------------------------------------------------------------


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
  """`one_kernel` in a process for each case."""
  rows = _memory_rows('TensorFlow alone', 'imported')
  for name in ('EarlyJoinSAGE', OURS):
    for configs in (100, 1000, 10_000):
      rows += run_worker(worker, 'one_kernel', name, '150', str(configs))
  if root:
    for configs in (1000, 10_000):
      rows += run_worker(
          worker, 'one_kernel', 'EarlyJoinSAGE', '150', str(configs), root)
  return rows


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
