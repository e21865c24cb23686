"""What the code of a hand-in is kept from, and that it ends."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from support import tiny_handin, tiny_kernels, tiny_models
from tpu_graphs_ext.course import process_limits, sandbox, verify
from tpu_graphs_ext.engine import train
from tpu_graphs_ext.errors import UserError

posix = pytest.mark.skipif(os.name != 'posix', reason='the system has no '
                           'process groups and no limits')
needs_unshare = pytest.mark.skipif(
    not process_limits.without_network(),
    reason='the system does not let a program go without the network')
RUNNER = pathlib.Path(sandbox.__file__).with_name('without_package.py')


@pytest.fixture
def run(tmp_path):
  """Runs code under a confinement; returns what it printed."""
  def run_code(code: str, minutes: float = 1, on_line=None) -> str:
    confined = process_limits.Confinement(str(tmp_path / 'home'), minutes)
    try:
      confined.run([sys.executable, '-I', '-c', code], str(tmp_path),
                   str(tmp_path / 'log'), on_line)
    finally:
      run_code.confined = confined
    return (tmp_path / 'log').read_text()

  return run_code


def test_only_names_of_the_list_are_passed():
  kept = {'PATH': '/bin', 'LC_ALL': 'C', 'TF_USE_LEGACY_KERAS': '1',
          'CUDA_VISIBLE_DEVICES': '', 'XLA_FLAGS': '--a',
          'OMP_NUM_THREADS': '2', 'TZ': 'UTC', 'PYTHONHASHSEED': '0',
          'VIRTUAL_ENV': '/v'}
  dropped = dict.fromkeys((
      'AWS_SECRET_ACCESS_KEY', 'GITHUB_TOKEN', 'HOME', 'SSH_AUTH_SOCK',
      'KAGGLE_KEY', 'PYTHONPATH', 'PYTHONSTARTUP', 'LD_PRELOAD', 'http_proxy',
      # What begins as names of TensorFlow do, and is of Terraform.
      'TF_VAR_db', 'TF_TOKEN_app_terraform_io', 'TF_CLI_CONFIG_FILE',
      'CUDA_API_KEY'), 'x')
  assert process_limits.passed({**kept, **dropped}) == kept


def test_the_environment(run, monkeypatch, tmp_path):
  monkeypatch.setenv('MY_TOKEN', 'hush')
  seen = json.loads(run('import json, os; print(json.dumps(dict(os.environ)))'))
  assert seen['HOME'] == str(tmp_path / 'home')
  assert 'hush' not in seen.values()
  assert set(seen) <= {*process_limits.passed(dict(os.environ)), 'HOME',
                       'TF_CPP_MIN_LOG_LEVEL', 'LC_CTYPE'}


@pytest.fixture
def listener():
  """Port of this machine that counts who comes."""
  with socket.create_server(('127.0.0.1', 0)) as server:
    server.settimeout(0.2)
    yield server


CONNECT = 'import socket\nsocket.create_connection(("127.0.0.1", {}), 5)\n'


@needs_unshare
def test_no_network(run, listener):
  code = CONNECT.format(listener.getsockname()[1])
  subprocess.run([sys.executable, '-c', code], check=True)  # It listens.
  listener.accept()[0].close()
  with pytest.raises(process_limits.EndedError, match='with exit code 1'):
    run(code)
  with pytest.raises(socket.timeout):
    listener.accept()
  assert run.confined.text().startswith('without network; ')


def test_it_is_said_where_the_network_cannot_be_taken_away(run, monkeypatch):
  monkeypatch.setattr(process_limits, '_WITHOUT_NETWORK', (('no_such_program',),
                                                    ('false',)))
  process_limits.without_network.cache_clear()
  try:
    assert run('print(1)') == '1\n'
    assert run.confined.text().startswith('with network, which')
  finally:
    process_limits.without_network.cache_clear()


# Prints the id of a child that would live for an hour.
CHILD = '''
import subprocess, sys, time
code = 'import time; time.sleep(3600)'
child = subprocess.Popen([sys.executable, '-c', code]{})
print(child.pid, flush=True)
'''


def is_gone(pid: int) -> bool:
  """Whether a process ends soon: killing takes a moment, or more under load."""
  end = time.monotonic() + 120
  while is_running(pid) and time.monotonic() < end:
    time.sleep(0.02)
  return not is_running(pid)


def is_running(pid: int) -> bool:
  try:
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1]
  except OSError:
    return False
  return state.split()[0] != 'Z'


class Clock:
  """Stands for the module `time`: an hour passes whenever `is_time` says so.

  How fast this machine starts a program then does not matter.
  """

  def __init__(self, monkeypatch, is_time):
    self._now, self._is_time = 0, is_time
    monkeypatch.setattr(process_limits, 'time', self)

  def monotonic(self) -> float:
    return self._now

  def sleep(self, seconds: float) -> None:
    time.sleep(seconds)
    if self._is_time():
      self._now += 3600


def has_line(path: pathlib.Path) -> bool:
  return path.read_text().endswith('\n')


@posix
def test_sleeping_ends_with_all_that_was_started(run, tmp_path, monkeypatch):
  Clock(monkeypatch, lambda: has_line(tmp_path / 'log'))
  with pytest.raises(process_limits.OverLimitError, match=(
      r'has taken more than 59 minutes and was stopped.*--time_limit')):
    run(CHILD.format('') + 'time.sleep(3600)', minutes=59)
  assert is_gone(int((tmp_path / 'log').read_text()))


@posix
def test_what_outlives_its_program_holds_nobody_up(run):
  start = time.monotonic()
  assert is_gone(int(run(CHILD.format(''))))
  # What leaves the group goes on, and is not waited for.
  pid = int(run(CHILD.format(', start_new_session=True')))
  assert is_running(pid)
  os.kill(pid, 9)
  assert time.monotonic() - start < 1800  # Each would live for an hour.


def test_time_is_for_all_programs_together(tmp_path, monkeypatch):
  """Two of an hour each, in 90 minutes."""
  go = tmp_path / 'go'

  def an_hour_has_passed() -> bool:
    if go.exists() or not has_line(tmp_path / 'log'):
      return False
    go.write_text('')
    return True

  def command(until: str) -> list[str]:
    return [sys.executable, '-I', '-c', 'import os, time\nprint(1, flush=True)'
            f'\nwhile not os.path.exists("{until}"): time.sleep(.02)']

  Clock(monkeypatch, an_hour_has_passed)
  confined = process_limits.Confinement(str(tmp_path / 'home'), 90)
  confined.run(command('go'), str(tmp_path), str(tmp_path / 'log'))
  go.unlink()
  with pytest.raises(process_limits.OverLimitError):
    confined.run(command('never'), str(tmp_path), str(tmp_path / 'log'))


@posix
def test_ctrl_c_ends_it(run, monkeypatch, tmp_path):
  def interrupted(unused_seconds):
    if has_line(tmp_path / 'log'):
      raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(process_limits.time, 'sleep', interrupted)
    run(CHILD.format('') + 'time.sleep(3600)')
  assert is_gone(int((tmp_path / 'log').read_text()))


def test_printing_without_end(run, monkeypatch, tmp_path):
  monkeypatch.setattr(process_limits, 'MAX_OUTPUT', 1 << 20)
  lines = []
  with pytest.raises(process_limits.OverLimitError,
                     match='printed more than 1,048,5'):
    run('for i in range(10_000): print("x" * 10000, end="")',
        on_line=lines.append)
  assert max(map(len, lines)) <= 1 << 16


def test_lines_come_whole(run):
  lines = []
  run('import time\nfor i in range(4):\n  print(i, end="", flush=True)\n'
      '  time.sleep(.1)\n  print("x", flush=True)', on_line=lines.append)
  assert lines == ['0x\n', '1x\n', '2x\n', '3x\n']


def test_how_a_program_ended(run):
  with pytest.raises(process_limits.EndedError, match='with exit code 3'):
    run('raise SystemExit(3)')
  with pytest.raises(process_limits.EndedError, match='by SIGABRT'):
    run('import os; os.abort()')


@pytest.mark.parametrize('minutes', [0, -1, float('nan'), float('inf')])
def test_what_is_no_time(minutes):
  with pytest.raises(UserError, match=f'--time_limit must be .* got {minutes}'):
    verify.verify('model_a', time_limit=minutes)


def limited(tmp_path, code: str, memory: int) -> subprocess.CompletedProcess:
  """Runs code as a hand-in runs, in so much memory."""
  script = tmp_path / 'script.py'
  script.write_text(code)
  return subprocess.run(
      [sys.executable, '-I', str(RUNNER),
       json.dumps({'folders': [], 'memory': memory}), str(script)],
      capture_output=True, text=True, check=False)


@posix
def test_memory_and_core_files(tmp_path):
  code = ('import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))\n'
          'bytearray(8 << 30)\n')
  done = limited(tmp_path, code, 6 << 30)
  assert done.stdout == '(0, 0)\n'
  assert done.stderr.splitlines()[-1] == 'MemoryError'
  # It cannot be raised again.
  done = limited(tmp_path, 'import resource\nresource.setrlimit('
                 'resource.RLIMIT_CORE, (1, 1))', 6 << 30)
  assert os.geteuid() == 0 or 'ValueError' in done.stderr


@posix
def test_files_have_an_end(tmp_path):
  """Also the one that holds what is printed."""
  code = ('with open("big", "wb") as file:\n  file.seek(1 << 33)\n'
          '  file.write(b"x")\n')
  done = limited(tmp_path, f'import os\nos.chdir({str(tmp_path)!r})\n{code}',
                 6 << 30)
  assert done.stderr.splitlines()[-1].startswith('OSError: [Errno 27]')


@pytest.mark.skipif(sys.platform != 'linux', reason='only Linux tells a '
                    'process that its parent has died')
def test_it_ends_with_who_started_it(tmp_path):
  """Also where that was killed and could not clean up."""
  script = tmp_path / 'script.py'
  script.write_text('import os, time\nprint(os.getpid(), flush=True)\n'
                    'time.sleep(3600)\n')
  command = [sys.executable, '-I', str(RUNNER), json.dumps(
      {'folders': [], 'memory': 6 << 30}), str(script)]
  parent = subprocess.Popen(
      [sys.executable, '-c', 'import subprocess, sys\n'
       'subprocess.run(sys.argv[1:], start_new_session=True)', *command],
      stdout=subprocess.PIPE, text=True)
  pid = int(parent.stdout.readline())
  parent.kill()
  parent.wait()
  parent.stdout.close()
  assert is_gone(pid)


def test_memory_is_that_of_the_machine_but_enough():
  assert process_limits.memory_limit() >= 16 << 30


# ------------------------------------------------------- the steps' answer

ANSWER = {'faults': [], 'saved': [['a', [2, 3]]], 'built': None, 'state': 0,
          'kernels': 1, 'seconds': 0.5}


@pytest.mark.parametrize('change', [
    {'saved': 3}, {'saved': [['a']]}, {'saved': [['a', ['x']]]},
    {'faults': 'none'}, {'state': None}, {'seconds': 'x'}, {'built': {}}])
def test_an_answer_that_was_spoilt(tmp_path, change):
  path = tmp_path / 'answer.json'
  path.write_text(json.dumps(ANSWER))
  assert sandbox._answer(str(path), 'none').saved == [['a', [2, 3]]]
  path.write_text(json.dumps({**ANSWER, **change}))
  with pytest.raises(UserError, match='has spoilt the answer'):
    sandbox._answer(str(path), 'none')


@pytest.mark.parametrize('text', ['', '[]', 100_000 * '[', '{"faults": []}'])
def test_an_answer_that_is_none(tmp_path, text):
  path = tmp_path / 'answer.json'
  path.write_text(text)
  with pytest.raises(UserError, match='has spoilt the answer'):
    sandbox._answer(str(path), 'none')
  path.unlink()
  with pytest.raises(UserError, match='ends Python before the steps'):
    sandbox._answer(str(path), 'none')
  path.write_text(json.dumps(ANSWER))
  (tmp_path / 'scores.npz').write_bytes(b'PK\x03\x04 no scores')
  with pytest.raises(UserError, match='has spoilt the answer'):
    sandbox._answer(str(path), str(tmp_path / 'scores.npz'))


# --------------------------------------------- hostile hand-ins, for real

IMPORT = 'import tensorflow as tf\n'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with data and a trained model; its model folder."""
  folder = tmp_path_factory.mktemp('confine')
  tiny_kernels.write_data_root(folder / 'data')
  train.train(tiny_models.tiny_settings(
      folder / 'data', folder / 'out', epochs=1,
      models_py=tiny_handin.write_models(folder / 'source')))
  return folder, str(next((folder / 'out').glob('model_*')))


