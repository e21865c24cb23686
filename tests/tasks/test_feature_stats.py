"""Statistics that are printed, and those that `train` gives a model."""

import json

import numpy as np
import pytest

from support import tiny_handin
from tpu_graphs_ext import cli
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE, feature_stats
from tpu_graphs_ext.tasks.tile import StatsSettings, TrainSettings


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
  return tiny_handin.write_data(tmp_path_factory.mktemp('data'))


def kwargs_of(data_root, **flags):
  return json.loads(feature_stats.model_kwargs_json(
      StatsSettings(data_root=str(data_root), cache_dir='', **flags)))


def test_statistics_are_those_of_the_trainer(data_root):
  folder = str(data_root / 'train')
  stored = kwargs_of(data_root, configs=10)['feature_stats']
  for least, part in ((10, stored), (-1, stored['all_kernels'])):
    expected = FeatureStats.of_partition(
        read.read_kernels(folder, min_configs=least))
    statistics = FeatureStats.from_json(part)
    for table in ('node', 'config'):
      for bound in ('minimum', 'maximum'):  # To the last bit.
        np.testing.assert_array_equal(
            getattr(getattr(statistics, table), bound),
            getattr(getattr(expected, table), bound))
  # Equal ones are stored once.
  assert 'all_kernels' not in kwargs_of(data_root, configs=2)['feature_stats']


@pytest.mark.parametrize('argument,flag,expected', [
    ({'tiles': 'elements'}, '', 'elements'),
    ({'tiles': 'layout tiles'}, '', 'layout tiles'),
    ({}, 'elements', 'elements'), ({}, 'layout', 'layout tiles'),
    ({'tiles': 'elements'}, 'layout', 'layout tiles')])
def test_what_tiles_count_can_be_given(
    data_root, tmp_path, caplog, argument, flag, expected):
  """Alone, or with the statistics; to `stats` and to `train`."""
  for whole in (False, True):
    stored = kwargs_of(data_root)['feature_stats'] if whole else {}
    kwargs = json.dumps({'feature_stats': {**stored, **argument}})
    assert kwargs_of(data_root, model_kwargs_json=kwargs, tiles=flag)[
        'feature_stats']['tiles'] == (
            expected if argument or flag else stored['tiles'])
    with caplog.at_level('INFO'):
      prepared, splits = TILE.prepared(settings(
          data_root, tmp_path, model_kwargs_json=kwargs, tiles=flag))
    assert prepared.model_kwargs['feature_stats']['tiles'] == expected
    assert f'They are read as {expected}, as given.' in caplog.text
    model = TILE.compiled_model(prepared, splits)
    assert bool(model._statistics.in_elements()) == (expected == 'elements')


def test_a_model_that_sees_no_units_refuses_them(data_root, tmp_path):
  with pytest.raises(UserError, match='--tiles=elements: EarlyJoinSAGE does'):
    TILE.prepared(settings(
        data_root, tmp_path, model='EarlyJoinSAGE', tiles='elements'))


def test_further_arguments_are_printed_with_them(data_root, capsys):
  assert cli.main(['stats', f'--data_root={data_root}', '--cache_dir=',
                   '--model_kwargs_json', '{"sharpness": 3}']) == 0
  printed = capsys.readouterr().out
  assert printed.count('\n') == 1
  assert "'" not in printed  # Fits between single quotes of a shell.
  assert json.loads(printed) == {'sharpness': 3, **kwargs_of(data_root)}
  with pytest.raises(UserError, match='none of 24 kernels has 1000 or more'):
    kwargs_of(data_root, configs=1000)


def settings(data_root, out, **changes):
  return TrainSettings(**{
      'model': 'AnalyticTileModel', 'epochs': 1, 'batch': 5, 'seed': 1,
      'data_root': str(data_root), 'out_dir': str(out), 'cache_dir': '',
      **changes})


def test_train_passes_them_and_says_what_tiles_count(
    data_root, tmp_path, caplog):
  task = TILE
  with caplog.at_level('INFO'):
    prepared, splits = task.prepared(settings(data_root, tmp_path))
  every = read.read_kernels(str(data_root / 'train'), min_configs=-1)
  tiles, why = feature_stats.what_tiles_count(every)
  assert f'Tile bounds count {tiles}: {why}.' in caplog.text
  assert prepared.model_kwargs == kwargs_of(data_root)
  model = task.compiled_model(prepared, splits)
  assert model.constants()['bytes_per_ns'] > 0
  # The baseline scales with all kernels: raw sizes come out the same.
  kernel = Kernel.load(str(next((data_root / 'valid').iterdir())))
  ours, theirs = (
      scoring.Ranker(model, stats, splits.num_ops, TILE).scored(kernel).given
      for stats in (splits.stats, FeatureStats.of_partition(every)))
  np.testing.assert_allclose(theirs, ours, rtol=1e-5)


def test_train_refuses_other_statistics(data_root, tmp_path):
  stored = kwargs_of(data_root)['feature_stats']
  wider = json.loads(json.dumps(stored))
  wider['node']['maximum'][0] += 1
  with pytest.raises(UserError, match='differ from those of the train'):
    feature_stats.given_to_model(settings(
        data_root, tmp_path,
        model_kwargs_json=json.dumps({'feature_stats': wider})), stored)
  without = settings(
      data_root, tmp_path, model_kwargs_json='{"feature_stats": null}')
  assert feature_stats.given_to_model(without, {}) is without
