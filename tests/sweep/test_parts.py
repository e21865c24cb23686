"""What names a part, and what a damaged one is taken for."""

import dataclasses

import pytest

from tpu_graphs_ext.sweep import rank_shard
from tpu_graphs_ext.sweep.storage import Found

pytest.importorskip('fsspec', reason='needs the extra [scale]')
FILES = [Found(f'{name}.npz', f'/d/{name}.npz', 'stamp') for name in 'abcde']


def keys(files=FILES, size=2, basis='model'):
  return [shard.key for shard in rank_shard.shards(files, size, basis)]


def test_a_shard_is_named_by_all_that_its_rows_follow_from():
  assert len(set(keys())) == 3 and keys() == keys()
  assert not set(keys()) & set(keys(basis='another'))
  changed = [*FILES[:2], dataclasses.replace(FILES[2], stamp='new'),
             *FILES[3:]]
  assert [old == new for old, new in zip(keys(), keys(changed))] == [
      True, False, True]


def test_a_damaged_part_is_none(tmp_path):
  folder = str(tmp_path)
  shard, = rank_shard.shards(FILES, 9, 'model')
  lines = [b'{"file":"a"}\n', '{"file":"é"}\n'.encode()]
  rank_shard.write_part(folder, shard, lines, 1.5)
  assert rank_shard.read_part(folder, shard) == (lines, 1.5)
  path = tmp_path / shard.part
  whole = path.read_bytes()
  for place in range(len(whole)):
    path.write_bytes(whole[:place] + b'#' + whole[place + 1:])
    assert rank_shard.read_part(folder, shard) is None, place
    path.write_bytes(whole[:place])
    assert rank_shard.read_part(folder, shard) is None, place
  path.unlink()
  assert rank_shard.read_part(folder, shard) is None
