"""Models that find what features are scaled with under a running script."""

import dataclasses
import json
import threading

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from support import model_checks as checks
from support import tiny_kernels
from tpu_graphs_ext import models
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.tasks import feature_stats, tile_batches
from tpu_graphs_ext.tasks.tile import StatsSettings

KERNELS = checks.kernels()


@pytest.fixture(autouse=True)
def fresh_memory():
  """Files are read once a process; each test has files of its own."""
  models._of_files.cache_clear()


@pytest.fixture
def script(monkeypatch):
  """Makes it look as if a script with these flags were running."""
  def run(data_root, toy_data=False):
    values = flags.FlagValues()
    flags.DEFINE_string('cache_dir', '/the/cache', '', values)
    flags.DEFINE_string('data_root', str(data_root), '', values)
    flags.DEFINE_bool('toy_data', toy_data, '', values)
    values(['tiles_train.py'])
    monkeypatch.setattr(flags, 'FLAGS', values)
  return run


@pytest.fixture
def data_root(tmp_path):
  """Kernels to train on, and one of 3 configurations with larger features."""
  few = dataclasses.replace(
      checks.kernels(3)[0], tile_id='few_0',
      node_feat=KERNELS[0].node_feat * np.where(
          np.arange(140) == 21, 3, 1).astype(np.float32))
  (tmp_path / 'train').mkdir()
  for kernel in [*KERNELS, few]:
    kernel.save(str(tmp_path / 'train'))
  return tmp_path


def test_they_are_those_that_stats_prints(data_root, script, monkeypatch):
  """Read by one thread: before Python 3.11.8 NumPy may fail in several."""
  script(data_root)
  read_file, threads = models._of_file, set()
  monkeypatch.setattr(models, '_of_file', lambda path: threads.add(
      threading.current_thread()) or read_file(path))
  printed = json.loads(feature_stats.model_kwargs_json(StatsSettings(
      data_root=str(data_root), configs=10, cache_dir='')))['feature_stats']
  read = models._of_running_script(10)
  assert read == printed and read['tiles'] == 'elements'
  assert read['node'] != read['all_kernels']['node']
  assert threads == {threading.current_thread()}


def test_toy_data_are_the_first_100_files(tmp_path, script):
  """In the order of the folder, which the baseline's reader takes too."""
  (tmp_path / 'train').mkdir()
  for i in range(101):
    kernel = tiny_kernels.make_kernel(f'net_{i:03}')
    kernel.config_feat[:, 0] = np.arange(len(kernel.config_feat)) + i
    kernel.save(str(tmp_path / 'train'))
  listed = [int(path[-7:-4]) for path in tf.io.gfile.glob(
      str(tmp_path / 'train' / '*.npz'))]
  for toy_data, part in ((True, listed[:100]), (False, listed)):
    script(tmp_path, toy_data)
    read = models._of_running_script(2)['config']
    assert read['minimum'][0] == min(part)
    assert read['maximum'][0] == max(part) + len(kernel.config_feat) - 1


def test_without_a_script_there_are_none(data_root, script, monkeypatch):
  assert models._of_running_script(10) is None  # Flags of pytest.
  monkeypatch.setattr(flags, 'FLAGS', flags.FlagValues())
  assert models._of_running_script(10) is None
  script(data_root / 'nowhere')
  assert models._of_running_script(10) is None
  script(data_root)
  assert models._of_running_script(10) is not None
  assert models._of_running_script(1000) is None  # No kernel is that large.


def test_files_that_cannot_be_used_are_left_alone(data_root, script, caplog):
  script(data_root)
  (data_root / 'train' / 'damaged.npz').write_bytes(b'no zip')
  assert models._of_running_script(10) is None
  assert 'No feature_stats: the kernels under' in caplog.text


