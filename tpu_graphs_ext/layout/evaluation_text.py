"""Tables and the CSV of what `evaluate --task layout` measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tpu_graphs_ext.csv_text import of_rows
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.host.evaluation_text import table, with_interval
from tpu_graphs_ext.layout.evaluate import Evaluation, ProgramResult, Summary

_NOTES = (
    "tau: Kendall's tau-b of the runtimes and the model's order; higher is "
    'better. top-k %: how',
    'much slower the fastest of the first k configurations is than the fastest '
    'of all.',
    '[low, high]: interval that holds the mean of 95 % of the sets that are '
    'drawn from these',
    'programs; of a handful it comes out too narrow.')
_FIRST = ('model_dir', 'data', 'program', 'nodes', 'configurable', 'configs',
          'runtimes', 'kendall', 'opa')
CSV = outputs.Text('--csv', ','.join(_FIRST), 'CSV of evaluate --task layout')


def text(evaluations: Sequence[Evaluation]) -> str:
  """The programs of each model, its means, and of several how they differ."""
  blocks = [_of_model(evaluation) for evaluation in evaluations]
  if len(evaluations) > 1:
    blocks.append(_pairs(evaluations))
  return '\n\n'.join([*blocks, '\n'.join(_NOTES)])


def _of_model(evaluation: Evaluation) -> str:
  mean = evaluation.mean
  ks = list(mean.slowdown)
  rows = [('', 'nodes', 'configs', 'tau', 'OPA', *(f'top-{k} %' for k in ks),
           *(f'random-{k} %' for k in ks))]
  rows += [(result.name, f'{result.nodes:,}', f'{result.configs:,}',
            *_measures(result)) for result in evaluation.results]
  rows.append((f'mean of {len(evaluation.results)}', '', '', *_measures(mean)))
  interval = [('', 'tau', 'OPA', *(f'top-{k} %' for k in ks)),
              ('mean', *_intervals(mean, ks))]
  return '\n'.join([f'{evaluation.model_dir} on {evaluation.data}', '',
                    *table(rows), '', *table(interval)])


def _measures(of: ProgramResult | Summary) -> list[str]:
  return [_number(of.kendall, 3), _number(of.opa, 3),
          *(_number(100 * value) for value in of.slowdown.values()),
          *(_number(100 * value) for value in of.random.values())]


def _intervals(mean: Summary, ks: Sequence[int]) -> list[str]:
  cells = [with_interval(getattr(mean, name), *mean.interval(name), digits=3)
           for name in ('kendall', 'opa')]
  return cells + [with_interval(*(100 * number for number in (
      mean.slowdown[k], *mean.interval('slowdown', k)))) for k in ks]


def _pairs(evaluations: Sequence[Evaluation]) -> str:
  ks = list(evaluations[0].mean.slowdown)
  lines = [f'model {number}: {evaluation.model_dir}'
           for number, evaluation in enumerate(evaluations, 1)]
  rows = [('difference, paired by program', 'tau', 'OPA',
           *(f'top-{k} %' for k in ks))]
  for i, one in enumerate(evaluations):
    for j, other in enumerate(evaluations[i + 1:], i + 1):
      rows.append((f'{i + 1} - {j + 1}', *(
          with_interval(*one.mean.minus(other.mean, name), digits=3)
          for name in ('kendall', 'opa')), *(
          with_interval(*(100 * number for number in one.mean.minus(
              other.mean, 'slowdown', k))) for k in ks)))
  return '\n'.join([*lines, '', *table(rows)])


def _number(value: float, digits: int = 2) -> str:
  return '-' if math.isnan(value) else f'{value:.{digits}f}'


# ------------------------------------------------------------------------ CSV


def csv_text(evaluations: Sequence[Evaluation]) -> str:
  """A row a program and model; slowdowns are parts: 0.2 is 20 %.

  Args:
    evaluations: all with the same numbers of configurations to try.
  """
  ks = list(evaluations[0].mean.slowdown)
  rows = [[*_FIRST, *(
      f'{name}_{k}' for name in ('slowdown', 'random') for k in ks)]]
  for evaluation in evaluations:
    for result in evaluation.results:
      rows.append([
          evaluation.model_dir, evaluation.data, result.name,
          *(_cell(getattr(result, name)) for name in _FIRST[3:]),
          *result.slowdown.values(), *result.random.values()])
  return of_rows(rows)


def _cell(value: Any) -> Any:
  return '' if isinstance(value, float) and math.isnan(value) else value
