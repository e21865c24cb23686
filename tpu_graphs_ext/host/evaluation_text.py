"""Tables of `evaluate`: one model's, and several models beside one another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_graphs_ext.host import statistics

if TYPE_CHECKING:
  from tpu_graphs_ext.host.evaluate import Evaluation, KernelResult, Summary

_INTERVAL_LINES = [
    '[low, high]: interval that holds the mean of 95 % of the sets that are '
    'drawn from',
    'these kernels; macro: from these programs.']
_DIFFERENCE_LINES = [
    'a - b: mean over kernels of the difference, in per cent of the best '
    "tile's time;",
    'below 0 a is better. Chance alone seldom gives an interval without 0 '
    'in it.']


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
  lines = [f'{len(evaluations)} models on {first.data}, '
           f'{len(first.results)} kernels', '']
  lines += [f'model {number}: {evaluation.model_dir}'
            for number, evaluation in enumerate(evaluations, 1)]
  rows = [_interval_header(first.ks, scores=True)]
  rows += [_interval_row(f'model {number}', evaluation.micro, scores=True)
           for number, evaluation in enumerate(evaluations, 1)]
  rows += _other_rows(first.micro, scores=True)
  for i, one in enumerate(evaluations):
    rows += [_pair_row(f'{i + 1} - {j + 1}', one.micro, other.micro)
             for j, other in enumerate(evaluations) if j > i]
  return '\n'.join([*lines, '', *table(rows), '', *_INTERVAL_LINES,
                    *_DIFFERENCE_LINES])


def _programs(evaluation: Evaluation) -> list[str]:
  """The first table, and what its rows are."""
  rows = [_header('', evaluation.ks)]
  rows += [_row(name, summary)
           for name, summary in evaluation.programs.items()]
  micro, results = evaluation.micro, evaluation.results
  rows.append(_row('macro (mean over programs)', evaluation.macro))
  rows.append(_row('micro (all kernels)', micro))
  unrankable = len(results) - evaluation.rankable.kernels
  if unrankable:
    rows.append(_row('micro (rankable kernels)', evaluation.rankable))
  repeats = sum(result.repeats for result in results)
  last = repeats and not evaluation.keep_repeats
  if last:
    rows.append(_row('micro (repetitions kept)', dataclasses.replace(
        micro, slowdown=micro.slowdown_kept)))
  lines = [f'{evaluation.model_dir} on {evaluation.data}', '', *table(rows),
           '', 'top-k %: how much slower the best of the k chosen tiles is '
           'than the best tile.',
           f'micro (all kernels){" with --keep_repeats" * bool(last)} is the '
           "baseline's number."]
  if last:
    configs = sum(result.configs for result in results)
    lines.append(
        f'{repeats} of {configs} configurations repeat another of their '
        'kernel and are chosen last; kept: right after the tile that they '
        'repeat.')
  if unrankable:
    lines.append(
        f'{unrankable} of {len(results)} kernels cannot be ranked: '
        'their configurations are all identical.')
  return lines


def _kinds(evaluation: Evaluation) -> list[str]:
  rows = [_header('kind of kernel', evaluation.ks)]
  for name, summary in evaluation.kinds.items():
    _, kernels, *_, opa, tau = _row(name, summary)
    rows.append((name, kernels, *_by_k(summary, 'slowdown'), opa, tau))
  return table(rows)


def _intervals(evaluation: Evaluation) -> list[str]:
  micro, ks = evaluation.micro, evaluation.ks
  rows = [_interval_header(ks), _interval_row('the model (micro)', micro),
          _interval_row('the model (macro)', evaluation.macro),
          *_other_rows(micro)]
  for other in ('default', 'random'):
    rows.append((f'model - {other}', *(
        with_interval(*_percent(micro.against(other, k))) for k in ks)))
  return [*table(rows), '', *_INTERVAL_LINES, *_DIFFERENCE_LINES]


def _kernels(evaluation: Evaluation) -> list[str]:
  ks = evaluation.ks

  def row(result: KernelResult) -> tuple[str, ...]:
    return (result.tile_id, result.kind, str(result.configs),
            *(_number(100 * result.slowdown[k]) for k in ks),
            _number(100 * result.default),
            _number(100 * result.random[ks[0]]), _number(result.opa, 3),
            _number(result.kendall, 3))

  ordered = sorted(evaluation.results,
                   key=lambda result: [-result.slowdown[k] for k in ks])
  return table([('kernel', 'kind', 'configs', *_tops(ks), 'default %',
                 f'random-{ks[0]} %', 'OPA', 'tau'), *map(row, ordered)])


def _tops(ks: Sequence[int]) -> list[str]:
  return [f'top-{k} %' for k in ks]


def _header(name: str, ks: Sequence[int]) -> tuple[str, ...]:
  return (name, 'kernels', *_tops(ks), 'OPA', 'tau')


def _row(name: str, summary: Summary) -> tuple[str, ...]:
  return (name, str(summary.kernels),
          *(_number(100 * value) for value in summary.slowdown.values()),
          _number(summary.opa, 3), _number(summary.kendall, 3))


def _interval_header(ks: Sequence[int], scores: bool = False
                     ) -> tuple[str, ...]:
  return ('', *_tops(ks), *(['OPA', 'tau'] if scores else []))


def _interval_row(name: str, summary: Summary,
                  scores: bool = False) -> tuple[str, ...]:
  """Means with intervals; `scores`: OPA and tau too."""
  cells = [name, *_by_k(summary, 'slowdown')]
  if scores:
    cells += [with_interval(getattr(summary, measure),
                             *summary.interval(measure), digits=3)
              for measure in ('opa', 'kendall')]
  return tuple(cells)


def _by_k(summary: Summary, measure: str) -> list[str]:
  return [with_interval(*_percent((mean, *summary.interval(measure, k))))
          for k, mean in getattr(summary, measure).items()]


def _other_rows(summary: Summary, scores: bool = False) -> list[tuple]:
  """The default tile, the same for all k, and a random choice."""
  default = with_interval(*_percent(
      (summary.default, *summary.interval('default'))))
  blank = ['-', '-'] if scores else []
  return [('the default tile', *len(summary.slowdown) * [default], *blank),
          ('a random choice', *_by_k(summary, 'random'), *blank)]


def _pair_row(name: str, a: Summary, b: Summary) -> tuple[str, ...]:
  cells = [with_interval(*_percent(statistics.paired_difference(
      a.values('slowdown', k), b.values('slowdown', k)))) for k in a.slowdown]
  cells += [with_interval(*statistics.paired_difference(
      a.values(measure), b.values(measure)), digits=3)
            for measure in ('opa', 'kendall')]
  return (name, *cells)


def _percent(numbers: Sequence[float]) -> list[float]:
  return [100 * number for number in numbers]


def _number(value: float, digits: int = 2) -> str:
  # The sum turns -0.0 into 0.0.
  return ('-' if math.isnan(value)
          else f'{round(value, digits) + 0.0:.{digits}f}')


def with_interval(mean: float, low: float, high: float,
                   digits: int = 2) -> str:
  if math.isnan(low):
    return _number(mean, digits)
  return (f'{_number(mean, digits)} [{_number(low, digits)}, '
          f'{_number(high, digits)}]')


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
  """First column to the left, numbers to the right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join([row[0].ljust(widths[0])] + [
      cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
          for row in rows]
