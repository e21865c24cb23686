"""A made-up checkout of the baseline."""

import subprocess

import pytest

from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.tasks import TASKS


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
  """A test names its own."""
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)


@pytest.fixture
def root(tmp_path, plain_git):
  """In git, with models of its own for both tasks, the scripts beside it."""
  root = tmp_path / 'a b' / 'tpu_graphs'
  for name in (task.baseline_models for task in TASKS.values()):
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b'# the original\n')
  (root / 'tiles_train.py').write_text('')
  scripts = root.parent / checkout.COURSE_FOLDER
  scripts.mkdir()
  for name in checkout.COURSE_FILES:
    (scripts / name).write_text('')
  for command in (['init', '--quiet'], ['add', '.'],
                  ['-c', 'user.name=a', '-c', 'user.email=a@b', 'commit',
                   '--quiet', '-m', 'first']):
    subprocess.run(['git', '-C', str(root), *command], check=True)
  return root
