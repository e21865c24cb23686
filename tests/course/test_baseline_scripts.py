"""The baseline's unchanged scripts with our models.py in place.

Run with `TPU_GRAPHS_ROOT=/path/to/tpu_graphs pytest -m baseline`. Everything
happens in copies; the checkout stays as it is. The course's scripts are taken
from the checkout or from a folder `tpu_graphs_scripts` beside it.
"""

from __future__ import annotations

import glob
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from support import baseline_scripts
from support import model_checks as checks
from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts, predictions_csv, train
from tpu_graphs_ext.sample import write
from tpu_graphs_ext.tasks import TILE, api, feature_stats, tile_batches
from tpu_graphs_ext.tasks.tile import LoadSettings, StatsSettings, TrainSettings

pytestmark = pytest.mark.baseline

# One of each kind, also with what `tpu-graphs-ext stats` prints; the scores of
# the baseline's five are compared below.
COMPARED = ('MyEarlyJoinSAGE', 'MyEarlyJoinSAGE' + checks.RAW, 'EarlyJoinGAT',
            'EnsembleRanker', 'AnalyticTileModel')


@pytest.fixture(scope='session')
def data(tmp_path_factory) -> str:
  """Sample data with 100 train, 20 valid and 20 test kernels."""
  folder = str(tmp_path_factory.mktemp('data') / 'sample')
  write.write_sample_data(folder, kernels=140)
  return folder


@pytest.fixture(scope='session')
def swapped(checkout_root, tmp_path_factory) -> str:
  """A working copy with our models.py."""
  return baseline_scripts.swapped(
      checkout_root, tmp_path_factory.mktemp('swapped'), TILE)


@pytest.fixture(scope='session')
def trained(swapped, data, tmp_path_factory):
  """name -> folder of the model trained by tiles_train.py; trains once."""
  folders = {}

  def get(name: str) -> str:
    if name not in folders:
      model = name.removesuffix(checks.RAW)
      kwargs = json.dumps(checks.SMALL.get(model, {}))
      if model != name:
        kwargs = feature_stats.model_kwargs_json(StatsSettings(
            data_root=data, model_kwargs_json=kwargs, cache_dir=''))
      folders[name] = baseline_scripts.train(
          swapped, 'tiles_train.py', data, tmp_path_factory.mktemp(model),
          f'--model={model}', f'--model_kwargs_json={kwargs}')
    return folders[name]

  return get


def all_kernels(data: str) -> LoadSettings:
  """Loads a model as the baseline's scripts do."""
  return LoadSettings(
      stats='all', keep_repeats=True, data_root=data, cache_dir='')


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
  """2e-5 of the scores' size: one that happens to be near 0 is a difference
  of large terms, and no closer than they are. How they round depends on
  the CPU: one has 1.2e-5."""
  np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize('name', load_models.model_names())
def test_tiles_train_writes_model_run_file_and_csv(trained, data, name):
  model_dir = trained(name)
  run_info = artifacts.load_run(model_dir, TILE).info
  assert run_info['train_curve']['epoch'] == [0, 1]
  for curve in ('train_loss', 'train_opa', 'val_loss', 'val_opa'):
    assert np.isfinite(run_info['train_curve'][curve]).all()
  assert set(run_info['final_error']['val']) == {'1', '5', '10'}
  test_kernels = len(os.listdir(f'{data}/test'))
  assert len(run_info['test_predictions']) == test_kernels
  (results,) = glob.glob(os.path.join(os.path.dirname(model_dir), 'results_*'))
  assert len(predictions_csv.read(results)) == test_kernels


@pytest.mark.parametrize('name', COMPARED)
def test_our_host_gives_their_scripts_numbers(
    swapped, trained, data, tmp_path, name):
  compare_with_scripts(swapped, trained(name), data, tmp_path)


def test_a_model_of_our_host_is_read_by_their_scripts(swapped, data, tmp_path):
  result = train.train(TrainSettings(
      model='MyEarlyJoinSAGE', recipe='best', epochs=2, data_root=data,
      cache_dir='', out_dir=str(tmp_path / 'out'), seed=3))
  compare_with_scripts(swapped, result.model_dir, data, tmp_path)


