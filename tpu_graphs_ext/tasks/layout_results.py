"""How well a trained model orders the configurations of measured programs.

Means are over programs. For each program:
  tau       Kendall's tau-b of the runtimes and the places in the model's order
            of all configurations, which a CSV of predictions holds. It is
            `scipy.stats.kendalltau`, as in the organisers'
            `layout_evaluate.py`. An order has no ties; equal runtimes are
            corrected for.
  top-k     how much slower the fastest of the first k configurations is than
            the fastest of all
  OPA       share of the pairs of different runtime that the scores order alike
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_graphs_ext.data.programs import Program
from tpu_graphs_ext.engine import metrics, output_paths, results
from tpu_graphs_ext.engine.duplicate_configs import Scores
from tpu_graphs_ext.engine.evaluation_text import (
  differences,
  heads,
  intervals,
  places,
  table,
  values,
)
from tpu_graphs_ext.tasks.layout_settings import TOP_KS

_MEASURES = ('kendall', 'opa', 'slowdown', 'random')
_NOTES = (
    "tau: Kendall's tau-b of the runtimes and the model's order; higher is "
    'better. top-k %: how',
    'much slower the fastest of the first k configurations is than the fastest '
    'of all.',
    '[low, high]: interval that holds the mean of 95 % of the sets that are '
    'drawn from these',
    'programs; of a handful it comes out too narrow.')


def row_of(program: Program, scores: Scores,
           ks: Sequence[int] = TOP_KS) -> dict[str, Any]:
  """Measures of one labelled program with a model's scores.

  Returns:
    program: its name.
    nodes, configurable, configs: number of nodes, of those with layouts, and
      of configurations.
    runtimes: number of distinct runtimes; few bound tau away from 1.
    kendall: see the module; NaN where all runtimes are equal.
    opa: NaN where all runtimes are equal.
    slowdown_<k>: `metrics.top_k_slowdown`.
    random_<k>: the expected slowdown of k drawn at random.
  """
  runtime, order = program.runtime_rel, scores.order
  return {
      'program': program.name,
      'nodes': program.num_nodes,
      'configurable': program.num_configurable,
      'configs': program.num_configs,
      'runtimes': len(np.unique(runtime)),
      'kendall': kendall_of_order(runtime, order),
      'opa': metrics.ordered_pair_accuracy(runtime, scores.given),
      **results.by_k('slowdown', {
          k: metrics.slowdown_of(runtime, order[:k]) for k in ks}),
      **results.by_k('random', {
          k: metrics.random_slowdown(runtime, scores.repeats, k) for k in ks})}


def kendall_of_order(runtime: np.ndarray, order: np.ndarray) -> float:
  """Kendall's tau-b of runtimes and the places in an order.

  With n configurations, c concordant and d discordant pairs, and t pairs of
  equal runtime:
      tau = (c - d) / sqrt((n (n - 1) / 2 - t) n (n - 1) / 2)

  Args:
    runtime: float64 [configs].
    order: int64 [configs], each configuration once, the fastest first.

  Returns:
    -1 to 1; NaN where all runtimes are equal.
  """
  return metrics.kendall_tau_b(runtime, np.argsort(order))


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all programs of one source, by one model; see `row_of`."""

  NAME, PROBLEMS = 'program', 'programs'
  INTERVALS = COMPARED = ('kendall', 'opa', 'slowdown')
  CSV = output_paths.Text(
      '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
      'kendall,opa', 'CSV of evaluate --task layout')

  def to_json(self) -> dict[str, Any]:
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.summary_json(self.mean),
            'programs': self.problems_json()}

  @classmethod
  def texts(cls, evaluations: Sequence[Evaluation],
            by_kernel: bool = False) -> str:
    """The programs and means of each model, and the models' differences."""
    blocks = ['\n'.join(_of_model(evaluation)) for evaluation in evaluations]
    if len(evaluations) > 1:
      ks = evaluations[0].ks
      blocks.append('\n'.join([*places(evaluations), '', *table([
          ('difference, paired by program', *heads(cls.COMPARED, ks)),
          *differences(evaluations)])]))
    return '\n\n'.join([*blocks, '\n'.join(_NOTES)])


def _of_model(evaluation: Evaluation) -> list[str]:
  mean, ks, compared = evaluation.mean, evaluation.ks, evaluation.COMPARED
  programs = [('', 'nodes', 'configs', *heads(_MEASURES, ks)), *(
      (row['program'], f'{row["nodes"]:,}', f'{row["configs"]:,}',
       *values(row, _MEASURES, ks))
      for row in evaluation.rows.to_dict('records'))]
  programs.append((f'mean of {mean.problems}', '', '',
                   *values(mean, _MEASURES, ks)))
  means = [('', *heads(compared, ks)), ('mean', *intervals(mean, compared, ks))]
  return [f'{evaluation.model_dir} on {evaluation.data}', '',
          *table(programs), '', *table(means)]