def verdict_of(trained, tmp_path, code: str, **kwargs) -> verify.Verdict:
  """Of a student's models.py that does more when it is imported."""
  folder, model_dir = trained
  return verify.verify(
      model_dir, data_root=str(folder / 'data'), cache_dir='',
      models_py=tiny_handin.write_models(
          tmp_path, tiny_handin.STUDENT.replace(IMPORT, IMPORT + code, 1)),
      **kwargs)


def only_fault(verdict: verify.Verdict) -> str:
  """The one fault; each attempt gives no more."""
  assert len(verdict.faults) == 1, verdict.text()
  assert 'Traceback' not in verdict.text()
  return verdict.faults[0]


HOSTILE = {
    'secret': ("import os\nos.environ['MY_TOKEN']\n", "KeyError: 'MY_TOKEN'"),
    'exit': ('raise SystemExit(0)\n', 'cannot be imported at line 9 (SystemEx'),
    'exit at once': ('import os\nos._exit(0)\n', 'ends Python before'),
    'abort': ('import os\nos.abort()\n', 'breaks off by SIGABRT'),
    'sleep': ('import time\ntime.sleep(1e6)\n', 'more than 0.4 minutes'),
    'memory': ('import numpy as np\nheld = []\nfor i in range(40):\n'
               '  held.append(np.empty(1 << 30, np.uint8))\n',
               'a hand-in may take 16 GiB of memory'),
}


