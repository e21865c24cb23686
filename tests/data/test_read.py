"""Reading folders into partitions, and the cache."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

from support import tiny_kernels, tiny_layouts
from tpu_graphs_ext.data import cache, read
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import kernel_inputs


def assert_same_kernel(kernel: Kernel, expected: Kernel) -> None:
  assert kernel.tile_id == expected.tile_id
  for name in STORED_NAMES:
    actual = getattr(kernel, name)
    np.testing.assert_array_equal(actual, getattr(expected, name))
    assert actual.dtype == getattr(expected, name).dtype


def save_all(folder, kernels) -> str:
  folder.mkdir(exist_ok=True)
  for kernel in kernels:
    kernel.save(str(folder))
  return str(folder)


@pytest.fixture
def folder(tmp_path) -> str:
  return save_all(tmp_path / 'valid', tiny_kernels.corner_cases())


@pytest.fixture(scope='module')
def data_root(tmp_path_factory) -> str:
  return str(tiny_kernels.write_data_root(tmp_path_factory.mktemp('root')))


# ---------------------------------------------------------------- partition


def test_partition_gives_back_its_kernels():
  kernels = tiny_kernels.corner_cases()
  partition = Partition.from_kernels(kernels)
  assert len(partition) == 6
  for kernel, expected in zip(partition, kernels):
    assert_same_kernel(kernel, expected)


def test_partition_counts():
  partition = Partition.from_kernels(tiny_kernels.corner_cases())
  assert partition.num_nodes.tolist() == [1, 3, 4, 2, 3, 3]
  assert partition.num_edges.tolist() == [0, 2, 4, 0, 2, 2]
  assert partition.num_configs.tolist() == [4, 4, 5, 4, 1, 4]
  # Each start is the sum of the counts before it.
  assert partition.node_start.tolist() == [0, 1, 4, 8, 10, 13]
  # Opcodes are base % 50 + node + 2: the largest is 40 + 2 + 2 = 44.
  assert partition.max_opcode == 44
  assert partition.programs[:2] == ['one_node', 'chain']


@pytest.mark.parametrize('chosen', [
    [4, 1, 1],
    np.array([False, True, False, True, True, False]),
])
def test_selection_keeps_order_and_shares_memory(chosen):
  kernels = tiny_kernels.corner_cases()
  partition = Partition.from_kernels(kernels)
  selected = partition.select(chosen)
  numbers = np.arange(6)[np.asarray(chosen)]
  assert len(selected) == len(numbers)
  for kernel, number in zip(selected, numbers):
    assert_same_kernel(kernel, kernels[number])
  assert selected.config_feat is partition.config_feat
  assert np.shares_memory(selected.kernel(0).node_feat, partition.node_feat)


def test_selection_of_nothing_and_of_a_selection():
  partition = Partition.from_kernels(tiny_kernels.corner_cases())
  assert len(partition.select([])) == 0
  assert list(partition.select([]).blocks('node_feat')) == []
  assert partition.select([]).max_opcode == -1
  assert partition.select([3, 1, 0]).select([1]).tile_ids == ['chain_0']


def test_selection_by_a_mask_of_another_length():
  partition = Partition.from_kernels(tiny_kernels.corner_cases())
  with pytest.raises(ValueError, match=r'shape \(2,\); it must be \(6,\)'):
    partition.select(np.array([True, False]))


def test_blocks_hold_the_rows_of_the_selection_only(monkeypatch):
  kernels = tiny_kernels.corner_cases()
  monkeypatch.setattr('tpu_graphs_ext.data.partition.BLOCK_ROWS', 4)
  # Kernels 0 and 1 adjoin, 1 + 3 nodes; 3 stands alone, 2 nodes; 2 comes last
  # with 4: runs of 4, 2 and 4 rows.
  selected = Partition.from_kernels(kernels).select([0, 1, 3, 2])
  blocks = list(selected.blocks('node_opcode'))
  assert [len(block) for block in blocks] == [4, 2, 4]
  np.testing.assert_array_equal(
      np.concatenate(blocks),
      np.concatenate([kernels[i].node_opcode for i in (0, 1, 3, 2)]))
  # Five configurations of the diamond do not fit into one block of four.
  assert [len(block) for block in selected.select([3]).blocks('config_feat')
          ] == [4, 1]


def test_partition_is_read_only():
  partition = Partition.from_kernels([tiny_kernels.chain()])
  with pytest.raises(ValueError, match='read-only'):
    partition.node_feat[0, 0] = 1


def test_unlabelled_kernels_are_named():
  hidden = tiny_kernels.diamond()
  hidden.runtime_ns[:] = 0
  partition = Partition.from_kernels([tiny_kernels.chain(), hidden])
  assert partition.unlabelled() == ['diamond_0']


def test_no_kernels():
  with pytest.raises(UserError, match='no kernels'):
    Partition.from_kernels([])


def test_kernels_of_different_widths():
  with pytest.raises(UserError, match='chain_0: node_feat has 5 columns, but '
                     'that of one_node_0 has 140'):
    Partition.from_kernels(
        [tiny_kernels.one_node(), tiny_kernels.chain(node_width=5)])


@pytest.mark.parametrize('field, value, message', [
    ('node_opcode', np.zeros(4, np.uint8),
     'node_opcode has 4 rows, but node_feat has 3'),
    ('runtime_ns', np.ones(3, np.int64),
     'config_runtime has 3 rows, but config_feat has 4'),
    ('edge_index', np.array([[1, 0], [3, 1]]),
     r'edge_index row 1 is \[3, 1\]; both nodes must be in 0 to 2'),
    ('edge_index', np.zeros(2, np.int64), 'edge_index has 1 dimensions'),
    ('edge_index', np.zeros((2, 3), np.int64), 'another length than 2'),
    ('config_feat', np.zeros((4, 24)), 'config_feat has dtype float64'),
    ('normalizer_ns', np.array([1, 1, 0, 1]), 'row 2 is 0; times in ns'),
    ('runtime_ns', np.array([5, -7, 6, 6]), 'row 1 is -7; times in ns must be'),
    ('runtime_ns', np.array([5, 0, 6, 6]), 'row 1 is 0; times in ns must be'),
    ('config_feat', np.zeros((4, 24), bool), 'config_feat has dtype bool'),
    ('node_feat', np.zeros((3, 140), np.int8), 'node_feat has dtype int8'),
    ('node_opcode', np.ones(3, bool), 'node_opcode has dtype bool'),
])
def test_kernel_that_makes_no_sense(field, value, message):
  kernel = tiny_kernels.chain()
  object.__setattr__(kernel, field, value)
  with pytest.raises(UserError, match=message):
    Partition.from_kernels([kernel])


# -------------------------------------------------------------------- splits


def test_split_is_sorted_by_file_name(folder):
  partition = read.read_split(folder, min_configs=1)
  assert partition.tile_ids == [
      'chain_0', 'diamond_0', 'identical_configs_0', 'no_edges_0',
      'one_config_0', 'one_node_0']
  by_name = {k.tile_id: k for k in tiny_kernels.corner_cases()}
  for kernel in partition:
    assert_same_kernel(kernel, by_name[kernel.tile_id])


def test_kernels_left_out_are_reported_once(folder, caplog):
  with caplog.at_level(logging.WARNING):
    partition = read.read_split(folder, min_configs=5)
  assert partition.tile_ids == ['diamond_0']
  assert len(caplog.records) == 1
  assert caplog.messages[0].endswith(
      'left out 5 of 6 kernels with fewer than 5 configurations: chain_0, '
      'identical_configs_0, no_edges_0 and 2 more')


def test_nothing_left_out_is_not_reported(folder, caplog):
  with caplog.at_level(logging.WARNING):
    assert len(read.read_split(folder, min_configs=1)) == 6
  assert not caplog.records


def test_limit_takes_what_is_listed_first_and_sorts_it(folder, monkeypatch):
  listed = ['one_node_0', 'diamond_0', 'one_config_0', 'chain_0', 'no_edges_0']
  monkeypatch.setattr(os, 'listdir', lambda unused_folder: [
      name + '.npz' for name in listed])
  # The third of the first four has a single configuration: it is dropped, and
  # the fifth does not take its place.
  assert read.read_split(folder, limit=4).tile_ids == [
      'chain_0', 'diamond_0', 'one_node_0']


def test_split_without_edges(tmp_path):
  folder = save_all(tmp_path / 'train', [tiny_kernels.one_node()])
  for cache_dir in (None, str(tmp_path / 'cache'), str(tmp_path / 'cache')):
    partition = read.read_split(folder, cache_dir=cache_dir)
    assert partition.edge_index.shape == (0, 2)
    assert_same_kernel(partition.kernel(0), tiny_kernels.one_node())


def test_tilde_and_trailing_slash(folder, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  partition = read.read_split('~/valid/', cache_dir='~/cache/')
  assert len(partition) == 5
  assert (tmp_path / 'cache').is_dir()


def test_narrow_integers_are_widened(tmp_path):
  kernel = tiny_kernels.chain()
  object.__setattr__(kernel, 'edge_index', kernel.edge_index.astype(np.int32))
  for cache_dir in (None, str(tmp_path / 'cache')):
    partition = read.read_split(
        save_all(tmp_path / 'x', [kernel]), cache_dir=cache_dir)
    assert_same_kernel(partition.kernel(0), tiny_kernels.chain())


def test_missing_and_empty_folders(tmp_path):
  with pytest.raises(UserError, match=r'nowhere: does not exist; expected .*'):
    read.read_split(str(tmp_path / 'nowhere'))
  with pytest.raises(UserError, match=r'is empty; expected \.npz files'):
    read.read_split(str(tmp_path))
  (tmp_path / 'notes.txt').write_text('x')
  with pytest.raises(UserError, match=r'holds notes\.txt; expected'):
    read.read_split(str(tmp_path))


def test_no_kernel_has_enough_configs(folder):
  with pytest.raises(UserError, match=r'none of 6 kernels has 10 or more '
                     r'configurations \(the largest has 5\)'):
    read.read_split(folder, min_configs=10)


def damage_end(path):
  data = path.read_bytes()
  path.write_bytes(data[:len(data) // 2])


def damage_middle(path):
  """Overwrites compressed bytes; the archive's directory stays sound."""
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo('node_feat.npy').header_offset
  data = bytearray(path.read_bytes())
  data[offset + 60:offset + 90] = bytes(30)
  path.write_bytes(data)


