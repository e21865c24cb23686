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

import collections
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Optional

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
  scoring,
  statistics,
)
from tpu_graphs_ext.host.settings import LoadSettings

_log = logging.getLogger(__name__)

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'


@dataclasses.dataclass(frozen=True)
class KernelResult:
  """Measures of one kernel.

  Attributes:
    tile_id: its name.
    program: what it was cut from, or `NO_PROGRAM`.
    kind: one of `kinds.KINDS`.
    configs: number of configurations.
    rankable: whether any two configurations differ in their features.
    repeats: how many of them have the features of an earlier one.
    slowdown: k -> `metrics.slowdown_of` the first k to try.
    slowdown_kept: the same if each repetition comes right after its tile.
    random: k -> what is to be expected of as many tiles drawn blindly.
    default: slowdown of the compiler's default tile; below 0 where that is
      faster than all that are listed. NaN where no time of it is stored.
    opa: ordered pair accuracy of the tiles' scores, which repetitions share;
      of the model's own with `keep_repeats`. NaN where all runtimes are equal.
    kendall: tau-b of them; NaN where all runtimes or all scores are equal.
  """
  tile_id: str
  program: str
  kind: str
  configs: int
  rankable: bool
  repeats: int
  slowdown: dict[int, float]
  slowdown_kept: dict[int, float]
  random: dict[int, float]
  default: float
  opa: float
  kendall: float

  def to_json(self) -> dict[str, Any]:
    """Plain values; the id is the key that it stands under."""
    return {
        'program': self.program,
        'kind': self.kind,
        'configs': self.configs,
        'rankable': self.rankable,
        'repeats': self.repeats,
        'slowdown': _by_text(self.slowdown),
        'slowdown_kept': _by_text(self.slowdown_kept),
        'random': _by_text(self.random),
        'default': _or_none(self.default),
        'opa': _or_none(self.opa),
        'kendall': _or_none(self.kendall)}


@dataclasses.dataclass(frozen=True)
class Summary:
  """Means over several kernels; NaN members are left out of their mean.

  Attributes:
    kernels: how many.
    members: what the means are over, `KernelResult`s or `Summary`s.
    slowdown, ..., kendall: mean of the members' measure of that name.
  """
  kernels: int
  members: Sequence[Any] = dataclasses.field(repr=False)
  slowdown: dict[int, float]
  slowdown_kept: dict[int, float]
  random: dict[int, float]
  default: float
  opa: float
  kendall: float

  @classmethod
  def over(cls, results: Iterable[Any], kernels: int,
           ks: Sequence[int] = metrics.TOP_KS) -> Summary:
    """Mean of `KernelResult`s or `Summary`s that stand for `kernels`."""
    results = list(results)
    by_k = {name: {k: _mean(getattr(result, name)[k] for result in results)
                   for k in ks}
            for name in ('slowdown', 'slowdown_kept', 'random')}
    means = {name: _mean(getattr(result, name) for result in results)
             for name in ('default', 'opa', 'kendall')}
    return cls(kernels=kernels, members=results, **by_k, **means)

  def values(self, measure: str, k: Optional[int] = None) -> list[float]:
    """Of each member its measure, or where that depends on k, that of k."""
    found = [getattr(member, measure) for member in self.members]
    return found if k is None else [by_k[k] for by_k in found]

  def interval(self, measure: str,
               k: Optional[int] = None) -> tuple[float, float]:
    """95 % interval of the mean, see `statistics`."""
    return statistics.bootstrap_interval(self.values(measure, k))

  def against(self, other: str, k: int) -> tuple[float, float, float]:
    """Mean and interval of a model's slowdown minus that of another choice.

    Args:
      other: 'default' or 'random'.
      k: how many tiles to try; the default tile is one, whatever k is.
    """
    return statistics.paired_difference(
        self.values('slowdown', k),
        self.values(other, None if other == 'default' else k))

  def to_json(self) -> dict[str, Any]:
    return {
        'kernels': self.kernels,
        'slowdown': _by_text(self.slowdown),
        'slowdown_kept': _by_text(self.slowdown_kept),
        'random': _by_text(self.random),
        'default': _or_none(self.default),
        'opa': _or_none(self.opa),
        'kendall': _or_none(self.kendall),
        'interval': {
            **{name: {str(k): _both_or_none(self.interval(name, k))
                      for k in self.slowdown}
               for name in ('slowdown', 'random')},
            **{name: _both_or_none(self.interval(name))
               for name in ('default', 'opa', 'kendall')}}}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Measures of all kernels of one source, by one model.

  Attributes:
    model_dir: its folder.
    data: what the kernels were read from, as given.
    results: measures of each kernel.
    keep_repeats: whether tiles that repeat an earlier one's features stay where
      the scores put them, as with the baseline, or come last.
    ks: numbers of tiles to try, of the measures top-k.
  """
  model_dir: str
  data: str
  results: list[KernelResult]
  keep_repeats: bool = False
  ks: Sequence[int] = metrics.TOP_KS

  @functools.cached_property
  def micro(self) -> Summary:
    """Means over all kernels."""
    return self._over(self.results)

  @functools.cached_property
  def rankable(self) -> Summary:
    """Means over the kernels whose configurations differ in their features."""
    return self._over(result for result in self.results if result.rankable)

  @functools.cached_property
  def programs(self) -> dict[str, Summary]:
    """Program -> micro over its kernels, sorted by name."""
    groups = self._grouped('program')
    return {name: groups[name] for name in sorted(groups)}

  @functools.cached_property
  def kinds(self) -> dict[str, Summary]:
    """Kind -> micro over its kernels, in the order of `kinds.KINDS`."""
    groups = self._grouped('kind')
    return {name: groups[name] for name in kinds.KINDS if name in groups}

  @functools.cached_property
  def macro(self) -> Summary:
    """Means over the programs' means."""
    return Summary.over(self.programs.values(), len(self.results), self.ks)

  def _over(self, results: Iterable[KernelResult]) -> Summary:
    results = list(results)
    return Summary.over(results, len(results), self.ks)

  def _grouped(self, attribute: str) -> dict[str, Summary]:
    groups = collections.defaultdict(list)
    for result in self.results:
      groups[getattr(result, attribute)].append(result)
    return {name: self._over(group) for name, group in groups.items()}

  def to_json(self) -> dict[str, Any]:
    """Plain values; None where a measure is undefined."""
    return {
        'model_dir': self.model_dir,
        'data': self.data,
        'keep_repeats': self.keep_repeats,
        'micro': self.micro.to_json(),
        'rankable': self.rankable.to_json(),
        'macro': self.macro.to_json(),
        'programs': {
            name: summary.to_json() for name, summary in self.programs.items()},
        'kinds': {
            name: summary.to_json() for name, summary in self.kinds.items()},
        'against': {
            other: {str(k): difference_json(self.micro.against(other, k))
                    for k in self.ks}
            for other in ('default', 'random')},
        'kernels': {
            result.tile_id: result.to_json() for result in self.results},
    }

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
                     loading.keep_repeats, tuple(ks)) for ranker in rankers]


