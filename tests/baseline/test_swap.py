"""models.py in and out of a checkout: what is kept, what is refused."""

import os
import subprocess

import pytest

from tpu_graphs_ext import load_models
from tpu_graphs_ext.baseline import checkout, swap
from tpu_graphs_ext.errors import UserError

THEIRS = b'# the original\n'


@pytest.fixture
def root(tmp_path):
  """A checkout in git with a models.py of its own."""
  root = tmp_path / 'tpu_graphs'
  (root / checkout.MODELS_PY).parent.mkdir(parents=True)
  (root / checkout.MODELS_PY).write_bytes(THEIRS)
  (root / 'tiles_train.py').write_text('')
  git(root, 'init', '--quiet')
  git(root, 'add', '.')
  git(root, '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '--quiet',
      '-m', 'first')
  return root


def git(root, *arguments: str) -> str:
  return subprocess.run(['git', '-C', str(root), *arguments], check=True,
                        capture_output=True, text=True).stdout


def in_place(root) -> bytes:
  return (root / checkout.MODELS_PY).read_bytes()


def ours() -> bytes:
  with open(load_models.models_path(), 'rb') as file:
    return file.read()


def state(root) -> str:
  return swap.state(str(root / checkout.MODELS_PY))


def test_in_twice_and_out_twice(root, monkeypatch, tmp_path):
  assert state(root) == swap.COMMITTED
  assert swap.install(str(root)).startswith('installed ')
  assert in_place(root) == ours()
  assert state(root) == swap.OURS
  # From another folder, by a relative path and by the variable.
  monkeypatch.chdir(tmp_path)
  assert swap.install('tpu_graphs/').startswith('already in place')
  monkeypatch.setenv(checkout.ROOT_VARIABLE, 'tpu_graphs')
  assert swap.install().startswith('already in place')
  assert swap.uninstall().startswith('restored')
  assert in_place(root) == THEIRS
  assert git(root, 'status', '--porcelain') == ''
  assert swap.uninstall(str(root)).startswith("already the checkout's own")


def test_a_students_file_and_its_next_version(root, tmp_path):
  student = tmp_path / 'mine.py'
  student.write_text('import numpy\n')
  swap.install(str(root), str(student))
  assert in_place(root) == b'import numpy\n'
  assert state(root) == swap.INSTALLED
  student.write_text('import numpy as np\n')
  swap.install(str(root), str(student))
  assert in_place(root) == b'import numpy as np\n'
  swap.install(str(root))
  assert in_place(root) == ours()
  swap.uninstall(str(root))
  assert in_place(root) == THEIRS
  assert git(root, 'status', '--porcelain') == ''


@pytest.mark.parametrize('installed_before', [False, True])
def test_changes_by_hand_are_not_lost(root, tmp_path, installed_before):
  if installed_before:
    swap.install(str(root))
  (root / checkout.MODELS_PY).write_text('# mine\n')
  assert state(root) == swap.OTHER
  with pytest.raises(UserError, match='has changes that install did not make'):
    swap.install(str(root))
  with pytest.raises(UserError, match=r'cp .* my_models.py'):
    swap.uninstall(str(root))
  assert in_place(root) == b'# mine\n'
  # What the message advises.
  copy = tmp_path / 'my_models.py'
  copy.write_bytes(in_place(root))
  swap.install(str(root), str(copy))
  swap.uninstall(str(root))
  assert in_place(root) == THEIRS
  assert git(root, 'status', '--porcelain') == ''


def test_a_file_that_was_copied_by_hand_is_known(root):
  (root / checkout.MODELS_PY).write_bytes(ours())
  assert state(root) == swap.OURS
  swap.uninstall(str(root))
  assert in_place(root) == THEIRS


def test_without_git_the_copy_beside_is_restored(root):
  swap.install(str(root))
  os.rename(root / '.git', root / 'no_git')
  swap.uninstall(str(root))
  assert in_place(root) == THEIRS


def test_without_git_an_unknown_file_is_kept(root):
  os.rename(root / '.git', root / 'no_git')
  with pytest.raises(UserError, match='has changes'):
    swap.install(str(root))
  (root / checkout.MODELS_PY).write_bytes(ours())
  with pytest.raises(UserError, match='the original is neither in'):
    swap.uninstall(str(root))


def test_an_interrupted_install_is_finished_by_the_next(root, monkeypatch):
  write = swap.files.write_file

  def fails_on_target(path, content):
    if path.endswith('models.py'):
      raise KeyboardInterrupt
    write(path, content)

  monkeypatch.setattr(swap.files, 'write_file', fails_on_target)
  with pytest.raises(KeyboardInterrupt):
    swap.install(str(root))
  monkeypatch.undo()
  assert in_place(root) == THEIRS
  swap.install(str(root))
  swap.uninstall(str(root))
  assert git(root, 'status', '--porcelain') == ''


def test_a_file_that_cannot_run_there_is_refused(root, tmp_path):
  student = tmp_path / 'mine.py'
  student.write_text('import torch\n')
  with pytest.raises(UserError, match='line 1 imports torch'):
    swap.install(str(root), str(student))
  assert in_place(root) == THEIRS


def test_no_checkout(monkeypatch, tmp_path):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  with pytest.raises(UserError, match=r'no checkout .* is named; give'):
    swap.install()
  with pytest.raises(UserError, match='is no checkout of the tpu_graphs'):
    swap.uninstall(str(tmp_path))


def test_files_beside_that_install_did_not_write_stay(root):
  target = root / checkout.MODELS_PY
  for ending in (swap.ORIGINAL, swap.RECORD):
    mine = target.with_name(target.name + ending)
    mine.write_text('[' * 100_000)
    with pytest.raises(UserError, match='did not write, and would replace'):
      swap.install(str(root))
    assert 'already' in swap.uninstall(str(root))
    assert mine.read_text() == '[' * 100_000
    mine.unlink()
  assert in_place(root) == THEIRS
