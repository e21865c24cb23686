"""The download script, with archives in a folder here as its server."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile

import pytest

from support.places import PROJECT
from tpu_graphs_ext.data import schema

SCRIPT = PROJECT / 'run_scripts/download_data.sh'
TRAIN = 'npz_tile_xla_train.tar'


def archive(split: str, number: int) -> bytes:
  """A tar of that many kernels, laid out as the published ones."""
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode='w') as tar:
    folder = tarfile.TarInfo(f'npz/tile/xla/{split}')
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(folder)
    for i in range(number):
      tar.addfile(tarfile.TarInfo(f'npz/tile/xla/{split}/net_{i}.npz'))
  return stream.getvalue()


@pytest.fixture
def server(tmp_path):
  server = tmp_path / 'server'
  server.mkdir()
  for split, number in schema.PUBLISHED_KERNELS.items():
    (server / f'npz_tile_xla_{split}.tar').write_bytes(archive(split, number))
  return server


def download(server, folder):
  """Runs the script; returns (exit code, stdout, stderr)."""
  done = subprocess.run(
      ['bash', str(SCRIPT), str(folder)], capture_output=True, text=True,
      check=False, env={**os.environ, 'TPU_GRAPHS_URL': f'file://{server}'})
  return done.returncode, done.stdout, done.stderr


def test_from_half_a_file_then_again_then_one_missing(server, tmp_path):
  folder = tmp_path / 'data'
  folder.mkdir()
  (folder / TRAIN).write_bytes((server / TRAIN).read_bytes()[:10_000])
  code, output, error = download(server, folder)
  assert code == 0, error
  assert f'{TRAIN} (' in output and ' bytes, 10000 are here) ...' in output
  assert output.endswith(
      'train: 5709 kernels\nvalid: 676 kernels\ntest: 844 kernels\n'
      f'data root: {folder}/npz/tile/xla\n')
  # A second call asks for nothing, and one that has to unpack not for bytes.
  (folder / 'npz/tile/xla/train').rename(tmp_path / 'train')
  (folder / 'npz/tile/xla/train').symlink_to(tmp_path / 'train')
  shutil.move(server, tmp_path / 'away')
  assert download(server, folder)[0] == 0
  shutil.move(tmp_path / 'away', server)
  next((folder / 'npz/tile/xla/test').iterdir()).unlink()
  code, output, _ = download(server, folder)
  assert code == 0 and 'Downloading' not in output
  assert len(list((folder / 'npz/tile/xla/test').iterdir())) == 844
  assert not list(folder.glob('*.tmp'))


@pytest.mark.parametrize('content, message', [
    (archive('train', 7), 'holds 7 kernels and should hold 5709'),
    (b'<html>not here</html>',
     'cannot be unpacked; delete it and start again'),
    (None, 'cannot be reached; check the network')])
def test_an_archive_that_is_wrong_or_missing(
    server, tmp_path, content, message):
  (server / TRAIN).unlink()
  if content:
    (server / TRAIN).write_bytes(content)
  code, _, error = download(server, tmp_path)
  assert code == 1 and message in error
  assert not (tmp_path / 'npz/tile/xla/train').exists()