def damage_all(path):
  path.write_bytes(b'')


def make_single_array(path):
  with open(path, 'wb') as file:
    np.save(file, np.zeros(3))


def make_pickled(path):
  np.savez(path, node_feat=np.array([{}], object))


@pytest.mark.parametrize('damage', [
    damage_end, damage_middle, damage_all, make_single_array, make_pickled])
@pytest.mark.parametrize('cached', [False, True])
def test_damaged_file_is_named(folder, tmp_path, damage, cached):
  damage(tmp_path / 'valid' / 'diamond_0.npz')
  cache_dir = str(tmp_path / 'cache') if cached else None
  with pytest.raises(UserError, match=r'diamond_0\.npz: .*check-data'):
    read.read_split(folder, cache_dir=cache_dir)
  # Nothing half-written stays behind.
  assert not cached or not os.path.exists(cache_dir) or not os.listdir(
      cache_dir)


def test_kernel_of_another_width_is_named_by_its_file(tmp_path):
  folder = save_all(tmp_path / 'x', [tiny_kernels.chain(),
                                     tiny_kernels.diamond(config_width=7)])
  with pytest.raises(UserError, match=r'x/diamond_0\.npz: config_feat has 7'):
    read.read_split(folder)


# ------------------------------------------------------------------- dataset


