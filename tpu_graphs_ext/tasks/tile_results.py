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
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_graphs_ext.data import kernel_kinds
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import metrics, output_paths, results
from tpu_graphs_ext.engine.results import Summary, aligned, cells, heads
from tpu_graphs_ext.engine.scoring import Scores

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'


def row_of(kernel: Kernel, scores: Scores,
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
  kept = np.argsort(scores.of_tiles, kind='stable')
  opa, kendall = metrics.pair_agreement(
      runtime, scores.given if scores.keep_repeats else scores.of_tiles)
  return {
      'tile_id': kernel.tile_id,
      'program': kernel.program if '_' in kernel.tile_id else NO_PROGRAM,
      'kind': kernel_kinds.kind_of(kernel.node_opcode),
      'configs': kernel.num_configs,
      'rankable': kernel.is_rankable,
      'repeats': int(scores.repeats.sum()),
      **{f'slowdown_{k}': metrics.slowdown_of(runtime, scores.order[:k])
         for k in ks},
      **{f'slowdown_kept_{k}': metrics.slowdown_of(runtime, kept[:k])
         for k in ks},
      **{f'random_{k}': metrics.random_slowdown(runtime, last, k)
         for k in ks},
      'default': (float(1 / runtime.min() - 1)
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
  NOTES = (
      'top-k %: how much slower the fastest of the k chosen tiles is than the '
      'fastest of all.',
      '[low, high]: 95 % bootstrap interval of the mean over kernels. a - b: '
      'mean difference over',
      'kernels. If its interval excludes 0, chance alone is an unlikely cause.')

  @property
  def micro(self) -> Summary:
    """Means over all kernels: `micro['slowdown_5']`, `micro['opa']`."""
    return self.mean

  @functools.cached_property
  def rankable(self) -> Summary:
    """Means over the kernels whose configurations differ in their features."""
    rows = self.rows[self.rows['rankable']]
    return Summary(rows, len(rows))

  @functools.cached_property
  def programs(self) -> dict[str, Summary]:
    """Program -> micro over its kernels, sorted by name."""
    return self._grouped('program')

  @functools.cached_property
  def kinds(self) -> dict[str, Summary]:
    """Kind -> micro over its kernels, in the order of `kernel_kinds.KINDS`."""
    found = self._grouped('kind')
    return {kind: found[kind] for kind in kernel_kinds.KINDS if kind in found}

  def _grouped(self, column: str) -> dict[str, Summary]:
    return {name: Summary(rows, len(rows))
            for name, rows in self.rows.groupby(column)}

  @functools.cached_property
  def macro(self) -> Summary:
    """Means over the programs' means."""
    return Summary(results.table(
        summary.means for summary in self.programs.values()), len(self.rows))

  def against(self, other: str) -> list[tuple[float, float, float]]:
    """The model's slowdown minus another choice's, for each k.

    `other` is 'default', one tile whatever k is, or 'random'.
    """
    return [self.mean.minus(
        f'slowdown_{k}', self.mean,
        other if other == 'default' else f'{other}_{k}') for k in self.ks]

  def to_json(self) -> dict[str, Any]:
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

  def blocks(self, by_kernel: bool) -> list[list[str]]:
    ks, every = self.ks, self.rows.to_dict('records')
    means = [('', 'kernels', *heads(self.COMPARED, ks))]
    means += [(name, str(summary.problems), *cells(summary, self.COMPARED, ks))
              for name, summary in (
                  *self.programs.items(), *self.kinds.items(),
                  ('macro (mean over programs)', self.macro),
                  ('micro (rankable kernels)', self.rankable),
                  ('micro (all kernels)', self.micro))]
    repeats = self.rows['repeats'].sum()
    last = repeats and not self.keep_repeats
    found = [[f'{self.model_dir} on {self.data}'], aligned(means), [
        f'micro (all kernels){" with --keep_repeats" * bool(last)} is the '
        "baseline's number."]]
    if last:
      found[-1].append(
          f'{repeats:,} of {self.rows["configs"].sum():,} configurations are '
          'duplicates and are chosen last.')
    if by_kernel:
      measures = ('slowdown', 'default', *results.SCORES)
      every.sort(key=lambda row: [-row[f'slowdown_{k}'] for k in ks])
      found.append(aligned([
          ('kernel', 'kind', 'configs', *heads(measures, ks)),
          *((row['tile_id'], row['kind'], str(row['configs']),
             *cells(row, measures, ks)) for row in every)]))
    return found

  def other_choices(self) -> list[tuple[str, ...]]:
    ks = self.ks
    rows = [('the default tile', *len(ks) * cells(
        self.micro, ['default'], ks, intervals=True)),
            ('a random choice', *cells(
                self.micro, ['random'], ks, intervals=True))]
    rows += [(f'{results.names_of([self])[0]} - {name}', *(
        results.cell('slowdown', *found) for found in self.against(other)))
             for name, other in (
                 ('the default', 'default'), ('random', 'random'))]
    return [(*row, '-', '-') for row in rows]
