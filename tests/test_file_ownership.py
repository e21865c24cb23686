"""What may be replaced: only what was written here."""

import os

import pytest

from support import tiny_kernels
from tpu_graphs_ext import file_ownership
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import cache
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.errors import UserError


def test_a_file_is_known_by_its_path_and_content(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'x').write_text('one')
  (tmp_path / 'y').write_text('two')
  (tmp_path / 'empty').mkdir()
  known = file_ownership.sums(str(tmp_path))
  assert list(known) == ['a/x', 'empty', 'y']
  assert file_ownership.foreign(str(tmp_path), known) == []
  assert file_ownership.foreign(str(tmp_path), {}, {'y': known['y']}) == [
      'a/x', 'empty']
  assert file_ownership.foreign(
      str(tmp_path), {}, passed_over=('a',)) == ['empty', 'y']
  (tmp_path / 'y').write_text('three')
  os.symlink('x', tmp_path / 'a' / 'link')
  os.symlink('a', tmp_path / 'linked')
  assert file_ownership.foreign(str(tmp_path), known) == [
      'a/link', 'linked', 'y']
  assert file_ownership.sums(str(tmp_path / 'missing')) == {}


# ------------------------------------------------- copies of a checkout


@pytest.fixture
def root(tmp_path):
  """A checkout, and the beginning of a folder for its copy."""
  root = tmp_path / 'root'
  (root / checkout.MODELS_PY).parent.mkdir(parents=True)
  (root / checkout.MODELS_PY).write_text('theirs')
  (root / 'tiles_train.py').write_text('')
  (root / 'data').mkdir()
  return str(root)


def test_a_copy_is_replaced_by_the_next(root, tmp_path):
  copy = tmp_path / 'copy'
  for _ in range(2):
    assert checkout.working_copy(root, str(copy)) == str(copy)
    (copy / '__pycache__').mkdir()
    (copy / '__pycache__' / 'x.pyc').write_text('')
  assert checkout.is_checkout(str(copy))
  again = checkout.working_copy(str(copy), str(tmp_path / 'again'))
  assert checkout.working_copy(root, again) == again
  assert sorted(os.listdir(tmp_path)) == ['again', 'copy', 'root']


@pytest.mark.parametrize('before', ['copied', 'nothing'])
def test_a_copy_replaces_nothing_else(root, tmp_path, before):
  copy = tmp_path / 'copy'
  if before == 'copied':
    checkout.working_copy(root, str(copy))
  copy.mkdir(exist_ok=True)
  (copy / 'my_model.py').write_text('mine')
  with pytest.raises(UserError, match=r"holds 'my_model.py'.*move the folder"):
    checkout.working_copy(root, str(copy))
  assert (copy / 'my_model.py').read_text() == 'mine'
  assert sorted(os.listdir(tmp_path)) == ['copy', 'root']


def test_a_changed_copy_stays(root, tmp_path):
  copy = tmp_path / 'copy'
  checkout.working_copy(root, str(copy))
  (copy / checkout.MODELS_PY).write_text('mine')
  with pytest.raises(UserError, match=r'models\.py.*was changed since'):
    checkout.working_copy(root, str(copy))
  assert (copy / checkout.MODELS_PY).read_text() == 'mine'


def test_a_copy_where_a_file_is(root, tmp_path):
  (tmp_path / 'copy').write_text('mine')
  with pytest.raises(UserError, match='it is not a folder'):
    checkout.working_copy(root, str(tmp_path / 'copy'))
  assert (tmp_path / 'copy').read_text() == 'mine'


# ------------------------------------------------------------- others


def test_predictions_replace_predictions(tmp_path):
  path = tmp_path / 'x.csv'
  path.write_text('')
  for indices in ([1], [2]):
    predictions_csv.write(str(path), {'a': indices})
  assert predictions_csv.read(str(path)) == {'tile:xla:a': [2]}
  path.write_text('name,grade\n')
  with pytest.raises(UserError, match='is no predictions CSV, so it is not'):
    predictions_csv.write(str(path), {'a': [1]})
  assert path.read_text() == 'name,grade\n'


def test_a_cache_entry_with_something_else_stays(tmp_path):
  path = tiny_kernels.diamond().save(str(tmp_path))
  folder = tmp_path / 'cache'
  cache.open_files([path], str(folder))
  entry, = folder.iterdir()
  (entry / 'notes.txt').write_text('mine')
  assert len(cache.open_files([path], str(folder))) == 1
  (entry / cache.META_FILE).write_text('{}')
  with pytest.raises(UserError, match=r"holds 'notes\.txt', which does not"):
    cache.open_files([path], str(folder))
  assert (entry / 'notes.txt').read_text() == 'mine'