def test_dataset(data_root):
  dataset = read.read_dataset(data_root, min_train_configs=10)
  # The second kernel of each split has 3 configurations; only train drops it.
  assert [len(split) for split in (dataset.train, dataset.valid, dataset.test)
          ] == [23, 12, 6]
  largest = max(int(np.load(os.path.join(folder, name))['node_opcode'].max())
                for folder, _, names in os.walk(data_root) for name in names)
  assert dataset.num_ops == largest + 1
  assert dataset.test.unlabelled() == list(dataset.test.tile_ids)
  assert dataset.valid.unlabelled() == []


def test_toy_data_limits_every_split(data_root, monkeypatch):
  monkeypatch.setattr(read, 'TOY_FILES', 4)
  dataset = read.read_dataset(data_root, toy_data=True)
  assert [len(split) for split in (dataset.train, dataset.valid, dataset.test)
          ] == [4, 4, 4]
  names = os.listdir(os.path.join(data_root, 'train'))[:4]
  assert [tile_id + '.npz' for tile_id in dataset.train.tile_ids] == sorted(
      names)


def test_data_root_without_splits(data_root, tmp_path):
  with pytest.raises(UserError, match='does not exist, but a data root has '
                     'the folders train, valid and test; train, valid, test '
                     'not found'):
    read.read_dataset(data_root + '/nowhere')
  (tmp_path / 'xla' / 'valid').mkdir(parents=True)
  with pytest.raises(UserError, match=r'holds xla, but .*; train, valid, test '
                     'not found'):
    read.read_dataset(str(tmp_path))
  with pytest.raises(UserError, match=r'holds valid, but .*; train, test not'):
    read.read_dataset(str(tmp_path / 'xla'))


