"""Damaged submissions: an error, or the files that were packed."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
import zipfile

import hypothesis
import numpy as np
import pytest

from support import damage
from tpu_graphs_ext.course import verify, zip_file
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.errors import UserError

RUN = {'args': {'model': 'M', 'model_kwargs_json': '{}', 'configs': 2}}
HASH = artifacts.train_hash(RUN['args'])


@pytest.fixture(scope='module')
def packed(tmp_path_factory) -> bytes:
  """A submission."""
  folder = tmp_path_factory.mktemp('packed')
  model_dir = folder / f'model_{HASH}'
  (model_dir / 'variables').mkdir(parents=True)
  (model_dir / 'saved_model.pb').write_bytes(b'graph' * 50)
  (model_dir / 'variables' / 'variables.index').write_bytes(b'index')
  artifacts.save_run_file(RUN, str(folder))
  (folder / 'models.py').write_text('# mine\n')
  content = io.BytesIO()
  zip_file.write(content, verify.Verdict(
      str(model_dir), str(folder / 'models.py'), run_info=RUN))
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


def fuzz(tmp_path, packed: bytes, rounds: int) -> None:
  sound = unpacked(tmp_path, packed)
  assert len(sound) == 4  # The manifest stays in the archive.
  for seed in range(rounds):
    found = unpacked(
        tmp_path, damage.mutated(packed, np.random.default_rng(seed)))
    assert found is None or found == sound, seed


def test_damaged_submissions(tmp_path, packed):
  fuzz(tmp_path, packed, 200)


@pytest.mark.survive
def test_many_damaged_submissions(tmp_path, packed):
  fuzz(tmp_path, packed, 3000)


def rebuilt(packed: bytes, folder, change, method=zipfile.ZIP_STORED) -> bytes:
  """The submission with another manifest, or compressed by another method."""
  new = folder / 'new.zip'
  with zipfile.ZipFile(io.BytesIO(packed)) as archive, zipfile.ZipFile(
      new, 'w', method) as changed:
    for name in archive.namelist():
      content = archive.read(name)
      if name == zip_file.MANIFEST_NAME:
        content = change(content)
      changed.writestr(name, content)
  return new.read_bytes()


PATHS = hypothesis.strategies.lists(
    hypothesis.strategies.integers(0, 9), max_size=3)


def with_other_manifest(folder, packed, path, value) -> None:
  unpacked(folder, rebuilt(packed, folder, lambda content: json.dumps(
      damage.with_something_else(json.loads(content), path, value)).encode()))


@damage.examples(50)
@hypothesis.given(path=PATHS, value=damage.JSON)
def test_any_manifest(tmp_path_factory, packed, path, value):
  with_other_manifest(tmp_path_factory.mktemp('any'), packed, path, value)


@pytest.mark.survive
@damage.examples(1000)
@hypothesis.given(path=PATHS, value=damage.JSON)
def test_many_manifests(tmp_path_factory, packed, path, value):
  with_other_manifest(tmp_path_factory.mktemp('many'), packed, path, value)


@pytest.mark.parametrize('method', [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions(tmp_path, packed, method):
  content = rebuilt(packed, tmp_path, lambda manifest: manifest, method)
  assert unpacked(tmp_path, content) is None
  for seed in range(50):
    unpacked(tmp_path, damage.mutated(content, np.random.default_rng(seed)))
