"""A trained model together with all that it takes to score a kernel."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import artifacts, batches, distinct
from tpu_graphs_ext.host.settings import LoadSettings

_log = logging.getLogger(__name__)

_MOST_WORKERS = 8  # Kernels that are scored at once: each takes memory.


@dataclasses.dataclass(frozen=True)
class Ranker:
  """Scores configurations, one kernel at a time.

  Attributes:
    model: built model with `forward(graph, num_configs)`.
    stats: how features are normalised.
    num_ops: opcodes that the model has an embedding for.
    name: stands in error messages.
    keep_repeats: see `distinct.Scores`.
    in_elements: whether tile bounds of its data count elements, not layout
      tiles of a TPU.
    opcodes: that some kernel of the training data had; None where the run file
      does not say it, as the baseline's.
  """
  model: Any
  stats: FeatureStats
  num_ops: int
  name: str = 'the model'
  keep_repeats: bool = False
  in_elements: bool = False
  opcodes: Optional[frozenset[int]] = None

  def score_all(self, partition: Partition,
                what: str) -> Iterator[tuple[Kernel, distinct.Scores]]:
    """Yields every kernel with its scores.

    The lowest score is predicted to be the fastest. As many kernels are
    scored at once as there are cores, up to 8, so this is faster than
    `scores` of one kernel after the other.

    Args:
      partition: the kernels.
      what: stands beside the progress bar.

    Raises:
      UserError: the kernels' columns are not those of the training data, or
        the model gives scores of a wrong shape or that are not finite.
    """
    self.stats.check_columns(partition)
    partition = self._with_known_opcodes(partition)
    workers = min(os.cpu_count() or 1, _MOST_WORKERS)
    with tqdm(desc=what, total=len(partition), unit='kernel', disable=None,
              leave=False) as bar, ThreadPoolExecutor(workers) as pool:
      waiting = collections.deque()  # (kernel, its scores to come), in order.
      for kernel, graph in zip(
          partition, batches.kernel_graphs(partition, self.stats)):
        waiting.append((kernel, pool.submit(self._scores_of, kernel, graph)))
        if len(waiting) > 2 * workers:  # No more, for graphs take memory.
          yield _next_result(waiting, bar)
      while waiting:
        yield _next_result(waiting, bar)

  def scores(self, kernel: Kernel) -> np.ndarray:
    """What the model's `forward` gives one kernel: float32 [configs]."""
    return self.scored(kernel).given

  def prepared(self, kernel: Kernel) -> Kernel:
    """The kernel with opcodes that the model knows, to be scored in parts.

    Raises:
      UserError: its columns are not those of the training data.
    """
    partition = Partition.from_kernels([kernel])
    self.stats.check_columns(partition)
    return self._with_known_opcodes(partition).kernel(0)

  def scored(self, kernel: Kernel) -> distinct.Scores:
    """The same, with which configurations repeat another.

    Raises:
      UserError: see `score_all`.
    """
    partition = self._with_known_opcodes(Partition.from_kernels([kernel]))
    return self._scores_of(
        kernel, batches.kernel_graph(partition.kernel(0), self.stats))

  def _scores_of(self, kernel: Kernel, graph: Any) -> distinct.Scores:
    return self.checked(
        kernel, np.asarray(self.model.forward(graph, kernel.num_configs)),
        graph.node_sets['config']['feats'].numpy())

  def checked(self, kernel: Kernel, scores: np.ndarray,
              features: np.ndarray) -> distinct.Scores:
    """What `forward` gave one kernel, looked over.

    Args:
      kernel: the kernel.
      scores: float32 [1, configs].
      features: float32 [configs, G], what the model saw of its configurations.

    Raises:
      UserError: the scores have another shape, or are not finite.
    """
    if scores.shape != (1, kernel.num_configs):
      raise UserError(
          f'{self.name}: forward gave scores of shape {scores.shape} for '
          f'{kernel.tile_id}; it must be (1, {kernel.num_configs}), one score '
          'a configuration')
    if not np.isfinite(scores).all():
      raise UserError(
          f'{self.name}: {np.sum(~np.isfinite(scores))} of the '
          f'{kernel.num_configs} scores of {kernel.tile_id} are NaN or '
          'infinite; the model cannot rank it. Train again, with a lower --lr')
    return distinct.Scores(
        scores[0], distinct.first_copies(features), self.keep_repeats)

  def _with_known_opcodes(self, partition: Partition) -> Partition:
    """Opcodes beyond the embedding become 0, the unknown opcode."""
    if partition.max_opcode < self.num_ops:
      return partition
    opcode = partition.node_opcode
    _log.warning(
        'there are opcodes up to %d, but %s was trained on data with opcodes '
        'below %d; nodes with others count as opcode 0',
        partition.max_opcode, self.name, self.num_ops)
    return dataclasses.replace(
        partition,
        node_opcode=np.where(opcode < self.num_ops, opcode, 0).astype(
            opcode.dtype))


