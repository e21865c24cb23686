"""What the code of a hand-in is kept from, and that it ends."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from tpu_graphs_ext.course import process_limits, sandbox
from tpu_graphs_ext.errors import UserError

posix = pytest.mark.skipif(os.name != 'posix', reason='the system has no '
                           'process groups')
needs_unshare = pytest.mark.skipif(
    not process_limits.without_network(),
    reason='the system does not let a program go without the network')


@pytest.fixture
def run(tmp_path):
  """Runs code; returns how it failed and what it printed."""
  def run_code(code: str, minutes: float = 1, on_output=lambda unused: None):
    confined = process_limits.Confinement(str(tmp_path / 'home'), minutes)
    failure = confined.run([sys.executable, '-I', '-c', code], str(tmp_path),
                           str(tmp_path / 'log'), on_output)
    return failure, (tmp_path / 'log').read_text()

  return run_code


def test_the_environment(run, monkeypatch, tmp_path):
  kept = {'PATH': '/bin', 'LC_ALL': 'C', 'TF_USE_LEGACY_KERAS': '1',
          'CUDA_VISIBLE_DEVICES': '', 'TZ': 'UTC', 'VIRTUAL_ENV': '/v'}
  dropped = dict.fromkeys((
      'AWS_SECRET_ACCESS_KEY', 'GITHUB_TOKEN', 'HOME', 'SSH_AUTH_SOCK',
      'KAGGLE_KEY', 'PYTHONPATH', 'LD_PRELOAD', 'http_proxy',
      # Terraform's, which begin as TensorFlow's do.
      'TF_VAR_db', 'TF_TOKEN_app_terraform_io', 'CUDA_API_KEY'), 'x')
  assert process_limits.passed({**kept, **dropped}) == kept
  monkeypatch.setenv('MY_TOKEN', 'hush')
  failure, printed = run('import json, os; print(json.dumps(dict(os.environ)))')
  seen = json.loads(printed)
  assert failure == '' and seen['HOME'] == str(tmp_path / 'home')
  assert set(seen) <= {*process_limits.passed(dict(os.environ)), 'HOME',
                       'TF_CPP_MIN_LOG_LEVEL', 'LC_CTYPE'}


@needs_unshare
def test_no_network(run):
  with socket.create_server(('127.0.0.1', 0)) as server:
    server.settimeout(0.2)
    code = ('import socket\nsocket.create_connection(("127.0.0.1", '
            f'{server.getsockname()[1]}), 5)\n')
    subprocess.run([sys.executable, '-c', code], check=True)  # It listens.
    server.accept()[0].close()
    assert run(code)[0] == 'with exit code 1'
    with pytest.raises(socket.timeout):
      server.accept()


def test_a_system_that_keeps_the_network(run, monkeypatch, tmp_path):
  monkeypatch.setattr(process_limits, '_WITHOUT_NETWORK',
                      (('no_such_program',), ('false',)))
  process_limits.without_network.cache_clear()
  try:
    assert run('print(1)') == ('', '1\n')
    assert process_limits.Confinement(
        str(tmp_path / 'home'), 1).text().startswith('with network (')
  finally:
    process_limits.without_network.cache_clear()


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
@pytest.mark.parametrize('error', [process_limits.OutOfTimeError,
                                   KeyboardInterrupt])
def test_everything_that_was_started_ends(run, tmp_path, monkeypatch, error):
  """When the time is up, and by Ctrl-C."""
  hours = [0]

  def sleep(seconds):
    time.sleep(seconds)
    if (tmp_path / 'log').read_text().endswith('\n'):
      hours[0] += 1
      if error is KeyboardInterrupt:
        raise KeyboardInterrupt

  class Clock:  # However slowly this machine starts a program.
    monotonic = staticmethod(lambda: 3600 * hours[0])

  Clock.sleep = staticmethod(sleep)
  monkeypatch.setattr(process_limits, 'time', Clock)
  with pytest.raises(error) as raised:
    run(CHILD + 'time.sleep(3600)', minutes=59)
  if error is not KeyboardInterrupt:
    assert 'taken more than 59 minutes' in str(raised.value)
    assert '--time_limit' in str(raised.value)
  assert is_gone(int((tmp_path / 'log').read_text()))


@posix
def test_what_outlives_its_program_holds_nobody_up(run):
  assert is_gone(int(run(CHILD)[1]))


def test_time_is_for_all_programs_together(tmp_path):
  confined = process_limits.Confinement(str(tmp_path / 'home'), 1)
  command = [sys.executable, '-I', '-c', 'pass']
  assert confined.run(command, str(tmp_path), str(tmp_path / 'log')) == ''
  assert confined._seconds_left < 60
  confined._seconds_left = 0
  with pytest.raises(process_limits.OutOfTimeError):
    confined.run(command, str(tmp_path), str(tmp_path / 'log'))


def test_output_and_how_a_program_ended(run):
  parts = []
  failure, _ = run('import time\nprint(1, flush=True)\ntime.sleep(.5)\n'
                   'raise SystemExit(3)', on_output=parts.append)
  assert (b''.join(parts), failure) == (b'1\n', 'with exit code 3')
  if os.name == 'posix':
    assert run('import os; os.abort()')[0] == 'by SIGABRT'
    assert process_limits._failure(-signal.SIGKILL) == (
        'by SIGKILL (out of memory?)')


@pytest.mark.parametrize('minutes', [0, -1, float('nan'), float('inf')])
def test_what_is_no_time_limit(tmp_path, minutes):
  with pytest.raises(UserError, match=f'--time_limit must be .* got {minutes}'):
    process_limits.Confinement(str(tmp_path / 'home'), minutes)


# ------------------------------------------------------- the steps' answer

ANSWER = {'faults': [], 'saved': [['a', [2, 3]]], 'built': None, 'state': 0,
          'seconds': 0.5}


def test_an_answer_that_was_spoilt(tmp_path):
  path, scores = tmp_path / 'answer.json', tmp_path / 'scores.npz'
  path.write_text(json.dumps(ANSWER))
  answer = sandbox._answer(str(path), str(scores))
  assert (answer.saved, answer.fits, answer.ranked) == ([['a', [2, 3]]], False,
                                                        False)
  changes = ({'saved': 3}, {'saved': [['a']]}, {'saved': [['a', ['x']]]},
             {'faults': 3}, {'state': None}, {'seconds': 'x'}, {'built': 2})
  for text in ('', '[]', 100_000 * '[', '{"faults": []}',
               *(json.dumps({**ANSWER, **change}) for change in changes)):
    path.write_text(text)
    with pytest.raises(UserError, match='has spoilt the answer'):
      sandbox._answer(str(path), str(scores))
  path.write_text(json.dumps(ANSWER))
  scores.write_bytes(b'PK\x03\x04 no scores')
  with pytest.raises(UserError, match='has spoilt the answer'):
    sandbox._answer(str(path), str(scores))
  path.unlink()
  with pytest.raises(UserError, match='ends Python before the steps'):
    sandbox._answer(str(path), str(scores))


def test_long_arguments_are_cut():
  assert sandbox.brief('{"a": 1}') == '{"a": 1}'
  # 7 characters before 300 digits, and 2 after them.
  text = '{"a": "' + 300 * '1' + '"}'
  assert sandbox.brief(text) == text[:200] + '... (309 characters)'
