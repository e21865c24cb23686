"""A sweep on two Dask workers; one is killed, and twice the sweep."""

import os
import signal
import subprocess
import sys

import pytest

from support import dask_cluster, fake_trials, tiny_kernels, tiny_models
from support.places import PYTHONPATH
from support.waiting import wait_for
from tpu_graphs_ext.sweep import trials

pytestmark = pytest.mark.slow
distributed = pytest.importorskip('distributed', reason='needs [scale]')
pytest.importorskip('optuna', reason='needs the extra [scale]')

SECONDS = 1200  # Until a step gives up.


def finished(out):
  """The rows of finished trials, by key."""
  rows = trials.rows(str(out)) if out.is_dir() else {}
  return {key: row for key, row in rows.items() if row['state'] == 'finished'}


def written(out, row):
  """When the files of a finished trial were written."""
  return [row, *(os.stat(out / name).st_mtime_ns for name in (
      f'run_{row["run"]}.jsonz', f'model_{row["run"]}'))]


def kill_a_worker(address):
  """Kills one that trains."""
  with distributed.Client(address, set_as_default=False) as client:
    def busy():
      return [worker for worker, keys in client.processing().items() if keys]

    assert wait_for(busy, SECONDS)
    victim, *_ = busy()
    os.kill(client.run(os.getpid, workers=[victim])[victim], signal.SIGKILL)


def test_it_is_finished_and_nothing_is_done_again(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', PYTHONPATH)
  data = tiny_kernels.write_data_root(
      tmp_path / 'data', num_train=8, num_valid=4, num_test=2)
  grid = fake_trials.write_grid(
      tmp_path, str(data), tiny_models.__file__,
      settings={'models_py': tiny_models.__file__, 'epochs': 3, 'batch': 2,
                'configs': 6, 'cache_dir': ''})
  out, log, done = tmp_path / 'out', tmp_path / 'sweep.log', {}

  def started(address):
    with open(log, 'ab') as file:
      return subprocess.Popen(
          [sys.executable, '-m', 'tpu_graphs_ext.cli', 'sweep', grid, '--out',
           str(out), '--scheduler', address], stdout=file, stderr=file)

  with dask_cluster.started(tmp_path) as address:
    sweep = started(address)
    for number in (1, 2, 4):
      assert wait_for(lambda number=number: len(finished(out)) >= number,
                      SECONDS), log.read_text()
      if number == 1:
        kill_a_worker(address)
        continue
      sweep.kill()
      sweep.wait()
      for key, row in finished(out).items():
        done.setdefault(key, written(out, row))
      sweep = started(address)
    assert sweep.wait(timeout=SECONDS) == 0, log.read_text()
  rows = finished(out)
  assert len(rows) == 6
  # Those that were under way, and no others, were started again.
  assert any(row['attempts'] > 1 for row in rows.values())
  assert all(written(out, rows[key]) == before for key, before in done.items())
  assert '6 trials: 6 finished' in log.read_text()
