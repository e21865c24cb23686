"""What the code of a hand-in is kept from, and that it ends."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from tpu_graphs_ext.course import sandbox
from tpu_graphs_ext.errors import UserError

posix = pytest.mark.skipif(os.name != 'posix', reason='the system has no '
                           'process groups')
needs_unshare = pytest.mark.skipif(
    not sandbox.without_network(),
    reason='the system does not let a program go without the network')


@pytest.fixture
def run(tmp_path):
  """Runs code as a script; returns what it printed."""
  def run_code(code: str, minutes: float = 1) -> str:
    for name in ('models.py', 'script.py'):
      (tmp_path / name).write_text(code)
    temporary = tmp_path / 'sandbox'
    temporary.mkdir()
    place = sandbox.Sandbox(str(temporary), str(tmp_path / 'model_a'),
                            str(tmp_path / 'models.py'), None, minutes)
    try:
      place.run([str(tmp_path / 'script.py')])
    finally:
      (tmp_path / 'printed').write_text((temporary / 'output.log').read_text())
    return (tmp_path / 'printed').read_text()

  return run_code


def test_the_environment(run, monkeypatch, tmp_path):
  kept = {'PATH': '/bin', 'LC_ALL': 'C', 'TF_USE_LEGACY_KERAS': '1'}
  dropped = dict.fromkeys((
      'GITHUB_TOKEN', 'HOME', 'PYTHONPATH', 'LD_PRELOAD', 'TF_VAR_db'), 'x')
  assert sandbox.passed({**kept, **dropped}) == kept
  monkeypatch.setenv('MY_TOKEN', 'hush')
  seen = json.loads(run('import json, os; print(json.dumps(dict(os.environ)))'))
  assert seen['HOME'].startswith(str(tmp_path / 'sandbox'))
  assert set(seen) <= {*sandbox.passed(dict(os.environ)), 'HOME',
                       'TF_CPP_MIN_LOG_LEVEL', 'LC_CTYPE'}


@needs_unshare
def test_no_network(run):
  with socket.create_server(('127.0.0.1', 0)) as server:
    server.settimeout(0.2)
    code = ('import socket\nsocket.create_connection(("127.0.0.1", '
            f'{server.getsockname()[1]}), 5)\n')
    subprocess.run([sys.executable, '-c', code], check=True)  # It listens.
    server.accept()[0].close()
    with pytest.raises(UserError, match='stopped with exit code 1'):
      run(code)
    with pytest.raises(socket.timeout):
      server.accept()


def test_a_system_that_keeps_the_network(run, monkeypatch):
  monkeypatch.setattr(sandbox, '_WITHOUT_NETWORK',
                      (('no_such_program',), ('false',)))
  sandbox.without_network.cache_clear()
  try:
    assert run('print(1)') == '1\n'
    assert sandbox.limits_text(1).startswith('with network (')
  finally:
    sandbox.without_network.cache_clear()


# Prints the id of a child that would live for an hour.
CHILD = '''
import subprocess, sys, time
code = 'import time; time.sleep(3600)'
child = subprocess.Popen([sys.executable, '-c', code])
print(child.pid, flush=True)
'''


def is_gone(pid: int) -> bool:
  """Whether a process ends soon: killing takes a moment, or more under load."""
  end = time.monotonic() + 120
  while time.monotonic() < end:
    try:
      state = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1]
    except OSError:
      return True
    if state.split()[0] == 'Z':
      return True
    time.sleep(0.02)
  return False


@posix
@pytest.mark.parametrize('error', [UserError, KeyboardInterrupt])
def test_everything_that_was_started_ends(run, tmp_path, monkeypatch, error):
  """When the time is up, and by Ctrl-C."""
  def wait(process, timeout=None):
    """Lets the time pass as soon as the child is there."""
    log = tmp_path / 'sandbox' / 'output.log'
    while timeout is not None and not log.read_text().endswith('\n'):
      time.sleep(0.02)
    if timeout is not None:
      raise (KeyboardInterrupt if error is KeyboardInterrupt else
             subprocess.TimeoutExpired('script.py', timeout))
    return real_wait(process)

  real_wait = subprocess.Popen.wait
  monkeypatch.setattr(sandbox, 'without_network', tuple)
  monkeypatch.setattr(subprocess.Popen, 'wait', wait)
  with pytest.raises(error):
    run(CHILD + 'time.sleep(3600)')
  assert is_gone(int((tmp_path / 'printed').read_text()))


def test_the_time_limit(run):
  with pytest.raises(UserError, match='more time than --time_limit allows'):
    run('import time\ntime.sleep(3600)', minutes=0.002)


# ------------------------------------------------------- the steps' answer

ANSWER = {'faults': [], 'misfit': '', 'state': 0, 'seconds': 0.5,
          'scores': {'a': [1, 2.5]}}


def test_an_answer_that_was_damaged(tmp_path):
  path = tmp_path / 'answer.json'
  path.write_text(json.dumps(ANSWER))
  answer = sandbox.read_answer(str(path))
  assert (answer.scores['a'].tolist(), answer.ranked) == ([1, 2.5], True)
  changes = ({'faults': 3}, {'state': None}, {'seconds': 'x'}, {'scores': []},
             {'scores': {'a': ['x']}})
  for text in ('', '[]', 100_000 * '[', '{"faults": []}',
               *(json.dumps({**ANSWER, **change}) for change in changes)):
    path.write_text(text)
    with pytest.raises(UserError, match='damaged the answer'):
      sandbox.read_answer(str(path))
  path.unlink()
  with pytest.raises(UserError, match='ends Python before the steps'):
    sandbox.read_answer(str(path))
