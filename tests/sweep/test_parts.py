"""What names a part, and what a damaged one is taken for."""

import dataclasses
import json

import pytest

from tpu_graphs_ext.sweep import parts, rows
from tpu_graphs_ext.sweep.places import Found

FILES = [Found(f'{name}.npz', f'/d/{name}.npz', 'stamp') for name in 'abcde']


def keys(files=FILES, size=2, basis='model'):
  return [shard.key for shard in parts.shards(files, size, basis)]


def test_a_shard_is_named_by_all_that_its_rows_follow_from():
  assert len(set(keys())) == 3 and keys() == keys()
  assert not set(keys()) & set(keys(basis='another'))
  changed = [*FILES[:2], dataclasses.replace(FILES[2], stamp='new'),
             *FILES[3:]]
  assert [old == new for old, new in zip(keys(), keys(changed))] == [
      True, False, True]


def test_the_sum_of_a_folder_is_of_names_and_content(tmp_path):
  (tmp_path / 'deep').mkdir()
  (tmp_path / 'deep' / 'a').write_text('1')
  (tmp_path / 'b').symlink_to(tmp_path / 'deep' / 'a')
  first = parts.sum_of_files(str(tmp_path))
  assert parts.sum_of_files(str(tmp_path)) == first
  (tmp_path / 'deep' / 'a').write_text('2')
  second = parts.sum_of_files(str(tmp_path))
  (tmp_path / 'b').rename(tmp_path / 'c')
  assert len({first, second, parts.sum_of_files(str(tmp_path))}) == 3


@pytest.fixture
def written(tmp_path):
  """A part of three rows, and its shard."""
  shard = next(parts.shards(FILES, 3, 'model'))
  kind = rows.LISTED
  with parts.new_part(str(tmp_path), shard) as part:
    part.add(rows.row(kind, 'a.npz', tile_id='a', unfamiliar=['x', 'y']), 7)
    part.add(rows.row(kind, 'b.npz', error='b.npz: damaged é'), 0)
    part.add(rows.row(kind, 'c.npz', tile_id='c', unfamiliar=['x']), 5)
  return tmp_path, shard


def test_a_part_knows_what_is_in_it(written):
  folder, shard = written
  assert parts.contents_of(str(folder), shard) == parts.Contents(
      rows=3, kernels=2, errors=1, configs=12, strange=2,
      columns={'x': 2, 'y': 1}, messages=['b.npz: damaged é'])
  lines = list(parts.rows_of(str(folder), shard))
  assert [json.loads(line)['file'] for line in lines] == [
      'a.npz', 'b.npz', 'c.npz']
  assert all(line.startswith(rows.START) for line in lines)


def test_a_damaged_part_is_none(written):
  folder, shard = written
  path = folder / shard.part
  whole = path.read_bytes()
  for place in range(0, len(whole) - 1, 7):
    path.write_bytes(whole[:place] + b'#' + whole[place + 1:])
    assert parts.contents_of(str(folder), shard) is None, place
    path.write_bytes(whole[:place])
    assert parts.contents_of(str(folder), shard) is None, place
  path.unlink()
  assert parts.contents_of(str(folder), shard) is None


def test_only_parts_are_taken_for_parts():
  key = keys()[0]
  assert parts.parts_among([
      'mine.rows', f'{key}.rows', key, 'notes.txt',
      f'{key}.rows.0123abcd.tpu_graphs_ext.tmp']) == [
          f'{key}.rows', f'{key}.rows.0123abcd.tpu_graphs_ext.tmp']
