"""Measures how well trained models order the configurations of problems."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, Union

import numpy as np

from tpu_graphs_ext.data.kernel import Problem, Problems
from tpu_graphs_ext.engine import (
  metrics,
  origin,
  out_of_range,
  results,
  scoring,
)
from tpu_graphs_ext.engine.foreign import ForeignRanker
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.engine.task import Task
from tpu_graphs_ext.errors import UserError, shortened

if TYPE_CHECKING:
  import pandas

AnyRanker = Union[scoring.Ranker, ForeignRanker]

_log = logging.getLogger(__name__)


def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: Loading, ks: Optional[Sequence[int]] = None,
                 foreign: Sequence[ForeignRanker] = ()
                 ) -> list[results.Results]:
  """Measures trained models of the task of `loading`; see `tasks.api`.

  `foreign` are scores of other models, which come after these.
  """
  # All models first: a wrong name must not wait for the others' scores.
  rankers = [*map(scoring.load_ranker, model_dirs, loading.for_each(
      len(model_dirs))), *foreign]
  source, problems = rankers[0].read(loading, 'valid', data)
  for ranker in rankers[:len(model_dirs)] if not data else ():
    origin.warn_of_other_data(ranker.name, ranker.data, source, 'valid')
  problems = labelled(problems, source, rankers[0].task)
  for ranker in rankers[:len(model_dirs)]:
    out_of_range.warn(ranker, problems)
  return [evaluation(ranker, problems, source, ks) for ranker in rankers]


def evaluation(ranker: AnyRanker, problems: Problems, source: str,
               ks: Optional[Sequence[int]] = None) -> results.Results:
  """Measures one model on labelled problems, which are of `source`."""
  return ranker.task.evaluation(
      ranker.name, source, measure(ranker, problems, 'evaluate', ks),
      ranker.keep_repeats, ranker.class_name)


def labelled(problems: Problems, source: str, task: Task) -> Problems:
  """The problems with runtimes; warns of the others, or raises if all lack."""
  has_labels = np.array([problem.is_labelled for problem in problems])
  if not has_labels.any():
    require_labels(problems, source, task)
  if not has_labels.all():
    left_out = problems.select(~has_labels).names
    _log.warning('%s: left out %d of %d %ss without labels (all runtimes are '
                 '0): %s', source, len(left_out), len(problems), task.problem,
                 shortened(sorted(left_out)))
  return problems.select(has_labels)


def require_labels(problems: Problems, source: str, task: Task) -> None:
  """Raises UserError if a problem has no runtimes; names `source`."""
  without = [problem.name for problem in problems if not problem.is_labelled]
  if without:
    raise UserError(
        f'{source}: {len(without)} of {len(problems)} {task.problem}s have no '
        f'labels (all runtimes are 0), first {without[0]}; evaluate on valid, '
        'or write predictions with `tpu-graphs-ext predict`')


def measure(ranker: AnyRanker, problems: Problems, what: str,
            ks: Optional[Sequence[int]] = None) -> pandas.DataFrame:
  """Scores and measures labelled problems: a row each, see `Task.row_of`.

  A measure that needs more places than are known of one problem is NaN for all,
  whose mean would else be one over the smallest.
  """
  ks = ks or ranker.task.top_ks
  rows, known = [], math.inf
  for problem, scores in ranker.score_all(problems, what):
    rows.append(ranker.task.row_of(problem, scores, ks))
    if (scores.known_places or problem.num_configs) < problem.num_configs:
      known = min(known, scores.known_places)
  table = results.table(rows)
  unknown = [column for column in table if (column in results.SCORES
             and known < math.inf) or (column.startswith('slowdown')
             and int(column.rpartition('_')[2]) > known)]
  table[unknown] = math.nan
  return table


def measures_of_order(problem: Problem, scores: scoring.Scores,
                      ks: Sequence[int]) -> dict[str, float]:
  """Measures of any labelled problem with a model's scores.

  Returns:
    kendall: Kendall's tau-b of the runtimes and the places in the model's order
      of all configurations, as in the organisers' `layout_evaluate.py`. An
      order has no ties; equal runtimes are corrected for. NaN where all are.
    opa: share of the pairs of different runtime that the scores order alike;
      NaN where all runtimes are equal.
    slowdown_<k>: how much slower the fastest of the first k configurations is
      than the fastest of all.
    random_<k>: the expected slowdown of k drawn at random.
  """
  runtime, order = problem.runtime_rel, scores.order
  return {
      'kendall': metrics.pair_agreement(runtime, np.argsort(order))[1],
      'opa': metrics.pair_agreement(runtime, scores.given)[0],
      **{f'slowdown_{k}': metrics.slowdown_of(runtime, order[:k])
         for k in ks},
      **{f'random_{k}': metrics.random_slowdown(runtime, scores.repeats, k)
         for k in ks}}
