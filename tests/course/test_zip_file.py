"""Packing a hand-in, and refusing what must not be unpacked."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import shutil
import stat
import zipfile

import numpy as np
import pytest

from support import damage
from tpu_graphs_ext.course import verify, zip_file
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE

RUN_INFO = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}
HASH = TILE.train_hash(RUN_INFO['args'])


@pytest.fixture
def verdict(monkeypatch, tmp_path):
  """What `verify` finds of a model folder with its run file, and models.py."""
  model_dir = tmp_path / 'out' / f'model_{HASH}'
  (model_dir / 'variables').mkdir(parents=True)
  (model_dir / 'saved_model.pb').write_bytes(b'graph')
  (model_dir / 'variables' / 'variables.index').write_bytes(b'index')
  artifacts.save_run_file(RUN_INFO, str(tmp_path / 'out'), TILE)
  (tmp_path / 'mine.py').write_text('# mine\n')
  verdict = verify.Verdict(
      str(model_dir), str(tmp_path / 'mine.py'), run_info=RUN_INFO)
  monkeypatch.setattr(verify, 'verify', lambda *_, **__: verdict)
  return verdict


@pytest.fixture
def packed(verdict, tmp_path):
  """Path of a submission."""
  path = str(tmp_path / 'sub' / 'submission.zip')
  zip_file.package(verdict.model_dir, path)
  return path


def test_names_and_round_trip(packed, verdict, tmp_path):
  with zipfile.ZipFile(packed) as archive:
    names = archive.namelist()
    manifest = json.loads(archive.read('MANIFEST.json'))
  assert sorted(names) == sorted([
      'MANIFEST.json', 'models.py', f'run_{HASH}.jsonz',
      f'model_{HASH}/saved_model.pb',
      f'model_{HASH}/variables/variables.index'])
  assert manifest['files']['models.py'] == {
      'sha256': hashlib.sha256(b'# mine\n').hexdigest(), 'bytes': 7}
  assert manifest['graded_by'] == 'tpu_graphs_ext'
  assert set(manifest['files']) == set(names) - {'MANIFEST.json'}
  model_dir, models_py = zip_file.unpack(packed, str(tmp_path / 'there'))
  assert artifacts.load_run(model_dir, TILE).info == RUN_INFO
  assert pathlib.Path(models_py).read_text() == '# mine\n'
  # The same hand-in gives the same bytes.
  first = pathlib.Path(packed).read_bytes()
  os.utime(f'{verdict.model_dir}/saved_model.pb', (1, 1))
  zip_file.package(verdict.model_dir, packed)
  assert pathlib.Path(packed).read_bytes() == first


def test_a_package_is_whole_or_absent(packed, verdict, monkeypatch):
  before = pathlib.Path(packed).read_bytes()

  def fails(*unused):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(zipfile.ZipFile, 'writestr', fails)
  with pytest.raises(UserError, match=r'cannot be written'):
    zip_file.package(verdict.model_dir, packed)
  assert pathlib.Path(packed).read_bytes() == before
  assert os.listdir(os.path.dirname(packed)) == ['submission.zip']


def test_what_is_not_packed_or_replaced(verdict, tmp_path):
  path = tmp_path / 'mine.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('MANIFEST.json', 'mine')
  before = path.read_bytes()
  for out in (path, tmp_path):
    with pytest.raises(UserError, match='was not written by `package`'):
      zip_file.package(verdict.model_dir, str(out))
  assert path.read_bytes() == before
  verdict.faults += ['one', 'two']
  with pytest.raises(UserError, match='not packed, because\n  one\n  two'):
    zip_file.package(verdict.model_dir, str(tmp_path / 'sub' / 'x.zip'))
  assert not os.path.exists(tmp_path / 'sub')
  verdict.faults.clear()
  os.symlink(path, f'{verdict.model_dir}/variables/vocab.txt')
  with pytest.raises(UserError, match=r'variables/vocab\.txt: is a link, a d'):
    zip_file.package(verdict.model_dir, str(tmp_path / 'sub' / 'x.zip'))
  assert not os.listdir(tmp_path / 'sub')


def test_names_that_can_be_unpacked(verdict, tmp_path):
  """A folder renamed by hand, and again with an odd name."""
  out = tmp_path / 'out'
  for name in ('my-best. 2', 'größte', 'a' * 200):
    (run_file,) = out.glob('run_*')
    run_file.rename(out / f'run_{name}.jsonz')
    model_dir = pathlib.Path(verdict.model_dir).rename(out / f'model_{name}')
    verdict.model_dir, path = str(model_dir), str(tmp_path / 'x.zip')
    if 'best' in name:
      for _ in range(2):  # It may be replaced.
        zip_file.package(verdict.model_dir, path)
      assert zip_file.unpack(path, str(tmp_path / 'there'))[0].endswith(name)
    else:
      with pytest.raises(UserError, match=f'run_{name}.* cannot be packed'):
        zip_file.package(verdict.model_dir, path)
  with pytest.raises(UserError, match='is inside the model folder'):
    zip_file.package(verdict.model_dir, f'{verdict.model_dir}/assets/x.zip')


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


@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_links_and_doubles(packed, tmp_path):
  link = zipfile.ZipInfo('evil')
  link.external_attr = (stat.S_IFLNK | 0o777) << 16
  with zipfile.ZipFile(packed, 'a') as archive:
    archive.writestr(link, '/etc/passwd')
    archive.writestr('models.py', '# mine\n')
  refused(packed, tmp_path, "'evil' is not once", "'models.py' is not once")


def test_large_and_lzma_members_are_not_unpacked(packed, tmp_path, monkeypatch):
  refused(rewritten(packed, lambda members: None, zipfile.ZIP_LZMA), tmp_path,
          'its files must be stored or deflated')
  monkeypatch.setattr(zip_file, 'MAX_BYTES', 10)
  refused(packed, tmp_path, 'have at most 10 bytes')


def test_every_difference_to_the_manifest_is_named(packed, tmp_path):
  def change(members):
    members['models.py'] = b'# nine\n'
    members[f'model_{HASH}/saved_model.pb'] = b'longer graph'
    members['more'] = b''
    del members[f'run_{HASH}.jsonz']

  refused(rewritten(packed, change), tmp_path,
          "'models.py' has another size or SHA-256 sum",
          "saved_model.pb' has another size or SHA-256 sum",
          "'more' is not once", f"'run_{HASH}.jsonz' is not once")


def test_bad_manifest(packed, tmp_path):
  for manifest, message in (
      (None, "There is no item named 'MANIFEST.json'"),
      ('[]', 'is not a whole hand-in'), (100_000 * '[', 'recursion'),
      ('{"format": NaN, "run_hash": "a", "files": {}}', 'must have format 1'),
      ('{"format": 1, "run_hash": "../a", "files": {}}', 'must have format 1'),
      ('{"format": 1, "run_hash": "a", "files": {"models.py": {}}}', 'bytes')):
    def change(members, manifest=manifest):
      del members['MANIFEST.json']
      if manifest:
        members['MANIFEST.json'] = manifest

    refused(rewritten(packed, change), tmp_path, message)


# ----------------------------------------------------------------- damaged


def unpacked(path: str, folder) -> dict[str, bytes] | None:
  """What comes out; None where nothing does."""
  out = pathlib.Path(folder) / 'out'
  shutil.rmtree(out, ignore_errors=True)
  before = {*os.listdir(folder), 'out'}
  with damage.within_limits(path):
    try:
      zip_file.unpack(path, str(out))
    except UserError as error:
      assert path in str(error)
      assert not out.exists()
      return None
  assert set(os.listdir(folder)) <= before
  return {str(path.relative_to(out)): path.read_bytes()
          for path in out.rglob('*') if path.is_file()}


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize('rounds', [
    200, pytest.param(3000, marks=pytest.mark.survive)])
def test_damaged_submissions(packed, tmp_path, rounds):
  sound, whole = unpacked(packed, tmp_path), pathlib.Path(packed).read_bytes()
  assert len(sound) == 4  # The manifest stays in the archive.
  for seed in range(rounds):
    pathlib.Path(packed).write_bytes(
        damage.mutated(whole, np.random.default_rng(seed)))
    unpacked_files = unpacked(packed, tmp_path)
    assert unpacked_files is None or unpacked_files == sound, seed
