"""Reading folders into partitions, and the cache."""

from __future__ import annotations

import os

import numpy as np
import pytest

from support import tiny_kernels, tiny_layouts
from support.tiny_kernels import assert_same
from tpu_graphs_ext.data import cache, read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError


@pytest.fixture
def folder(tmp_path) -> str:
  (tmp_path / 'valid').mkdir()
  for kernel in tiny_kernels.corner_cases():
    kernel.save(str(tmp_path / 'valid'))
  return str(tmp_path / 'valid')


@pytest.fixture
def cache_dir(tmp_path) -> str:
  return str(tmp_path / 'cache')


def test_kernels_left_out_are_reported(folder, caplog):
  assert read.read_kernels(folder, min_configs=5).names == ['diamond_0']
  _, message = caplog.messages  # The first is of their columns.
  assert message.endswith(
      'left out 5 of 6 kernels with fewer than 5 configurations: chain_0, '
      'identical_configs_0, no_edges_0 and 2 more')
  read.read_kernels(folder, min_configs=5)
  assert len(caplog.messages) == 2  # Once a process.
  with pytest.raises(UserError, match=r'none of 6 kernels has 10 or more '
                     r'configurations \(the largest has 5\); use a smaller'):
    read.read_kernels(folder, min_configs=10)


def test_limit_takes_what_is_listed_first_and_sorts_it(folder, monkeypatch):
  listed = ['one_node_0', 'diamond_0', 'one_config_0', 'chain_0', 'no_edges_0']
  monkeypatch.setattr(os, 'listdir', lambda unused_folder: [
      name + '.npz' for name in listed])
  # The third of the first four has a single configuration: it is dropped, and
  # the fifth does not take its place.
  assert read.read_kernels(folder, limit=4).names == [
      'chain_0', 'diamond_0', 'one_node_0']


def test_damaged_files_are_named(folder, tmp_path, cache_dir):
  path = tmp_path / 'valid' / 'diamond_0.npz'
  path.write_bytes(path.read_bytes()[:400])
  for kept in ('', cache_dir):
    with pytest.raises(UserError, match=r'diamond_0\.npz: .*check-data'):
      read.read_kernels(folder, cache_dir=kept)
  tiny_kernels.diamond(config_width=7).save(folder)
  with pytest.raises(UserError, match=r'/diamond_0\.npz: config_feat has 7'):
    read.read_kernels(folder)


def test_dataset(data_root):
  dataset = read.read_dataset(str(data_root), min_train_configs=10)
  # The second kernel of each split has 3 configurations; only train drops it.
  assert [len(split) for split in (
      dataset.train, dataset.every_train, dataset.valid, dataset.test)
          ] == [23, 24, 12, 6]
  largest = max(int(np.load(os.path.join(folder, name))['node_opcode'].max())
                for folder, _, names in os.walk(data_root) for name in names)
  assert dataset.num_ops == largest + 1


def test_data_root_without_splits(tmp_path):
  (tmp_path / 'train').mkdir()
  with pytest.raises(UserError, match='/valid: does not exist; a data root has '
                     r'the folders train, valid and test\. Name another'):
    read.read_dataset(str(tmp_path))


def test_read_kernels_of_a_file_and_of_other_paths(folder, tmp_path):
  partition = read.read_kernels(folder + '/diamond_0.npz')
  assert_same(partition[0], tiny_kernels.diamond())
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x.csv').write_text('')
  for name, said in (
      ('x.npz', 'does not exist'), ('x', 'has no'), ('x.csv', 'has no')):
    with pytest.raises(UserError, match=f'{name}: {said}.*; expected a folder'):
      read.read_kernels(str(tmp_path / name))
  np.savez(tmp_path / 'unet.npz', **tiny_layouts.program('unet'))
  with pytest.raises(UserError, match=(
      r'unet\.npz: is a file of the layout task: it has node_config_feat')):
    read.read_kernels(str(tmp_path))


def test_cached_partition_equals_the_files(folder, cache_dir, monkeypatch,
                                           tmp_path):
  monkeypatch.chdir(tmp_path)
  before = os.listdir()
  plain = read.read_kernels(folder)
  assert os.listdir() == before  # Nothing is cached unasked.
  monkeypatch.setattr(cache, 'BLOCK_BYTES', 100)  # Not a whole row.
  for _ in range(2):  # Built, then opened.
    cached = read.read_kernels(folder, cache_dir=cache_dir)
    monkeypatch.setattr(Kernel, 'load', None)  # No file is read again.
    assert cached.names == plain.names
    for kernel, expected in zip(cached, plain):
      assert_same(kernel, expected)
  base = cached[0].config_feat
  while base.base is not None and not isinstance(base, np.memmap):
    base = base.base
  assert isinstance(base, np.memmap)
  assert not cached[0].config_feat.flags.writeable
  for least, number in ((1, 6), (5, 1)):  # One entry serves them all.
    assert len(read.read_kernels(
        folder, min_configs=least, cache_dir=cache_dir)) == number
  os.rename(folder, folder + '_moved')
  read.read_kernels(folder + '_moved', cache_dir=cache_dir)
  assert len(os.listdir(cache_dir)) == 1


def test_changed_content_of_same_size_and_time_is_seen(folder, cache_dir):
  read.read_kernels(folder, cache_dir=cache_dir)
  path = os.path.join(folder, 'chain_0.npz')
  before = os.stat(path)
  # Stored, not compressed, so that the size is the same whatever the values.
  for runtime in (7, 8):
    kernel = tiny_kernels.chain()
    kernel.runtime_ns[:] = runtime
    np.savez(path, **kernel.stored())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    read_again = read.read_kernels(folder, cache_dir=cache_dir)
    assert read_again[0].runtime_ns.tolist() == [runtime] * 4
  key = cache.content_key(read.find_npz(folder))
  os.rename(path, os.path.join(folder, 'cha_0.npz'))
  assert cache.content_key(read.find_npz(folder)) != key


def test_cache_that_cannot_be_written(folder, tmp_path, monkeypatch):

  def full(*unused_args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(cache, '_build', full)
  with pytest.raises(UserError, match=r'the cache cannot be written .*No '
                     'space left on device'):
    read.read_kernels(folder, cache_dir=str(tmp_path / 'cache'))
  assert os.listdir(tmp_path / 'cache') == []
