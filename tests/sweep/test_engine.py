"""Items through workers that raise, die and are interrupted.

The processes are real, and none imports TensorFlow.
"""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from support import engine_tasks
from support.places import PROJECT, TESTS
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import threads
from tpu_graphs_ext.sweep import engine

SECONDS = 60  # Until a test gives up.


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch):
  """Workers import the tasks; pytest's own paths are not theirs."""
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(
      [str(PROJECT), str(TESTS), os.environ.get('PYTHONPATH', '')]))


def run(function, items, **chosen):
  return sorted(engine.run(function, items, **chosen))


def is_gone(process):
  """Whether it has ended; a zombie, whose parent is gone, has."""
  try:
    stat = pathlib.Path(f'/proc/{process}/stat').read_text()
  except OSError:
    return True
  return stat.rpartition(') ')[2].startswith('Z')


def test_results_come_by_key(monkeypatch):
  monkeypatch.setenv(threads.VARIABLE, '7')  # Workers have what is set.
  items = [(f'k{number}', number) for number in range(5)]
  assert run(engine_tasks.doubled_by_threads, items, workers=2) == [
      engine.Outcome(f'k{number}', (2 * number, '7')) for number in range(5)]


def test_nothing_to_do():
  assert run(engine_tasks.doubled, []) == []


def test_what_a_task_raises_is_the_error_of_its_item():
  items = [(name, name) for name in ('user', 'exit', 'odd result', 'memory')]
  found = {key: (result, error)
           for key, result, error in engine.run(engine_tasks.refused, items)}
  assert found['user'] == (None, 'a.json: lr must be positive')
  assert found['exit'] == (None, 'SystemExit: 3')
  assert found['memory'] == (None, 'MemoryError: MemoryError')
  assert found['odd result'][0] is None
  assert 'pickle' in found['odd result'][1].lower()


def test_a_task_whose_worker_dies_is_tried_again(tmp_path):
  items = [('once', (tmp_path / 'once', 1)), ('never', (tmp_path / 'never', 0)),
           ('always', (tmp_path / 'always', 99))]
  assert run(engine_tasks.killed, items, workers=2) == [
      engine.Outcome('always', None, engine.died(engine.TRIES)),
      engine.Outcome('never', 1), engine.Outcome('once', 2)]
  lines = (tmp_path / 'always').read_text().split()
  assert len(set(lines)) == len(lines) == engine.TRIES  # Each its process.


@pytest.mark.slow
def test_a_worker_that_dies_while_idle_costs_nothing():
  found = []

  def items():
    for number in range(3):
      assert len(found) == number  # What is known may decide what is next.
      if found:
        os.kill(found[-1], signal.SIGKILL)
        assert engine.wait_for(lambda: is_gone(found[-1]), SECONDS)
      yield str(number), number

  for outcome in engine.run(engine_tasks.its_process, items()):
    assert not outcome.error
    found.append(outcome.result)
  assert len(set(found)) == 3


def test_two_items_of_one_key():
  with pytest.raises(ValueError, match="two items have the key 'a'"):
    run(engine_tasks.doubled, [('a', 1), ('a', 2)])


def test_a_number_of_workers_below_zero():
  with pytest.raises(ValueError, match='workers must be 0 or more; got -1'):
    run(engine_tasks.doubled, [('a', 1)], workers=-1)


SCRIPT = '''
import sys
from support import engine_tasks
from tpu_graphs_ext.sweep import engine

if __name__ == '__main__':
  items = [(path, path) for path in sys.argv[1:]]
  for outcome in engine.run(engine_tasks.waits_until_unwanted, items,
                            workers=len(items)):
    print(outcome)
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
  assert engine.wait_for(
      lambda: all(path.exists() and path.read_text() for path in told), SECONDS)
  workers = [int(path.read_text()) for path in told]
  process.send_signal(number)
  said = process.communicate(timeout=SECONDS)[1]
  assert engine.wait_for(
      lambda: all(is_gone(worker) for worker in workers), SECONDS)
  if number == signal.SIGINT:
    assert said.rstrip().endswith('KeyboardInterrupt')


def test_without_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'distributed', None)
  with pytest.raises(UserError, match=r'pip install -e "\.\[scale\]"'):
    run(engine_tasks.doubled, [('a', 1)], scheduler='tcp://127.0.0.1:1')
