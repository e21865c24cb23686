"""What each of the two stacks does in test_stacks_across.py.

    one_stack.py DATA_ROOT OUT OTHERS
trains two models for one epoch into the folder OUT; then, when stdin ends,
scores, evaluates and predicts with them and with those in the folder OTHERS;
all of that goes to OUT/said.json.
"""

from __future__ import annotations

import glob
import json
import os
import sys

from support import model_checks
from tpu_graphs_ext.data import read
from tpu_graphs_ext.engine import evaluate, rank, scoring, train
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks.tile import LoadSettings, TrainSettings

# Layers of Keras, of our own and of TF-GNN; one model nested in another.
MODELS = {'MyEarlyJoinSAGE': {}, 'EnsembleRanker': {
    'copies': 1, 'members': {'LateJoinGAT': model_checks.SMALL['LateJoinGAT']}}}


def train_all(data_root: str, out: str) -> None:
  """Trains each model into a folder of its own."""
  for name, kwargs in MODELS.items():
    train.train(TrainSettings(
        model=name, epochs=1, batch=4, configs=6, data_root=data_root,
        model_kwargs_json=json.dumps(kwargs), seed=1, cache_dir='',
        out_dir=os.path.join(out, name)))


def said_of(data_root: str, out: str) -> dict:
  """Model -> what this stack says of the one that was trained into `out`."""
  valid = read.read_kernels(f'{data_root}/valid')
  test = read.read_kernels(f'{data_root}/test')
  said = {}
  for name in MODELS:
    (model_dir,) = glob.glob(os.path.join(out, name, 'model_*'))
    ranker = scoring.load_ranker(model_dir, LoadSettings())
    said[name] = {
        'scores': [ranker.scored(kernel).given.tolist() for kernel in valid],
        'errors': evaluate.measure(ranker, valid, 'valid').filter(
            like='slowdown_').mean().to_dict(),
        'predictions': dict(rank.best_configs(ranker, test, 5))}
  return said


if __name__ == '__main__':
  train_all(*sys.argv[1:3])
  sys.stdin.read()
  with open(os.path.join(sys.argv[2], 'said.json'), 'w') as file:
    json.dump({'stack': versions.stack_name(), **{
        folder: said_of(sys.argv[1], folder) for folder in sys.argv[2:]}}, file)
