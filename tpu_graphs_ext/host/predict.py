"""Ranks the test split with a trained model and writes the CSV."""

from __future__ import annotations

import os

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import metrics, predictions_csv, scoring, settings


def predict(model_dir: str, *, data_root: str = settings.DATA_ROOT,
            out: str = settings.CSV_NAME,
            top_configs: int = settings.TOP_CONFIGS,
            stats: str = 'run', cache_dir: str = settings.CACHE_DIR,
            toy_data: bool = False, models_py: str = '') -> str:
  """Ranks the test split with a trained model; returns the CSV's path.

  Args:
    model_dir: see `scoring.load_ranker`, also for the arguments from stats on.
    data_root: folder whose `test` is ranked.
    out: the file to write.
    top_configs: configurations of each kernel.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  ranker = scoring.load_ranker(
      model_dir, stats=stats, data_root=data_root, cache_dir=cache_dir,
      toy_data=toy_data, models_py=models_py)
  test = read.read_split(
      os.path.join(data_root, 'test'), cache_dir=cache_dir or None,
      limit=read.TOY_FILES if toy_data else None)
  path = os.path.expanduser(out)
  predictions_csv.write(path, best_configs(ranker, test, top_configs))
  return path


def best_configs(ranker: scoring.Ranker, partition: Partition,
                 count: int) -> dict[str, list[int]]:
  """tile_id -> `count` configuration indices, best first, padded with 0."""
  best = {}
  for kernel, scores in ranker.score_all(partition, 'predict'):
    indices = metrics.best_first(scores)[:count].tolist()
    best[kernel.tile_id] = indices + [0] * (count - len(indices))
  return best
