"""`rank --workers` with real processes, which are killed while they rank."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from support import dask_cluster, tiny_kernels
from support.places import PYTHONPATH
from support.waiting import wait_for

pytestmark = pytest.mark.slow

KERNELS = 400  # There is time to kill something.
SECONDS = 300


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('kernels')
  rng = np.random.default_rng(7)
  for number in range(KERNELS):
    tiny_kernels.learnable_kernel(f'net_{number:03}', rng, 40).save(str(folder))
  (folder / 'net_111.npz').write_bytes(b'no archive')
  return folder


@pytest.fixture(scope='module')
def start(folder, saved_model_dir):
  """A function that starts the command; gives its process."""
  def call(out, workers=2, *more):
    return subprocess.Popen(
        [sys.executable, '-m', 'tpu_graphs_ext.cli', 'rank', '--dir',
         saved_model_dir, '--data', str(folder), '--workers', str(workers),
         '--out', str(out), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, 'PYTHONPATH': PYTHONPATH})

  return call


@pytest.fixture(scope='module')
def expected(start, tmp_path_factory):
  """The bytes that one undisturbed worker gives."""
  out = tmp_path_factory.mktemp('expected') / 'out.jsonl'
  ended(start(out, workers=1))
  return out.read_bytes()


def ended(process):
  """What it printed; one file is damaged, so its exit code is 1."""
  out, err = process.communicate(timeout=SECONDS)
  assert process.returncode == 1, err
  assert f'{KERNELS - 1} kernels' in out, err
  assert re.findall('^error: ', err, re.MULTILINE) == ['error: '], err
  return out


def some_rows(out, process):
  """Waits until there are more than ten, and others are not there yet."""
  journal = pathlib.Path(f'{out}.partial')
  assert wait_for(lambda: process.poll() is not None or (
          journal.exists() and journal.read_bytes().count(b'{"file"') > 10),
      SECONDS, pause=0.005)
  assert process.poll() is None, 'it was done before it could be killed'


def workers_of(process):
  """Its children that have loaded TensorFlow."""
  paths = []
  for path in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):  # It is gone.
      parent = int((path / 'stat').read_text().rpartition(') ')[2].split()[1])
      if parent == process.pid and 'tensorflow' in (path / 'maps').read_text():
        paths.append(path)
  return paths


def test_a_worker_that_is_killed(start, expected, tmp_path):
  out = tmp_path / 'out.jsonl'
  process = start(out)
  some_rows(out, process)
  os.kill(int(workers_of(process)[0].name), signal.SIGKILL)
  ended(process)
  assert out.read_bytes() == expected
  assert os.listdir(tmp_path) == ['out.jsonl']


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_the_whole_command_is_killed(start, expected, tmp_path, number):
  out = tmp_path / 'out.jsonl'
  process = start(out)
  some_rows(out, process)
  workers = workers_of(process)
  process.send_signal(number)
  process.communicate(timeout=SECONDS)
  assert workers and wait_for(
      lambda: not any((worker / 'maps').exists()
                      and (worker / 'maps').read_text() for worker in workers),
      SECONDS)
  assert not out.exists()
  journal = pathlib.Path(f'{out}.partial').read_bytes()
  assert 10 <= journal.count(b'{"file"') < KERNELS - 1
  assert '(0 by an earlier run)' not in ended(start(out))
  assert out.read_bytes() == expected


def test_a_cluster(start, expected, tmp_path):
  pytest.importorskip('distributed', reason='needs the extra [scale]')
  (tmp_path / 'cluster').mkdir()
  out = tmp_path / 'out.jsonl'
  with dask_cluster.started(tmp_path / 'cluster') as address:
    ended(start(out, 2, '--scheduler', address))
  assert out.read_bytes() == expected