@posix
@pytest.mark.survive
@pytest.mark.parametrize('name', HOSTILE)
def test_a_hostile_hand_in_gets_one_fault(trained, tmp_path, monkeypatch, name):
  code, message = HOSTILE[name]
  monkeypatch.setenv('MY_TOKEN', 'hush')
  monkeypatch.setattr(process_limits, 'memory_limit', lambda: 16 << 30)
  minutes = {'time_limit': 0.4} if name == 'sleep' else {}
  verdict = verdict_of(trained, tmp_path, code, **minutes)
  assert message in only_fault(verdict)
  assert 'hush' not in verdict.text()


@needs_unshare
@pytest.mark.survive
def test_a_hand_in_that_calls_home(trained, tmp_path, listener):
  verdict = verdict_of(trained, tmp_path,
                       CONNECT.format(listener.getsockname()[1]))
  assert 'Network is unreachable' in only_fault(verdict)
  assert verdict.facts['confined'].startswith('without network; ')
  with pytest.raises(socket.timeout):
    listener.accept()


@pytest.mark.survive
def test_a_hand_in_that_changes_the_environment(trained, tmp_path):
  before = dict(os.environ)
  verdict = verdict_of(trained, tmp_path, (
      "import os\nos.environ['PATH'] = '/nowhere'\n"
      "os.environ['HOME'] = '/nowhere'\nos.environ['LEAKED'] = '1'\n"))
  assert verdict.faults == []
  assert dict(os.environ) == before
