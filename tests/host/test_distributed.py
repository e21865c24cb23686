"""Several replicas of a model share each batch and do what one would."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_kernels, tiny_models, two_workers
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import batches, distributed, train
from tpu_graphs_ext.layout.settings import LayoutTrainSettings

TWO = ['a:1', 'b:1']


def of_config(monkeypatch, config):
  monkeypatch.setenv('TF_CONFIG', config if isinstance(config, str)
                     else json.dumps(config))
  return distributed.Cluster.of_environment()


def config_of(cluster, kind='worker', index=0):
  return {'cluster': cluster, 'task': {'type': kind, 'index': index}}


# --- TF_CONFIG ---------------------------------------------------------------


def test_workers_are_counted_as_tensorflow_counts_them(monkeypatch):
  found = of_config(monkeypatch, config_of({'worker': TWO}, index=1))
  assert (found.addresses, found.index) == (('a:1', 'b:1'), 1)
  cluster = {'worker': TWO, 'chief': ['c:1']}
  found = of_config(monkeypatch, config_of(cluster, index=1))
  assert (found.addresses, found.index) == (('c:1', 'a:1', 'b:1'), 2)
  assert list(found.jobs) == ['chief', 'worker']
  assert of_config(monkeypatch, config_of(cluster, 'chief')).index == 0


@pytest.mark.parametrize('config', [
    '', ' ', '{}', {'cluster': {}}, config_of({'worker': ['a:1']})])
def test_one_machine_is_no_cluster(monkeypatch, config):
  assert of_config(monkeypatch, config) is None


@pytest.mark.parametrize('config, said', [
    ('{', 'TF_CONFIG'),
    ('[]', 'must be a JSON object; got a list'),
    (config_of({'worker': TWO}, index=2),
     'must be 0 to 1, as its cluster has 2 of type worker; got 2'),
    (config_of({'worker': TWO}, index=-1), 'got -1'),
    (config_of({'worker': TWO}, index='1'), "got '1'"),
    (config_of({'worker': TWO}, index=True), 'got True'),
    (config_of({'worker': TWO}, 'chief'), 'one of worker; got'),
    ({'cluster': {'worker': TWO}}, 'its task must have a type'),
    (config_of({'worker': TWO, 'ps': ['c:1']}), 'chief and worker; got'),
    (config_of(['a:1']), "got ['a:1']"),
    (config_of({'worker': []}), 'list of host:port; got []'),
    (config_of({'worker': 'a:1'}), "host:port; got 'a:1'"),
    (config_of({'worker': ['a:1', 'b']}), "got ['a:1', 'b']"),
    (config_of({'worker': ['a:1', 'a:1']}), 'an address of its own; got a:1'),
    (config_of({'chief': TWO}, 'chief'), 'one chief'),
])
def test_a_wrong_config_is_refused(monkeypatch, config, said):
  with pytest.raises(UserError) as raised:
    of_config(monkeypatch, config)
  assert said in str(raised.value) and 'TF_CONFIG' in str(raised.value)


# --- What a run asks for -----------------------------------------------------


def joined(settings):
  with distributed.joined(settings) as workers:
    return workers


def test_a_batch_that_does_not_divide_is_refused(tmp_path, monkeypatch):
  of_config(monkeypatch, config_of({'worker': TWO}))
  settings = tiny_models.tiny_settings(tmp_path, tmp_path, batch=5)
  with pytest.raises(UserError, match='--batch=5: must be a multiple of 2'):
    train.train(settings)  # Before the data, which is not there.
  settings = tiny_models.tiny_settings(
      tmp_path, tmp_path, batch=6, replicas=2)
  with pytest.raises(UserError, match='a multiple of 4, as 2 machines'):
    joined(settings)


def test_devices_that_are_not_there_are_refused(tmp_path, monkeypatch):
  settings = tiny_models.tiny_settings(
      tmp_path, tmp_path, batch=8, replicas=2)
  if len(tf.config.list_logical_devices('CPU')) > 1 or (
      tf.config.list_physical_devices('GPU')):
    pytest.skip('this machine has several devices')
  with pytest.raises(UserError, match='--replicas=2: TensorFlow finds 0 GPUs'):
    joined(settings)
  of_config(monkeypatch, config_of({'worker': TWO}))
  with pytest.raises(UserError, match='--replicas=2: TensorFlow finds 0 GPUs'):
    joined(settings)


def test_programs_are_not_shared(tmp_path, monkeypatch):
  of_config(monkeypatch, config_of({'worker': TWO}))
  with pytest.raises(UserError, match='--task layout trains on one machine'):
    joined(LayoutTrainSettings(data_root=str(tmp_path)))


def test_a_chief_does_not_wait_for_ever(tmp_path, monkeypatch):
  monkeypatch.setattr(distributed, 'JOIN_SECONDS', 0)
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))  # Nobody listens.
    other = f'127.0.0.1:{free.getsockname()[1]}'
    of_config(monkeypatch, config_of({'worker': ['127.0.0.1:1', other]}))
    with pytest.raises(UserError, match=rf'not all of the 2 .*\({other}: '):
      joined(tiny_models.tiny_settings(tmp_path, tmp_path, batch=6))


def test_a_process_that_runs_tensorflow_cannot_join(tmp_path, monkeypatch):
  of_config(monkeypatch, config_of({'worker': TWO}, index=1))
  tf.constant(1) + 1
  with pytest.raises(UserError, match='did TensorFlow run in this process'):
    joined(tiny_models.tiny_settings(tmp_path, tmp_path, batch=6))


# --- Shares ------------------------------------------------------------------


def test_a_share_is_a_run_of_whole_kernels():
  # 2 batches of 6 kernels, 3 replicas; the second machine has the last two.
  numbers = np.arange(12).reshape(2, 6)
  assert distributed.Share(3, 1, 2).of(numbers).tolist() == [
      [2, 3], [4, 5], [8, 9], [10, 11]]
  np.testing.assert_array_equal(distributed.WHOLE.of(numbers), numbers)


def test_a_share_has_the_labels_that_it_has_in_the_batch():
  partition = Partition.from_kernels([
      tiny_kernels.make_kernel(f'net_{i}', num_configs=4 + i, base=10 * i)
      for i in range(9)])
  stats = FeatureStats.of_partition(partition)

  def labels(**kwargs):
    return np.array([label.numpy() for _, label in batches.training_dataset(
        partition, stats, batch_size=4, num_configs=4, seed=1, **kwargs)])

  whole = labels()  # [batches, kernels, configurations]
  assert whole.shape == (2, 4, 4)
  share = labels(share=distributed.Share(4, 1, 2))
  np.testing.assert_array_equal(share, whole[:, 1:3].reshape(4, 1, 4))


def test_embeddings_are_clipped_as_keras_clips_them():
  # Rows 1, 1 and 2 of an embedding: the norm of the rows is 3, added up 5.
  rows = tf.IndexedSlices(
      tf.constant([[2.0], [2.0], [1.0]]), tf.constant([1, 1, 2]),
      tf.constant([4, 1]))
  updated = []
  strategy = tf.distribute.OneDeviceStrategy('CPU:0')
  for scope in (strategy.scope(), tf.init_scope()):
    with scope:
      table, bias = tf.Variable([[0.1]] * 4), tf.Variable([3.0])
      adam = distributed.adam(0.1, clip_norm=1.5)
      adam.build([table, bias])
      for _ in range(2):
        tf.distribute.get_strategy().run(
            lambda adam=adam, table=table, bias=bias: adam.apply_gradients(
                [(rows, table), (tf.constant([-0.5]), bias)]))
    updated.append([table.numpy(), bias.numpy(), adam._momentums[0].numpy()])
  assert type(adam) is tf.keras.optimizers.Adam
  for shared, alone in zip(*updated):
    np.testing.assert_allclose(shared, alone, rtol=1e-6)
  # Row 1 has the gradient 4 * 1.5 / 3, of which two steps keep 0.09 + 0.1.
  np.testing.assert_allclose(updated[0][2][1], [0.19 * 2], rtol=1e-6)


# --- Several processes -------------------------------------------------------


@pytest.fixture(scope='module')
def cases(tmp_path_factory):
  """Case -> what `two_workers` tells of it, and the folder of the logs."""
  folder = tmp_path_factory.mktemp('workers')
  tiny_kernels.write_data_root(folder / 'data')
  done = subprocess.run(
      [sys.executable, two_workers.__file__, str(folder)], check=True,
      capture_output=True, text=True,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
  told = [json.loads(line) for line in done.stdout.splitlines()
          if line.startswith('{')]
  return {case['case']: case for case in told}, folder


needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')


def assert_same_run(one, other):
  for key, curve in one['train_curve'].items():
    np.testing.assert_allclose(other['train_curve'][key], curve, rtol=1e-5)
  for k, error in one['final_error']['val'].items():
    assert other['final_error']['val'][k] == pytest.approx(error, rel=1e-5)


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize('model', ['tiny', 'large'])
@pytest.mark.parametrize('by', ['two', 'replicas'])
def test_two_replicas_train_what_one_trains(cases, model, by):
  told, _ = cases
  one, other = told[model], told[f'{model}_{by}']
  assert one['codes'] == [0] and set(other['codes']) == {0}
  assert_same_run(one, other)
  assert other['models'] == 1 and not other['second_wrote']


@pytest.mark.slow
@needs_fork
def test_a_worker_is_killed_and_the_run_goes_on(cases):
  told, folder = cases
  survivor, killed = told['killed']['codes']
  assert killed == -9 and survivor == 1
  log = (folder / 'killed_0.log').read_text(errors='replace')
  assert 'another worker is gone, or cannot be reached' in log
  assert 'start all workers again with --resume' in log
  assert 'Traceback' not in log
  assert told['resumed']['codes'] == [0, 0]
  assert log.count('epoch 1:') == 1  # It did not start anew.
  assert_same_run(told['whole'], told['resumed'])


@pytest.mark.slow
@needs_fork
def test_workers_with_unlike_settings_do_not_train(cases):
  told, folder = cases
  assert told['unlike']['codes'] == [1, 1] and 'models' not in told['unlike']
  for index in range(2):
    assert 'worker 1 has --lr 0.02, the chief 0.01' in (
        folder / f'unlike_{index}.log').read_text(errors='replace')
