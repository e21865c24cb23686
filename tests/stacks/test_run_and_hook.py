"""Starting the baseline's scripts: `tpu-graphs-ext run` and the hook."""

from __future__ import annotations

import os
import subprocess
import sys
import venv

import pytest

from support import fake_tensorflow
from tpu_graphs_ext import cli
from tpu_graphs_ext.baseline import checkout, run_script
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import hook

SCRIPT = '''"""What the script is."""
from __future__ import annotations
import os, sys
import tensorflow as tf, tensorflow_gnn, tensorflow_ranking
from tpu_graphs.baselines.tiles import models

def main():
  print(__name__, __doc__, sys.modules['__main__'].main is main)
  print(os.path.basename(__file__), sys.argv[1:])
  print(tf.keras.Model.__module__, models.NAME, os.getcwd())
  sys.exit(7)

if __name__ == '__main__':
  main()
'''


@pytest.fixture
def root(tmp_path):
  """A made-up checkout, a course folder beside it."""
  root = tmp_path / 'tpu_graphs'
  models = root / checkout.MODELS_PY
  models.parent.mkdir(parents=True)
  models.write_text("NAME = 'models'")
  (root / 'tiles_train.py').write_text(SCRIPT)
  (tmp_path / checkout.COURSE_FOLDER).mkdir()
  (tmp_path / checkout.COURSE_FOLDER / 'course.py').write_text(SCRIPT)
  return root


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """The working folder."""
  folder = tmp_path / 'elsewhere'
  folder.mkdir()
  monkeypatch.chdir(folder)
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  return folder


@pytest.fixture(params=['2.15.1', '2.21.0'])
def packages(request, tmp_path):
  """TensorFlow of either stack, made up."""
  return fake_tensorflow.write(tmp_path / 'site', request.param,
                               estimators=request.param == '2.15.1')


def run(packages, *argv: str):
  return fake_tensorflow.run(
      packages, f'from tpu_graphs_ext import cli\ncli.main({list(argv)!r})')


@pytest.mark.parametrize('script', ['tiles_train.py', 'course.py'])
def test_a_script_runs_as_under_plain_python(packages, root, elsewhere, script):
  """Its own flags stay its own, also those that `run` has too."""
  flags = ['--model=My', '--help', '--root', 'x', '-h', 'plain']
  done = run(packages, 'run', '--root', str(root), script, *flags)
  assert done.stdout.splitlines() == [
      '__main__ What the script is. True', f'{script} {flags}',
      f'tf_keras.src models {elsewhere}']
  assert done.returncode == 7, done.stderr


def test_in_a_checkout_no_root_is_needed(root, monkeypatch):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  monkeypatch.chdir(root)
  assert run_script.find_script('tiles_train.py') == (
      str(root / 'tiles_train.py'), str(root))
  path, found = run_script.find_script('course.py')
  assert (os.path.basename(path), found) == ('course.py', str(root))


def test_the_working_folder_comes_before_the_variable(
    root, elsewhere, monkeypatch):
  monkeypatch.setenv(checkout.ROOT_VARIABLE, str(root))
  assert run_script.find_script('tiles_train.py')[0] == str(
      root / 'tiles_train.py')
  (elsewhere / 'tiles_train.py').write_text('')
  assert run_script.find_script('tiles_train.py') == (
      str(elsewhere / 'tiles_train.py'), str(root))
  assert run_script.find_script('tiles_train.py', str(root))[0] == str(
      root / 'tiles_train.py')


def test_a_script_that_is_not_there(root, elsewhere, capsys):
  assert cli.main(['run', '--root', str(root), 'tile_train.py']) == 1
  error = capsys.readouterr().err
  assert f'run: there is no script tile_train.py in {root} or ' in error
  assert 'did you mean tiles_train.py?' in error
  with pytest.raises(UserError, match='name the checkout of the baseline with '
                     f'--root or {checkout.ROOT_VARIABLE}'):
    run_script.find_script('tiles_train.py')


