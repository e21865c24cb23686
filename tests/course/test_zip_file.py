"""Packing a hand-in, and refusing what must not be unpacked."""

import errno
import hashlib
import json
import os
import pathlib
import stat
import zipfile

import pytest

from tpu_graphs_ext.course import verify, zip_file
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError

RUN_INFO = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}
HASH = artifacts.train_hash(RUN_INFO['args'])


@pytest.fixture
def handed_in(tmp_path):
  """A model folder with its run file, and a models.py."""
  model_dir = tmp_path / 'out' / f'model_{HASH}'
  (model_dir / 'variables').mkdir(parents=True)
  (model_dir / 'saved_model.pb').write_bytes(b'graph')
  (model_dir / 'variables' / 'variables.index').write_bytes(b'index')
  artifacts.save_run_file(RUN_INFO, str(tmp_path / 'out'))
  (tmp_path / 'mine.py').write_text('# mine\n')
  return model_dir


@pytest.fixture
def verdicts(monkeypatch, handed_in, tmp_path):
  """Verdicts that `verify` gives, one a call; the calls are kept."""
  given, calls = [], []

  def fake(model_dir, **kwargs):
    calls.append(kwargs)
    changes = given.pop(0) if given else {}
    return verify.Verdict(str(handed_in), str(tmp_path / 'mine.py'),
                          run_info=RUN_INFO, **changes)

  monkeypatch.setattr(verify, 'verify', fake)
  return given, calls


@pytest.fixture
def packed(handed_in, verdicts, tmp_path):
  """Path of a submission."""
  path = str(tmp_path / 'sub' / 'submission.zip')
  zip_file.package(str(handed_in), path)
  return path


def test_names_and_round_trip(packed, handed_in, tmp_path):
  with zipfile.ZipFile(packed) as archive:
    names = archive.namelist()
    manifest = json.loads(archive.read('MANIFEST.json'))
  assert sorted(names) == sorted([
      'MANIFEST.json', 'models.py', f'run_{HASH}.jsonz',
      f'model_{HASH}/saved_model.pb',
      f'model_{HASH}/variables/variables.index'])
  assert manifest['files']['models.py'] == {
      'sha256': hashlib.sha256(b'# mine\n').hexdigest(), 'bytes': 7}
  assert (manifest['model'], manifest['toy_data']) == ('M', False)
  assert set(manifest['files']) == set(names) - {'MANIFEST.json'}
  model_dir, models_py = zip_file.unpack(packed, str(tmp_path / 'there'))
  assert artifacts.load_run(model_dir).info == RUN_INFO
  assert pathlib.Path(models_py).read_text() == '# mine\n'
  index = pathlib.Path(model_dir, 'variables', 'variables.index')
  assert index.read_text() == 'index'
  # The same hand-in gives the same bytes.
  first = pathlib.Path(packed).read_bytes()
  os.utime(handed_in / 'saved_model.pb', (1, 1))
  zip_file.package(str(handed_in), packed)
  assert pathlib.Path(packed).read_bytes() == first


def test_a_failed_hand_in_is_not_packed(handed_in, verdicts, tmp_path):
  verdicts[0].append({'faults': ['one', 'two']})
  with pytest.raises(UserError, match='not packed, because\n  one\n  two'):
    zip_file.package(str(handed_in), str(tmp_path / 'sub' / 'x.zip'))
  assert not os.path.exists(tmp_path / 'sub')
  with pytest.raises(UserError, match='is a folder; name a'):
    zip_file.package(str(handed_in), str(tmp_path))


def test_toy_data_is_packed_only_when_forced(handed_in, verdicts, tmp_path):
  given, calls = verdicts
  toy, path = {'faults': ['toy'], 'toy_trained': True}, str(tmp_path / 'x.zip')
  given.append(toy)
  with pytest.raises(UserError, match=r'not packed \(--force packs it all'):
    zip_file.package(str(handed_in), path)
  given += [{'faults': ['toy'], 'toy_trained': True}, {}]
  zip_file.package(str(handed_in), path, force=True)
  assert calls[-1]['toy_data'] is True
  with zipfile.ZipFile(path) as archive:
    assert json.loads(archive.read('MANIFEST.json'))['toy_data'] is True
  # Other faults than toy data stay faults.
  given += [{'faults': ['toy'], 'toy_trained': True}, {'faults': ['NaN']}]
  with pytest.raises(UserError, match='NaN'):
    zip_file.package(str(handed_in), path, force=True)


def test_a_package_is_whole_or_absent(
    packed, handed_in, tmp_path, monkeypatch):
  before = pathlib.Path(packed).read_bytes()

  def fails(*unused):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(zipfile.ZipFile, 'writestr', fails)
  with pytest.raises(UserError,
                     match=r'cannot be written .* free some space'):
    zip_file.package(str(handed_in), packed)
  assert pathlib.Path(packed).read_bytes() == before
  assert os.listdir(os.path.dirname(packed)) == ['submission.zip']


def test_another_zip_is_not_replaced(handed_in, verdicts, tmp_path):
  path = tmp_path / 'mine.zip'
  for name in ('photos.txt', 'MANIFEST.json'):
    with zipfile.ZipFile(path, 'w') as archive:
      archive.writestr(name, 'mine')
    before = path.read_bytes()
    with pytest.raises(UserError, match='was not written by `package`'):
      zip_file.package(str(handed_in), str(path))
    assert path.read_bytes() == before


# --------------------------------------------------------------- unpacking


