"""Measures how well trained models order the configurations of problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from tpu_graphs_ext.engine import results, scoring
from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.engine.settings import Loading, LoadSettings
from tpu_graphs_ext.errors import UserError

if TYPE_CHECKING:
  import pandas


def evaluate(model_dir: str, data: str = '', *,
             loading: Loading = LoadSettings(),
             ks: Optional[Sequence[int]] = None) -> results.Results:
  """Measures a trained model on labelled kernels; see `evaluate_all`."""
  evaluation, = evaluate_all([model_dir], data, loading=loading, ks=ks)
  return evaluation


def evaluate_all(model_dirs: Sequence[str], data: str = '', *,
                 loading: Loading = LoadSettings(),
                 ks: Optional[Sequence[int]] = None) -> list[results.Results]:
  """Measures trained models on the same labelled kernels, or programs.

  Args:
    model_dirs: folders model_<hash>; the run file of each lies beside it.
    data: folder of labelled .npz files, one .npz or a .pb; empty: valid of the
      data root of `loading`, or of the first model's collection.
    loading: how to load the models; also data_root and cache_dir of `data`.
    ks: how many configurations to try, each at least 1; None: 1, 5 and 10, or
      of programs 1, 10 and 100.

  Raises:
    UserError: a file is missing or damaged, has no labels, or belongs to
      another model or task.
  """
  # All models first: a wrong name must not wait for the others' scores.
  rankers = [scoring.load_ranker(model_dir, loading)
             for model_dir in model_dirs]
  source, problems = rankers[0].read(loading, 'valid', data)
  require_labels(problems, source, rankers[0].task)
  return [ranker.task.evaluation(
      ranker.name, source, measure(ranker, problems, 'evaluate', ks),
      ranker.keep_repeats, type(ranker.model).__name__) for ranker in rankers]


def require_labels(problems: tasks.Problems, source: str,
                   task: tasks.Task) -> None:
  """Raises UserError if a problem has no runtimes; names the `source`."""
  without = [problem.name for problem in problems if not problem.is_labelled]
  if without:
    raise UserError(
        f'{source}: {len(without)} of {len(problems)} {task.problem}s have no '
        f'labels (all runtimes are 0), first {without[0]}; remove their '
        'files. A public test split is blanked: evaluate on valid or on a '
        'labelled copy, or write predictions with `tpu-graphs-ext predict`')


def measure(ranker: scoring.Ranker, problems: tasks.Problems, what: str,
            ks: Optional[Sequence[int]] = None) -> pandas.DataFrame:
  """Scores and measures labelled problems: a row each, see `Task.row_of`.

  `what` stands beside the progress bar; without `ks`, the task's default.
  """
  ks = ks or ranker.task.top_ks
  return results.table(
      ranker.task.row_of(problem, scores, ks)
      for problem, scores in ranker.score_all(problems, what))
