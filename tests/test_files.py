"""Files and folders that are there whole or not at all, and whose they are."""

import gzip
import json
import os
import subprocess
import sys
import time

import pandas
import pytest

from support import damage
from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

LONG_AGO = time.time() - 48 * 3600


def test_a_file_is_old_or_new(tmp_path):
  path = tmp_path / 'x'
  files.write_file(str(path), b'old')
  with pytest.raises(RuntimeError), files.new_file(str(path)) as file:
    file.write(b'half of the ne')
    raise RuntimeError
  assert path.read_bytes() == b'old'
  with files.new_file(str(path)) as file:
    file.write(b'new')
    assert path.read_bytes() == b'old'
  assert path.read_bytes() == b'new'
  assert os.listdir(tmp_path) == ['x']


def test_a_folder_is_old_or_new(tmp_path):
  path = tmp_path / 'x'
  for content in ('old', 'new'):
    with files.new_folder(str(path), lambda: None) as new:
      (tmp_path / new / 'a').write_text(content)
      if content == 'new':
        assert (path / 'a').read_text() == 'old'
    assert (path / 'a').read_text() == content
  with pytest.raises(RuntimeError), files.new_folder(str(path)) as new:
    raise RuntimeError
  with files.new_folder(str(path)) as new:
    (tmp_path / new / 'a').write_text('too late')
  assert (path / 'a').read_text() == 'new'
  assert os.listdir(tmp_path) == ['x']


def test_nobody_brings_back_a_folder_that_is_being_replaced(
    tmp_path, monkeypatch):
  """Another process tidies between the two renames."""
  rename, left = os.rename, []

  def rename_and_tidy(old, new):
    rename(old, new)
    files._tidied.clear()
    files.remove_leftovers(str(tmp_path))
    left.append(sorted(os.listdir(tmp_path)))

  files.write_file(str(tmp_path / 'x' / 'a'), b'old')
  with files.new_folder(str(tmp_path / 'x'), lambda: None) as new:
    files.write_file(os.path.join(new, 'a'), b'new')
    monkeypatch.setattr(os, 'rename', rename_and_tidy)
  assert [len(names) for names in left] == [2, 2] and 'x' not in left[0]
  assert (tmp_path / 'x' / 'a').read_bytes() == b'new'
  assert os.listdir(tmp_path) == ['x']


def test_paths_that_cannot_be_written(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match=r'file/x: cannot be written \(.*\); ch'):
    files.write_file(str(tmp_path / 'file' / 'x'), b'')
  for path in ('', '  ', None):
    with pytest.raises(UserError, match='--out is empty; name a file or'):
      files.require_path('--out', path)


KILLED = '''
import os, sys, time
from tpu_graphs_ext import files
write = files.new_folder if sys.argv[2] == 'folder' else files.new_file
with write(sys.argv[1]) as new:
  print('there', flush=True)
  time.sleep(60)
'''