def _next_result(waiting: collections.deque,
                 bar: tqdm) -> tuple[Kernel, distinct.Scores]:
  kernel, scores = waiting.popleft()
  bar.update()
  return kernel, scores.result()


def load_ranker(
    model_dir: str, loading: LoadSettings = LoadSettings(),
    known: Optional[tuple[FeatureStats, int]] = None) -> Ranker:
  """Loads a model that this package or the baseline's trainer wrote.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    loading: where its normalisation and its class come from. The data are
      read only to compute the normalisation.
    known: what `normalisation` gives, where that was asked already.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  run = artifacts.load_run(model_dir)
  stats, num_ops = known or normalisation(run, loading)
  model = artifacts.load_model(
      run, num_ops, sample_graph(stats), loading.models_py)
  return Ranker(model, stats, num_ops, name=model_dir,
                keep_repeats=loading.keep_repeats,
                in_elements=_counts_elements(run, model),
                opcodes=_opcodes(run))


def _opcodes(run: artifacts.Run) -> Optional[frozenset[int]]:
  known = run.info.get('opcodes')
  return None if known is None else frozenset(known)


def _counts_elements(run: artifacts.Run, model: Any) -> bool:
  """By the statistics that the model was given, or else found by itself."""
  given = run.model_kwargs.get('feature_stats')
  if isinstance(given, dict):
    return given.get('tiles') == 'elements'
  found = getattr(model, '_statistics', None)  # In the baseline's trainer.
  return hasattr(found, 'read') and bool(found.read().in_elements())


def normalisation(run: artifacts.Run,
                  loading: LoadSettings) -> tuple[FeatureStats, int]:
  """The statistics that features are scaled by, and the number of opcodes."""
  if loading.stats == 'run' and 'feature_stats' in run.info:
    return (FeatureStats.from_json(run.info['feature_stats']),
            run.info['num_ops'])
  if loading.stats == 'run':
    _log.info('%s: its run file keeps no normalisation; computing it from %s',
              run.model_dir, loading.data_root)
  every = loading.stats == 'all'
  dataset = read.read_dataset(
      loading.data_root, cache_dir=loading.cache_dir, toy_data=loading.toy_data,
      min_train_configs=-1 if every else run.info['args']['configs'])
  return (FeatureStats.of_partition(dataset.train),
          run.info.get('num_ops', dataset.num_ops))


def sample_graph(stats: FeatureStats) -> Any:
  """Graph of one node and one configuration: builds a model's variables."""
  return batches.kernel_graph(
      Kernel(
          tile_id='sample',
          node_feat=stats.node.minimum[np.newaxis],
          node_opcode=np.zeros(1, np.uint8),
          edge_index=np.zeros((0, 2), np.int64),
          config_feat=stats.config.minimum[np.newaxis],
          runtime_ns=np.ones(1, np.int64),
          normalizer_ns=np.ones(1, np.int64)),
      stats)
