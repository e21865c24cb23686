"""Processes that are started run nothing of the working folder."""

import ast
import contextlib
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest

from support import pool_tasks
from support.places import PROJECT
from tpu_graphs_ext import children
from tpu_graphs_ext.course import checkout, sandbox
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import subprocesses
from tpu_graphs_ext.sweep import pool

PACKAGE = PROJECT / 'tpu_graphs_ext'
# Modules of the standard library and all that is installed.
NAMES = {name.partition('.')[0] for name in (
    *sys.modules, *getattr(sys, 'stdlib_module_names', ()),
    *(module.name for module in pkgutil.iter_modules()))}
assert {'json', 'tensorflow', 'multiprocessing', 'shlex'} <= NAMES
STARTS = re.compile(
    r'subprocess\.(run|Popen|check_output)|os\.(execve?|system|fork)|'
    r'multiprocessing\.(get_context|Process)')


@pytest.fixture
def planted(tmp_path, monkeypatch):
  """A working folder with a module of each name; returns those that ran."""
  folder = tmp_path / 'working_folder'
  folder.mkdir()
  for name in filter(str.isidentifier, NAMES):
    (folder / f'{name}.py').write_text(
        f'open({str(tmp_path / "ran")!r}, "a").write({name!r} + "\\n")\n')
  monkeypatch.chdir(folder)

  def ran():
    with contextlib.suppress(FileNotFoundError):
      return (tmp_path / 'ran').read_text().split()
    return []

  yield ran


def pool_of_processes(unused):
  (_, number, error), = pool.run(pool_tasks.its_process, [('a', 1)])
  assert number and not error


CODE = 'import json, shlex; print(json.dumps(1))'


def script(tmp_path):
  (tmp_path / 'script.py').write_text(CODE)
  done = subprocess.run(checkout.script_command([str(tmp_path / 'script.py')]),
                        capture_output=True, text=True, check=True)
  assert done.stdout == '1\n'


def hand_in(tmp_path):
  (tmp_path / 'models.py').write_text(CODE)
  (tmp_path / 'place').mkdir()
  sandbox.Sandbox(str(tmp_path / 'place'), str(tmp_path / 'model_a'),
                  str(tmp_path / 'models.py'), None, 1).run(['models.py'])


def lowered(unused):
  """Only the function's own module is looked for there."""
  for python in ('', sys.executable):
    with pytest.raises(UserError, match=r'no_such_module cannot be imported .*'
                       f'by {sys.executable} '):
      subprocesses.lower_named('no_such_module:f', '', python)


def compiled(unused):
  with pytest.raises(UserError, match='the TPU compiler cannot be loaded'):
    subprocesses.compile_program('no_library', 'v3:2x2x1', b'', 'hlo', b'')


def other_pythons(unused):
  """Also those that have no flag to leave the working folder out."""
  for name in ('python3', 'python3.9', 'python3.10'):
    python = shutil.which(name)
    if python and not subprocess.run(
        [python, '-I', '-c', ''], capture_output=True, check=False).returncode:
      assert subprocess.run(
          children.command('import json, shlex; print(sys.argv[1:])', 'a',
                           python=python), env={'PYTHONSAFEPATH': '1'},
          capture_output=True, text=True, check=True).stdout == "['a']\n"


# All that the verbs start.
@pytest.mark.parametrize('start', [
    pool_of_processes, script, hand_in, lowered, compiled, other_pythons])
def test_no_module_of_the_working_folder_runs(planted, tmp_path, start):
  start(tmp_path)
  assert planted() == []


def test_a_module_there_runs_in_an_ordinary_child(planted):
  subprocess.run([sys.executable, '-c', 'import shlex'], check=False)
  # From Python 3.13 on, -c itself imports another one.
  assert planted()[0] in ('shlex', 'linecache')


def test_the_working_folder_of_python_m_is_left_out(tmp_path, monkeypatch):
  code = 'from tpu_graphs_ext import children; print(children._paths())'
  (tmp_path / 'mine.py').write_text(code)
  for command in (['-m', 'mine'], ['-c', code]):
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True,
        text=True, check=True, env={'PYTHONPATH': str(PROJECT)})
    assert str(PROJECT) in ast.literal_eval(done.stdout)
    assert not {'', str(tmp_path)} & set(ast.literal_eval(done.stdout))


def test_every_process_is_started_by_what_is_tested_here():
  starts = {
      'sweep/pool.py': ['subprocess.Popen'],
      'hlo/subprocesses.py': ['subprocess.Popen'], 'cli/verbs.py': ['os.execv'],
      'course/sandbox.py': ['subprocess.run'],  # By -I.
      # A script in its working copy, or by -I in the sandbox; git.
      'course/checkout.py': ['subprocess.Popen', 'subprocess.run'],
      'course/training.py': ['subprocess.run']}
  for path in PACKAGE.rglob('*.py'):
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(
        path.read_text())) if isinstance(node, ast.Call)]
    assert sorted(filter(STARTS.fullmatch, calls)) == starts.get(
        path.relative_to(PACKAGE).as_posix(), []), path
