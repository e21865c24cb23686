"""Settings are checked when created; recipes fill in what is not given."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from tpu_graphs_ext.engine.settings import RECIPES
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.tile import LoadSettings, TrainSettings

# One for each rule.
WRONG = [
    ({'losses': 'ListMLE:1'}, '--losses=ListMLE:1: must be losses of ListMLEL'),
    ({'losses': 'MSE:nan'}, 'each with a positive weight, as in ListMLELoss'),
    ({'model_kwargs_json': '{hidden_dim: 1}'}, 'is not JSON'),
    ({'model_kwargs_json': '[1]'}, '_json=[1]: must be a JSON object of cons'),
    ({'lr': 0.0}, '--lr=0.0: must be a positive number'),
    ({'validate_batches': 0}, 'batches=0: must be -1 (all) or at least 1'),
    ({'test_mode': 'x'}, '--test_mode=x: must be predictions or metrics'),
    ({'out_dir': ''}, '--out_dir is empty; name a file or folder'),
    ({'seed': -1}, '--seed=-1: must be 0 to'),
    ({'recipe': []}, '--recipe=[]: must be a text'),
    ({'members': 0}, '--members=0: must be at least 1'),
    ({'recipe': 'quik'}, '--recipe=quik: must be default or quick or best')]


def test_bad_settings(tmp_path):
  for wrong, message in WRONG:
    with pytest.raises(UserError) as raised:
      TrainSettings(**wrong)
    assert message in str(raised.value)
  with pytest.raises(UserError, match='--stats=x: must be run or train or all'):
    LoadSettings(stats='x')
  settings = TrainSettings(losses='MSE:2, ListMLELoss:1', seed=np.int64(3),
                           data_root=tmp_path)
  assert json.dumps([settings.seed, settings.data_root])
  assert settings.weighted_losses == [('MSE', 2.0), ('ListMLELoss', 1.0)]


def test_args_have_the_baseline_keys_and_its_hash():
  args = TrainSettings(
      epochs=2, lr=0.01, batch=3, results_csv='/r.csv', out_dir='~/o',
      data_root='elsewhere').baseline_args()
  # Fields of the baseline's TrainArgs in order, and MD5 of their sorted JSON.
  expected = {
      'epochs': 2, 'eval_every': 5, 'batch_size': 3, 'configs': 10,
      'early_stop': 20, 'losses': 'ListMLELoss:1,MSE:0.02',
      'learning_rate': 0.01, 'clip_norm': 0.001, 'model': 'EarlyJoinSAGE',
      'model_kwargs_json': '{}', 'test_mode': 'predictions', 'out_dir': '~/o',
      'results_csv': '/r.csv', 'validate_batches': -1, 'run_id': ''}
  assert args == expected and list(args) == list(expected)
  text = json.dumps(expected, sort_keys=True).encode()
  assert TILE.train_hash(args) == hashlib.md5(text).hexdigest()
  csv = TrainSettings(out_dir='/o').baseline_args()['results_csv']
  assert csv.startswith('/o/results_') and csv[11:-4].isdigit()  # The time.


def test_different_runs_have_different_hashes():
  """By the run_id, for settings that the baseline's `args` lack."""
  ids = [TrainSettings(**{'seed': 1, **flags}).baseline_args()['run_id']
         for flags in ({}, {'lr_schedule': 'cosine', 'members': 2},
                       {'run_id': 'mine', 'members': 2})]
  assert ids == ['seed1', 'seed1_lr_schedule=cosine_members=2', 'mine']


def test_recipes():
  # The baseline's own flags.
  baseline = {'epochs': 100, 'early_stop': 20, 'lr': 1e-3}
  default = TrainSettings()
  assert baseline.items() <= vars(default).items()
  assert (default.lr_schedule, default.members) == ('constant', 1)
  assert default.drawn_configs == default.configs == 10
  for name, values in RECIPES.items():
    settings = dataclasses.asdict(TrainSettings(recipe=name))
    assert settings['recipe'] == name and values.items() <= settings.items()
  # A given value wins, even if it is the default.
  settings = TrainSettings(recipe='quick', **baseline)
  assert baseline.items() <= vars(settings).items()
