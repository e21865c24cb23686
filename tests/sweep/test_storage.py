"""Finding files by paths and by URLs, and reading those that are elsewhere."""

import os
import uuid

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import rank_many

fsspec = pytest.importorskip('fsspec', reason='needs the extra [scale]')


@pytest.fixture(params=['path', 'memory'])
def folder(request, tmp_path):
  """A path or URL with two files that match, one that does not, one deeper."""
  where = {'path': str(tmp_path / 'a'),
           'memory': f'memory:///{uuid.uuid4().hex}'}[request.param]
  for name in ('b.npz', 'a.npz', 'c.txt', 'deep/d.npz'):
    write(f'{where}/{name}', name.encode())
  return where


def write(path, content):
  system, inner = fsspec.core.url_to_fs(path)
  system.makedirs(os.path.dirname(inner), exist_ok=True)
  system.pipe_file(inner, content)


def names(pattern):
  return [os.path.basename(file.name)
          for file in rank_many.find(pattern, ('.npz',))]


def test_files_that_are_found(folder):
  for pattern, expected in (
      ('', ['a.npz', 'b.npz']),  # A folder: files with the ending, no deeper.
      ('/c.txt', ['c.txt']), ('/[ab]*', ['a.npz', 'b.npz']),
      ('/**/*.npz', ['a.npz', 'b.npz', 'd.npz'])):
    assert names(folder + pattern) == expected
  for pattern in ('/no_such', '/*.zip'):
    with pytest.raises(UserError, match=r'no such file, or no file in this '
                       r'folder that ends with \.npz; others are named by'):
      names(folder + pattern)


def test_a_saved_model_is_one_program_with_its_folder(folder):
  for name in ('saved_model.pb', 'fingerprint.pb', 'variables/variables.index'):
    write(f'{folder}/deep/{name}', name.encode())
  for pattern in 'deep', 'deep/saved_model.pb':
    file, = rank_many.find(f'{folder}/{pattern}', ('.npz', '.pb'))
    assert file.name == f'{folder}/deep/saved_model.pb'
  assert names(f'{folder}/deep') == ['d.npz']  # No programs are asked for.
  with rank_many.local_copy(file) as path:
    inner = os.path.join(os.path.dirname(path), 'variables/variables.index')
    assert os.path.isfile(path) and os.path.isfile(inner)


def test_names_are_as_given_and_paths_absolute(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  # Names that look like a pattern, and like a chain of file systems.
  for folder in 'run[1]', 'zip::y':
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'a.npz').write_bytes(b'')
    for name in (folder, f'{folder}/a.npz'):
      file, = rank_many.find(name, ('.npz',))
      assert (file.name, file.path) == (f'{folder}/a.npz',
                                        f'{tmp_path}/{folder}/a.npz')


def test_a_change_of_the_same_age_behind_a_link_is_seen(tmp_path):
  path, link = tmp_path / 'a.npz', tmp_path / 'link.npz'
  path.write_text('a.npz')
  link.symlink_to(path)
  before, times = rank_many.find(str(link), ()), path.stat()
  path.write_text('z.npz')  # As long, and as old:
  os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
  assert rank_many.find(str(link), ()) != before


def test_a_file_elsewhere_is_copied_for_a_while(folder):
  file, = rank_many.find(f'{folder}/a.npz', ())
  with rank_many.local_copy(file) as path, open(path) as copy:
    assert copy.read() == os.path.basename(path) == 'a.npz'
  assert os.path.exists(path) == ('://' not in folder)
  with pytest.raises(UserError, match=r'memory:///x.npz: cannot be read \('):
    with rank_many.local_copy(rank_many.Found('x.npz', 'memory:///x.npz', '')):
      pass
