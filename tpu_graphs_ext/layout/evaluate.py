"""How well a trained model orders the configurations of measured programs.

Means are over programs. Of each program:
  tau       Kendall's tau-b of the runtimes and the places in the model's order
            of all configurations, which is what a CSV of predictions holds.
            The competition scores layout collections by Kendall's tau of that
            order; tau-b is what `scipy.stats.kendalltau` gives, by which the
            organisers' `layout_evaluate.py` measures. An order has no ties;
            equal runtimes are corrected for.
  top-k     how much slower the fastest of the first k configurations is than
            the fastest of all
  OPA       part of the pairs of unlike runtime that the scores order alike
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_graphs_ext.host import metrics, outputs, results
from tpu_graphs_ext.layout import programs, scoring
from tpu_graphs_ext.layout.programs import Program, Programs
from tpu_graphs_ext.layout.settings import TOP_KS, LayoutLoadSettings

if TYPE_CHECKING:
  import pandas

CSV = outputs.Text(
    '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
    'kendall,opa', 'CSV of evaluate --task layout')


def row_of(program: Program, scores: np.ndarray,
           ks: Sequence[int] = TOP_KS) -> dict[str, Any]:
  """Measures of one labelled program with a model's scores.

  Returns:
    program: its name.
    nodes: how many.
    configurable: nodes with layouts.
    configs: configurations.
    runtimes: distinct runtimes; few of them bound tau away from 1.
    kendall: see the module; NaN where all runtimes are equal.
    opa: NaN where all runtimes are equal.
    slowdown_<k>: `metrics.top_k_slowdown`.
    random_<k>: the expected slowdown of as many drawn at random.
  """
  runtime = program.runtime_ns.astype(np.float64)
  order = metrics.best_first(scores)
  return {
      'program': program.name,
      'nodes': program.num_nodes,
      'configurable': program.num_configurable,
      'configs': program.num_configs,
      'runtimes': len(np.unique(program.runtime_ns)),
      'kendall': kendall_of_order(runtime, order),
      'opa': metrics.ordered_pair_accuracy(runtime, scores),
      **results.by_k('slowdown', {
          k: metrics.slowdown_of(runtime, order[:k]) for k in ks}),
      **results.by_k('random', {
          k: metrics.random_slowdown(runtime, np.zeros(runtime.size, bool), k)
          for k in ks})}


def kendall_of_order(runtime: np.ndarray, order: np.ndarray) -> float:
  """Kendall's tau-b of runtimes and the places of an order.

  With c pairs ordered alike, d the other way and t pairs of equal runtime,
  of n configurations:
      tau = (c - d) / sqrt((n (n - 1) / 2 - t) n (n - 1) / 2)

  Args:
    runtime: float64 [configs].
    order: int64 [configs], each configuration once, the fastest first.

  Returns:
    -1 to 1; NaN where all runtimes are equal.
  """
  places = np.empty(len(order), np.int64)
  places[order] = np.arange(len(order))
  return metrics.kendall_tau_b(runtime, places)


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all programs of one source, by one model.

  Attributes:
    model_dir: its folder.
    data: what the programs were read from.
    rows: a pandas DataFrame with a row for each program, see `row_of`.
  """
  NAME, PROBLEMS = 'program', 'programs'
  INTERVALS = COMPARED = ('kendall', 'opa', 'slowdown')

  def to_json(self) -> dict[str, Any]:
    """Plain values; None where a measure is undefined."""
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.summary_json(self.mean),
            'programs': self.problems_json()}


def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: LayoutLoadSettings | None = None,
                 ks: Sequence[int] = TOP_KS) -> list[Evaluation]:
  """Measures trained models on the same labelled programs.

  Args:
    model_dirs: folders model_<hash>; the run file of each lies beside it.
    data: folder of .npz files, or one; empty: valid of the collection of
      `loading`, or of the first model. Programs without labels are left out,
      with a warning that names them.
    loading: how to load the models; also where the data are.
    ks: how many configurations to try, each at least 1.

  Raises:
    UserError: a file is missing or damaged, has no labels, or belongs to
      another model or task.
  """
  loading = loading or LayoutLoadSettings()
  # All models first: a wrong name must not wait for the others' scores.
  rankers = [scoring.load_ranker(model_dir, loading)
             for model_dir in model_dirs]
  members = programs.labelled(
      programs.read_programs(data, cache_dir=loading.cache_dir) if data
      else scoring.read_split(rankers[0], loading, 'valid'))
  return [Evaluation(ranker.name, members.where,
                     measure(ranker, members, 'evaluate', ks))
          for ranker in rankers]


def measure(ranker: scoring.Ranker, members: Programs, what: str,
            ks: Sequence[int] = TOP_KS) -> pandas.DataFrame:
  """Scores and measures every program: a row each, see `row_of`.

  Args:
    ranker: the model.
    members: labelled programs.
    what: stands beside the progress bar.
    ks: how many configurations to try, one measure for each.
  """
  return results.table(row_of(program, scores, ks)
                       for program, scores in ranker.score_all(members, what))
