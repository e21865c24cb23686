"""Weights come out of a model folder; nothing else in it is run."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from support import damage
from tpu_graphs_ext.engine import saved_weights


class Nested(tf.keras.Model):
  """More than ten variables, some of them in a list, one not trained."""

  def __init__(self):
    super().__init__()
    self._layers_in_list = [tf.keras.layers.Dense(2) for _ in range(6)]
    self._first = tf.keras.layers.Dense(3)
    self._counter = tf.Variable(7, trainable=False)

  def call(self, x):
    x = self._first(x)
    for layer in self._layers_in_list:
      x = layer(x)
    return x


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A model and its folder."""
  tf.keras.utils.set_random_seed(1)
  model = Nested()
  model(tf.ones([1, 4]))
  folder = str(tmp_path_factory.mktemp('saved') / 'model_x')
  model.save(folder, save_format='tf')
  return model, folder


def test_weights_are_those_of_the_model_in_its_order(saved):
  model, folder = saved
  weights = saved_weights.read(folder)
  assert len(weights) == len(model.trainable_variables) == 14
  for variable, (name, value) in zip(model.trainable_variables, weights):
    assert name == variable.name.split(':')[0]
    np.testing.assert_array_equal(value, variable.numpy())


def test_code_in_a_model_is_not_run(tmp_path, monkeypatch):
  path = tmp_path / 'ran'

  def leave_a_trace(x):
    os.close(os.open(os.environ['TRACE'], os.O_CREAT))
    return x

  monkeypatch.setenv('TRACE', str(path))
  model = tf.keras.Sequential([
      tf.keras.layers.Dense(2, input_shape=(3,)),
      tf.keras.layers.Lambda(leave_a_trace)])
  model.save(str(tmp_path / 'model_x'), save_format='tf')
  path.unlink()  # It ran when the model was made.
  tf.keras.models.load_model(str(tmp_path / 'model_x'))
  path.unlink()  # Keras runs it.
  assert [value.shape for _, value in saved_weights.read(
      str(tmp_path / 'model_x'))] == [(3, 2), (2,)]
  assert not path.exists()


@pytest.mark.parametrize(
    'rounds', [60, pytest.param(2000, marks=pytest.mark.survive)])
def test_damaged_folders(saved, tmp_path, rounds):
  _, sound = saved
  folder = tmp_path / 'model_x'
  expected = [value for _, value in saved_weights.read(sound)]
  shutil.copytree(sound, folder)
  paths = sorted((folder / 'variables').iterdir())
  for seed in range(rounds):
    path = paths[seed % len(paths)]
    content = path.read_bytes()
    path.write_bytes(damage.mutated(content, np.random.default_rng(seed)))
    with damage.within_limits(seed):
      try:
        found = [value for _, value in saved_weights.read(str(folder))]
      except ValueError:
        found = expected
    for value, right in zip(found, expected):
      np.testing.assert_array_equal(value, right, err_msg=str(seed))
    path.write_bytes(content)
