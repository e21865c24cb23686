"""How close a trained model comes to the best tile of measured kernels.

Three readings of the same kernels:
  micro    mean over kernels. This is the number that the baseline's trainer
           reports; its test on every kernel includes those that nothing can
           rank because all their configurations are identical. Its scripts
           leave repetitions in their places: so does `keep_repeats`.
  rankable micro without those kernels.
  macro    mean over programs of the mean over a program's kernels.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tpu_graphs_ext.data import kinds
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import distinct, inputs, metrics, scoring
from tpu_graphs_ext.host.settings import LoadSettings

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
  """Means over several kernels; NaN members are left out of their mean."""
  kernels: int
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
    return cls(kernels=kernels, **by_k, **means)

  def to_json(self) -> dict[str, Any]:
    return {
        'kernels': self.kernels,
        'slowdown': _by_text(self.slowdown),
        'slowdown_kept': _by_text(self.slowdown_kept),
        'random': _by_text(self.random),
        'default': _or_none(self.default),
        'opa': _or_none(self.opa),
        'kendall': _or_none(self.kendall)}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Measures of all kernels of one source, by one model."""
  model_dir: str
  data: str
  results: list[KernelResult]
  keep_repeats: bool = False

  @property
  def micro(self) -> Summary:
    return Summary.over(self.results, len(self.results))

  @property
  def rankable(self) -> Summary:
    chosen = [result for result in self.results if result.rankable]
    return Summary.over(chosen, len(chosen))

  @property
  def programs(self) -> dict[str, Summary]:
    """Program -> micro over its kernels, sorted by name."""
    groups = collections.defaultdict(list)
    for result in self.results:
      groups[result.program].append(result)
    return {name: Summary.over(groups[name], len(groups[name]))
            for name in sorted(groups)}

  @property
  def macro(self) -> Summary:
    return Summary.over(self.programs.values(), len(self.results))

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
        'kernels': {
            result.tile_id: result.to_json() for result in self.results},
    }

  def text(self) -> str:
    """A table, by program first, then the three means."""
    programs = self.programs
    rows = [('', 'kernels', *(f'top-{k} %' for k in metrics.TOP_KS), 'OPA',
             'tau')]
    rows += [_row(name, summary) for name, summary in programs.items()]
    rows.append(_row('macro (mean over programs)', self.macro))
    rows.append(_row('micro (all kernels)', self.micro))
    unrankable = len(self.results) - self.rankable.kernels
    if unrankable:
      rows.append(_row('micro (rankable kernels)', self.rankable))
    repeats = sum(result.repeats for result in self.results)
    last = repeats and not self.keep_repeats
    if last:
      rows.append(_row('micro (repetitions kept)', dataclasses.replace(
          self.micro, slowdown=self.micro.slowdown_kept)))
    lines = [f'{self.model_dir} on {self.data}', '', *_table(rows), '',
             'top-k %: how much slower the best of the k chosen tiles is than '
             'the best tile.',
             f'micro (all kernels){" with --keep_repeats" * bool(last)} is the '
             "baseline's number."]
    if last:
      configs = sum(result.configs for result in self.results)
      lines.append(
          f'{repeats} of {configs} configurations repeat another of their '
          'kernel and are chosen last; kept: right after the tile that they '
          'repeat.')
    if unrankable:
      lines.append(
          f'{unrankable} of {len(self.results)} kernels cannot be ranked: '
          'their configurations are all identical.')
    return '\n'.join(lines)


def evaluate(model_dir: str, data: str = '', *,
             loading: LoadSettings = LoadSettings()) -> Evaluation:
  """Measures a trained model on labelled kernels.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    data: folder of .npz files, one .npz or a .pb; empty: <data_root>/valid.
    loading: how to load the model; also data_root and cache_dir of `data`.

  Raises:
    UserError: a file is missing or damaged, has no labels, or belongs to
      another model.
  """
  source = data or os.path.join(loading.data_root, 'valid')
  ranker = scoring.load_ranker(model_dir, loading)
  partition = inputs.read_kernels(source, cache_dir=loading.cache_dir)
  require_labels(partition, source)
  return Evaluation(model_dir, source, measure(ranker, partition, 'evaluate'),
                    loading.keep_repeats)


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


def _by_text(by_k: dict[int, float]) -> dict[str, Any]:
  """The same with keys as JSON has them."""
  return {str(k): _or_none(value) for k, value in by_k.items()}


def _row(name: str, summary: Summary) -> tuple[str, ...]:
  def number(value: float, digits: int) -> str:
    return '-' if math.isnan(value) else f'{value:.{digits}f}'

  return (name, str(summary.kernels),
          *(number(100 * summary.slowdown[k], 2) for k in metrics.TOP_KS),
          number(summary.opa, 3), number(summary.kendall, 3))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
  """First column to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join([row[0].ljust(widths[0])] + [
      cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
          for row in rows]