def to_json(evaluations: Sequence[Evaluation]) -> Any:
  """Of one model its `to_json`, of several a list of them.

  Each of several then has 'differences' too: to every other model, paired by
  kernel, this one's measure minus the other's.
  """
  contents = [evaluation.to_json() for evaluation in evaluations]
  if len(contents) == 1:
    return contents[0]
  for one, content in zip(evaluations, contents):
    content['differences'] = [
        {'to': other.model_dir, **_differences(one.micro, other.micro)}
        for other in evaluations if other is not one]
  return contents


def _differences(one: Summary, other: Summary) -> dict[str, Any]:
  def of(measure: str, k: Optional[int] = None) -> dict[str, Any]:
    return difference_json(statistics.paired_difference(
        one.values(measure, k), other.values(measure, k)))

  return {'slowdown': {str(k): of('slowdown', k) for k in one.slowdown},
          'opa': of('opa'), 'kendall': of('kendall')}


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
            ks: Sequence[int] = metrics.TOP_KS) -> list[KernelResult]:
  """Scores and measures every kernel.

  Args:
    ranker: the model.
    partition: labelled kernels.
    what: stands beside the progress bar.
    ks: how many tiles to try, one measure for each.
  """
  return [result_of(kernel, scores, ks)
          for kernel, scores in ranker.score_all(partition, what)]


def top_errors(ranker: scoring.Ranker, partition: Partition,
               what: str) -> dict[str, float]:
  """Mean slowdown of top 1, 5 and 10, with the run file's keys."""
  results = measure(ranker, partition, what)
  micro = Summary.over(results, len(results))
  return {str(k): slowdown for k, slowdown in micro.slowdown.items()}


def result_of(kernel: Kernel, scores: distinct.Scores,
              ks: Sequence[int] = metrics.TOP_KS) -> KernelResult:
  """Measures of one labelled kernel with a model's scores."""
  runtime = kernel.runtime_rel
  blind = scores.repeats & (not scores.keep_repeats)
  kept = metrics.best_first(scores.of_tiles)
  pairs = metrics.PairCounts.of(
      runtime, scores.given if scores.keep_repeats else scores.of_tiles)
  return KernelResult(
      tile_id=kernel.tile_id,
      program=kernel.program if '_' in kernel.tile_id else NO_PROGRAM,
      kind=kinds.kind_of(kernel.node_opcode),
      configs=kernel.num_configs,
      rankable=kernel.is_rankable,
      repeats=int(scores.repeats.sum()),
      slowdown={k: metrics.slowdown_of(runtime, scores.order[:k])
                for k in ks},
      slowdown_kept={k: metrics.slowdown_of(runtime, kept[:k]) for k in ks},
      random={k: metrics.random_slowdown(runtime, blind, k) for k in ks},
      default=(metrics.default_slowdown(runtime)
               if (kernel.normalizer_ns != 1).any() else math.nan),
      opa=pairs.opa,
      kendall=pairs.kendall)


def _mean(values: Iterable[float]) -> float:
  defined = [value for value in values if not math.isnan(value)]
  return sum(defined) / len(defined) if defined else math.nan


def _or_none(value: float) -> Any:
  return None if math.isnan(value) else value


def _both_or_none(interval: tuple[float, float]) -> Any:
  return None if math.isnan(interval[0]) else list(interval)


def difference_json(difference: tuple[float, float, float]) -> dict[str, Any]:
  """What `statistics.paired_difference` gives, as JSON has it."""
  mean, *interval = difference
  return {'mean': _or_none(mean), 'interval': _both_or_none(tuple(interval))}


def _by_text(by_k: dict[int, float]) -> dict[str, Any]:
  """The same with keys as JSON has them."""
  return {str(k): _or_none(value) for k, value in by_k.items()}