@pytest.mark.parametrize('name', ['MyEarlyJoinSAGE', 'AnalyticTileModel'])
def test_a_model_under_a_script_has_them(name, data_root, script, monkeypatch):
  """And so has one that its variables are copied into, script or not."""
  stats = checks.stats_of(KERNELS)
  told = checks.make(name, feature_stats={
      **stats.to_json(), 'tiles': 'elements'})
  expected = checks.scores_untraced(told, KERNELS[0], stats)
  assert np.ptp(expected) > 0.1  # Of the analytic time: nothing is learned.
  with monkeypatch.context() as outside:
    outside.setattr(flags, 'FLAGS', flags.FlagValues())
    copy = checks.make(name)
    checks.scores_untraced(copy, KERNELS[0], stats)
    assert not bool(copy._statistics.known())
  script(data_root)
  model = checks.make(name)
  np.testing.assert_array_equal(
      checks.scores_untraced(model, KERNELS[0], stats), expected)
  checks.copy_weights(copy, model)
  np.testing.assert_array_equal(
      checks.scores_untraced(copy, KERNELS[0], stats), expected)


def test_a_script_says_what_tiles_count_and_may_be_overruled(
    data_root, script, capsys):
  script(data_root)
  for given, in_elements in (('script', True), ({'tiles': 'elements'}, True),
                             ({'tiles': 'layout tiles'}, False)):
    statistics = models._Statistics(given, 10)
    statistics.build(None)
    assert bool(statistics.known())
    assert bool(statistics.in_elements()) == in_elements
  printed = capsys.readouterr().err
  assert printed.count('Tile bounds count elements: of ') == 1  # Read once.
  assert 'suit their tensors better in elements' in printed


def test_features_of_other_files_leave_them_unknown(data_root, script, caplog):
  """As from a cache that is older than the files."""
  other = [tiny_kernels.make_kernel('wide_0')]
  stats = checks.stats_of(other)
  script(data_root)
  model = checks.make('MyEarlyJoinSAGE')
  assert np.isfinite(checks.scores_untraced(model, other[0], stats)).all()
  assert not bool(model._statistics.known())
  assert 'they are of other data' in caplog.text


# ------------------------------------------------------------- a stale cache


def fit(model, kernels) -> None:
  """An epoch of two batches of kernels with 10 configurations or more."""
  batches = tile_batches.training_dataset(
      Partition.from_kernels(kernels), checks.stats_of(kernels), batch_size=2,
      num_configs=10, seed=0)
  model.compile(loss='mse', optimizer='adam', run_eagerly=True)
  model.fit(batches, validation_data=batches, verbose=0)


@pytest.mark.parametrize('table, column, factors, reason', [
    ('node_feat', 21, (2, 1), 'whole numbers that files hold; they were scaled '
     'with other data'),
    ('config_feat', 9, (7, 1), 'with other data'),
    ('node_feat', 21, (0, 0), 'features have .*; they are of other data')])
def test_training_on_features_of_older_files_stops(
    data_root, script, table, column, factors, reason):
  """The cache has other numbers in a column; the sentence names the cache."""
  script(data_root)
  older = [dataclasses.replace(kernel, **{
      table: getattr(kernel, table).copy()}) for kernel in KERNELS]
  for kernel, factor in zip(older, [factors[0], *3 * factors[1:]]):
    getattr(kernel, table)[:, column] *= factor
  with pytest.raises(ValueError, match=f'{reason}. The cache is older.*remove '
                     '/the/cache, or give --cache_dir= to'):
    fit(checks.make('AnalyticTileModel'), older)


def test_training_on_features_of_the_files_goes_on(data_root, script):
  """Scaled by kernels with enough configurations; or with statistics given."""
  script(data_root)
  fit(checks.make('EnsembleRanker', members={'AnalyticTileModel': {}}), KERNELS)
  feature_stats = checks.stats_of(KERNELS[1:]).to_json()
  fit(checks.make('AnalyticTileModel', feature_stats=feature_stats), KERNELS)