def test_a_root_that_is_no_checkout(elsewhere, capsys):
  assert cli.main(['run', '--root', str(elsewhere), 'tiles_train.py']) == 1
  assert 'is no checkout of the tpu_graphs baseline' in capsys.readouterr().err


# ------------------------------------------------------------------- the hook


@pytest.fixture
def python(tmp_path):
  """Makes an environment with a made-up TensorFlow; returns a function.

  The function runs code in the environment, as `python -c` there.
  """
  def make(version: str):
    packages = fake_tensorflow.write(tmp_path / 'site', version,
                                     estimators=version < '2.16')
    folder = tmp_path / 'environment'
    venv.create(folder, symlinks=True)
    site = next(folder.glob('lib/python*/site-packages'))
    (site / 'all.pth').write_text(f'{packages}\n{fake_tensorflow.PROJECT}\n')

    def run_code(code: str) -> list[str]:
      done = subprocess.run(
          [str(folder / 'bin' / 'python'), '-c', code],
          env=fake_tensorflow.plain_environment(), cwd=folder,
          capture_output=True, text=True, check=False)
      assert done.returncode == 0, done.stderr
      assert done.stderr == ''
      return done.stdout.splitlines()

    run_code.site = site
    return run_code

  return make


KERAS = '''
import tensorflow as tf, tensorflow_gnn
try:
  import tensorflow_ranking
  print(tf.keras.Model.__module__)
except ImportError as error:
  print(error)'''
MODULES = 'import sys; print(sorted(sys.modules))'


def hook_command(action: str) -> str:
  return f'from tpu_graphs_ext.stacks import hook; print(hook.{action}())'


def test_with_the_hook_plain_python_gets_keras_2(python):
  run_code = python('2.21.0')
  (without,) = run_code(KERAS)
  assert 'estimator' in without
  (modules,) = run_code(MODULES)
  (line,) = run_code(hook_command('install'))
  assert line == (f'Installed {run_code.site}/tpu_graphs_ext_hook.pth; '
                  '`tpu-graphs-ext hook remove` takes it away.')
  assert run_code(KERAS) == ['tf_keras.src']
  # Until TensorFlow is imported there is one module more, and no package.
  assert run_code(MODULES) == [str(sorted(
      [*eval(modules), 'tpu_graphs_ext_hook']))]
  assert run_code(hook_command('status'))[0].startswith('hook: installed, ')
  run_code(hook_command('remove'))
  assert run_code(KERAS) == [without]
  assert run_code(hook_command('status'))[0] == 'hook: not installed'
  assert run_code(hook_command('remove')) == [
      'Nothing to remove: the hook is not installed.']
  assert not list(run_code.site.glob('tpu_graphs_ext_hook*'))


@pytest.fixture
def site(tmp_path, monkeypatch):
  """A folder to install the hook in, on the current stack."""
  monkeypatch.setattr(hook.versions, 'stack_name', lambda: 'current')
  monkeypatch.setattr(hook.sysconfig, 'get_path',
                      lambda unused: str(tmp_path))
  return tmp_path


PTH, PY = 'tpu_graphs_ext_hook.pth', 'tpu_graphs_ext_hook.py'


def test_what_python_compiled_goes_too(python):
  run_code = python('2.21.0')
  run_code(hook_command('install'))
  # As Python does it at its next start, unless it is told not to.
  run_code('import py_compile, tpu_graphs_ext_hook as hook; '
           'py_compile.compile(hook.__file__)')
  cache = run_code.site / '__pycache__'
  assert list(cache.glob('tpu_graphs_ext_hook*.pyc'))
  other = cache / 'tpu_graphs_ext_hook_of_another.cpython-311.pyc'
  other.write_bytes(b'')
  run_code(hook_command('remove'))
  assert not list(run_code.site.glob('tpu_graphs_ext_hook*'))
  assert list(cache.glob('tpu_graphs_ext_hook*')) == [other]


