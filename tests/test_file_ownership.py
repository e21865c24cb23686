"""What may be replaced: only what was written here."""

import os

import pytest

from support import tiny_kernels
from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache, partition
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.errors import UserError


def test_a_file_is_known_by_its_path_and_content(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'x').write_text('one')
  (tmp_path / 'y').write_text('two')
  (tmp_path / 'empty').mkdir()
  known = files.sums(str(tmp_path))
  assert list(known) == ['a/x', 'empty', 'y']
  assert files.foreign(str(tmp_path), known) == []
  assert files.foreign(str(tmp_path), {}, {'y': known['y']}) == [
      'a/x', 'empty']
  (tmp_path / 'y').write_text('three')
  os.symlink('x', tmp_path / 'a' / 'link')
  os.symlink('a', tmp_path / 'linked')
  assert files.foreign(str(tmp_path), known) == [
      'a/link', 'linked', 'y']
  assert files.sums(str(tmp_path / 'missing')) == {}


# ------------------------------------------------------------- others


def test_predictions_replace_predictions(tmp_path):
  path = tmp_path / 'x.csv'
  path.write_text('')
  for indices in ([1], [2]):
    predictions_csv.write(str(path), {'a': indices})
  assert predictions_csv.read(str(path)) == {'tile:xla:a': [2]}
  path.write_text('name,grade\n')
  with pytest.raises(UserError, match='is not a predictions CSV, so it is not'):
    predictions_csv.write(str(path), {'a': [1]})
  assert path.read_text() == 'name,grade\n'


def test_a_cache_entry_with_something_else_stays(tmp_path):
  path = tiny_kernels.diamond().save(str(tmp_path))
  folder = tmp_path / 'cache'
  partition.open_files([path], str(folder))
  entry, = folder.iterdir()
  (entry / 'notes.txt').write_text('mine')
  assert len(partition.open_files([path], str(folder))) == 1
  (entry / cache.META_FILE).write_text('{}')
  with pytest.raises(UserError, match=r"holds 'notes\.txt', which does not"):
    partition.open_files([path], str(folder))
  assert (entry / 'notes.txt').read_text() == 'mine'
