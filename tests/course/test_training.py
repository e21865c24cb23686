"""assignment_train.sh: the flags of tiles_train.py, its paths and its model."""

import os
import shutil
import subprocess
import sys

import pytest

from support import baseline_scripts, tiny_kernels
from support.places import PROJECT
from tpu_graphs_ext.course import checkout, training
from tpu_graphs_ext.engine import origin
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import tile

# Takes flags and names its model as the baseline's script does.
SCRIPT = '''
import hashlib, json, os, sys
flags = {"model": "EarlyJoinSAGE", "epochs": 100, "configs": 10, "lr": 1e-3}
rest = iter(sys.argv[1:])
for argument in rest:
  name, equals, value = argument.lstrip("-").partition("=")
  flags[name] = value if equals else next(rest)
if flags.get("run_id") == "fails":
  sys.exit(7)
args = dict(
    epochs=int(flags["epochs"]), eval_every=5, batch_size=10, configs=10,
    early_stop=20, losses="ListMLELoss:1,MSE:0.02",
    learning_rate=float(flags["lr"]), clip_norm=1e-3, model=flags["model"],
    model_kwargs_json="{}", test_mode="predictions", out_dir=flags["out_dir"],
    results_csv=flags["results_csv"], validate_batches=-1,
    run_id=flags.get("run_id", ""))
name = hashlib.md5(json.dumps(args, sort_keys=True).encode()).hexdigest()
if flags.get("run_id") != "writes nothing":
  os.makedirs(flags["out_dir"] + "/model_" + name)
with open("seen.json", "w") as file:
  json.dump(flags, file)
'''
MODELS = '''
class _Base:
  def __init__(self, num_configs, num_ops, width=4): pass
class Mine(_Base): pass
Made = type('Made', (), {})
'''


@pytest.fixture
def student(root, tmp_path, monkeypatch):
  """A folder with data/ and models.py, from where paths are relative."""
  (root / 'tiles_train.py').write_text(SCRIPT)
  monkeypatch.setattr(tile, 'CACHE_DIR', str(tmp_path / 'cache'))
  home = tmp_path / 'student'
  tiny_kernels.write_data_root(home / 'data')
  shutil.copytree(home / 'data', home / 'no_valid',
                  ignore=lambda folder, names: names * folder.endswith('valid'))
  (home / 'models.py').write_text(MODELS)
  monkeypatch.chdir(home)

  def train(*arguments):
    return training.train(str(root), 'models.py', 'out', [
        '--model=Mine', '--data_root=data', '--out_dir=out', *arguments])

  train.seen = lambda: checkout.files.read_json(str(root / 'seen.json'))
  train.home, train.root = home, root
  return train


def test_paths_are_made_absolute_and_its_own_model_is_named(student):
  first = student('--epochs=1')
  other = student('-model', 'Made', '--out_dir', 'there', '--lr=0.01')
  for folder, model_dir in (('out', first), ('there', other)):
    assert os.path.dirname(model_dir) == f'{student.home}/{folder}'
    assert len(os.listdir(student.home / folder)) == 1 + (folder == 'out')
  seen = student.seen()
  assert seen['data_root'] == f'{student.home}/data'
  assert seen['results_csv'].startswith(f'{student.home}/there/results_')
  # For the later scripts, which look in the first folder.
  assert (student.home / 'out' / training.LAST).read_text() == f'{other}\n'
  assert (student.root / checkout.MODELS_PY).read_text() == MODELS
  with open(f'{other}/{origin.COPY}') as copy:
    assert copy.read() == MODELS


def test_each_data_has_a_cache_of_its_own(student, tmp_path):
  caches = []
  for change in (lambda: None, lambda: None, lambda: os.remove(
      next((student.home / 'data/train').iterdir()))):
    change()
    student('--run_id', str(len(caches)))
    caches.append(student.seen()['cache_dir'])
  assert caches[0] == caches[1] != caches[2]
  assert all(path.startswith(f'{tmp_path}/cache/scripts_') for path in caches)
  for asked, seen in (('', ''), ('mine', f'{student.home}/mine')):
    student(f'--cache_dir={asked}', f'--run_id=cache {asked}')
    assert student.seen()['cache_dir'] == seen


def test_a_working_copy_follows_no_links_to_folders(root):
  (root / '.#a.py').symlink_to('me@host:1')  # An editor's lock.
  (root / 'loop').symlink_to('.')
  assert {*os.listdir(checkout.working_copy(str(root), f'{root}_copy'))} == {
      'tiles_train.py', 'tpu_graphs', *checkout.COURSE_FILES}


def test_a_script_that_fails_says_its_last_lines(tmp_path):
  script, log = tmp_path / 'fails.py', tmp_path / 'out.log'
  script.write_text('print("first")\nraise ValueError("last")\n' + 9 * '#\n')
  with pytest.raises(UserError) as error:
    baseline_scripts.run(str(tmp_path), [str(script)], str(log))
  assert str(error.value).startswith('fails.py stopped with exit code 1: ')
  assert str(error.value).endswith('ValueError: last')
  assert log.read_text().startswith('first\n')


@pytest.mark.parametrize('flags, message', [
    (['--model=Min'], "--model: there is no model 'Min' in models.py; the "
     'models are Mine$'),
    (['--model_kwargs_json={"deep": 1}'], "Mine has no argument 'deep'"),
    (['--epochs=0'], '--epochs=0: must be at least 1'),
    (['--epochs', 'ten'], 'tiles_train.py: flag --epochs=ten: invalid'),
    (['--losses=MSE'], '--losses=MSE: must be losses of'),
    (['--model_kwargs_json={'], '--model_kwargs_json={: is not JSON'),
    (['--data_root=.'], r'/student/train: does not exist.*DATA_ROOT'),
    (['--data_root=no_valid'], r'no_valid/valid: .*no \.npz.*DATA_ROOT'),
    (['--run_id=writes nothing'], 'should have written this folder')])
def test_what_the_script_would_find_out_late(student, flags, message):
  with pytest.raises(UserError, match=message):
    student(*flags)
  if 'writes' not in flags[0]:
    assert not (student.root / 'seen.json').exists()
    assert (student.root / checkout.MODELS_PY).read_text() == '# the original\n'


def test_a_script_that_fails_ends_with_its_code(student):
  done = subprocess.run(
      [sys.executable, '-m', 'tpu_graphs_ext.course.training',
       str(student.root), 'models.py', 'out', '--model=Mine',
       '--data_root=data', '--run_id=fails'], cwd=student.home,
      env={**os.environ, 'PYTHONPATH': str(PROJECT)}, capture_output=True,
      text=True, check=False)
  assert done.returncode == 7 and 'Traceback' not in done.stderr
