"""Training end to end with a small model on small learnable kernels."""

import dataclasses
import gzip
import json
import os
import types

import numpy as np
import pytest
import tensorflow as tf

from support import eager_training, tiny_handin, tiny_kernels, tiny_models
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import (
  compiled_model,
  predictions_csv,
  rank,
  scoring,
  train,
)
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import TILE, tile
from tpu_graphs_ext.tasks.tile import LoadSettings


@pytest.fixture(scope='module')
def trained(data_root, tmp_path_factory):
  """Learns the rule of `tiny_kernels.learnable_kernel`."""
  return train.train(tiny_models.tiny_settings(
      os.path.relpath(data_root), tmp_path_factory.mktemp('out'), epochs=12,
      batch=1, lr=0.1, losses='PairwiseHingeLoss:1'))


def load(model_dir):
  return scoring.load_ranker(
      model_dir, LoadSettings(models_py=tiny_models.__file__))


def test_learns_that_the_smallest_tile_is_the_fastest(trained):
  errors = trained.run_info['final_error']['val']
  # By chance: the best of 5 out of 26 is 2 to 3 times as slow as the best.
  assert errors['5'] == errors['10'] == 0.0
  assert errors['1'] < 0.5
  curve = trained.run_info['train_curve']
  assert curve['val_opa'][-1] > 0.94 > curve['val_opa'][0]


def test_run_file_has_the_baseline_keys_and_ours(trained, data_root):
  with gzip.open(trained.run_path) as file:
    run = json.load(file)
  assert run == json.loads(json.dumps(trained.run_info))
  assert list(run) == [
      'train_curve', 'final_error', 'task', 'args', 'seed', 'feature_stats',
      'num_ops', 'opcodes', 'models_py', 'data', 'host', 'versions', 'seconds',
      'settings', 'test_predictions']
  assert run['seed'] == 1
  assert run['settings']['data_root'] == str(data_root)  # From any folder.
  assert run['train_curve']['epoch'] == list(range(12))
  assert all(len(values) == 12 for values in run['train_curve'].values())
  assert run['seconds'].keys() == {'read', 'train', 'validate', 'test', 'total'}
  name = TILE.train_hash(run['args'])
  # Nothing else is left.
  assert sorted(os.listdir(os.path.dirname(trained.model_dir))) == sorted([
      f'model_{name}', f'run_{name}.jsonz',
      os.path.basename(trained.run_info['args']['results_csv'])])


def test_csv_and_run_file_hold_the_same_ten_configs(trained, data_root):
  predictions = trained.run_info['test_predictions']
  assert predictions_csv.read(trained.csv_path) == {
      'tile:xla:' + tile_id: best for tile_id, best in predictions.items()}
  for tile_id, best in predictions.items():
    kernel = Kernel.load(str(data_root / 'test_labelled' / f'{tile_id}.npz'))
    assert np.argmin(kernel.runtime_ns) in best[:5]
    padding = max(0, 10 - kernel.num_configs)
    assert len(best) == 10 and best[10 - padding:] == [0] * padding
    assert len(set(best[:10 - padding])) == 10 - padding


class Scripted(tf.keras.callbacks.Callback):
  """Gives each epoch a validation OPA, and keeps its weights."""

  def __init__(self, opas):
    super().__init__()
    self._opas, self.weights = opas, []

  def on_epoch_end(self, epoch, logs=None):
    self.weights.append([v.numpy() for v in self.model.trainable_variables])
    logs['val_opa_metric'] = self._opas[epoch]


@pytest.fixture(scope='module')
def scripted(tmp_path_factory):
  """(Result, weights of each epoch, folder) of a run whose test kernels have
  duplicates. Epoch 1 is the best, an equal one later is not better, and
  3 - 1 >= early_stop ends training after epoch 3."""
  folder = tmp_path_factory.mktemp('scripted')
  root = tiny_kernels.write_data_root(folder / 'data', num_test=2)
  for path in (root / 'test').glob('*.npz'):
    kernel = Kernel.load(str(path))
    kernel.config_feat[1::2] = kernel.config_feat[0]
    kernel.save(str(root / 'test'))
  script = Scripted([0.5, 0.9, 0.7, 0.9, 1.0])
  return eager_training.trained(
      root, folder / 'out', [script], epochs=5, batch=10, early_stop=2,
      tensorboard=str(folder / 'board')), script.weights, folder