@pytest.mark.parametrize('gone, left', [(PTH, PY), (PY, PTH)])
def test_half_a_hook_is_removed(site, gone, left):
  hook.install()
  (site / gone).unlink()
  assert not hook.is_installed()
  assert hook.status().startswith(f'hook: half installed: only {site / left};')
  assert hook.remove() == f'Removed {site / left}.'
  assert hook.remove() == 'Nothing to remove: the hook is not installed.'
  assert not os.listdir(site)


def test_a_compiled_file_alone_is_removed(site):
  (site / '__pycache__').mkdir()
  compiled = site / '__pycache__' / 'tpu_graphs_ext_hook.cpython-312.pyc'
  compiled.write_bytes(b'')
  assert hook.remove() == f'Removed {compiled}.'


@pytest.mark.parametrize('name', [PTH, PY])
@pytest.mark.parametrize('content', [
    b'import something_else\n', b'', bytes(range(256)),
    b'import tpu_graphs_ext_hook\nimport more\n'])
def test_a_file_of_another_is_never_touched(site, name, content):
  (site / name).write_bytes(content)
  with pytest.raises(UserError, match=f"{name}: is not the hook's"):
    hook.install()
  assert os.listdir(site) == [name]
  assert f"{site / name}: is not the hook's" in hook.status()
  assert hook.remove() == f"Left {site / name}: it is not the hook's."
  assert (site / name).read_bytes() == content


def test_beside_a_file_of_another_the_own_half_goes(site):
  hook.install()
  (site / '__pycache__').mkdir()
  compiled = site / '__pycache__' / 'tpu_graphs_ext_hook.cpython-312.pyc'
  compiled.write_bytes(b'')
  (site / PY).write_text('# Of another.\n')
  assert hook.remove().splitlines() == [
      f'Removed {site / PTH}.', f"Left {site / PY}: it is not the hook's."]
  # What is compiled is of the module that is there.
  assert compiled.exists()


@pytest.mark.parametrize('kind', ['folder', 'pipe', 'dead link'])
def test_what_is_no_file_is_left(site, kind):
  path = site / PY
  if kind == 'folder':
    path.mkdir()
  elif kind == 'pipe':
    os.mkfifo(path)
  else:
    path.symlink_to(site / 'nothing')
  with pytest.raises(UserError, match="is not the hook's"):
    hook.install()
  assert hook.remove() == f"Left {path}: it is not the hook's."
  assert os.path.lexists(path)


def test_the_hook_is_not_for_the_classic_stack(python):
  run_code = python('2.15.1')
  (line,) = run_code(hook_command('install'))
  assert line == (
      'Nothing to install: TensorFlow 2.15.1 is older than 2.16 and has its '
      "own Keras 2, so the baseline's scripts run as they are.")
  assert not list(run_code.site.glob('tpu_graphs_ext_hook*'))


def test_a_hook_whose_package_is_gone_does_nothing(python):
  run_code = python('2.21.0')
  (without,) = run_code(KERAS)
  run_code(hook_command('install'))
  path = run_code.site / 'all.pth'
  path.write_text(path.read_text().splitlines()[0])
  assert run_code(KERAS) == [without]


def test_a_hook_that_cannot_be_written(tmp_path, monkeypatch):
  monkeypatch.setattr(hook.versions, 'stack_name', lambda: 'current')
  monkeypatch.setattr(hook.sysconfig, 'get_path',
                      lambda unused: str(tmp_path / 'no folder'))
  (tmp_path / 'no folder').touch()
  with pytest.raises(UserError, match=r'cannot be written .* use an '
                     r'environment of your own .* or start scripts by '
                     '`tpu-graphs-ext run`'):
    hook.install()


def test_the_commands_exist(capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(hook.sysconfig, 'get_path', lambda unused: str(tmp_path))
  assert cli.main(['hook', 'status']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == 'hook: not installed'
  assert ' stack: TensorFlow ' in lines[1]
  assert sys.version.split()[0] in lines[2]