def compare_with_scripts(copy: str, model_dir: str, data: str, folder) -> None:
  """tiles_evaluate.py and tiles_gen_predictions_csv.py against ours."""
  theirs = evaluate_script(copy, model_dir, data, folder)
  ours = api.evaluate(model_dir, f'{data}/valid', loading=all_kernels(data))
  for k in (1, 5):
    assert set(theirs[str(k)]) == set(ours.programs)
    for program, error in theirs[str(k)].items():
      assert error == pytest.approx(
          ours.programs[program][f'slowdown_{k}'], rel=1e-5, abs=1e-7)
  rows = predictions_script(copy, model_dir, data, folder)
  assert rows == predictions_csv.read(api.predict(
      model_dir, out=str(folder / 'ours.csv'), loading=all_kernels(data)))


def evaluate_script(copy: str, model_dir: str, data: str, folder) -> dict:
  """What tiles_evaluate.py prints: k -> program -> error."""
  log = folder / 'evaluate.log'
  baseline_scripts.run(
      copy, ['tiles_evaluate.py', f'--dirs={model_dir}', f'--data_root={data}',
             f'--cache_dir={folder}/cache_evaluate'], str(log))
  text = log.read_text()
  return json.JSONDecoder().raw_decode(text[text.rindex('{\n  "1"'):])[0]


def predictions_script(copy: str, model_dir: str, data: str, folder) -> dict:
  """Rows of the CSV that tiles_gen_predictions_csv.py writes."""
  if checkout.course_scripts(copy) != copy:
    pytest.skip('needs the course\'s scripts in the checkout or in a folder '
                f'{checkout.COURSE_FOLDER} beside it')
  baseline_scripts.run(
      copy, ['tiles_gen_predictions_csv.py', f'--dir={model_dir}',
             f'--data_root={data}', f'--cache_dir={folder}/cache_predict'],
      str(folder / 'predict.log'))
  return predictions_csv.read(f'{copy}/predictions_model_output.csv')


@pytest.mark.parametrize('name,kwargs', [
    ('EarlyJoinSAGE', {}), ('EarlyJoinSAGE', {'num_gnns': 1}),
    ('EarlyJoinSAGE', {'final_mlp_layers': 0, 'hidden_activation': 'relu'}),
    ('LateJoinSAGE', {}), ('LateJoinSAGE', {'hidden_dim': 32}),
    ('EarlyJoinResGCN', {}), ('LateJoinResGCN', {}),
    ('EarlyJoinResGCN', {'directed': True, 'mlp_layers': 3}),
    ('LateJoinResGCN', {'directed': True, 'reduction': 'mean'}),
    ('MLP', {}), ('MLP', {'mlp_layers': 0, 'reduction': 'mean'}),
])
def test_same_weights_give_the_same_scores_and_losses(
    their_models, data, name, kwargs):
  kernels = [Kernel.load(path)
             for path in sorted(glob.glob(f'{data}/valid/*.npz'))]
  feature_stats = checks.stats_of(kernels)
  graph = tile_batches.graph_tensor(tile_batches.batch_arrays(
      kernels[:4], np.zeros((4, 10), int) + np.arange(10) % 2, feature_stats))
  ours = checks.make(name, **kwargs)
  tf.keras.utils.set_random_seed(2)
  theirs = getattr(their_models('tiles'), name)(10, checks.NUM_OPS, **kwargs)
  theirs(graph)
  ours(graph)
  checks.copy_weights(ours, theirs)
  for kernel in kernels:
    assert_close(checks.scores(ours, kernel, feature_stats),
                 checks.scores(theirs, kernel, feature_stats))
  assert_close(ours(graph).numpy(), theirs(graph).numpy())
  assert float(tf.add_n(ours.losses)) == pytest.approx(
      float(tf.add_n(theirs.losses)), rel=1e-5)
