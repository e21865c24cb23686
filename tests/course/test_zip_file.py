"""Packing a hand-in, and refusing what must not be unpacked."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import zipfile

import hypothesis
import numpy as np
import pytest

from support import damage
from tpu_graphs_ext.course import verify, zip_file
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError

RUN_INFO = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}
HASH = artifacts.train_hash(RUN_INFO['args'])


def verdict_in(folder) -> verify.Verdict:
  """Of a model folder with its run file, and a models.py."""
  model_dir = folder / 'out' / f'model_{HASH}'
  (model_dir / 'variables').mkdir(parents=True)
  (model_dir / 'saved_model.pb').write_bytes(b'graph')
  (model_dir / 'variables' / 'variables.index').write_bytes(b'index')
  artifacts.save_run_file(RUN_INFO, str(folder / 'out'))
  (folder / 'mine.py').write_text('# mine\n')
  return verify.Verdict(
      str(model_dir), str(folder / 'mine.py'), run_info=RUN_INFO)


@pytest.fixture
def verdict(monkeypatch, tmp_path):
  """What `verify` finds."""
  verdict = verdict_in(tmp_path)
  monkeypatch.setattr(verify, 'verify', lambda *_, **__: verdict)
  return verdict


@pytest.fixture
def handed_in(verdict):
  return pathlib.Path(verdict.model_dir)


@pytest.fixture
def packed(handed_in, tmp_path):
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


def test_a_failed_hand_in_is_not_packed(handed_in, verdict, tmp_path):
  verdict.faults += ['one', 'two']
  with pytest.raises(UserError, match='not packed, because\n  one\n  two'):
    zip_file.package(str(handed_in), str(tmp_path / 'sub' / 'x.zip'))
  assert not os.path.exists(tmp_path / 'sub')
  with pytest.raises(UserError, match='is a folder; name a'):
    zip_file.package(str(handed_in), str(tmp_path))


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


def test_another_zip_is_not_replaced(handed_in, verdict, tmp_path):
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


def listed(members: dict[str, bytes], name: str) -> None:
  """Adds a file that the manifest lists."""
  members[name] = b'x'
  manifest = json.loads(members['MANIFEST.json'])
  manifest['files'][name] = {
      'sha256': hashlib.sha256(b'x').hexdigest(), 'bytes': 1}
  members['MANIFEST.json'] = json.dumps(manifest).encode()


def test_paths_outside_the_target_and_other_odd_names(packed, tmp_path):
  for name in ('../evil', 'model_x/../../evil', '/tmp/evil', '..\\evil',
               'C:evil', './evil', 'a//evil', '..', 'evil\n', 300 * 'n'):
    path = rewritten(packed, lambda members, name=name: listed(members, name))
    refused(path, tmp_path, 'may lie outside the target folder')
    path = rewritten(packed, lambda members, name=name: members.update(
        {name: b'x'}))
    refused(path, tmp_path, 'is not listed in')


@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_links_doubles_and_encryption(packed, tmp_path):
  """A link that the manifest lists becomes an ordinary file."""
  link = zipfile.ZipInfo('evil')
  link.external_attr = (stat.S_IFLNK | 0o777) << 16
  with zipfile.ZipFile(packed, 'a') as archive:
    archive.writestr(link, '/etc/passwd')
    archive.writestr('models.py', '# mine\n')
  refused(packed, tmp_path, "'evil' is not listed", "'models.py' is not listed "
          'in MANIFEST.json, or is there twice')
  data = bytearray(pathlib.Path(packed).read_bytes())
  for start in (b'PK\x01\x02', b'PK\x03\x04'):  # The first file's headers.
    data[data.index(start) + (8 if start[2] == 1 else 6)] |= 1
  pathlib.Path(packed).write_bytes(data)
  refused(packed, tmp_path, 'is encrypted')


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
  monkeypatch.setattr(zip_file, 'MAX_BYTES', 10)
  refused(path, tmp_path, 'its files have', 'and 10 are allowed')


def test_every_difference_to_the_manifest_is_named(packed, tmp_path):
  def change(members):
    members['models.py'] = b'# nine\n'
    members[f'model_{HASH}/saved_model.pb'] = b'longer graph'
    members['more'] = b''
    del members[f'run_{HASH}.jsonz']

  refused(rewritten(packed, change), tmp_path,
          'models.py has another SHA-256 sum', "'more' is not listed in",
          'saved_model.pb has 12 bytes, but MANIFEST.json says 5',
          f'run_{HASH}.jsonz is missing, which MANIFEST.json lists')


@pytest.mark.parametrize('manifest, message', [
    (None, "There is no item named 'MANIFEST.json'"),
    ('[]', 'is damaged'), (100_000 * '[', 'is not JSON'),
    ('{"format": NaN, "run_hash": "a", "files": {}}', 'must be 1, got nan'),
    ('{"format": 1, "run_hash": "../a", "files": {}}',
     "run_hash must be letters and digits, got '../a'"),
    ('{"format": 1, "run_hash": "a", "files": {"x": {"bytes": 1e400}}}',
     "'x' must have sha256 and bytes, got {'bytes': inf}"),
    ((1 << 20) * ' ' + '{}', 'has more than 1,048,576 bytes')])
def test_bad_manifest(packed, tmp_path, manifest, message):
  def change(members):
    del members['MANIFEST.json']
    if manifest:
      members['MANIFEST.json'] = manifest

  refused(rewritten(packed, change), tmp_path, message)


def test_what_is_not_a_zip_file(packed, tmp_path):
  os.mkfifo(tmp_path / 'pipe.zip')
  (tmp_path / 'a.zip').write_bytes(b'PK not a zip')
  content = pathlib.Path(packed).read_bytes()
  pathlib.Path(packed).write_bytes(content[:-30])
  for path, reason in ((tmp_path, 'is not an ordinary file'),
                       (tmp_path / 'pipe.zip', 'is not an ordinary file'),
                       (tmp_path / 'no.zip', 'No such file'),
                       (tmp_path / 'a.zip', 'is not a whole hand-in'),
                       (packed, 'is not a whole hand-in')):
    refused(str(path), tmp_path, reason)


# ----------------------------------------------------------------- damaged


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> bytes:
  """A submission."""
  content = io.BytesIO()
  zip_file.write(content, verdict_in(tmp_path_factory.mktemp('packed')))
  return content.getvalue()


def unpacked(folder, content: bytes) -> dict[str, bytes] | None:
  """What comes out; None where nothing does."""
  path, out = folder / 'x.zip', folder / 'out'
  path.write_bytes(content)
  shutil.rmtree(out, ignore_errors=True)
  before = set(os.listdir(folder)) | {'out'}
  with damage.within_limits(content[:100]):
    try:
      zip_file.unpack(str(path), str(out))
    except UserError as error:
      assert str(path) in str(error)
      assert not out.exists()
      return None
  assert set(os.listdir(folder)) <= before
  return {str(path.relative_to(out)): path.read_bytes()
          for path in pathlib.Path(out).rglob('*') if path.is_file()}


def fuzz(tmp_path, whole: bytes, rounds: int) -> None:
  sound = unpacked(tmp_path, whole)
  assert len(sound) == 4  # The manifest stays in the archive.
  for seed in range(rounds):
    found = unpacked(
        tmp_path, damage.mutated(whole, np.random.default_rng(seed)))
    assert found is None or found == sound, seed


def test_damaged_submissions(tmp_path, whole):
  fuzz(tmp_path, whole, 200)


@pytest.mark.survive
def test_many_damaged_submissions(tmp_path, whole):
  fuzz(tmp_path, whole, 3000)


def rebuilt(whole: bytes, folder, change, method=zipfile.ZIP_STORED) -> bytes:
  """The submission with another manifest, or compressed by another method."""
  new = folder / 'new.zip'
  with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(
      new, 'w', method) as changed:
    for name in archive.namelist():
      content = archive.read(name)
      if name == zip_file.MANIFEST_NAME:
        content = change(content)
      changed.writestr(name, content)
  return new.read_bytes()


PATHS = hypothesis.strategies.lists(
    hypothesis.strategies.integers(0, 9), max_size=3)


def with_other_manifest(folder, whole, path, value) -> None:
  unpacked(folder, rebuilt(whole, folder, lambda content: json.dumps(
      damage.with_something_else(json.loads(content), path, value)).encode()))


@damage.examples(50)
@hypothesis.given(path=PATHS, value=damage.JSON)
def test_any_manifest(tmp_path_factory, whole, path, value):
  with_other_manifest(tmp_path_factory.mktemp('any'), whole, path, value)


@pytest.mark.survive
@damage.examples(1000)
@hypothesis.given(path=PATHS, value=damage.JSON)
def test_many_manifests(tmp_path_factory, whole, path, value):
  with_other_manifest(tmp_path_factory.mktemp('many'), whole, path, value)


@pytest.mark.parametrize('method', [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions(tmp_path, whole, method):
  content = rebuilt(whole, tmp_path, lambda manifest: manifest, method)
  assert unpacked(tmp_path, content) is None
  for seed in range(50):
    unpacked(tmp_path, damage.mutated(content, np.random.default_rng(seed)))
