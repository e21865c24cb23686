"""Finding, reading and writing files by paths and by URLs."""

import builtins
import os
import uuid

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import places


@pytest.fixture
def folder(tmp_path):
  """Two files that match, one that does not, and one deeper."""
  for name in ('b.npz', 'a.npz', 'c.txt', 'deep/d.npz'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  return tmp_path


@pytest.fixture(params=['memory', 'file'])
def url(request, tmp_path):
  """A folder of its own; file:// goes by fsspec too."""
  pytest.importorskip('fsspec', reason='needs the extra [scale]')
  place = {'memory': f'/{uuid.uuid4().hex}', 'file': tmp_path / 'url'}
  return f'{request.param}://{place[request.param]}'


def write(path, content):
  with places.new_file(path) as file:
    file.write(content)


def names(found):
  return [os.path.basename(file.name) for file in found]


@pytest.mark.parametrize('given, expected', [
    ('', ['a.npz', 'b.npz']),  # A folder: files with the ending, no deeper.
    ('c.txt', ['c.txt']),
    ('[ab]*', ['a.npz', 'b.npz']),
    ('**/*.npz', ['a.npz', 'b.npz', 'd.npz'])])
def test_paths_that_are_found(folder, given, expected):
  found = places.find(str(folder / given), ('.npz',))
  assert names(found) == expected
  assert all(file.path == file.name for file in found)


def test_names_are_as_given_and_paths_absolute(folder, monkeypatch):
  monkeypatch.chdir(folder)
  file, = places.find('deep', ('.npz',))
  assert (file.name, file.path) == ('deep/d.npz', str(folder / 'deep/d.npz'))
  monkeypatch.setenv('HOME', str(folder))
  assert names(places.find('~/deep', ('.npz',))) == ['d.npz']


@pytest.mark.parametrize('given, rule', [
    ('no_such', 'no_such: no such file or folder'),
    ('*.zip', r'\*.zip: no file has such a name; quote the pattern'),
    ('', 'no file that ends with .hlo; name others by a pattern')])
def test_nothing_found(folder, given, rule):
  with pytest.raises(UserError, match=rule):
    places.find(str(folder / given), ('.hlo',))


def test_a_stamp_is_another_one_after_a_change(folder):
  path = folder / 'a.npz'
  before, = places.find(str(path), ())
  assert places.find(str(path), ()) == [before]
  times = path.stat()
  path.write_text('z.npz')  # As long, and as old:
  os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
  after, = places.find(str(path), ())
  assert after.stamp != before.stamp


def test_urls_like_paths(url):
  for name in ('b.npz', 'a.npz', 'c.txt', 'deep/d.npz'):
    write(f'{url}/{name}', name.encode())
  assert names(places.find(url, ('.npz',))) == ['a.npz', 'b.npz']
  assert names(places.find(f'{url}/c.txt', ())) == ['c.txt']
  assert names(places.find(f'{url}/*.npz', ())) == ['a.npz', 'b.npz']
  assert names(places.find(f'{url}/**/*.npz', ())) == [
      'a.npz', 'b.npz', 'd.npz']
  before = places.find(f'{url}/a.npz', ())
  assert places.is_url(before[0].path)
  write(f'{url}/a.npz', b'z.npz')  # As long.
  assert places.find(f'{url}/a.npz', ()) != before
  with places.reading(f'{url}/a.npz') as file:
    assert file.read() == b'z.npz'
  assert places.start_of(f'{url}/a.npz', 2) == b'z.'
  assert places.start_of(f'{url}/gone', 2) == b''
  assert places.names_in(url) == {'a.npz', 'b.npz', 'c.txt', 'deep'}
  places.remove(url, ['a.npz', 'b.npz'])
  assert places.names_in(url) == {'c.txt', 'deep'}
  assert places.names_in(f'{url}/gone') == set()
  with pytest.raises(UserError, match='no such file or folder'):
    places.find(f'{url}/gone', ())
  with pytest.raises(UserError, match='gone: cannot be read'):
    with places.reading(f'{url}/gone'):
      pass


def test_a_url_is_written_whole_or_not_at_all(url):
  write(f'{url}/a', b'old')
  with pytest.raises(KeyboardInterrupt), places.new_file(f'{url}/a') as file:
    file.write(b'new')
    raise KeyboardInterrupt
  with places.reading(f'{url}/a') as file:
    assert file.read() == b'old'
  assert places.names_in(url) == {'a'}


def test_copies_of_urls_come_in_order_and_go(url):
  numbers = range(3 * places._AT_ONCE)
  for number in numbers:
    write(f'{url}/{number:02}.npz', str(number).encode())
  found = places.find(url, ('.npz',))
  found.insert(5, places.Found(f'{url}/x.npz', f'{url}/x.npz', ''))
  read, paths = [], []
  for file, path, fault in places.local_copies(found):
    if fault:
      assert 'x.npz: cannot be read (FileNotFound' in fault and not path
      continue
    assert os.path.basename(path) == os.path.basename(file.name)
    assert len(paths) == 0 or not os.path.exists(paths[-1])
    paths.append(path)
    with open(path) as copy:
      read.append(int(copy.read()))
  assert read == list(numbers)
  assert not any(map(os.path.exists, paths))


def test_files_of_this_machine_are_not_copied(folder):
  found = places.find(str(folder), ('.npz',))
  assert [path for _, path, _ in places.local_copies(found)] == [
      file.path for file in found]
  assert (folder / 'a.npz').exists()


def test_a_protocol_that_nobody_knows():
  pytest.importorskip('fsspec', reason='needs the extra [scale]')
  with pytest.raises(UserError, match=r'not known: nosuch.*fsspec knows'):
    places.start_of('nosuch://bucket/a', 4)


def test_without_fsspec_a_url_says_what_to_install(folder, monkeypatch):
  def without(name, *args, **kwargs):
    if name == 'fsspec':
      raise ImportError(name)
    return imported(name, *args, **kwargs)

  imported = builtins.__import__
  monkeypatch.setattr(builtins, '__import__', without)
  with pytest.raises(UserError, match=r'gs://b/a: .*-e "\.\[scale\]"'):
    places.find('gs://b/a', ())
  assert names(places.find(str(folder), ('.npz',))) == ['a.npz', 'b.npz']
