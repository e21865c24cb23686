"""Items through real workers, of which some raise, die or are interrupted."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from support import dask_cluster, pool_tasks
from support.places import PYTHONPATH
from support.waiting import wait_for
from tpu_graphs_ext.engine import threads
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool

SECONDS = 60  # Until a test gives up.


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch):
  """Workers import the tasks; pytest's own paths are not theirs."""
  monkeypatch.setenv('PYTHONPATH', PYTHONPATH)


def is_gone(process):
  """Whether it has ended; a zombie, whose parent is gone, has."""
  try:
    stat = pathlib.Path(f'/proc/{process}/stat').read_text()
  except OSError:
    return True
  return stat.rpartition(') ')[2].startswith('Z')


def test_results_come_by_key(monkeypatch):
  monkeypatch.setenv(threads.VARIABLE, '7')  # Workers have what is set.
  items = [(f'k{number}', number) for number in range(3)]
  assert sorted(pool.run(pool_tasks.doubled_by_threads, items, workers=2)) == [
      (f'k{number}', (2 * number, '7'), '') for number in range(3)]


def test_what_a_task_raises_is_the_error_of_its_item():
  items = [(name, name) for name in ('user', 'exit', 'odd result', 'memory')]
  errors = {key: error for key, result, error in pool.run(
      pool_tasks.refused, items) if result is None}
  assert 'local object' in errors.pop('odd result')
  assert errors == {'user': 'a.json: lr must be positive',
                   'exit': 'SystemExit: 3',
                   'memory': 'MemoryError: MemoryError'}


def test_a_task_whose_worker_dies_is_tried_again(tmp_path):
  items = [('once', (tmp_path / 'once', 1)), ('never', (tmp_path / 'never', 0)),
           ('always', (tmp_path / 'always', 99))]
  assert sorted(pool.run(pool_tasks.killed, items, workers=2)) == [
      pool.Outcome('always', None, pool.died(pool.TRIES)),
      pool.Outcome('never', 1), pool.Outcome('once', 2)]
  lines = (tmp_path / 'always').read_text().split()
  assert len(set(lines)) == len(lines) == pool.TRIES  # Each its process.


SCRIPT = '''
import signal
import sys
from support import pool_tasks
from tpu_graphs_ext.sweep import pool

if __name__ == '__main__':
  # A shell starts commands in the background without it.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  items = [(path, path) for path in sys.argv[1:]]
  list(pool.run(pool_tasks.waits_until_unwanted, items, workers=len(items)))
'''


@pytest.mark.skipif(not os.path.isdir('/proc'), reason='looks at processes')
@pytest.mark.parametrize('number', [
    pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_workers_end_with_who_started_them(tmp_path, number):
  script = tmp_path / 'script.py'
  script.write_text(SCRIPT)
  told = [tmp_path / 'a', tmp_path / 'b']
  process = subprocess.Popen([sys.executable, str(script), *map(str, told)],
                             stderr=subprocess.PIPE, text=True)
  assert wait_for(
      lambda: all(path.exists() and path.read_text() for path in told), SECONDS)
  workers = [int(path.read_text()) for path in told]
  process.send_signal(number)
  said = process.communicate(timeout=SECONDS)[1]
  assert wait_for(lambda: all(is_gone(worker) for worker in workers), SECONDS)
  if number == signal.SIGINT:
    assert said.rstrip().endswith('KeyboardInterrupt')


# ---------------------------------------------------------------- a cluster


@pytest.fixture(scope='module')
def address(tmp_path_factory):
  pytest.importorskip('distributed', reason='needs the extra [scale]')
  with dask_cluster.started(tmp_path_factory.mktemp('cluster')) as address:
    yield address


@pytest.mark.slow
def test_a_worker_of_a_cluster_dies(address, tmp_path):
  items = [('once', (tmp_path / 'once', 1)),
           ('always', (tmp_path / 'always', 99))]
  always, once = sorted(pool.run(pool_tasks.killed, items, scheduler=address))
  # It may have been beside the other when that one's worker died.
  assert once.error.startswith(pool.DIED) or once.result >= 2
  assert always.error == pool.died(4)
  assert list(pool.run(pool_tasks.refused, [('a', 'user')], scheduler=address)
              ) == [('a', None, 'a.json: lr must be positive')]


@pytest.mark.slow
def test_tasks_of_a_cluster_learn_that_nobody_waits(address, tmp_path):
  told = tmp_path / 'a'
  script = tmp_path / 'script.py'
  script.write_text(SCRIPT.replace('workers=len(items)',
                                   f'scheduler={address!r}'))
  process = subprocess.Popen([sys.executable, str(script), str(told)])
  assert wait_for(lambda: told.exists() and told.read_text(),
                  dask_cluster.SECONDS)
  process.kill()
  process.wait()
  assert wait_for(lambda: told.read_text() == 'unwanted', dask_cluster.SECONDS)


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_or_goes_away(monkeypatch, tmp_path):
  pytest.importorskip('distributed', reason='needs the extra [scale]')
  with monkeypatch.context() as patch:
    patch.setattr(pool, '_ANSWER_SECONDS', 1)
    with pytest.raises(UserError, match='no scheduler with workers answers'):
      list(pool.run(pool_tasks.its_process, [('a', 1)],
                    scheduler='tcp://127.0.0.1:9'))
  monkeypatch.setattr(pool, '_WORKER_SECONDS', dask_cluster.SECONDS)
  with pytest.raises(UserError, match='no scheduler with workers answers'):
    with dask_cluster.started(tmp_path, workers=1) as address:
      outcomes = pool.run(pool_tasks.its_process, iter([('a', 1), ('b', 2)]),
                          scheduler=address)
      assert next(outcomes).key == 'a'
    list(outcomes)