@pytest.mark.parametrize('kind', ['file', 'folder'])
def test_what_a_killed_process_left_is_removed(tmp_path, kind):
  process = subprocess.Popen(
      [sys.executable, '-c', KILLED, str(tmp_path / 'x'), kind],
      stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'there\n'
  process.kill()
  process.wait()
  (left,) = tmp_path.iterdir()
  files.write_file(str(tmp_path / 'other'), b'')
  assert left.exists()  # For all we know it is still being written.
  os.utime(left, (LONG_AGO, LONG_AGO))
  files._tidied.clear()
  files.write_file(str(tmp_path / 'other'), b'')
  assert os.listdir(tmp_path) == ['other']


def test_what_is_not_ours_stays_and_what_stepped_aside_returns(tmp_path):
  """The process was killed between two renames of a folder."""
  names = ['x.tmp', 'x.12345678.tmp', 'tpu_graphs_ext.tmp',
           'x.1234567g' + files.TEMPORARY]
  for name in names:
    (tmp_path / name).write_text('')
    os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
  aside = tmp_path / ('x.0123abcd.aside' + files.TEMPORARY)
  aside.mkdir()
  files.remove_leftovers(str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == sorted([*names, 'x'])


def test_a_folder_that_cannot_be_listed_can_be_written(tmp_path, monkeypatch):
  def refuse(path):
    raise PermissionError(13, 'Permission denied', path)

  with monkeypatch.context() as patched:
    patched.setattr(os, 'listdir', refuse)  # As -wx------ does.
    files.write_file(str(tmp_path / 'x'), b'new')
  assert (tmp_path / 'x').read_bytes() == b'new'
  files.remove_leftovers(str(tmp_path / 'no'))
  files.remove_leftovers('a\0b')


def test_csv_cells_that_no_spreadsheet_runs():
  frame = pandas.DataFrame({
      'a': ['=cmd|x', '+1', '\t=1', 'a=1', None], 'b': [-1, -1.5, 2, 3, 4],
      'c': ['@a', '-1', 'b,"c"\nd', '\0', '=HYPERLINK("a")']})
  assert files.csv_of(frame) == (
      "a,b,c\n'=cmd|x,-1.0,'@a\n'+1,-1.5,'-1\n'\t=1,2.0,"
      '"b,""c""\nd"\na=1,3.0,\ufffd\n,4.0,"\'=HYPERLINK(""a"")"\n')


def test_json(tmp_path):
  path = tmp_path / 'x.json'
  path.write_text(json.dumps({'a': [1]}))
  assert files.read_json(str(path)) == {'a': [1]}
  with pytest.raises(UserError, match=r'y\.json: cannot be read'):
    files.read_json(str(tmp_path / 'y.json'))
  for text in ('', '{', '[' * 100_000, 'NaN"', b'\xff{}'):
    with pytest.raises(UserError, match=r'^x\.json: is not JSON, or is cut '):
      files.parse_json(text, 'x.json')
  for text, rule in (
      ('[1' + '0' * 400 + ']', 'has 401 digits; 300 are allowed'),
      ('["\\ud800"]', 'surrogates not allowed'),
      (b'["\\uD83D"]', 'surrogates not allowed')):
    with pytest.raises(UserError, match=rule):
      files.parse_json(text, 'x.json')
  assert files.parse_json(r'["\ud83d\ude00"]', 'x') == ['\U0001f600']


def test_json_of_too_many_values_is_not_parsed(monkeypatch):
  def parsed(*unused, **more_unused):
    raise AssertionError('was parsed')

  text = '[' + '{},' * 5_000_000 + '{}]'  # 15 MB, as objects 360 MB and more.
  monkeypatch.setattr(json, 'loads', parsed)
  for content in (text, text.encode()):
    with pytest.raises(UserError, match=r'about 1\.3 GiB of memory; 1 GiB ar'):
      files.parse_json(content, 'x.json')


def test_only_files_are_replaced(tmp_path):
  (tmp_path / 'mine').write_text('mine')
  os.symlink('mine', tmp_path / 'link')
  os.mkfifo(tmp_path / 'pipe')
  for name in ('link', 'pipe'):
    with pytest.raises(UserError, match='is a link, a folder, a device or a '):
      files.write_file(str(tmp_path / name), b'x')
  assert (tmp_path / 'link').read_text() == 'mine'
  assert sorted(os.listdir(tmp_path)) == ['link', 'mine', 'pipe']


@pytest.fixture
def folder(tmp_path):
  """A folder of files, with an empty folder in it."""
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'x').write_text('one')
  (tmp_path / 'y').write_text('two')
  (tmp_path / 'empty').mkdir()
  return tmp_path


def test_a_file_is_known_by_its_path_and_content(folder):
  known = files.sums(str(folder))
  assert list(known) == ['a/x', 'empty', 'y']
  files.require_own(str(folder), known)
  (folder / 'y').write_text('three')
  with pytest.raises(UserError, match="holds 'y', which this command did not "):
    files.require_own(str(folder), known)
  files.require_own(str(folder), known, ['y'])  # Whatever it holds.
  os.symlink('x', folder / 'a' / 'link')
  for names in (['y'], ['y', 'a/link']):
    with pytest.raises(UserError, match="holds 'a/link', which this command d"):
      files.require_own(str(folder), known, names)
  files.require_own(str(folder / 'new'), {})
  files.require_own(str(folder / 'empty'), {})
  for place in ('y', 'a/link'):
    with pytest.raises(UserError, match='is a link, a file, a device or a pip'):
      files.require_own(str(folder / place), known)


def test_nothing_that_a_stranger_holds_is_read(folder, monkeypatch):
  monkeypatch.setattr(files, 'sha256', lambda path: pytest.fail('was read'))
  os.truncate(folder / 'y', 1 << 40)
  with pytest.raises(UserError, match="holds 'y', which this command did not "):
    files.require_own(str(folder), {'a/x': '0'}, ['a/x', 'empty'])


def test_ordinary_files(folder):
  assert files.ordinary_files(str(folder), 6) == ['a/x', 'y']
  assert files.ordinary_files(str(folder / 'none'), 0) == []
  with pytest.raises(UserError, match='its files have 6 bytes; 5 are allowed'):
    files.ordinary_files(str(folder), 5)
  for make in (lambda path: os.symlink('/dev/zero', path), os.mkfifo,
               lambda path: os.symlink('..', path)):
    make(folder / 'a' / 'z')
    with pytest.raises(UserError, match='a/z: is a link, a device or a pipe'):
      files.ordinary_files(str(folder), 6)
    os.remove(folder / 'a' / 'z')


def test_what_is_read_ends(tmp_path):
  path = tmp_path / 'x'
  path.write_bytes(gzip.compress(b'0' * 1000))
  assert files.read_file(str(path), unpack=True) == b'0' * 1000
  assert files.read_file(str(path)) == path.read_bytes()
  with pytest.raises(UserError, match='it has more than 999 bytes, the most'):
    files.read_file(str(path), 999, unpack=True)
  # Parts one after another are one file: 1.5 GB in 1.5 MB.
  path.write_bytes(96 * gzip.compress(bytes(1 << 24)))
  with damage.within_limits('bomb'), pytest.raises(UserError):
    files.read_file(str(path), unpack=True)
  os.mkfifo(tmp_path / 'pipe')
  for name in ('pipe', '.', 'none', 'nul\0'):
    with pytest.raises(UserError, match='cannot be read'):
      files.read_file(str(tmp_path / name))