# ------------------------------------------------------------- other sources


def test_read_kernels_of_one_file(folder):
  partition = kernel_inputs.read_kernels(folder + '/diamond_0.npz')
  assert_same_kernel(partition.kernel(0), tiny_kernels.diamond())


def test_read_kernels_of_a_folder(folder):
  assert len(kernel_inputs.read_kernels(folder)) == 5
  assert len(kernel_inputs.read_kernels(folder, min_configs=1)) == 6


def test_read_kernels_of_tuning_data(shared_data):
  partition = kernel_inputs.read_kernels(str(shared_data / 'op_tuning_data.pb'))
  assert len(partition) == 15
  # Runs that were timed: 752 less the 2 that ended in an error.
  assert partition.num_configs.max() == 579


def test_read_kernels_of_something_else(tmp_path):
  with pytest.raises(UserError, match='no such file or folder'):
    kernel_inputs.read_kernels(str(tmp_path / 'x.npz'))
  (tmp_path / 'x.csv').write_text('')
  with pytest.raises(UserError, match=r'x\.csv: expected a folder of \.npz'):
    kernel_inputs.read_kernels(str(tmp_path / 'x.csv'))


def test_files_of_the_layout_task_are_named_as_such(tmp_path):
  path = tmp_path / 'unet.npz'
  np.savez(path, **tiny_layouts.program('unet'))
  for source in (tmp_path, path):
    with pytest.raises(UserError, match=(
        r'unet\.npz: is a file of the layout task: it has node_config_feat')):
      kernel_inputs.read_kernels(str(source))


# --------------------------------------------------------------------- cache


def entries(cache_dir) -> list[str]:
  return sorted(os.listdir(cache_dir))


def test_cached_partition_equals_the_files(folder, tmp_path):
  cache_dir = str(tmp_path / 'cache')
  plain = read.read_split(folder)
  for _ in range(2):  # Built, then opened.
    cached = read.read_split(folder, cache_dir=cache_dir)
    assert cached.tile_ids == plain.tile_ids
    for kernel, expected in zip(cached, plain):
      assert_same_kernel(kernel, expected)


def test_cached_arrays_are_mapped_not_read(folder, tmp_path):
  partition = read.read_split(folder, cache_dir=str(tmp_path / 'cache'))
  base = partition.config_feat
  while base.base is not None and not isinstance(base, np.memmap):
    base = base.base
  assert isinstance(base, np.memmap)
  assert not partition.config_feat.flags.writeable