def rewritten(path: str, change, method: int = zipfile.ZIP_STORED) -> str:
  """A copy of the archive; `change` changes name -> content."""
  with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  change(members)
  with zipfile.ZipFile(path + '.new', 'w', method) as archive:
    for name, content in members.items():
      archive.writestr(name, content)
  return path + '.new'


def refused(path: str, tmp_path, *parts: str) -> None:
  """Nothing at all is unpacked, and the message says all of it."""
  target = tmp_path / 'deep' / 'target'
  with pytest.raises(UserError) as error:
    zip_file.unpack(path, str(target))
  for part in parts:
    assert part in str(error.value)
  assert not target.exists()
  assert not list(tmp_path.rglob('evil*'))


def test_paths_outside_the_target_and_other_odd_names(packed, tmp_path):
  for name in ('../evil', 'model_x/../../evil', '/tmp/evil', '..\\evil',
               'C:evil', './evil', 'a//evil', '..', 'evil\n', 300 * 'n'):
    path = rewritten(packed, lambda members, name=name: members.update(
        {name: b'x'}))
    refused(path, tmp_path, 'may lie outside the target folder')


@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_links_doubles_and_encryption(packed, tmp_path):
  link = zipfile.ZipInfo('evil')
  link.external_attr = (stat.S_IFLNK | 0o777) << 16
  with zipfile.ZipFile(packed, 'a') as archive:
    archive.writestr(link, '/etc/passwd')
    archive.writestr('MODELS.py', 'x')
  refused(packed, tmp_path, "'evil' is a link or a special file",
          "'MODELS.py' is there twice")
  data = bytearray(pathlib.Path(packed).read_bytes())
  data[data.index(b'PK\x01\x02') + 8] |= 1  # The first of the directory.
  pathlib.Path(packed).write_bytes(data)
  refused(packed, tmp_path, 'is encrypted')


@pytest.mark.parametrize('method', [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions(packed, tmp_path, method):
  path = rewritten(packed, lambda members: None, method)
  refused(path, tmp_path, f"'models.py' is encrypted, or compressed by method "
          f'{method}')


def test_large_members_are_not_unpacked(packed, tmp_path, monkeypatch):
  """By what the archive declares, and by what the manifest says."""
  path = rewritten(packed,
                   lambda members: members.update({'models.py': bytes(5000)}),
                   zipfile.ZIP_DEFLATED)
  opened = []
  real_open = zipfile.ZipFile.open
  monkeypatch.setattr(zipfile.ZipFile, 'open', lambda self, name, *rest: (
      opened.append(getattr(name, 'filename', name))
      or real_open(self, name, *rest)))
  refused(path, tmp_path, 'models.py has 5,000 bytes, but MANIFEST.json says 7')
  assert 'models.py' not in opened
  opened.clear()
  monkeypatch.setattr(zip_file, 'MAX_FILE_BYTES', 4999)
  refused(path, tmp_path, "'models.py' has 5,000 bytes; 4,999 are allowed")
  assert not opened
  monkeypatch.setattr(zip_file, 'MAX_FILES', 4)
  refused(path, tmp_path, 'unpacks to', 'that is not a hand-in')


def test_every_difference_to_the_manifest_is_named(packed, tmp_path):
  def change(members):
    members['models.py'] = b'# nine\n'
    members[f'model_{HASH}/saved_model.pb'] = b'longer graph'
    members['more'] = b''
    del members[f'run_{HASH}.jsonz']

  refused(rewritten(packed, change), tmp_path,
          'models.py has the SHA-256 sum', 'more is not listed in',
          'saved_model.pb has 12 bytes, but MANIFEST.json says 5',
          f'run_{HASH}.jsonz is missing, which MANIFEST.json lists')


@pytest.mark.parametrize('manifest, message', [
    (None, 'its MANIFEST.json is missing'), ('{', 'is not JSON'),
    ('[]', 'is damaged: it has no object `files`'),
    (100_000 * '[', 'is not JSON'),
    ('{"format": 1, "files": []}', 'is damaged: it has no object `files`'),
    ('{"format": NaN, "run_hash": "a", "files": {}}', 'another format than 1'),
    ('{"format": 2, "run_hash": "a", "files": {}}', 'another format than 1'),
    ('{"format": 1, "run_hash": "../a", "files": {}}',
     "run_hash must be letters and digits, got '../a'"),
    ('{"format": 1, "run_hash": "a", "files": {"x": {"bytes": 1e400}}}',
     "files, 'x' must have sha256 and bytes, got {'bytes': inf}"),
    ((1 << 20) * ' ' + '{}', 'has 1,048,578 bytes; 1,048,576 are allowed'),
    ('{"format": 1, "run_hash": "a", "files": {}}',
     'models.py is missing, which every hand-in has')])
def test_bad_manifest(packed, tmp_path, manifest, message):
  def change(members):
    del members['MANIFEST.json']
    if manifest:
      members['MANIFEST.json'] = manifest

  refused(rewritten(packed, change), tmp_path, message)


def test_what_is_not_a_zip_file(packed, tmp_path):
  os.mkfifo(tmp_path / 'pipe.zip')
  for name in ('', 'pipe.zip'):
    refused(str(tmp_path / name), tmp_path, 'is no ordinary file')
  (tmp_path / 'a.zip').write_bytes(b'PK not a zip')
  refused(str(tmp_path / 'a.zip'), tmp_path, 'is not a whole zip file')
  refused(str(tmp_path / 'no.zip'), tmp_path, 'No such file')
  content = pathlib.Path(packed).read_bytes()
  pathlib.Path(packed).write_bytes(content[:-30])
  refused(packed, tmp_path, 'is not a whole zip file')
