"""Tables of `evaluate`: one model's, and several models beside one another.

The first part serves both tasks, the second kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpu_graphs_ext.host.results import Results, Summary, columns_of

if TYPE_CHECKING:
  from tpu_graphs_ext.host.evaluate import Evaluation

_NAMES = {'slowdown': 'top-{} %', 'random': 'random-{} %',
          'default': 'default %', 'opa': 'OPA', 'kendall': 'tau'}
_SCORES = ('opa', 'kendall')  # Not slowdowns, which are in per cent.
_INTERVAL_LINES = [
    '[low, high]: interval that holds the mean of 95 % of the sets that are '
    'drawn from',
    'these kernels; macro: from these programs.']
_DIFFERENCE_LINES = [
    'a - b: mean over kernels of the difference, in per cent of the best '
    "tile's time;",
    'below 0 a is better. Chance alone seldom gives an interval without 0 '
    'in it.']

# ---------------------------------------------------------- rows of any task


def heads(measures: Iterable[str], ks: Sequence[int]) -> list[str]:
  """What the columns of some measures are called."""
  return [_NAMES[measure].format(k)
          for measure, k, _ in columns_of(measures, ks)]


def values(of: Mapping[str, float] | Summary, measures: Iterable[str],
           ks: Sequence[int]) -> list[str]:
  """A cell for each column: of a row of a table, or of means."""
  return [_cell(measure, of[column])
          for measure, _, column in columns_of(measures, ks)]


def intervals(summary: Summary, measures: Iterable[str],
              ks: Sequence[int]) -> list[str]:
  """The same with intervals of the means."""
  return [_cell(measure, summary[column], *summary.interval(column))
          for measure, _, column in columns_of(measures, ks)]


def pairs(evaluations: Sequence[Results],
          ks: Sequence[int]) -> list[tuple[str, ...]]:
  """A row for each two models: what they differ by, paired by problem."""
  return [
      (f'{i + 1} - {j + 1}', *(
          _cell(measure, *one.mean.minus(column, evaluations[j].mean))
          for measure, _, column in columns_of(one.COMPARED, ks)))
      for i, one in enumerate(evaluations)
      for j in range(i + 1, len(evaluations))]


def numbered(evaluations: Sequence[Results]) -> list[str]:
  return [f'model {number}: {evaluation.model_dir}'
          for number, evaluation in enumerate(evaluations, 1)]


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
  """First column to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join([row[0].ljust(widths[0])] + [
      cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
          for row in rows]


def _cell(measure: str, value: float, low: float = math.nan,
          high: float = math.nan) -> str:
  scale, digits = (1, 3) if measure in _SCORES else (100, 2)
  text, *ends = (_number(scale * number, digits)
                 for number in (value, low, high))
  return text if math.isnan(low) else f'{text} [{", ".join(ends)}]'


def _number(value: float, digits: int) -> str:
  # The sum turns -0.0 into 0.0.
  return ('-' if math.isnan(value)
          else f'{round(value, digits) + 0.0:.{digits}f}')


# ------------------------------------------------------------------- kernels


def of_evaluation(evaluation: Evaluation, by_kernel: bool = False) -> str:
  """One model's tables.

  By program with the means over all, by kind of kernel, means with intervals
  beside the default tile and a random choice, and with `by_kernel` every
  kernel, the worst first choices first.
  """
  blocks = [_programs(evaluation), _kinds(evaluation), _intervals(evaluation)]
  if by_kernel:
    blocks.append(_kernels(evaluation))
  return '\n\n'.join('\n'.join(lines) for lines in blocks)


def text(evaluations: Sequence[Evaluation], by_kernel: bool = False) -> str:
  """The tables of each model and, of several, those that compare them."""
  blocks = [of_evaluation(evaluation, by_kernel) for evaluation in evaluations]
  if len(evaluations) > 1:
    blocks.append(of_several(evaluations))
  return '\n\n'.join(blocks)


def of_several(evaluations: Sequence[Evaluation]) -> str:
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
      '', *numbered(evaluations), '', *table(rows), '', *_INTERVAL_LINES,
      *_DIFFERENCE_LINES])


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
           *values(summary, _SCORES, ks))
          for name, summary in evaluation.kinds.items())])


def _intervals(evaluation: Evaluation) -> list[str]:
  tops, ks = ['slowdown'], evaluation.ks
  rows = [('', *heads(tops, ks)),
          ('the model (micro)', *intervals(evaluation.micro, tops, ks)),
          ('the model (macro)', *intervals(evaluation.macro, tops, ks)),
          *_others(evaluation)]
  for other in ('default', 'random'):
    rows.append((f'model - {other}', *(
        _cell('slowdown', *found) for found in evaluation.against(other))))
  return [*table(rows), '', *_INTERVAL_LINES, *_DIFFERENCE_LINES]


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
            *values(row, ['random'], ks[:1]), *values(row, _SCORES, ks))

  return table([
      ('kernel', 'kind', 'configs', *heads(['slowdown', 'default'], ks),
       *heads(['random'], ks[:1]), *heads(_SCORES, ks)),
      *map(cells, sorted(
          evaluation.rows.to_dict('records'),
          key=lambda row: [-row[column] for column in tops]))])