def test_second_read_does_not_open_the_arrays(folder, tmp_path, monkeypatch):
  cache_dir = str(tmp_path / 'cache')
  read.read_split(folder, cache_dir=cache_dir)
  monkeypatch.setattr(Kernel, 'load', None)  # A call would raise.
  assert len(read.read_split(folder, cache_dir=cache_dir)) == 5


def test_one_entry_serves_every_min_configs(folder, tmp_path):
  cache_dir = str(tmp_path / 'cache')
  for least, number in ((1, 6), (2, 5), (5, 1)):
    assert len(read.read_split(
        folder, min_configs=least, cache_dir=cache_dir)) == number
  assert len(entries(cache_dir)) == 1


def test_changed_content_of_same_size_and_time_is_seen(folder, tmp_path):
  cache_dir = str(tmp_path / 'cache')
  read.read_split(folder, cache_dir=cache_dir)
  path = os.path.join(folder, 'chain_0.npz')
  before = os.stat(path)
  # Stored, not compressed, so that the size is the same whatever the values.
  for runtime in (7, 8):
    kernel = tiny_kernels.chain()
    kernel.runtime_ns[:] = runtime
    np.savez(path, **{stored: getattr(kernel, name)
                      for name, stored in STORED_NAMES.items()})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    read_again = read.read_split(folder, cache_dir=cache_dir)
    assert read_again.kernel(0).runtime_ns.tolist() == [runtime] * 4


def test_renamed_kernel_makes_another_entry(folder):
  paths = read.find_npz(folder)
  key = cache.content_key(paths)
  os.rename(paths[0], os.path.join(folder, 'cha_0.npz'))
  assert cache.content_key(read.find_npz(folder)) != key


def test_moved_folder_finds_its_entry(folder, tmp_path):
  cache_dir = str(tmp_path / 'cache')
  read.read_split(folder, cache_dir=cache_dir)
  os.rename(folder, tmp_path / 'moved')
  read.read_split(str(tmp_path / 'moved'), cache_dir=cache_dir)
  assert len(entries(cache_dir)) == 1


def cut_an_array(entry):
  with open(os.path.join(entry, 'config_feat'), 'r+b') as file:
    file.truncate(100)


def lose_an_array(entry):
  os.remove(os.path.join(entry, 'edge_index'))


def empty_an_array(entry):
  with open(os.path.join(entry, 'node_feat'), 'wb'):
    pass


def garble_meta(entry):
  with open(os.path.join(entry, 'meta.json'), 'w') as file:
    file.write('{"tile_ids": [')


def change_meta(entry):
  with open(os.path.join(entry, 'meta.json'), 'w') as file:
    json.dump({'tile_ids': []}, file)


def nest_meta(entry):
  with open(os.path.join(entry, 'meta.json'), 'w') as file:
    file.write('[' * 100_000)


def change_a_float(entry):
  with open(os.path.join(entry, 'config_feat'), 'r+b') as file:
    file.seek(40)
    file.write(np.float32(1e9).tobytes())


def change_a_name(entry):
  path = os.path.join(entry, 'meta.json')
  with open(path) as file:
    text = file.read()
  with open(path, 'w') as file:
    file.write(text.replace('chain_0', 'chain_1'))


def forge(entry, name, offset, value):
  """Changes a number, and the checksums so that they are right."""
  with open(os.path.join(entry, name), 'r+b') as file:
    file.seek(offset)
    file.write(value.tobytes())
    file.seek(0)
    crc32 = zlib.crc32(file.read())
  path = os.path.join(entry, 'meta.json')
  with open(path) as file:
    meta = json.loads(json.load(file)['meta'])
  meta['crc32'][name] = crc32
  text = json.dumps(meta)
  with open(path, 'w') as file:
    json.dump({'crc32': zlib.crc32(text.encode()), 'meta': text}, file)


def forge_an_edge(entry):
  forge(entry, 'edge_index', 8, np.int64(1000))


def forge_a_nan(entry):
  forge(entry, 'node_feat', 4, np.float32('nan'))


