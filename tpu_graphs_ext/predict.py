"""Writes the configurations that a model likes best, as the baseline's CSV.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>

Configuration indices count from 0 in the order of the file, lowest predicted
runtime first. A kernel with fewer configurations than asked for is padded with
0. Kernels are in the order of their file names; there is no final newline.
"""

from __future__ import annotations

import os

from tpu_graphs_ext import artifacts, config, metrics, read, scoring
from tpu_graphs_ext.partition import Partition


def predict(model_dir: str, *, data_root: str = config.DATA_ROOT,
            out: str = config.CSV_NAME, top_configs: int = config.TOP_CONFIGS,
            stats: str = 'run', cache_dir: str = config.CACHE_DIR,
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
  write_csv(path, best_configs(ranker, test, top_configs))
  return path


def best_configs(ranker: scoring.Ranker, partition: Partition,
                 count: int) -> dict[str, list[int]]:
  """tile_id -> `count` configuration indices, best first, padded with 0."""
  best = {}
  for kernel, scores in ranker.score_all(partition, 'predict'):
    indices = metrics.best_first(scores)[:count].tolist()
    best[kernel.tile_id] = indices + [0] * (count - len(indices))
  return best


def csv_text(best: dict[str, list[int]]) -> str:
  """The file that the module's docstring describes."""
  rows = [f'tile:xla:{tile_id},{";".join(map(str, indices))}'
          for tile_id, indices in best.items()]
  return 'ID,TopConfigs\n' + '\n'.join(rows)


def write_csv(path: str, best: dict[str, list[int]]) -> None:
  """Writes `csv_text`; the file appears when complete."""
  artifacts.write_file(path, csv_text(best).encode())
