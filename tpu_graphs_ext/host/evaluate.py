"""How close a trained model comes to the best tile of measured kernels.

Three readings of the same kernels:
  micro    mean over kernels. This is the number that the baseline's trainer
           reports; its test on every kernel includes those that nothing can
           rank because all their configurations are identical. Its scripts
           leave repetitions in their places: so does `keep_repeats`.
  rankable micro without those kernels.
  macro    mean over programs of the mean over a program's kernels.
Each has intervals, over kernels or, for macro, over programs.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_graphs_ext.data import kinds
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.host import (
  distinct,
  evaluation_text,
  inputs,
  metrics,
  outputs,
  results,
  scoring,
)
from tpu_graphs_ext.host.results import Summary
from tpu_graphs_ext.host.settings import LoadSettings

if TYPE_CHECKING:
  import pandas

_log = logging.getLogger(__name__)

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'
CSV = outputs.Text(
    '--csv', 'model_dir,data,tile_id,program,kind,configs,rankable,repeats',
    'CSV of evaluate')


def row_of(kernel: Kernel, scores: distinct.Scores,
           ks: Sequence[int] = metrics.TOP_KS) -> dict[str, Any]:
  """Measures of one labelled kernel with a model's scores.

  Returns:
    tile_id: its name.
    program: what it was cut from, or `NO_PROGRAM`.
    kind: one of `kinds.KINDS`.
    configs: number of configurations.
    rankable: whether any two configurations differ in their features.
    repeats: how many of them have the features of an earlier one.
    slowdown_<k>: `metrics.slowdown_of` the first k to try.
    slowdown_kept_<k>: the same if each repetition comes right after its tile.
    random_<k>: the expected slowdown of as many tiles drawn at random.
    default: slowdown of the compiler's default tile; below 0 where that is
      faster than all that are listed. NaN where its time is not stored.
    opa: ordered pair accuracy of the tiles' scores, which repetitions share;
      of the model's own with `keep_repeats`. NaN where all runtimes are equal.
    kendall: tau-b of them; NaN where all runtimes or all scores are equal.
  """
  runtime = kernel.runtime_rel
  blind = scores.repeats & (not scores.keep_repeats)
  kept = metrics.best_first(scores.of_tiles)
  pairs = metrics.PairCounts.of(
      runtime, scores.given if scores.keep_repeats else scores.of_tiles)
  return {
      'tile_id': kernel.tile_id,
      'program': kernel.program if '_' in kernel.tile_id else NO_PROGRAM,
      'kind': kinds.kind_of(kernel.node_opcode),
      'configs': kernel.num_configs,
      'rankable': kernel.is_rankable,
      'repeats': int(scores.repeats.sum()),
      **results.by_k('slowdown', {
          k: metrics.slowdown_of(runtime, scores.order[:k]) for k in ks}),
      **results.by_k('slowdown_kept', {
          k: metrics.slowdown_of(runtime, kept[:k]) for k in ks}),
      **results.by_k('random', {
          k: metrics.random_slowdown(runtime, blind, k) for k in ks}),
      'default': (metrics.default_slowdown(runtime)
                  if (kernel.normalizer_ns != 1).any() else math.nan),
      'opa': pairs.opa,
      'kendall': pairs.kendall}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all kernels of one source, by one model.

  Attributes:
    model_dir: its folder.
    data: what the kernels were read from, as given.
    rows: a pandas DataFrame with a row for each kernel; its columns are those
      of the CSV without the first two, see `row_of`.
    keep_repeats: whether tiles that repeat an earlier one's features stay where
      the scores put them, as with the baseline, or come last.
  """
  keep_repeats: bool = False

  NAME, PROBLEMS = 'tile_id', 'kernels'
  INTERVALS = ('slowdown', 'random', 'default', 'opa', 'kendall')
  COMPARED = ('slowdown', 'opa', 'kendall')

  @property
  def micro(self) -> Summary:
    """Means over all kernels: `micro['slowdown_5']`, `micro['opa']`."""
    return self.mean

  @functools.cached_property
  def rankable(self) -> Summary:
    """Means over the kernels whose configurations differ in their features."""
    return self.over(self.rows[self.rows['rankable']])

  @functools.cached_property
  def programs(self) -> dict[str, Summary]:
    """Program -> micro over its kernels, sorted by name."""
    return dict(self._grouped('program'))

  @functools.cached_property
  def kinds(self) -> dict[str, Summary]:
    """Kind -> micro over its kernels, in the order of `kinds.KINDS`."""
    return dict(sorted(self._grouped('kind'),
                       key=lambda item: kinds.KINDS.index(item[0])))

  @functools.cached_property
  def macro(self) -> Summary:
    """Means over the programs' means."""
    return Summary(results.table(
        summary.means for summary in self.programs.values()), len(self.rows))

  def _grouped(self, column: str) -> Iterator[tuple[str, Summary]]:
    for name, rows in self.rows.groupby(column):
      yield name, self.over(rows)

  def against(self, other: str) -> list[tuple[float, float, float]]:
    """The model's slowdown minus that of another choice, for each k.

    Args:
      other: 'default' or 'random'; the default tile is one, whatever k is.
    """
    return [self.mean.minus(
        f'slowdown_{k}', self.mean,
        other if other == 'default' else f'{other}_{k}') for k in self.ks]

  def to_json(self) -> dict[str, Any]:
    """Plain values; None where a measure is undefined."""
    return {
        'model_dir': self.model_dir,
        'data': self.data,
        'keep_repeats': self.keep_repeats,
        **{name: self.summary_json(getattr(self, name))
           for name in ('micro', 'rankable', 'macro')},
        **{name: {group: self.summary_json(summary)
                  for group, summary in getattr(self, name).items()}
           for name in ('programs', 'kinds')},
        'against': {
            other: {str(k): self.difference_json(*difference)
                    for k, difference in zip(self.ks, self.against(other))}
            for other in ('default', 'random')},
        'kernels': self.problems_json()}

  def interval_json(self, low: float, high: float) -> Any:
    return None if math.isnan(low) else [low, high]

  def difference_json(self, mean: float, low: float, high: float) -> Any:
    return {'mean': results.or_none(mean),
            'interval': self.interval_json(low, high)}

  def text(self, by_kernel: bool = False) -> str:
    """Tables; see `evaluation_text`."""
    return evaluation_text.of_evaluation(self, by_kernel)


