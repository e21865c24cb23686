"""Starting the baseline's scripts: `tpu-graphs-ext run`."""

from __future__ import annotations

import pytest

from support import fake_tensorflow
from tpu_graphs_ext import cli
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

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
def elsewhere(tmp_path, monkeypatch):
  """The working folder."""
  folder = tmp_path / 'elsewhere'
  folder.mkdir()
  monkeypatch.chdir(folder)
  return folder


@pytest.fixture(params=['2.15.1', '2.21.0'])
def packages(request, tmp_path):
  """TensorFlow of either stack, made up."""
  return fake_tensorflow.write(tmp_path / 'site', request.param,
                               estimators=request.param == '2.15.1')


def run(packages, *argv: str):
  return fake_tensorflow.run(
      packages, f'from tpu_graphs_ext import cli\ncli.main({list(argv)!r})')


@pytest.mark.parametrize('folder, script', [
    ('tpu_graphs', 'tiles_train.py'),
    (checkout.COURSE_FOLDER, checkout.COURSE_FILES[0])])
def test_a_script_runs_as_under_plain_python(
    packages, root, elsewhere, folder, script):
  """Its own flags stay its own, also those that `run` has too."""
  (root / checkout.MODELS_PY).write_text("NAME = 'models'")
  (root.parent / folder / script).write_text(SCRIPT)
  flags = ['--model=My', '--help', '--root', 'x', '-h', 'plain']
  done = run(packages, 'run', '--root', str(root), script, *flags)
  assert done.stdout.splitlines() == [
      '__main__ What the script is. True', f'{script} {flags}',
      f'tf_keras.src models {elsewhere}']
  assert done.returncode == 7, done.stderr


def test_where_a_script_is_looked_for(root, elsewhere, monkeypatch, capsys):
  """In --root, the working folder, then the checkout of the variable."""
  with pytest.raises(UserError, match=f'--root or {checkout.ROOT_VARIABLE}'):
    checkout.find_script('tiles_train.py')
  monkeypatch.setenv(checkout.ROOT_VARIABLE, str(root))
  script = str(root / 'tiles_train.py')
  assert checkout.find_script('tiles_train.py') == (script, str(root))
  (elsewhere / 'tiles_train.py').write_text('')
  assert checkout.find_script('tiles_train.py') == (
      str(elsewhere / 'tiles_train.py'), str(root))
  assert checkout.find_script('tiles_train.py', str(root))[0] == script
  for folder, error in ((root, f'there is no script train.py in {root} or '),
                        (elsewhere, 'is not a checkout of the tpu_graphs')):
    assert cli.main(['run', '--root', str(folder), 'train.py']) == 1
    assert error in capsys.readouterr().err
