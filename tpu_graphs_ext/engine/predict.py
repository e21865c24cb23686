"""Ranks the test split with a trained model and writes the CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext.engine import (
  out_of_range,
  output_paths,
  predictions_csv,
  scoring,
)
from tpu_graphs_ext.engine import task as tasks
from tpu_graphs_ext.engine.settings import Loading, LoadSettings


def predict(model_dir: str, *, out: str = '',
            top_configs: Optional[int] = None,
            loading: Loading = LoadSettings()) -> str:
  """Ranks the test split with a trained model; returns the CSV's path.

  Warns of features that the model was not trained on.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    out: the file to write; empty: one of a usual name, which is returned.
    top_configs: configurations of each kernel; None: 5, or of a program all.
    loading: how to load the model; also where the split is.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  task = tasks.find(loading)
  path = output_paths.check_file('--out', out or task.csv_name,
                            predictions_csv.START, predictions_csv.WHAT)
  ranker = scoring.load_ranker(model_dir, loading)
  _, test = ranker.read(loading, 'test')
  out_of_range.warn(ranker, test)
  write(path, best_configs(ranker, test, top_configs or task.csv_configs),
        ranker, loading)
  return path


def predict_test(run_info: dict[str, Any], ranker: scoring.Ranker,
                 test: tasks.Problems) -> str:
  """Writes the CSV of a run, and adds it to the run file's content if short.

  Returns:
    The path of the CSV.
  """
  count = ranker.task.test_configs
  best = best_configs(ranker, test, count)
  if count is not None:
    run_info['test_predictions'] = best = dict(best)
  path = os.path.expanduser(run_info['args']['results_csv'])
  write(path, best, ranker)
  return path


def write(path: str, best: predictions_csv.Best, ranker: scoring.Ranker,
          loading: Optional[Loading] = None) -> None:
  """Writes what `best_configs` gives as the CSV of the ranker's task."""
  task, collection = ranker.task, ranker.task.collection(ranker.args, loading)
  predictions_csv.write(
      path, best, task.csv_id + ''.join(f'{part}:' for part in collection),
      task.csv_end)


def best_configs(ranker: scoring.Ranker, problems: tasks.Problems,
                 count: Optional[int]) -> Iterator[tuple[str, list[int]]]:
  """Yields each problem's name and configuration indices, best first.

  Args:
    ranker: the model.
    problems: to rank.
    count: so many configurations, padded with 0; None: all.
  """
  for problem, scores in ranker.score_all(problems, 'predict'):
    indices = scores.order[:count].tolist()
    yield problem.name, indices + [0] * ((count or 0) - len(indices))