def evaluate(model_dir: str, data: str = '', *,
             loading: LoadSettings = LoadSettings(),
             ks: Sequence[int] = metrics.TOP_KS) -> Evaluation:
  """Measures a trained model on labelled kernels; see `evaluate_all`."""
  evaluation, = evaluate_all([model_dir], data, loading=loading, ks=ks)
  return evaluation


def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: LoadSettings = LoadSettings(),
                 ks: Sequence[int] = metrics.TOP_KS) -> list[Evaluation]:
  """Measures trained models on the same labelled kernels.

  Args:
    model_dirs: folders model_<hash>; the run file of each lies beside it.
    data: folder of .npz files, one .npz or a .pb; empty: <data_root>/valid.
      Kernels without labels are left out, with a warning that names them.
    loading: how to load the models; also data_root and cache_dir of `data`.
    ks: how many tiles to try, each at least 1.

  Raises:
    UserError: a file is missing or damaged, has no labels, or belongs to
      another model.
  """
  source = data or os.path.join(loading.data_root, 'valid')
  # All models first: a wrong name must not wait for the others' scores.
  rankers = [scoring.load_ranker(model_dir, loading)
             for model_dir in model_dirs]
  partition = _labelled(
      inputs.read_kernels(source, cache_dir=loading.cache_dir), source)
  return [Evaluation(ranker.name, source,
                     measure(ranker, partition, 'evaluate', ks),
                     loading.keep_repeats) for ranker in rankers]


def _labelled(partition: Partition, source: str) -> Partition:
  """The kernels that have runtimes, which must make sense."""
  unlabelled = set(partition.unlabelled())
  if 0 < len(unlabelled) < len(partition):
    _log.warning(
        '%s: left out %d of %d kernels without labels (all runtimes are 0): '
        '%s', source, len(unlabelled), len(partition),
        shortened(sorted(unlabelled)))
    partition = partition.select(np.array(
        [tile_id not in unlabelled for tile_id in partition.tile_ids]))
  require_labels(partition, source)
  return partition


def require_labels(partition: Partition, source: str) -> None:
  """Raises a UserError where a kernel has no runtimes to compare with."""
  unlabelled = partition.unlabelled()
  if unlabelled:
    raise UserError(
        f'{source}: {len(unlabelled)} of {len(partition)} kernels have no '
        f'labels (all runtimes are 0), first {unlabelled[0]}; a public test '
        'split is blanked. Evaluate on valid or on a labelled copy, or write '
        'its predictions with `tpu-graphs-ext predict`')
  for kernel in partition:
    if (kernel.runtime_ns <= 0).any() or (kernel.normalizer_ns <= 0).any():
      raise UserError(
          f'{source}: {kernel.tile_id} has runtimes or normalizers that are '
          'not positive; run `tpu-graphs-ext check-data` to see every fault')


def measure(ranker: scoring.Ranker, partition: Partition, what: str,
            ks: Sequence[int] = metrics.TOP_KS) -> pandas.DataFrame:
  """Scores and measures every kernel: a row each, see `row_of`.

  Args:
    ranker: the model.
    partition: labelled kernels.
    what: stands beside the progress bar.
    ks: how many tiles to try, one measure for each.
  """
  return results.table(row_of(kernel, scores, ks)
                       for kernel, scores in ranker.score_all(partition, what))


def top_errors(ranker: scoring.Ranker, partition: Partition,
               what: str) -> dict[str, float]:
  """Mean slowdown of top 1, 5 and 10, with the run file's keys."""
  rows = measure(ranker, partition, what)
  return results.nested(Summary(rows, len(rows)).means)['slowdown']
