"""The engine on a Dask cluster of two workers on this machine."""

import os
import subprocess
import sys

import pytest

from support import dask_cluster, engine_tasks
from support.places import PROJECT, TESTS
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import cluster, engine

pytestmark = pytest.mark.slow
pytest.importorskip('distributed', reason='needs the extra [scale]')


@pytest.fixture(scope='module')
def address(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('PYTHONPATH', os.pathsep.join([str(PROJECT), str(TESTS)]))
    with dask_cluster.started(tmp_path_factory.mktemp('cluster')) as address:
      yield address


def run(function, items, address):
  return {key: (result, error) for key, result, error in engine.run(
      function, items, scheduler=address)}


def test_results_and_errors(address):
  assert run(engine_tasks.doubled, [('a', 1), ('b', 2)], address) == {
      'a': (2, ''), 'b': (4, '')}
  assert run(engine_tasks.refused, [('a', 'user'), ('b', 'memory')],
             address) == {'a': (None, 'a.json: lr must be positive'),
                          'b': (None, 'MemoryError: MemoryError')}


def test_a_worker_that_dies_is_restarted_and_its_task_tried_again(
    address, tmp_path):
  items = [('once', (tmp_path / 'once', 1)),
           ('always', (tmp_path / 'always', 99))]
  found = run(engine_tasks.killed, items, address)
  # It may have been beside the other when that one's worker died.
  assert found['once'][0] >= 2 or 'its worker died' in found['once'][1]
  assert found['always'][0] is None
  assert 'its worker died, 4 times' in found['always'][1]
  assert run(engine_tasks.doubled, [('a', 1)], address) == {'a': (2, '')}


def test_tasks_learn_that_nobody_waits_any_more(address, tmp_path):
  told = tmp_path / 'a'
  script = tmp_path / 'script.py'
  script.write_text(f'''
from support import engine_tasks
from tpu_graphs_ext.sweep import engine

if __name__ == '__main__':
  list(engine.run(engine_tasks.waits_until_unwanted, [('a', {str(told)!r})],
                  scheduler={address!r}))
''')
  process = subprocess.Popen([sys.executable, str(script)])
  assert engine.wait_for(lambda: told.exists() and told.read_text(),
                         dask_cluster.SECONDS)
  process.kill()
  process.wait()
  assert engine.wait_for(lambda: told.read_text() == 'unwanted',
                         dask_cluster.SECONDS)


def test_nobody_answers(monkeypatch):
  monkeypatch.setattr(cluster, '_ANSWER_SECONDS', 1)
  with pytest.raises(UserError, match=r'--scheduler=tcp://127.0.0.1:9: no Dask '
                     r'scheduler answers there .*; `dask scheduler` starts'):
    run(engine_tasks.doubled, [('a', 1)], 'tcp://127.0.0.1:9')


def test_a_scheduler_without_workers(monkeypatch, tmp_path):
  monkeypatch.setattr(cluster, '_WORKER_SECONDS', 0)
  with dask_cluster.started(tmp_path, workers=0) as address, pytest.raises(
      UserError, match='it has no workers; `dask worker tcp://'):
    run(engine_tasks.doubled, [('a', 1)], address)
