"""Damaged run files, predictions and JSON arguments: an error, or the same."""

import contextlib
import gzip
import json
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from support import damage
from tpu_graphs_ext.engine import artifacts, predictions_csv
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE, tile
from tpu_graphs_ext.tasks.tile import TrainSettings

RUN = {
    'train_curve': {'epoch': [0, 1], 'train_loss': [2.5, 1.25],
                    'val_opa': [0.5, 0.75]},
    'final_error': {'val': {'1': 0.25, '5': 0.125, '10': 0.0}},
    'args': TrainSettings(seed=1).baseline_args(),
    'test_predictions': {'a': [3, 0, 2], 'b': [1, 1, 0]},
    'feature_stats': {name: {'low': [0.0, 1.0], 'high': [1.0, 1e9],
                             'used': [True, False]}
                      for name in ('node_feat', 'config_feat')},
    'num_ops': 120, 'host': 'tpu_graphs_ext', 'versions': {'python': '3.11.0'},
    'seconds': {'train': 1.5}, 'settings': {'epochs': 2}}
BEST = {f'net_{i:016x}': [i, 0, 17, 1000 + i] for i in range(8)}


def rounds(few: int, many: int):
  return pytest.mark.parametrize(
      'rounds', [few, pytest.param(many, marks=pytest.mark.survive)])


@rounds(100, 4000)
def test_damaged_run_files(tmp_path, rounds):
  path = tmp_path / 'run.jsonz'
  content = gzip.compress(json.dumps(RUN).encode(), mtime=0)
  for seed in range(rounds):
    path.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    with damage.within_limits(seed):
      try:  # What gzip's checksum lets pass must be what was written.
        assert artifacts.read_run_file(str(path)) == RUN
      except UserError as error:
        assert str(path) in str(error)


PATHS = strategies.lists(strategies.integers(0, 15), max_size=4)


@rounds(100, 3000)
def test_any_run_file(tmp_path, rounds):
  model_dir, file = tmp_path / 'model_x', tmp_path / 'run_x.jsonz'
  model_dir.mkdir()

  @damage.examples(rounds)
  @hypothesis.given(path=PATHS, value=damage.JSON)
  def check(path, value):
    content = damage.with_something_else(RUN, path, value)
    file.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    with damage.within_limits(content):
      try:
        run = artifacts.load_run(str(model_dir), TILE)
      except UserError as error:
        assert str(file) in str(error)
        return
    args = run.info['args']
    assert isinstance(run.model_kwargs, dict)
    assert isinstance(args['model'], str) and isinstance(args['configs'], int)

  check()


def test_a_run_file_of_gigabytes(tmp_path):
  path = tmp_path / 'run.jsonz'
  # Parts one after another are one file: 1.5 GB in 1.5 MB.
  path.write_bytes(96 * gzip.compress(bytes(1 << 24)))
  with damage.within_limits('bomb'), pytest.raises(UserError):
    artifacts.read_run_file(str(path))


@rounds(300, 4000)
def test_damaged_predictions(tmp_path, rounds):
  path = tmp_path / 'x.csv'
  predictions_csv.write(str(path), BEST)
  content = path.read_bytes()
  for seed in range(rounds):
    path.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    with damage.within_limits(seed):
      try:
        rows = predictions_csv.read(str(path))
      except UserError as error:
        assert str(path) in str(error)
        continue
    for name, indices in rows.items():
      assert isinstance(name, str)
      assert all(isinstance(index, int) and index >= 0 for index in indices)


@damage.examples(50)
@hypothesis.given(strategies.dictionaries(
    strategies.text('abc_:. -0123456789', min_size=1),
    strategies.lists(strategies.integers(0, 10 ** 6), min_size=1)))
def test_what_was_written_is_read(tmp_path_factory, best):
  path = str(tmp_path_factory.getbasetemp() / 'round_trip.csv')
  predictions_csv.write(path, best, 'tile:xla:')
  assert predictions_csv.read(path) == {
      'tile:xla:' + name: indices for name, indices in best.items()}


TEXTS = strategies.text(max_size=60) | damage.JSON.map(json.dumps) | (
    strategies.sampled_from(['[' * 100_000, '{"a":' * 100_000, '"', 'NaN',
                             '1e999', '{"a": 1e999}', '\ud800', '\0'])) | (
    strategies.lists(strategies.sampled_from(
        ['ListMLELoss', 'MSE', ':', ',', '1', '0', '-1', 'nan', 'inf', '1e999',
         ' ', '1e-9', '_', '']), max_size=8).map(''.join))


@rounds(200, 2500)
def test_any_arguments(rounds):
  @damage.examples(rounds)
  @hypothesis.given(TEXTS)
  def check(text):
    with damage.within_limits(text[:100]):
      try:
        kwargs = TrainSettings(model_kwargs_json=text).model_kwargs
        assert repr(kwargs) == repr(json.loads(text))
      except UserError as error:
        assert len(str(error)) < 2000
      with contextlib.suppress(UserError):
        losses = tile.parse_losses(text)
        assert all(0 < weight < math.inf for _, weight in losses)

  check()