def test_best_epoch_is_saved_and_early_stop_counts_from_it(scripted):
  result, weights, folder = scripted
  assert result.run_info['train_curve']['epoch'] == [0, 1, 2, 3]
  saved = load(result.model_dir).model.trainable_variables
  for variable, expected in zip(saved, weights[1]):
    np.testing.assert_array_equal(variable, expected)
  assert (weights[1][0] != weights[3][0]).any()
  assert list((folder / 'board' / 'validation').glob('events*'))


def test_predictions_in_training_keep_duplicates_as_the_baseline_does(scripted):
  result, _, folder = scripted
  test = read.read_kernels(str(folder / 'data' / 'test'))
  ranker = load(result.model_dir)
  distinct = dict(rank.best_configs(ranker, test, 10))
  assert dict(rank.best_configs(
      dataclasses.replace(ranker, keep_repeats=True), test, 10)) == (
          result.run_info['test_predictions']) != distinct


def test_train_batches_are_drawn_anew_and_validation_ones_are_not(data_root):
  settings = tiny_models.tiny_settings(data_root, '.', validate_batches=2)
  task = settings.task
  train_batches, valid_batches = (
      [[labels.numpy() for unused_graph, labels in data]
       for unused_epoch in range(2)]
      for data in task.datasets(*task.prepared(settings), 7, 0))
  first, second = train_batches
  assert len(first) == len(second) == 23 // 5  # One of 24 has 3 configs.
  assert (np.array(first) != np.array(second)).any()
  first, second = valid_batches
  # int(2 * 5 * 1.05) = 10 kernels are taken, one of them has 3 configs.
  assert len(first) == len(second) == 1
  np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize('few, step', [(13, 2), (12, 4)])
def test_nan_stops_and_keeps_the_last_good_model(
    data_root, tmp_path, monkeypatch, few, step):
  # 3 epochs of 4 batches. If 12 steps are few, each is a call of its own;
  # otherwise an epoch is one. Step 6 is the second of epoch 2.
  monkeypatch.setattr(tile, '_FEW_STEPS', few)
  with pytest.raises(
      UserError, match=f'loss became nan in epoch 2, by step {step}; training '
      r'stopped. The best model so far \(epoch 1, .*model_'):
    eager_training.trained(
        data_root, tmp_path, epochs=3, model_kwargs_json='{"nan_from_step": 6}')
  names = sorted(os.listdir(tmp_path))
  assert [name.split('_')[0] for name in names] == ['model', 'run']
  ranker = load(str(tmp_path / names[0]))
  assert np.isfinite(ranker.scored(tiny_kernels.chain()).given).all()


SCORES = 'tf.squeeze(self._head(hidden), -1)'


@pytest.mark.parametrize('changed, to, message', [
    (SCORES, 'self._head(hidden)', r'forward returns float32 \(1, 2, 1\); '
     r'return scores float32 \(1, 2\), one per'),
    (SCORES, 'self._head(hidden)[0]', r'returns float32 \(2, 1\); return'),
    (SCORES, f'tf.cast({SCORES}, "float64")', r'returns float64 \(1, 2\); re'),
    (SCORES, f'{SCORES}, hidden', 'returns tuple; return scores'),
    ('def forward', 'def _forward', r'needs a method forward\(graph, num_con'),
    # Not by the arguments, nor by their size.
    (SCORES, 'hidden + len(2)', 'TinyRanker: TypeError: .* no len.*; see '
     r'.*/models.py, line \d+: return hidden \+ len\(2\)  # \[kernels, conf'),
    (SCORES, 'hidden @ tf.ones([7, 1])', r'^TinyRanker: InvalidArgumentError:'
     r'.*line \d+: return hidden @ tf.ones'),
    ('super().__init__()', '', 'TinyRanker: RuntimeError: .* line .*_embedd'),
    # One kernel of two tiles passes; a batch does not.
    (SCORES, f'{SCORES}[:, :3]', r'^TinyRanker: cannot be trained \(.*3.*\); '
     r'its call\(graph, training\) must return scores float32 \['),
    ('return scores', 'return scores["a"]', r'^TinyRanker: cannot be trained '
     r'\(TypeError: .*; see .*/models.py, line \d+: return scores\["a"\]$'),
    # Else it would end after the first epoch.
    ('  def forward', '  def compile(self, metrics, **others):\n    super()'
     '.compile(**others)\n\n  def forward', '^TinyRanker: training reports no '
     'opa_metric, val_opa_metric; compile must'),
    # Its OPA would be 0.
    ('return scores', 'return scores if training else scores * float("nan")',
     'the validation loss became nan in epoch 1; training stopped. No epoch')])
