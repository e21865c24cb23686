"""How well a model orders tiles of kernels, and layouts of programs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.programs import Program
from tpu_graphs_ext.engine import metrics, results
from tpu_graphs_ext.engine.scoring import Scores

# Hidden test kernels are named by a hash alone.
NO_PROGRAM = '(no program name)'
KINDS = ('convolution', 'reduction', 'element-wise', 'copy', 'other')
_OPCODES = {kind: frozenset(names.split()) for kind, names in {
    'convolution': 'convolution dot',
    'reduction': '''
reduce reduce-window select-and-scatter batch-norm-training batch-norm-grad
''',
    # As XLA's HloInstruction::IsElementwise has them, and normalisation with
    # given means, which XLA expands to such.
    'element-wise': '''
abs add and atan2 batch-norm-inference bitcast-convert cbrt ceil clamp compare
complex convert cosine count-leading-zeros divide exponential
exponential-minus-one floor imag is-finite log log-plus-one logistic map
maximum minimum multiply negate not or popcnt power real reduce-precision
remainder rng round-nearest-afz round-nearest-even rsqrt select shift-left
shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert
subtract tan tanh tuple-select xor
''',
    # They change the place or the number of copies of a value, or are
    # structure.
    'copy': '''
add-dependency after-all async-done async-start async-update bitcast broadcast
call concatenate constant copy copy-done copy-start domain dynamic-reshape
dynamic-slice dynamic-update-slice fusion gather get-dimension-size
get-tuple-element iota opt-barrier pad parameter reshape reverse
set-dimension-size slice trace transpose tuple
'''}.items()}


def kind_of(node_opcode: np.ndarray) -> str:
  """The first of `KINDS` that applies to a kernel of opcodes uint8 [nodes].

  Other: sorts, scatters, random bits, custom calls, unknown opcodes.
  """
  names = {schema.OPCODE_NAMES.get(number) for number in set(
      node_opcode.tolist())}
  for kind in ('convolution', 'reduction'):
    if names & _OPCODES[kind]:
      return kind
  names -= _OPCODES['copy']
  if not names:
    return 'copy'
  return 'element-wise' if names <= _OPCODES['element-wise'] else 'other'


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all kernels of one source, by one model; see `row_of`.

  Three means of the same kernels:
    micro    over kernels: the number that the baseline's trainer reports, with
             duplicates in their places if `keep_repeats`.
    rankable micro without kernels whose configurations are all identical.
    macro    over programs, of the mean over a program's kernels.
  Each has intervals, over kernels or, for macro, over programs.
  """
  NAME, PROBLEMS = 'tile_id', 'kernels'
  CSV = files.Output(
      '--csv', 'model_dir,data,tile_id,program,kind,configs,rankable,repeats',
      'CSV of evaluate')
  INTERVALS = ('slowdown', 'random', 'default', 'opa', 'kendall')
  COMPARED = ('slowdown', 'opa', 'kendall')
  ABOUT = ('kind', 'configs')
  LISTED = ('slowdown', 'default', *results.SCORES)
  OTHERS = (('the default tile', 'default'), *results.Results.OTHERS)

  @classmethod
  def row_of(cls, kernel: Kernel, scores: Scores,
             ks: Sequence[int]) -> dict[str, Any]:
    """Measures of one labelled kernel with a model's scores.

    Returns:
      tile_id: its name.
      program: the program that it was cut from, or `NO_PROGRAM`.
      kind: one of `KINDS`.
      configs: number of configurations.
      rankable: whether any two configurations differ in their features.
      repeats: number of duplicates of an earlier one.
      slowdown_<k>: `metrics.slowdown_of` the first k to try.
      slowdown_kept_<k>: the same if duplicates come right after their tile.
      random_<k>: the expected slowdown of k tiles drawn at random.
      default: slowdown of the compiler's default tile; below 0 where that is
        faster than all that are listed. NaN where its time is not stored.
      opa: ordered pair accuracy of the tiles' scores, which duplicates share;
        of the model's own with `keep_repeats`. NaN where runtimes are equal.
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
        'kind': kind_of(kernel.node_opcode), 'configs': kernel.num_configs,
        'rankable': kernel.is_rankable, 'repeats': int(scores.repeats.sum()),
        **{f'slowdown_{k}': metrics.slowdown_of(runtime, scores.order[:k])
           for k in ks},
        **{f'slowdown_kept_{k}': metrics.slowdown_of(runtime, kept[:k])
           for k in ks},
        **{f'random_{k}': metrics.random_slowdown(runtime, last, k)
           for k in ks},
        'default': (float(1 / runtime.min() - 1)
                    if (kernel.normalizer_ns != 1).any() else math.nan),
        'opa': opa, 'kendall': kendall}

  @property
  def micro(self) -> results.Summary:
    """Means over all kernels: `micro['slowdown_5']`, `micro['opa']`."""
    return self.mean

  @functools.cached_property
  def rankable(self) -> results.Summary:
    """Means over the kernels whose configurations differ in their features."""
    rows = self.rows[self.rows['rankable']]
    return results.Summary(rows, len(rows))

  @functools.cached_property
  def programs(self) -> dict[str, results.Summary]:
    """Program -> micro over its kernels, sorted by name."""
    return self._grouped('program')

  @functools.cached_property
  def kinds(self) -> dict[str, results.Summary]:
    """Kind -> micro over its kernels, in the order of `KINDS`."""
    summaries = self._grouped('kind')
    return {kind: summaries[kind] for kind in KINDS if kind in summaries}

  def _grouped(self, column: str) -> dict[str, results.Summary]:
    return {name: results.Summary(rows, len(rows))
            for name, rows in self.rows.groupby(column)}

  @functools.cached_property
  def macro(self) -> results.Summary:
    """Means over the programs' means."""
    return results.Summary(results.table(
        summary.means for summary in self.programs.values()), len(self.rows))

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
        # The model's slowdown minus that of one tile whatever k is, or of k.
        'against': {
            other.partition('_')[0]: {
                str(k): results.difference_json(*self.mean.minus(
                    f'slowdown_{k}', self.mean, other.format(k)))
                for k in self.ks} for _, other in self.OTHERS},
        'kernels': self.problems_json()}

  def groups(self) -> list[tuple[str, results.Summary]]:
    return [*self.programs.items(), *self.kinds.items(),
            ('macro (mean over programs)', self.macro),
            ('micro (rankable kernels)', self.rankable),
            ('micro (all kernels)', self.micro)]


@dataclasses.dataclass(frozen=True, eq=False)
class LayoutEvaluation(results.Results):
  """Measures of all programs of one source, by one model; see `row_of`."""
  NAME, PROBLEMS = 'program', 'programs'
  ABOUT = ('nodes', 'configs')
  CSV = files.Output(
      '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
      'kendall,opa', 'CSV of evaluate --task layout')

  @classmethod
  def row_of(cls, program: Program, scores: Scores,
             ks: Sequence[int]) -> dict[str, Any]:
    """Number of nodes, of those with layouts, and of distinct runtimes, too.

    Few of the last bound tau away from 1.
    """
    return {
        'program': program.name, 'nodes': program.num_nodes,
        'configurable': program.num_configurable,
        'configs': program.num_configs,
        'runtimes': len(np.unique(program.runtime_rel)),
        **super().row_of(program, scores, ks)}


OF_TASK = {'tile': Evaluation, 'layout': LayoutEvaluation}
