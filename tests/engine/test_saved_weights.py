"""Weights come out of a model folder; nothing else in it is run."""

import os
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.internal import encoder
from tensorflow.core.protobuf import tensor_bundle_pb2

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
        values = [value for _, value in saved_weights.read(str(folder))]
      except ValueError:
        values = expected
    for value, right in zip(values, expected):
      np.testing.assert_array_equal(value, right, err_msg=str(seed))
    path.write_bytes(content)


def varints(*values):
  return b''.join(map(encoder._VarintBytes, values))


def block(entries, moved=0):
  """A block of a table, each entry with its whole key and findable."""
  content, starts = b'', []
  for key, value in entries:
    starts.append(len(content) + moved)
    content += varints(0, len(key), len(value)) + key + value
  return content + struct.pack(f'<{len(starts) + 1}I', *starts, len(starts))


def rewrite_index(path, change, moved=0):
  """Writes an index anew, its first matrix changed, without checksums."""
  content = path.read_bytes()
  _, _, start, size = saved_weights._varints(content[-48:], 0, 4)[0]
  entries, changed = [], False
  for _, place in saved_weights._entries(content, start, size):
    for key, value in saved_weights._entries(
        content, *saved_weights._varints(place, 0, 2)[0]):
      entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
      if key and not changed and len(entry.shape.dim) == 2:
        change(entry)
        value, changed = entry.SerializeToString(), True
      entries.append((key, value))
  data = block(entries, moved)
  index = block([(b'z', varints(0, len(data)))])
  path.write_bytes(
      data + b'\0crc.' + index + b'\0crc.'
      + varints(0, 0, len(data) + 5, len(index)).ljust(40, b'\0')
      + struct.pack('<Q', 0xdb4775248b80fb57))


def set_dims(*sizes):
  def change(entry):
    del entry.shape.dim[:]
    for size in sizes:
      entry.shape.dim.add(size=size)
  return change


# TensorFlow ends the process at most of these.
@pytest.mark.parametrize('change', [
    set_dims(-5, 2), set_dims(-1, -24), set_dims(1 << 32, 1 << 32),
    set_dims(2 ** 63 - 1, 1), set_dims(*[1] * 300), set_dims(24, 2),
    lambda entry: setattr(entry, 'dtype', 9999),
    lambda entry: setattr(entry, 'dtype', 101),
    lambda entry: setattr(entry, 'dtype', 20),
    lambda entry: setattr(entry, 'dtype', 7),
    lambda entry: setattr(entry, 'offset', 1 << 62),
    lambda entry: setattr(entry, 'offset', -8),
    lambda entry: setattr(entry, 'size', -1),
    lambda entry: setattr(entry, 'shard_id', 1),
    lambda entry: entry.slices.add(),
    lambda entry: setattr(entry.shape, 'unknown_rank', True)])
def test_an_index_that_names_what_cannot_be(saved, tmp_path, change):
  shutil.copytree(saved[1], tmp_path / 'model_x')
  path = tmp_path / 'model_x' / 'variables' / 'variables.index'
  rewrite_index(path, lambda entry: None)
  saved_weights.require_sound(str(path.with_suffix('')))
  rewrite_index(path, change)
  with pytest.raises(ValueError, match='its index says nonsense of'):
    saved_weights.read(str(tmp_path / 'model_x'))


def test_an_index_that_hides_an_entry_from_a_reader_in_order(saved, tmp_path):
  shutil.copytree(saved[1], tmp_path / 'model_x')
  path = tmp_path / 'model_x' / 'variables' / 'variables.index'
  rewrite_index(path, lambda entry: None, moved=1)
  with pytest.raises(ValueError, match='a block whose entries overlap'):
    saved_weights.read(str(tmp_path / 'model_x'))
