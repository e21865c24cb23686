"""How close a trained model comes to the best tile of measured kernels.

Three means of the same kernels:
  micro    over kernels: the number that the baseline's trainer reports. Its
           test on every kernel includes those that nothing can rank because
           all their configurations are identical. Its scripts leave duplicates
           in their places: so does `keep_repeats`.
  rankable micro without those kernels.
  macro    over programs, of the mean over a program's kernels.
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
  SCORES,
  cell,
  differences,
  heads,
  intervals,
  names_of,
  places,
  table,
  values,
)
from tpu_graphs_ext.engine.results import Summary

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'

_INTERVAL_LINES = (
    '[low, high]: 95 % bootstrap interval of the mean over kernels; macro: '
    'over programs.',
    'a - b: mean difference over kernels, in per cent of the fastest '
    "tile's time;",
    'a is better below 0. If the interval excludes 0, chance alone is an '
    'unlikely cause.')


def row_of(kernel: Kernel, scores: duplicate_configs.Scores,
           ks: Sequence[int] = metrics.TOP_KS) -> dict[str, Any]:
  """Measures of one labelled kernel with a model's scores.

  Returns:
    tile_id: its name.
    program: the program that it was cut from, or `NO_PROGRAM`.
    kind: one of `kernel_kinds.KINDS`.
    configs: number of configurations.
    rankable: whether any two configurations differ in their features.
    repeats: number of duplicates of an earlier one.
    slowdown_<k>: `metrics.slowdown_of` the first k to try.
    slowdown_kept_<k>: the same if duplicates come right after their tile.
    random_<k>: the expected slowdown of k tiles drawn at random.
    default: slowdown of the compiler's default tile; below 0 where that is
      faster than all that are listed. NaN where its time is not stored.
    opa: ordered pair accuracy of the tiles' scores, which duplicates share;
      of the model's own with `keep_repeats`. NaN where all runtimes are equal.
    kendall: their tau-b; NaN where all runtimes or all scores are equal.
  """
  runtime = kernel.runtime_rel
  last = scores.repeats & (not scores.keep_repeats)
  kept = metrics.best_first(scores.of_tiles)
  opa, kendall = metrics.pair_agreement(
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
          k: metrics.random_slowdown(runtime, last, k) for k in ks}),
      'default': (metrics.default_slowdown(runtime)
                  if (kernel.normalizer_ns != 1).any() else math.nan),
      'opa': opa, 'kendall': kendall}


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
    """Kind -> micro over its kernels, in the order of `kernel_kinds.KINDS`."""
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
    """The model's slowdown minus another choice's, for each k.

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
    """Tables by program, by kind, and beside the default and random choice.

    With `by_kernel` also of every kernel, the worst first choices first.
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
  """Models side by side, and the difference of each pair."""
  first = evaluations[0]
  rows = [('', *heads(first.COMPARED, first.ks))]
  rows += [(name, *intervals(one.micro, first.COMPARED, first.ks))
           for name, one in zip(names_of(evaluations), evaluations)]
  rows += [(*row, '-', '-') for row in _other_choices(first)]
  rows += differences(evaluations)
  return '\n'.join([
      f'{len(evaluations)} models on {first.data}, {len(first.rows)} kernels',
      '', *places(evaluations), '', *table(rows), '', *_INTERVAL_LINES])


def _programs(evaluation: Evaluation) -> list[str]:
  """The first table, with an explanation of its rows."""
  measures, ks = evaluation.COMPARED, evaluation.ks

  def row(name: str, of: Summary | Mapping[str, float],
          problems: int) -> tuple[str, ...]:
    return (name, str(problems), *values(of, measures, ks))

  micro, kernels = evaluation.micro, evaluation.rows
  rows = [('', 'kernels', *heads(measures, ks))]
  rows += [row(name, summary, summary.problems) for name, summary in (
      *evaluation.programs.items(),
      ('macro (mean over programs)', evaluation.macro),
      ('micro (all kernels)', micro))]
  unrankable = len(kernels) - evaluation.rankable.problems
  if unrankable:
    rows.append(row('micro (rankable kernels)', evaluation.rankable,
                    evaluation.rankable.problems))
  repeats = kernels['repeats'].sum()
  last = repeats and not evaluation.keep_repeats
  if last:
    kept = {f'slowdown_{k}': micro[f'slowdown_kept_{k}'] for k in ks}
    rows.append(row('micro (duplicates kept)', {**micro.means, **kept},
                    len(kernels)))
  lines = [f'{evaluation.model_dir} on {evaluation.data}', '', *table(rows),
           '', 'top-k %: how much slower the fastest of the k chosen tiles is '
           'than the fastest of all.',
           f'micro (all kernels){" with --keep_repeats" * bool(last)} is the '
           "baseline's number."]
  if last:
    lines.append(
        f'{repeats:,} of {kernels["configs"].sum():,} configurations are '
        'duplicates and are chosen last; kept: right after the tile that they '
        'duplicate.')
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
          *_other_choices(evaluation)]
  rows += [(f'model - {other}', *(
      cell('slowdown', *found) for found in evaluation.against(other)))
           for other in ('default', 'random')]
  return [*table(rows), '', *_INTERVAL_LINES]


def _other_choices(evaluation: Evaluation) -> list[tuple[str, ...]]:
  """The default tile, the same for all k, and a random choice."""
  micro, ks = evaluation.micro, evaluation.ks
  return [('the default tile', *len(ks) * intervals(micro, ['default'], ks)),
          ('a random choice', *intervals(micro, ['random'], ks))]


def _kernels(evaluation: Evaluation) -> list[str]:
  ks = evaluation.ks
  rows = sorted(evaluation.rows.to_dict('records'),
                key=lambda row: [-row[f'slowdown_{k}'] for k in ks])
  return table([
      ('kernel', 'kind', 'configs', *heads(['slowdown', 'default'], ks),
       *heads(['random'], ks[:1]), *heads(SCORES, ks)),
      *((row['tile_id'], row['kind'], str(row['configs']),
         *values(row, ['slowdown', 'default'], ks),
         *values(row, ['random'], ks[:1]), *values(row, SCORES, ks))
        for row in rows)])
