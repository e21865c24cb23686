"""The CSV of predictions, and predicting from a saved model."""

import shutil

import numpy as np
import pytest

from support import eager_training, tiny_kernels, tiny_models
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import duplicate_configs, predict, predictions_csv
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A model of the first 100 of 104 train files: --toy_data."""
  folder = tmp_path_factory.mktemp('trained')
  root = tiny_kernels.write_data_root(folder / 'data', num_train=104)
  return eager_training.trained(
      root, folder / 'out', epochs=1, toy_data=True)


def run(trained, tmp_path, data_root='', **changes):
  loading = LoadSettings(
      data_root=data_root or trained.run_info['settings']['data_root'],
      cache_dir='', models_py=tiny_models.__file__)
  path = predict.predict(trained.model_dir, out=str(tmp_path / 'p.csv'),
                         loading=loading, **changes)
  with open(path, encoding='utf-8', newline='') as file:
    return file.read()


def text_of(best):
  return ''.join(predictions_csv.parts(best))


class FixedRanker:

  def score_all(self, partition, what):
    for kernel in partition:
      yield kernel, duplicate_configs.Scores(
          np.array([3.0, 1.0, 2.0]), duplicate_configs.first_copies(kernel.config_feat))


def test_best_configs_are_padded_with_0():
  partition = Partition.from_kernels(
      [tiny_kernels.make_kernel('a_0', num_configs=3)])
  for count, indices in ((5, [1, 2, 0, 0, 0]), (2, [1, 2]), (None, [1, 2, 0])):
    assert list(predict.best_configs(FixedRanker(), partition, count)) == [
        ('a_0', indices)]


def test_distinct_tiles_come_before_repetitions():
  kernel = tiny_kernels.make_kernel('a_0', num_configs=3)
  kernel.config_feat[2] = kernel.config_feat[1]
  assert list(predict.best_configs(
      FixedRanker(), Partition.from_kernels([kernel]), 3)) == [
          ('a_0', [1, 0, 2])]


def test_csv_text():
  assert text_of({'b': [3, 1], 'a_0': [2, 0]}) == (
      'ID,TopConfigs\ntile:xla:b,3;1\ntile:xla:a_0,2;0')


def test_predictions_equal_those_made_in_training(trained, tmp_path):
  best = trained.run_info['test_predictions']
  assert len(best) == 6
  # Trained on toy data, predicted on the whole: the run's own statistics.
  assert run(trained, tmp_path) == text_of(
      {tile_id: indices[:5] for tile_id, indices in best.items()})
  assert run(trained, tmp_path, top_configs=10) == text_of(best)


def test_needs_no_train_split(trained, tmp_path):
  shutil.copytree(
      trained.run_info['settings']['data_root'] + '/test', tmp_path / 'test')
  assert run(trained, tmp_path, data_root=str(tmp_path)).count('\n') == 6


def test_missing_test_split_writes_nothing(trained, tmp_path):
  with pytest.raises(UserError, match='test: does not exist'):
    run(trained, tmp_path, data_root=str(tmp_path))
  assert not (tmp_path / 'p.csv').exists()