def forge_a_normalizer(entry):
  forge(entry, 'normalizer_ns', 0, np.int64(0))


@pytest.mark.parametrize('damage', [
    cut_an_array, lose_an_array, empty_an_array, garble_meta, change_meta,
    nest_meta, change_a_float, change_a_name, forge_an_edge, forge_a_nan,
    forge_a_normalizer])
def test_damaged_entry_is_built_again(folder, tmp_path, damage, caplog):
  cache_dir = str(tmp_path / 'cache')
  read.read_split(folder, cache_dir=cache_dir)
  name, = entries(cache_dir)
  damage(os.path.join(cache_dir, name))
  with caplog.at_level(logging.WARNING):
    partition = read.read_split(folder, cache_dir=cache_dir)
  assert 'the cache is damaged' in caplog.text
  assert_same_kernel(partition.kernel(0), tiny_kernels.chain())
  assert entries(cache_dir) == [name]
  caplog.clear()
  read.read_split(folder, cache_dir=cache_dir, min_configs=1)
  assert not caplog.records


def test_entry_built_meanwhile_by_another_process(folder, tmp_path,
                                                  monkeypatch):
  """The slower of two builders takes the faster one's entry."""
  cache_dir = str(tmp_path / 'cache')
  stream = cache._stream
  fast = []

  def slow_stream(paths, sinks):
    meta = stream(paths, sinks)
    if not fast:
      fast.append(True)
      fast.append(read.read_split(folder, cache_dir=cache_dir))
    return meta

  monkeypatch.setattr(cache, '_stream', slow_stream)
  slow = read.read_split(folder, cache_dir=cache_dir)
  assert len(entries(cache_dir)) == 1
  for kernel, expected in zip(slow, fast[1]):
    assert_same_kernel(kernel, expected)


def test_two_processes_at_once(data_root, tmp_path):
  program = (
      'import sys; from tpu_graphs_ext.data import read; '
      'data = read.read_dataset(sys.argv[1], cache_dir=sys.argv[2]); '
      'print(data.num_ops, data.train.runtime_ns.sum())')
  runs = [subprocess.Popen(
      [sys.executable, '-c', program, data_root, str(tmp_path / 'cache')],
      stdout=subprocess.PIPE, text=True) for _ in range(3)]
  outputs = [run.communicate(timeout=600)[0] for run in runs]
  assert [run.returncode for run in runs] == [0, 0, 0]
  assert outputs[0].strip() and len(set(outputs)) == 1
  assert len(entries(tmp_path / 'cache')) == 3  # train, valid, test


BUILDER = '''
import sys, time
from tpu_graphs_ext.data import cache, read
stream = cache._stream
def slow(*arguments):
  meta = stream(*arguments)
  print('there', flush=True)
  time.sleep(60)
cache._stream = slow
read.read_split(sys.argv[1], cache_dir=sys.argv[2])
'''


def test_a_builder_that_was_killed_leaves_nothing_for_long(folder, tmp_path):
  cache_dir = tmp_path / 'cache'
  with subprocess.Popen([sys.executable, '-c', BUILDER, folder, str(cache_dir)],
                        stdout=subprocess.PIPE, text=True) as builder:
    assert builder.stdout.readline() == 'there\n'
    builder.kill()
  left, = entries(cache_dir)
  os.utime(cache_dir / left, (0, 0))
  read.read_split(folder, cache_dir=str(cache_dir))
  name, = entries(cache_dir)
  assert left.startswith(name + '.')


def test_cache_that_cannot_be_written(folder, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match=r'file: the cache cannot be written '
                     r'\(.*\); free some space, name another --cache_dir'):
    read.read_split(folder, cache_dir=str(tmp_path / 'file'))


def test_full_disk_leaves_nothing_behind(folder, tmp_path, monkeypatch):
  def full(*unused_args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(cache, '_stream', full)
  with pytest.raises(UserError, match='No space left on device'):
    read.read_split(folder, cache_dir=str(tmp_path / 'cache'))
  assert entries(tmp_path / 'cache') == []
