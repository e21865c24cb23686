"""Ranks the test split with a trained model and writes the CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

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
    out: the file to write; empty: the task's default name.
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
  write(path, ranker, test, top_configs or task.csv_configs, loading)
  return path


def write(path: str, ranker: scoring.Ranker, problems: tasks.Problems,
          count: Optional[int],
          loading: Optional[Loading] = None) -> predictions_csv.Best:
  """Ranks problems and writes the CSV of the ranker's task.

  `count` configurations of each, which are returned, {name: indices, best
  first}; None: all, which are not kept in memory.
  """
  best = best_configs(ranker, problems, count)
  if count is not None:
    best = dict(best)
  task, collection = ranker.task, ranker.task.collection(ranker.args, loading)
  predictions_csv.write(
      path, best, task.csv_id + ''.join(f'{part}:' for part in collection),
      task.csv_end)
  return best


def best_configs(ranker: scoring.Ranker, problems: tasks.Problems,
                 count: Optional[int]) -> Iterator[tuple[str, list[int]]]:
  """Yields each problem's name and configuration indices, best first.

  `count` is the number of indices, padded with 0; None: all.
  """
  for problem, scores in ranker.score_all(problems, 'predict'):
    indices = scores.order[:count].tolist()
    yield problem.name, indices + [0] * ((count or 0) - len(indices))
