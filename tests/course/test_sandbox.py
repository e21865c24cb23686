"""What the code of a hand-in is kept from, and that it ends."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from support import waiting
from tpu_graphs_ext.course import sandbox
from tpu_graphs_ext.errors import UserError

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
    place.run([str(tmp_path / 'script.py')])
    return (temporary / 'output.log').read_text()

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


# Prints the id of a child that would live for an hour.
CHILD = '''
import subprocess, sys, time
code = 'import time; time.sleep(3600)'
child = subprocess.Popen([sys.executable, '-c', code])
print(child.pid, flush=True)
time.sleep(3600)
'''


def test_when_the_time_is_up_everything_that_was_started_ends(run, tmp_path):
  with pytest.raises(UserError, match='more time than --time_limit allows'):
    run(CHILD, minutes=0.1)
  child = int((tmp_path / 'sandbox' / 'output.log').read_text())
  stat = pathlib.Path(f'/proc/{child}/stat')

  def is_dead():
    try:
      return stat.read_text().rsplit(')')[1].split()[0] == 'Z'
    except OSError:
      return True

  assert waiting.wait_for(is_dead, 100)


def test_an_answer_that_was_damaged(tmp_path):
  path = tmp_path / 'answer.json'
  answer = {'faults': [], 'misfit': '', 'state': 0, 'seconds': 0.5,
            'scores': {'a': [1, 2.5]}}
  path.write_text(json.dumps(answer))
  assert sandbox.read_answer(str(path)).scores['a'].tolist() == [1, 2.5]
  for text in ('', '[]', 100_000 * '[', '{"faults": []}',
               json.dumps({**answer, 'scores': {'a': ['x']}})):
    path.write_text(text)
    with pytest.raises(UserError, match='left no whole answer'):
      sandbox.read_answer(str(path))
