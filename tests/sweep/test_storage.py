"""Finding, reading and writing files by paths and by URLs."""

import os
import sys
import uuid

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import storage

pytest.importorskip('fsspec', reason='needs the extra [scale]')


@pytest.fixture(params=['path', 'file', 'memory'])
def folder(request, tmp_path):
  """A path or URL with two files that match, one that does not, one deeper."""
  where = {'path': str(tmp_path / 'a'), 'file': f'file://{tmp_path}/b',
           'memory': f'memory:///{uuid.uuid4().hex}'}[request.param]
  for name in ('b.npz', 'a.npz', 'c.txt', 'deep/d.npz'):
    write(f'{where}/{name}', name.encode())
  return where


def write(path, content):
  with storage.new_file(path) as file:
    file.write(content)


def names(found):
  return [os.path.basename(file.name) for file in found]


@pytest.mark.parametrize('given, expected', [
    ('', ['a.npz', 'b.npz']),  # A folder: files with the ending, no deeper.
    ('/c.txt', ['c.txt']),
    ('/[ab]*', ['a.npz', 'b.npz']),
    ('/**/*.npz', ['a.npz', 'b.npz', 'd.npz'])])
def test_files_that_are_found(folder, given, expected):
  found = storage.find(folder + given, ('.npz',))
  assert names(found) == expected
  assert all(file.path == file.name for file in found)


@pytest.mark.parametrize('given, rule', [
    ('/no_such', 'no_such: no such file or folder'),
    ('/*.zip', r'\*.zip: no file has such a name; quote the pattern'),
    ('', 'no file that ends with .hlo; name others by a pattern')])
def test_nothing_found(folder, given, rule):
  with pytest.raises(UserError, match=rule):
    storage.find(folder + given, ('.hlo',))


def test_names_are_as_given_and_paths_absolute(tmp_path, monkeypatch):
  write(f'{tmp_path}/deep/d.npz', b'')
  monkeypatch.chdir(tmp_path)
  file, = storage.find('deep', ('.npz',))
  assert (file.name, file.path) == ('deep/d.npz', f'{tmp_path}/deep/d.npz')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert names(storage.find('~/deep', ('.npz',))) == ['d.npz']


def test_a_name_that_looks_like_a_pattern(tmp_path):
  write(f'{tmp_path}/run[1]/a.npz', b'')
  for given in (f'{tmp_path}/run[1]', f'{tmp_path}/run[1]/a.npz'):
    assert names(storage.find(given, ('.npz',))) == ['a.npz']


def test_a_stamp_changes_with_the_file(folder):
  before = storage.find(f'{folder}/a.npz', ())
  assert storage.find(f'{folder}/a.npz', ()) == before
  write(f'{folder}/a.npz', b'z.npz')  # As long.
  assert storage.find(f'{folder}/a.npz', ()) != before


def test_a_change_behind_a_link_or_of_the_same_age_is_seen(tmp_path):
  path, link = tmp_path / 'a.npz', tmp_path / 'link.npz'
  path.write_text('a.npz')
  link.symlink_to(path)
  before = storage.find(str(link), ())
  times = path.stat()
  path.write_text('z.npz')  # As long, and as old:
  os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
  assert storage.find(str(link), ()) != before


def test_a_file_is_written_whole_or_not_at_all(folder):
  def content():
    system, path, _ = storage.opened(f'{folder}/a.npz')
    return system.cat_file(path)

  with pytest.raises(KeyboardInterrupt):
    with storage.new_file(f'{folder}/a.npz') as file:
      file.write(b'new')
      raise KeyboardInterrupt
  assert content() == b'a.npz' and len(storage.find(folder, ('',))) == 3
  write(f'{folder}/a.npz', b'new')
  assert content() == b'new'
  with pytest.raises(UserError, match='/d: cannot be written'):
    write(f'{folder}/c.txt/d', b'')


def test_copies_of_urls_come_in_order_and_go():
  url = f'memory:///{uuid.uuid4().hex}'
  for number in range(3 * storage.AT_ONCE):
    write(f'{url}/{number:02}.npz', str(number).encode())
  found = storage.find(url, ('.npz',))
  found.insert(5, storage.Found(f'{url}/x.npz', f'{url}/x.npz', ''))
  read, paths = [], []
  for file, path, fault in storage.local_copies(found):
    if fault:
      assert 'x.npz: cannot be read (FileNotFound' in fault and not path
      continue
    assert os.path.basename(path) == os.path.basename(file.name)
    paths.append(path)
    with open(path) as copy:
      read.append(int(copy.read()))
  assert read == list(range(12)) and not any(map(os.path.exists, paths))


def test_files_of_this_machine_are_not_copied(tmp_path):
  write(f'{tmp_path}/a.npz', b'')
  for given in (str(tmp_path), f'file://{tmp_path}'):
    found = storage.find(given, ('.npz',))
    assert [path for _, path, _ in storage.local_copies(found)] == [
        f'{tmp_path}/a.npz']
  assert (tmp_path / 'a.npz').exists()


def test_a_protocol_that_nobody_knows():
  with pytest.raises(UserError, match=r'not known: nosuch.*fsspec knows'):
    storage.find('nosuch://bucket/a', ())


def test_without_fsspec(monkeypatch):
  monkeypatch.setitem(sys.modules, 'fsspec', None)
  with pytest.raises(UserError, match=r'gs://b/a: .*-e "\.\[scale\]"'):
    storage.find('gs://b/a', ())