def test_what_the_code_of_a_model_does_wrong(
    data_root, tmp_path, changed, to, message):
  assert changed in tiny_handin.STUDENT
  path = tiny_handin.write_models(
      tmp_path, tiny_handin.STUDENT.replace(changed, to))
  with pytest.raises(UserError, match=message):
    eager_training.trained(data_root, tmp_path, models_py=path)


def test_variables_that_are_not_trained_are_named(caplog, data_root, tmp_path):
  for kwargs in '{}', '{"nan_from_step": 9}':
    assert 'not trained' not in caplog.text
    settings = tiny_models.tiny_settings(
        data_root, tmp_path, model_kwargs_json=kwargs)
    settings.task.compiled_model(*settings.task.prepared(settings))
  assert 'TinyRanker: has variables that are not trained' in caplog.text


def test_a_full_disk_says_how_to_continue(data_root, tmp_path, monkeypatch):
  def full(unused_self, *unused_args, **unused_kwargs):
    raise OSError('No space left on device')

  monkeypatch.setattr(tf.train.CheckpointManager, 'save', full)
  with pytest.raises(UserError, match=r'cannot be written .*; free some space. '
                     r'To continue'):
    eager_training.trained(data_root, tmp_path, epochs=2)
  assert not list(tmp_path.glob('model_*'))


def test_metrics_of_a_labelled_test_split(trained, data_root):
  labelled = read.read_kernels(str(data_root / 'test_labelled'))
  splits = types.SimpleNamespace(valid=labelled, test=labelled)
  run_info = {'seconds': {}, 'final_error': {}}
  train._measure(None, run_info, splits, load(trained.model_dir))
  errors = run_info['final_error']
  assert errors['test'] == errors['val']
  assert errors['test']['5'] == 0.0
  assert 'test_predictions' not in run_info


BAD = [
    ({'model': 'TinyRankr'}, "no model 'TinyRankr'.*the models are TinyRanker"),
    # 12 valid kernels, one of them with 3 configurations.
    ({'batch': 12}, 'valid: only 11 of 12 .* --configs=6 .* one --batch=12'),
    ({'test_mode': 'metrics'}, 'test: 6 of 6 kernels have no labels'),
    ({'results_csv': '/'}, '/: is a link, a folder, a device or'),
    ({'out_dir': __file__ + '/x'}, '--out_dir=.*/x: cannot be written'),
    ({'results_csv': __file__}, 'is not a predictions CSV, so it is not')]


def test_bad_input_fails_before_training_and_writes_nothing(
    data_root, tmp_path, monkeypatch):
  def fit_nothing(*unused_args, **unused_kwargs):
    raise AssertionError('must fail before training')

  monkeypatch.setattr(tf.keras.Model, 'fit', fit_nothing)
  settings = tiny_models.tiny_settings(data_root, tmp_path / 'out')
  for split, of in (('train', 'train'), ('valid', 'test'), ('test', 'test')):
    (tmp_path / split).symlink_to(data_root / of)
  for changes, message in [*BAD, ({'data_root': str(tmp_path)},
                                  'valid: 6 of 6 kernels have no labels')]:
    with pytest.raises(UserError, match=message):
      train.train(dataclasses.replace(settings, **changes))
    assert not (tmp_path / 'out').exists()


def test_losses_by_hand():
  # Squared errors of (1, 2) and (1, 11): (0 + 81) / 2 = 40.5. The list is drawn
  # slowest first; scores over 10 are 0.1 and 1.1, so the first draw is right
  # with 1 / (1 + e^-1), whose negative logarithm is log(1 + 1/e) = 0.3132617,
  # and the second with certainty. Weights 1 and 3:
  # (40.5 + 3 * 0.3132617) / 4 = 10.3599463.
  loss = compiled_model.CombinedLoss([('MSE', 1.0), ('ListMLELoss', 3.0)])
  value = loss(tf.constant([[1.0, 2.0]]), tf.constant([[1.0, 11.0]]))
  assert float(value) == pytest.approx(10.3599463)
  # The only pair of different runtimes: max(0, 1 - (1.4 - 1) / t), over 2
  # items. Since 0.5.5 TensorFlow Ranking divides scores by t = 10 here.
  value = compiled_model.CombinedLoss([('PairwiseHingeLoss', 1.0)])(
      tf.constant([[1.0, 2.0]]), tf.constant([[1.0, 1.4]]))
  expected = 0.3 if versions.stack_name() == 'current' else 0.48
  assert float(value) == pytest.approx(expected)
