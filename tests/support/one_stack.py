"""What each of the two stacks does in test_stacks_across.py.

    one_stack.py DATA_ROOT OUT OTHERS
trains two models for one epoch into the folder OUT, then scores, evaluates and
predicts with them and with those in the folder OTHERS; all of that goes to
OUT/said.json.
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

# Layers of Keras, of our own and of TF-GNN; one model nested in another.
MODELS = ('MyEarlyJoinSAGE', 'EnsembleRanker')
KWARGS = {'EnsembleRanker': {'copies': 2, 'members': {
    'EarlyJoinGAT': model_checks.SMALL['EarlyJoinGAT']}}}


def train_all(data_root: str, out: str) -> None:
  """Trains each model into a folder of its own."""
  for name in MODELS:
    train.train(train.TrainSettings(
        model=name, epochs=1, batch=4, configs=6, data_root=data_root,
        model_kwargs_json=json.dumps(KWARGS.get(name, {})),
        out_dir=os.path.join(out, name), cache_dir='', seed=1))


def said_of(data_root: str, out: str) -> dict:
  """Model -> what this stack says of the one that was trained into `out`.

  That is its scores of the validation kernels, their mean slowdowns, and the
  predictions for the test kernels.
  """
  valid = read.read_kernels(f'{data_root}/valid')
  test = read.read_kernels(f'{data_root}/test')
  said = {}
  for name in MODELS:
    (model_dir,) = glob.glob(os.path.join(out, name, 'model_*'))
    ranker = scoring.load_ranker(model_dir)
    said[name] = {
        'scores': {kernel.tile_id: ranker.scores(kernel).tolist()
                   for kernel in valid},
        'errors': evaluate.measure(ranker, valid, 'valid').filter(
            like='slowdown_').mean().to_dict(),
        'predictions': dict(rank.best_configs(ranker, test, 5))}
  return said


def main(data_root: str, out: str, others: str) -> None:
  train_all(data_root, out)
  with open(os.path.join(out, 'said.json'), 'w', encoding='utf-8') as file:
    json.dump({'stack': versions.stack_name(),
               'own': said_of(data_root, out),
               'others': said_of(data_root, others)}, file)


if __name__ == '__main__':
  main(*sys.argv[1:])
