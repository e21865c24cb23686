"""Ranks the test split with a trained model and writes the CSV."""

from __future__ import annotations

import os

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import (
  outputs,
  predictions_csv,
  scoring,
  unfamiliar,
)
from tpu_graphs_ext.host.settings import CSV_NAME, TOP_CONFIGS, LoadSettings


def predict(model_dir: str, *, out: str = CSV_NAME,
            top_configs: int = TOP_CONFIGS,
            loading: LoadSettings = LoadSettings()) -> str:
  """Ranks the test split with a trained model; returns the CSV's path.

  Warns of features that the model was not trained on.

  Args:
    model_dir: the folder model_<hash>; its run file lies beside it.
    out: the file to write.
    top_configs: configurations of each kernel.
    loading: how to load the model; also where the split is.

  Raises:
    UserError: a file is missing or damaged, or belongs to another model.
  """
  path = outputs.check_file(
      '--out', out, predictions_csv.START, predictions_csv.WHAT)
  ranker = scoring.load_ranker(model_dir, loading)
  test = read.read_split(
      os.path.join(loading.data_root, 'test'), cache_dir=loading.cache_dir,
      limit=read.TOY_FILES if loading.toy_data else None)
  unfamiliar.warn(ranker.stats, test, ranker.name, ranker.opcodes)
  predictions_csv.write(path, best_configs(ranker, test, top_configs))
  return path


def best_configs(ranker: scoring.Ranker, partition: Partition,
                 count: int) -> dict[str, list[int]]:
  """tile_id -> `count` configuration indices, best first, padded with 0."""
  best = {}
  for kernel, scores in ranker.score_all(partition, 'predict'):
    indices = scores.order[:count].tolist()
    best[kernel.tile_id] = indices + [0] * (count - len(indices))
  return best
