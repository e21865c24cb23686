"""Settings are checked when created, one clear message each."""

import dataclasses
import hashlib
import json

import pytest

from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.engine.settings import (
  LoadSettings,
  TrainSettings,
  parse_losses,
)
from tpu_graphs_ext.errors import UserError


def test_losses_are_read():
  assert parse_losses('ListMLELoss:1, MSE:0.02') == [
      ('ListMLELoss', 1.0), ('MSE', 0.02)]


@pytest.mark.parametrize('text, message', [
    ('ListMLE:1', "no loss 'ListMLE'; choose from ListMLELoss, Pairwise"),
    ('', "no loss ''"),
    ('MSE', "weight of MSE must be a positive number; got ''"),
    ('MSE:x', "weight of MSE must be a positive number; got 'x'"),
    ('MSE:0', "weight of MSE must be a positive number; got '0'"),
    ('MSE:nan', "weight of MSE must be a positive number; got 'nan'"),
])
def test_bad_losses(text, message):
  with pytest.raises(UserError, match=message):
    TrainSettings(losses=text)


@pytest.mark.parametrize('text, message', [
    ('{hidden_dim: 1}', 'is not JSON'),
    ('[1]', 'must be a JSON object of constructor arguments; got a list'),
])
def test_bad_model_kwargs(text, message):
  with pytest.raises(UserError, match=message):
    TrainSettings(model_kwargs_json=text)


def test_text_is_parsed_once():
  settings = TrainSettings(
      losses='MSE:2', model_kwargs_json='{"hidden_dim": 8}')
  assert settings.weighted_losses == [('MSE', 2.0)]
  assert settings.model_kwargs == {'hidden_dim': 8}
  assert settings.weighted_losses is settings.weighted_losses
  assert settings.model_kwargs is settings.model_kwargs
  # What is parsed is no setting, so it is not stored in a run file.
  assert 'model_kwargs' not in dataclasses.asdict(settings)


@pytest.mark.parametrize('wrong, message', [
    ({'epochs': 0}, '--epochs=0: must be at least 1'),
    ({'configs': 1}, '--configs=1: must be at least 2'),
    ({'batch': 0}, '--batch=0: must be at least 1'),
    ({'early_stop': -1}, '--early_stop=-1: must be at least 0'),
    ({'lr': 0.0}, '--lr=0.0: must be a positive number'),
    ({'clip_norm': float('nan')}, '--clip_norm=nan: must be a positive'),
    ({'validate_batches': 0}, '--validate_batches=0: must be -1'),
    ({'test_mode': 'x'}, '--test_mode=x: must be predictions or metrics'),
    ({'out_dir': ''}, '--out_dir is empty; name a file or folder'),
    ({'seed': -1}, '--seed=-1: must be 0 to'),
])
def test_bad_numbers(wrong, message):
  with pytest.raises(UserError, match=message):
    TrainSettings(**wrong)


def test_unknown_source_of_statistics():
  with pytest.raises(UserError, match='--stats=x: must be one of run, train'):
    LoadSettings(stats='x')


def test_args_have_the_baseline_keys_and_its_hash():
  settings = TrainSettings(
      epochs=2, lr=0.01, batch=3, results_csv='/r.csv', out_dir='~/o',
      data_root='elsewhere')
  args = settings.baseline_args()
  # Fields of the baseline's TrainArgs in order, and MD5 of their sorted JSON.
  expected = {
      'epochs': 2, 'eval_every': 5, 'batch_size': 3, 'configs': 10,
      'early_stop': 20, 'losses': 'ListMLELoss:1,MSE:0.02',
      'learning_rate': 0.01, 'clip_norm': 0.001, 'model': 'EarlyJoinSAGE',
      'model_kwargs_json': '{}', 'test_mode': 'predictions', 'out_dir': '~/o',
      'results_csv': '/r.csv', 'validate_batches': -1, 'run_id': ''}
  assert args == expected and list(args) == list(expected)
  text = json.dumps(expected, sort_keys=True).encode()
  assert artifacts.train_hash(args) == hashlib.md5(text).hexdigest()


def test_runs_of_unlike_seeds_have_unlike_hashes():
  first, second, named = (
      TrainSettings(results_csv='r.csv', seed=seed, run_id=run_id)
      .baseline_args()
      for seed, run_id in ((1, ''), (2, ''), (2, 'mine')))
  assert first['run_id'] == 'seed1'
  assert named['run_id'] == 'mine'
  assert artifacts.train_hash(first) != artifacts.train_hash(second)


def test_default_csv_lies_in_out_dir_and_carries_the_time():
  csv = TrainSettings(out_dir='/o').baseline_args()['results_csv']
  assert csv.startswith('/o/results_') and csv[11:-4].isdigit()
