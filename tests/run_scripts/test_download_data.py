"""The download script against a server here that drops connections."""

from __future__ import annotations

import http.server
import io
import os
import re
import subprocess
import tarfile
import threading

import pytest

from support.places import PROJECT
from tpu_graphs_ext.data import schema

SCRIPT = PROJECT / 'run_scripts/download_data.sh'


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


class Server(http.server.ThreadingHTTPServer):
  """Serves `files` by name; knows ranges; sends at most `limit` bytes once."""

  def __init__(self):
    super().__init__(('127.0.0.1', 0), Handler)
    self.files: dict[str, bytes] = {}
    self.limit = 0
    self.asked: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):

  def do_HEAD(self):
    self.do_GET(send=False)

  def do_GET(self, send: bool = True):
    content = self.server.files.get(self.path[1:])
    if content is None:
      self.send_error(404)
      return
    found = re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range', ''))
    start = int(found[1]) if found else 0
    if send:
      self.server.asked.append(f'{self.path[1:]} from {start}')
    self.send_response(206 if found else 200)
    if found:
      self.send_header('Content-Range',
                       f'bytes {start}-{len(content) - 1}/{len(content)}')
    self.send_header('Content-Length', str(len(content) - start))
    self.end_headers()
    if send:
      rest = content[start:]
      if self.server.limit:
        rest, self.server.limit = rest[:self.server.limit], 0
      self.wfile.write(rest)

  def log_message(self, *unused):
    pass


@pytest.fixture(scope='module')
def archives():
  return {f'npz_tile_xla_{split}.tar': archive(split, number)
          for split, number in schema.PUBLISHED_KERNELS.items()}


@pytest.fixture
def server(archives):
  server = Server()
  server.files = dict(archives)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  yield server
  server.shutdown()
  server.server_close()


def download(server, folder):
  """Runs the script; returns (exit code, stdout, stderr)."""
  done = subprocess.run(
      ['bash', str(SCRIPT), str(folder)], capture_output=True, text=True,
      check=False, env={**os.environ, 'no_proxy': '*', 'TPU_GRAPHS_URL':
                        f'http://127.0.0.1:{server.server_port}'})
  return done.returncode, done.stdout, done.stderr


def test_from_nothing_then_again_then_one_file_missing(server, tmp_path):
  code, output, error = download(server, tmp_path)
  assert code == 0, error
  assert output.endswith(
      'train: 5709 kernels\nvalid: 676 kernels\ntest: 844 kernels\n'
      f'data root: {tmp_path}/npz/tile/xla\n')
  assert len(server.asked) == 3
  # A second call fetches nothing, and neither does one that has to unpack.
  assert download(server, tmp_path)[0] == 0
  next((tmp_path / 'npz/tile/xla/test').iterdir()).unlink()
  assert download(server, tmp_path)[0] == 0
  assert len(server.asked) == 3
  assert len(list((tmp_path / 'npz/tile/xla/test').iterdir())) == 844
  assert not list(tmp_path.glob('*.tmp'))


def test_a_download_that_breaks_off_goes_on(server, tmp_path):
  server.limit = 10_000
  code, unused_output, error = download(server, tmp_path)
  if code:  # curl goes on by itself only in some of its versions.
    assert 'broke off; start again to go on with it' in error
    assert not (tmp_path / 'npz/tile/xla/train').exists()
    assert download(server, tmp_path)[0] == 0
  assert server.asked[:2] == ['npz_tile_xla_train.tar from 0',
                              'npz_tile_xla_train.tar from 10000']
  assert len(list((tmp_path / 'npz/tile/xla/train').iterdir())) == 5709


@pytest.mark.parametrize('content, message', [
    (archive('train', 7), 'holds 7 kernels and should hold 5709'),
    (b'<html>not here</html>',
     'cannot be unpacked; delete it and start again'),
    (None, 'cannot be reached; check the network')])
def test_an_archive_that_is_wrong_or_missing(
    server, tmp_path, content, message):
  del server.files['npz_tile_xla_train.tar']
  if content:
    server.files['npz_tile_xla_train.tar'] = content
  code, _, error = download(server, tmp_path)
  assert code == 1 and message in error
  assert not (tmp_path / 'npz/tile/xla/train').exists()
