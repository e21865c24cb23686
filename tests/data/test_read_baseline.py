"""The same kernels, numbers and graphs as the baseline's reader gives."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_kernels
from support.dump_baseline_data import flat
from support.places import SUPPORT
from tpu_graphs_ext.course.checkout import script_command
from tpu_graphs_ext.data import read, rules
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.tasks import tile_batches

pytestmark = pytest.mark.baseline

BATCH, CONFIGS = 4, 10


@pytest.fixture(scope='module', params=['all', 'toy'])
def toy(request) -> bool:
  """With and without --toy_data."""
  return request.param == 'toy'


@pytest.fixture(scope='module')
def data_root(tmp_path_factory) -> str:
  # More train kernels than the 100 that --toy_data takes.
  return str(tiny_kernels.write_data_root(
      tmp_path_factory.mktemp('root'), num_train=110))


@pytest.fixture(scope='module')
def baseline(checkout_root, data_root, toy, tmp_path_factory) -> dict:
  """What the baseline's reader makes of the data root."""
  out = str(tmp_path_factory.mktemp('dump') / 'dump.npz')
  program = str(SUPPORT / 'dump_baseline_data.py')
  subprocess.run(
      script_command([program, data_root, str(BATCH), str(CONFIGS), out,
                      *(['--toy_data'] if toy else [])], checkout_root),
      check=True, timeout=600)
  return dict(np.load(out))


@pytest.fixture(scope='module')
def dataset(data_root, toy, tmp_path_factory) -> read.Dataset:
  return read.read_dataset(data_root, min_train_configs=CONFIGS, toy_data=toy,
                           cache_dir=str(tmp_path_factory.mktemp('cache')))


@pytest.fixture(scope='module')
def stats(dataset) -> FeatureStats:
  return FeatureStats.of_partition(dataset.train)


def their_rows(baseline, split, stored_name, axis) -> np.ndarray:
  """The baseline's rows, its kernels sorted by name as ours are."""
  bounds = baseline[f'{split}.{axis}_ranges']
  rows = baseline[f'{split}.{stored_name}']
  return np.concatenate([
      rows[bounds[i]:bounds[i + 1]]
      for i in np.argsort(baseline[f'{split}.tile_id'])])


@pytest.mark.parametrize('split', ['train', 'validation', 'test'])
def test_same_kernels_and_features_to_the_last_bit(
    baseline, dataset, stats, split):
  ours = dataset.valid if split == 'validation' else getattr(dataset, split)
  order = np.argsort(baseline[f'{split}.tile_id'])
  assert list(ours.names) == baseline[f'{split}.tile_id'][order].tolist()
  for axis in ('node', 'edge', 'config'):
    theirs = np.diff(baseline[f'{split}.{axis}_ranges'])[order]
    np.testing.assert_array_equal(
        [getattr(kernel, f'num_{axis}s') for kernel in ours], theirs)
  scaled = {'node_feat': stats.node.apply, 'config_feat': stats.config.apply}
  for name, field in rules.TILE.arrays.items():
    theirs = their_rows(baseline, split, field.name, field.axes[0][:-1])
    rows = scaled.get(name, np.asarray)(
        np.concatenate([getattr(kernel, name) for kernel in ours]))
    assert (rows.dtype, rows.shape) == (theirs.dtype, theirs.shape)
    assert rows.tobytes() == theirs.tobytes(), name
  assert dataset.num_ops == int(baseline['num_ops'])


def assert_as_dumped(graph, baseline, prefix) -> None:
  for name, value in flat(graph).items():
    theirs = baseline[f'{prefix}.{name}']
    np.testing.assert_array_equal(value, theirs, err_msg=name)
    assert value.dtype == theirs.dtype, name


def test_same_spec_and_graph_of_one_kernel(baseline, dataset, stats):
  graphs = tile_batches.kernel_graphs(dataset.valid, stats)
  assert repr(graphs.element_spec) == str(baseline['kernel_spec'])
  for i in range(2):
    name, = baseline[f'graph{i}.g.tile_id']
    kernel = dataset.valid[dataset.valid.names.index(name)]
    assert_as_dumped(
        tile_batches.kernel_graph(kernel, stats), baseline, f'graph{i}')


def test_same_spec_and_graph_of_a_batch(baseline, dataset, stats):
  training = tile_batches.training_dataset(
      dataset.train, stats, batch_size=BATCH, num_configs=CONFIGS)
  graph_spec, label_spec = training.element_spec
  assert repr(graph_spec) == str(baseline['batch_spec'])
  assert label_spec == tf.TensorSpec([BATCH, CONFIGS], tf.float32)

  # Which configurations the baseline drew shows in their runtimes.
  kernels = [dataset.train[dataset.train.names.index(name)]
             for name in baseline['batch.g.tile_id']]
  runtimes = baseline['batch.config.runtimes'].reshape(BATCH, CONFIGS)
  drawn = np.stack([
      [int(np.flatnonzero(kernel.runtime_rel == value)[0]) for value in row]
      for kernel, row in zip(kernels, runtimes)])
  assert_as_dumped(
      tile_batches.graph_tensor(
          tile_batches.batch_arrays(kernels, drawn, stats)), baseline, 'batch')
