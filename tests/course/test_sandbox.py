"""What the code of a hand-in is kept from, and that it ends."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from support import waiting
from tpu_graphs_ext.course import sandbox
from tpu_graphs_ext.errors import UserError

needs_confinement = pytest.mark.skipif(
    not sandbox.confines(),
    reason='the system gives a program no network and root folder of its own')


@pytest.fixture
def run(tmp_path):
  """Runs code as a script; returns what it printed."""
  def run_code(code: str, minutes: float = 1, data_root: str = '') -> str:
    (tmp_path / 'models.py').write_text(code)
    temporary = tmp_path / 'sandbox'
    temporary.mkdir()
    place = sandbox.Sandbox(
        str(temporary), str(tmp_path / 'model_a'),
        str(tmp_path / 'models.py'), None, minutes, data_root)
    place.run(['models.py'])
    return (temporary / 'output.log').read_text()

  return run_code


def test_the_environment(run, monkeypatch, tmp_path):
  kept = {'LC_ALL': 'C', 'OMP_NUM_THREADS': '3', 'TF_USE_LEGACY_KERAS': '1'}
  dropped = dict.fromkeys((
      'GITHUB_TOKEN', 'MY_TOKEN', 'PYTHONPATH', 'LD_AUDIT', 'TF_VAR_db'), 'x')
  for name, value in {**kept, **dropped}.items():
    monkeypatch.setenv(name, value)
  printed = run('import json, os; print(json.dumps(dict(os.environ)))')
  seen = json.loads(printed.splitlines()[-1])  # After TensorFlow's.
  assert seen['HOME'].startswith(str(tmp_path / 'sandbox'))
  assert kept.items() <= seen.items()
  assert set(seen) <= {
      *kept, *(sandbox._PASSED & os.environ.keys()), 'HOME', 'TMPDIR',
      'LC_CTYPE', 'TF_CPP_MIN_LOG_LEVEL', 'PWD', 'OLDPWD', 'SHLVL', '_',
      'TF2_BEHAVIOR', 'TPU_ML_PLATFORM',  # By TensorFlow.
      'TPU_ML_PLATFORM_VERSION', 'ENABLE_RUNTIME_UPTIME_TELEMETRY',
      'HDF5_PLUGIN_PATH',
      'TPU_LIBRARY_PATH', 'TPU_SKIP_MDS_QUERY'}  # By JAX, beside libtpu.


@needs_confinement
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


@needs_confinement
def test_nothing_but_python_and_the_hand_in_is_there(run, tmp_path):
  """Neither files nor UNIX sockets of the host; data can only be read."""
  (tmp_path / 'secret').write_text('hush')
  data = tmp_path / 'data'
  (data / 'stored').mkdir(parents=True)
  (data / 'stored' / 'a.npz').write_text('kernel')
  (data / 'train').mkdir()
  os.symlink(data / 'stored' / 'a.npz', data / 'train' / 'a.npz')
  code = f'''
import os, pathlib, socket
place = pathlib.Path({str(tmp_path)!r})
print(sorted(os.listdir(place)))
print((place / 'data' / 'train' / 'a.npz').read_text())
for path in (place / 'data' / 'train' / 'b', '/etc/b', '/usr/b', os.__file__):
  try:
    open(path, 'a')
    print('opened', path)
  except OSError:
    pass
try:
  socket.socket(socket.AF_UNIX).connect({str(tmp_path / 'socket')!r})
  print('connected')
except OSError:
  pass
pathlib.Path('kept').write_text('')
'''
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(tmp_path / 'socket'))
    server.listen()
    assert run(code, data_root=str(data)).splitlines()[-2:] == [
        "['data', 'sandbox']", 'kernel']
  assert (tmp_path / 'sandbox' / 'place' / 'kept').exists()


# Leaves its session and its parent, says that it lives, and prints its id.
DAEMON = '''
import os, time
if os.fork() == 0:
  os.setsid()
  if os.fork() == 0:
    while True:
      with open('alive', 'a') as file:
        file.write('.')
      time.sleep(.05)
  os._exit(0)
while not os.path.exists('alive'):
  time.sleep(.05)
'''


def assert_still(alive):
  """Nobody writes into the file any more."""
  size = alive.stat().st_size
  time.sleep(.3)
  assert alive.stat().st_size == size > 0


@needs_confinement
def test_what_a_hand_in_leaves_running_ends_with_it(run, tmp_path):
  run(DAEMON)
  assert_still(tmp_path / 'sandbox' / 'place' / 'alive')


@needs_confinement
def test_a_hand_in_ends_with_who_runs_it(tmp_path):
  (tmp_path / 'models.py').write_text(DAEMON + 'time.sleep(60)')
  place = tmp_path / 'sandbox' / 'place'
  process = subprocess.Popen([sys.executable, '-c', (
      'import sys; from tpu_graphs_ext.course import sandbox\n'
      'sandbox.Sandbox(*sys.argv[1:], None, 1).run(["models.py"])'),
      str(place.parent), str(tmp_path / 'model_a'),
      str(tmp_path / 'models.py')])
  place.parent.mkdir()
  assert waiting.wait_for((place / 'alive').exists, 60)
  process.kill()
  process.wait()
  time.sleep(.3)
  assert_still(place / 'alive')


@pytest.mark.parametrize('place, target', [
    *itertools.product(['model_a/assets/x', 'run_a.jsonz'], [
        '/dev/zero', '/etc/passwd', '.']), ('run_a.jsonz', '')])  # A folder.
def test_links_in_a_hand_in_are_not_followed(run, tmp_path, place, target):
  (tmp_path / 'model_a' / 'assets').mkdir(parents=True)
  os.symlink(target, tmp_path / place) if target else os.mkdir(tmp_path / place)
  with pytest.raises(UserError, match=f'{place}: is a link, .*is not followed'):
    run('')


def test_when_the_time_is_up_everything_that_was_started_ends(run, tmp_path):
  alive = tmp_path / 'sandbox' / 'place' / 'alive'
  for minutes in .04, .2, 1:  # TensorFlow is imported first.
    with pytest.raises(UserError, match='more time than --time_limit allows'):
      run(DAEMON.replace('os.setsid()', 'pass') + 'time.sleep(3600)',
          minutes=minutes)
    if alive.exists():
      break
    shutil.rmtree(tmp_path / 'sandbox')
  assert_still(alive)


def test_an_answer_that_was_damaged(tmp_path):
  path = tmp_path / 'answer.json'
  answer = {'faults': [], 'misfit': '', 'state': 0, 'seconds': 0.5,
            'scores': {'a': [1, 2.5]}}
  path.write_text(json.dumps(answer))
  assert sandbox.read_answer(str(path)).scores['a'].tolist() == [1, 2.5]
  for text in ('', '[]', 100_000 * '[', '{"faults": []}',
               json.dumps({**answer, 'scores': {'a': ['x']}})):
    path.write_text(text)
    with pytest.raises(UserError, match='grading did not finish'):
      sandbox.read_answer(str(path))
