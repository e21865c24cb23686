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
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpu_graphs_ext.data import kernel_kinds
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import (
  duplicate_configs,
  metrics,
  output_paths,
  results,
)
from tpu_graphs_ext.engine.evaluation_text import (
  DIFFERENCE_LINES,
  INTERVAL_LINES,
  SCORES,
  cell,
  heads,
  intervals,
  numbered,
  pairs,
  table,
  values,
)
from tpu_graphs_ext.engine.results import Summary

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'


def row_of(kernel: Kernel, scores: duplicate_configs.Scores,
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
      'kind': kernel_kinds.kind_of(kernel.node_opcode),
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

  The columns of `rows` are those of the CSV without the first two, see
  `row_of`.
  """
  NAME, PROBLEMS = 'tile_id', 'kernels'
  CSV = output_paths.Text(
      '--csv', 'model_dir,data,tile_id,program,kind,configs,rankable,repeats',
      'CSV of evaluate')
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
                       key=lambda item: kernel_kinds.KINDS.index(item[0])))

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
    """By program with the means over all, by kind of kernel, means with

    intervals beside the default tile and a random choice, and with
    `by_kernel` every kernel, the worst first choices first.
    """
    blocks = [_programs(self), _kinds(self), _intervals(self)]
    if by_kernel:
      blocks.append(_kernels(self))
    return '\n\n'.join('\n'.join(lines) for lines in blocks)

  @classmethod
  def texts(cls, evaluations: Sequence[Evaluation],
            by_kernel: bool = False) -> str:
    blocks = [evaluation.text(by_kernel) for evaluation in evaluations]
    if len(evaluations) > 1:
      blocks.append(_of_several(evaluations))
    return '\n\n'.join(blocks)


def _of_several(evaluations: Sequence[Evaluation]) -> str:
  """Models beside one another, by number, and what each pair differs by."""
  first = evaluations[0]
  measures, ks = first.COMPARED, first.ks
  rows = [('', *heads(measures, ks))]
  rows += [(f'model {number}', *intervals(evaluation.micro, measures, ks))
           for number, evaluation in enumerate(evaluations, 1)]
  rows += [(*row, '-', '-') for row in _others(first)]
  rows += pairs(evaluations, ks)
  return '\n'.join([
      f'{len(evaluations)} models on {first.data}, {len(first.rows)} kernels',
      '', *numbered(evaluations), '', *table(rows), '', *INTERVAL_LINES,
      *DIFFERENCE_LINES])


def _programs(evaluation: Evaluation) -> list[str]:
  """The first table, and what its rows are."""
  measures, ks = evaluation.COMPARED, evaluation.ks

  def row(name: str, summary: Summary) -> tuple[str, ...]:
    return (name, str(summary.problems), *values(summary, measures, ks))

  micro, kernels = evaluation.micro, evaluation.rows
  rows = [('', 'kernels', *heads(measures, ks))]
  rows += [row(*program) for program in evaluation.programs.items()]
  rows.append(row('macro (mean over programs)', evaluation.macro))
  rows.append(row('micro (all kernels)', micro))
  unrankable = len(kernels) - evaluation.rankable.problems
  if unrankable:
    rows.append(row('micro (rankable kernels)', evaluation.rankable))
  repeats = kernels['repeats'].sum()
  last = repeats and not evaluation.keep_repeats
  if last:
    kept = {f'slowdown_{k}': micro[f'slowdown_kept_{k}'] for k in ks}
    rows.append(('micro (repetitions kept)', str(len(kernels)),
                 *values({**micro.means, **kept}, measures, ks)))
  lines = [f'{evaluation.model_dir} on {evaluation.data}', '', *table(rows),
           '', 'top-k %: how much slower the best of the k chosen tiles is '
           'than the best tile.',
           f'micro (all kernels){" with --keep_repeats" * bool(last)} is the '
           "baseline's number."]
  if last:
    lines.append(
        f'{repeats} of {kernels["configs"].sum()} configurations repeat '
        'another of their kernel and are chosen last; kept: right after the '
        'tile that they repeat.')
  if unrankable:
    lines.append(
        f'{unrankable} of {len(kernels)} kernels cannot be ranked: '
        'their configurations are all identical.')
  return lines


def _kinds(evaluation: Evaluation) -> list[str]:
  ks = evaluation.ks
  return table([
      ('kind of kernel', 'kernels', *heads(evaluation.COMPARED, ks)), *(
          (name, str(summary.problems), *intervals(summary, ['slowdown'], ks),
           *values(summary, SCORES, ks))
          for name, summary in evaluation.kinds.items())])


def _intervals(evaluation: Evaluation) -> list[str]:
  tops, ks = ['slowdown'], evaluation.ks
  rows = [('', *heads(tops, ks)),
          ('the model (micro)', *intervals(evaluation.micro, tops, ks)),
          ('the model (macro)', *intervals(evaluation.macro, tops, ks)),
          *_others(evaluation)]
  for other in ('default', 'random'):
    rows.append((f'model - {other}', *(
        cell('slowdown', *found) for found in evaluation.against(other))))
  return [*table(rows), '', *INTERVAL_LINES, *DIFFERENCE_LINES]


def _others(evaluation: Evaluation) -> list[tuple[str, ...]]:
  """The default tile, the same for all k, and a random choice."""
  micro, ks = evaluation.micro, evaluation.ks
  return [('the default tile', *len(ks) * intervals(micro, ['default'], ks)),
          ('a random choice', *intervals(micro, ['random'], ks))]


def _kernels(evaluation: Evaluation) -> list[str]:
  ks = evaluation.ks
  tops = [f'slowdown_{k}' for k in ks]

  def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row['tile_id'], row['kind'], str(row['configs']),
            *values(row, ['slowdown', 'default'], ks),
            *values(row, ['random'], ks[:1]), *values(row, SCORES, ks))

  return table([
      ('kernel', 'kind', 'configs', *heads(['slowdown', 'default'], ks),
       *heads(['random'], ks[:1]), *heads(SCORES, ks)),
      *map(cells, sorted(
          evaluation.rows.to_dict('records'),
          key=lambda row: [-row[column] for column in tops]))])
