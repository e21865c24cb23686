"""models.py in and out of a checkout: what is kept, what is refused."""

import os
import subprocess

import pytest

from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.errors import UserError

THEIRS = b'# the original\n'


@pytest.fixture
def student(tmp_path):
  """A models.py of a student's own."""
  path = tmp_path / 'mine.py'
  path.write_text('import numpy\n')
  return path


def git(root, *arguments: str) -> str:
  return subprocess.run(['git', '-C', str(root), *arguments], check=True,
                        capture_output=True, text=True).stdout


def in_place(root) -> bytes:
  return (root / checkout.MODELS_PY).read_bytes()


def ours(task: str = 'tile') -> bytes:
  with open(load_models.models_path(task), 'rb') as file:
    return file.read()


def state(root) -> str:
  return swap.state(str(root / checkout.MODELS_PY))


def assert_clean(root) -> None:
  """The checkout is as it was cloned."""
  assert in_place(root) == THEIRS
  assert git(root, 'status', '--porcelain') == ''


def test_in_twice_and_out_twice(root, monkeypatch, tmp_path):
  assert state(root) == swap.THEIRS
  assert swap.install(str(root)).startswith('installed ')
  assert in_place(root) == ours()
  assert state(root) == swap.INSTALLED
  # From another folder, by a relative path and by the variable.
  monkeypatch.chdir(tmp_path)
  assert swap.install('tpu_graphs/').startswith('already in place')
  monkeypatch.setenv(checkout.ROOT_VARIABLE, 'tpu_graphs')
  assert swap.install().startswith('already in place')
  assert swap.uninstall().startswith('restored')
  assert_clean(root)
  assert swap.uninstall(str(root)).startswith("already the checkout's own")


def test_a_students_file_and_its_next_version(root, student):
  swap.install(str(root), str(student))
  assert in_place(root) == b'import numpy\n'
  assert state(root) == swap.INSTALLED
  student.write_text('import numpy as np\n')
  swap.install(str(root), str(student))
  assert in_place(root) == b'import numpy as np\n'
  swap.install(str(root))
  assert in_place(root) == ours()
  swap.uninstall(str(root))
  assert_clean(root)


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
  assert_clean(root)


def test_what_cannot_be_installed(root, student, monkeypatch, tmp_path):
  student.write_text('import torch\n')
  with pytest.raises(UserError, match='line 1 imports torch'):
    swap.install(str(root), str(student))
  os.mkfifo(tmp_path / 'pipe.py')
  with pytest.raises(UserError, match='is not an ordinary file'):
    swap.install(str(root), str(tmp_path / 'pipe.py'))
  assert_clean(root)
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  with pytest.raises(UserError, match=r'names no checkout .* give --root'):
    swap.install()
  with pytest.raises(UserError, match='is not a checkout of the tpu_graphs'):
    swap.uninstall(str(tmp_path))
  os.rename(root / '.git', root / 'no_git')
  for call in (swap.install, swap.uninstall):
    with pytest.raises(UserError, match=r'git, .* does not have it; use the'):
      call(str(root))
  assert in_place(root) == THEIRS
  os.rename(root / 'no_git', root / '.git')
  (root / checkout.LAYOUT_MODELS_PY).unlink()
  with pytest.raises(UserError, match=r'layout/models.py: is missing'):
    swap.install(str(root), task='layout')


def test_broken_off_between_any_two_steps(root, student, monkeypatch):
  """The next call, in or out, finishes what was broken off."""
  write, remove = swap.files.write_file, os.remove
  two = student.with_name('two.py')
  two.write_text('import numpy as np\n')
  calls = (lambda: swap.install(str(root), str(student)),
           lambda: swap.install(str(root), str(two)),
           lambda: swap.install(str(root)), lambda: swap.uninstall(str(root)))
  for number, call in enumerate(calls):
    for steps in range(2):  # Files that one call writes or removes.
      for mend in (lambda: swap.install(str(root), str(two)),
                   lambda: swap.uninstall(str(root))):
        for before in calls[:number]:
          before()
        left = [steps]

        def stopping(function, left=left):
          def step(*args):
            if not left[0]:
              raise KeyboardInterrupt
            left[0] -= 1
            function(*args)
          return step

        with monkeypatch.context() as patch:
          patch.setattr(swap.files, 'write_file', stopping(write))
          patch.setattr(swap.os, 'remove', stopping(remove))
          try:
            call()
          except KeyboardInterrupt:
            pass
        mend()
        swap.uninstall(str(root))
        assert_clean(root)


def test_a_record_of_somebody_else_is_never_touched(root):
  other = root / (checkout.MODELS_PY + swap.RECORD)
  other.write_text('# of somebody else\n')
  with pytest.raises(UserError, match='installed: install did not make it'):
    swap.install(str(root))
  assert in_place(root) == THEIRS
  # Also where models.py was copied into place by hand.
  (root / checkout.MODELS_PY).write_bytes(ours())
  assert f'left {other}: install did not make it' in swap.uninstall(str(root))
  assert in_place(root) == THEIRS
  assert other.read_text() == '# of somebody else\n'


def test_a_damaged_record(root, student):
  """With a damaged one nothing is replaced."""
  record = root / (checkout.MODELS_PY + swap.RECORD)
  swap.install(str(root), str(student))
  for text in (100_000 * '[', '[]', '{"sha256": 3}', '{"sha256": "x"}', '\0',
               '', '{"sha256": ["a"]}', '1' + 5000 * '0'):
    record.write_text(text)
    assert state(root) == swap.OTHER
    for call in (swap.install, swap.uninstall):
      with pytest.raises(UserError, match='has changes that install did not'):
        call(str(root))
    assert in_place(root) == b'import numpy\n'


def test_each_task_has_its_own_file(root):
  layout = root / checkout.LAYOUT_MODELS_PY
  swap.install(str(root), task='layout')
  assert in_place(root) == THEIRS
  assert layout.read_bytes() == ours('layout') != ours()
  swap.install(str(root))
  assert swap.uninstall(str(root), task='layout').startswith('restored')
  assert layout.read_bytes() == THEIRS
  assert in_place(root) == ours()
  swap.uninstall(str(root))
  assert_clean(root)
  layout.write_text('# mine\n')
  with pytest.raises(UserError, match='install --task layout --models_py'):
    swap.uninstall(str(root), task='layout')
