"""How well a trained model orders the configurations of measured programs.

Means are over programs. For each program:
  tau       Kendall's tau-b of the runtimes and the places in the model's order
            of all configurations, as in the organisers' `layout_evaluate.py`.
            An order has no ties; equal runtimes are corrected for.
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
from tpu_graphs_ext.engine.results import aligned, cells, heads
from tpu_graphs_ext.engine.scoring import Scores
from tpu_graphs_ext.tasks.layout_settings import TOP_KS

_MEASURES = ('kendall', 'opa', 'slowdown', 'random')


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
    slowdown_<k>: `metrics.slowdown_of` the first k.
    random_<k>: the expected slowdown of k drawn at random.
  """
  runtime, order = program.runtime_rel, scores.order
  return {
      'program': program.name,
      'nodes': program.num_nodes,
      'configurable': program.num_configurable,
      'configs': program.num_configs,
      'runtimes': len(np.unique(runtime)),
      'kendall': metrics.pair_agreement(runtime, np.argsort(order))[1],
      'opa': metrics.pair_agreement(runtime, scores.given)[0],
      **{f'slowdown_{k}': metrics.slowdown_of(runtime, order[:k])
         for k in ks},
      **{f'random_{k}': metrics.random_slowdown(runtime, scores.repeats, k)
         for k in ks}}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all programs of one source, by one model; see `row_of`."""

  NAME, PROBLEMS = 'program', 'programs'
  INTERVALS = COMPARED = ('kendall', 'opa', 'slowdown')
  NOTES = (
      "tau: Kendall's tau-b of the runtimes and the model's order; higher is "
      'better.',
      'top-k %: how much slower the fastest of the first k configurations is '
      'than the fastest of all.',
      '[low, high]: 95 % bootstrap interval of the mean; too narrow for a '
      'handful of programs.')
  CSV = output_paths.Text(
      '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
      'kendall,opa', 'CSV of evaluate --task layout')

  def to_json(self) -> dict[str, Any]:
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.summary_json(self.mean),
            'programs': self.problems_json()}

  def blocks(self, by_kernel: bool) -> list[list[str]]:
    ks = self.ks
    rows = [('', 'nodes', 'configs', *heads(_MEASURES, ks))]
    rows += [(row['program'], f'{row["nodes"]:,}', f'{row["configs"]:,}',
              *cells(row, _MEASURES, ks))
             for row in self.rows.to_dict('records')]
    rows.append(('mean', '', '', *cells(self.mean, _MEASURES, ks)))
    return [[f'{self.model_dir} on {self.data}'], aligned(rows)]
