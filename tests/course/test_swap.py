"""models.py in and out of a checkout: what is kept, what is refused."""

import contextlib
import os

import pytest

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import LAYOUT

THEIRS = b'# the original\n'


@pytest.fixture
def student(tmp_path):
  """A models.py of a student's own."""
  path = tmp_path / 'mine.py'
  path.write_text('import numpy\n')
  return path


def in_place(root) -> bytes:
  return (root / checkout.MODELS_PY).read_bytes()


def state(root) -> str:
  return swap.state(str(root / checkout.MODELS_PY))


def assert_clean(root) -> None:
  """The checkout is as it was cloned."""
  assert in_place(root) == THEIRS
  assert checkout.git(str(root), 'status', '--porcelain') == b''


def test_in_twice_and_out_twice(root, student, monkeypatch):
  assert state(root) == swap.THEIRS
  assert swap.install(str(root)).startswith('installed ')
  assert in_place(root) == files.read_file(load_models.models_path())
  assert state(root) == swap.INSTALLED
  # From another folder, by a relative path and by the variable.
  monkeypatch.chdir(root.parent)
  assert swap.install('tpu_graphs/').startswith('already in place')
  monkeypatch.setenv(checkout.ROOT_VARIABLE, 'tpu_graphs')
  # A student's file, and its next version.
  for text in ('import numpy\n', 'import numpy as np\n'):
    student.write_text(text)
    swap.install(models_py=str(student))
    assert in_place(root) == text.encode()
    assert state(root) == swap.INSTALLED
  # The other task has its own file.
  swap.install(task=LAYOUT)
  assert swap.uninstall().startswith('restored')
  assert swap.state(str(root / LAYOUT.baseline_models)) == swap.INSTALLED
  assert swap.uninstall(task=LAYOUT).startswith('restored')
  assert_clean(root)
  assert swap.uninstall(str(root)).startswith("already the checkout's own")


def test_changes_by_hand_are_not_lost(root, tmp_path):
  for before in (lambda: None, lambda: swap.install(str(root))):
    before()
    (root / checkout.MODELS_PY).write_text('# mine\n')
    assert state(root) == swap.OTHER
    for call in (swap.install, swap.uninstall, lambda place: swap.install(
        place, f'{place}/{checkout.MODELS_PY}')):
      with pytest.raises(UserError, match=(
          r"has changes that install did not make .*cp '.*' my_models.py"
          rf".* --root '{root}' --models_py my_models.py")):
        call(str(root))
    assert in_place(root) == b'# mine\n'
    # What the message advises.
    copy = tmp_path / 'my_models.py'
    copy.write_bytes(in_place(root))
    swap.install(str(root), str(copy))
    swap.uninstall(str(root))
    assert_clean(root)


def test_what_cannot_be_installed(root, student, tmp_path):
  student.write_text('import torch\n')
  with pytest.raises(UserError, match='line 1 imports torch'):
    swap.install(str(root), str(student))
  assert_clean(root)
  with pytest.raises(UserError, match=r'names no checkout .* give --root'):
    swap.install()
  with pytest.raises(UserError, match='is not a checkout of the tpu_graphs'):
    swap.uninstall(str(tmp_path))
  os.rename(root / '.git', root / 'no_git')
  for call in (swap.install, swap.uninstall):
    with pytest.raises(UserError, match=r'git, .* does not have it; use the'):
      call(str(root))
  assert in_place(root) == THEIRS


def test_interrupted_between_any_two_steps(root, student, monkeypatch):
  """The next call, in or out, finishes what was interrupted."""
  write, remove = swap.files.write_file, os.remove
  two = student.with_name('two.py')
  two.write_text('import numpy as np\n')
  calls = (lambda: swap.install(str(root), str(student)),
           lambda: swap.install(str(root), str(two)),
           lambda: swap.install(str(root)), lambda: swap.uninstall(str(root)))
  left = []  # An item for each file that may still be written or removed.

  def stopping(function):
    def step(*args):
      if not left:
        raise KeyboardInterrupt
      left.pop()
      function(*args)
    return step

  for number, call in enumerate(calls):
    for steps in range(2):
      for mend in (calls[1], calls[3]):
        for before in calls[:number]:
          before()
        left[:] = [None] * steps
        with monkeypatch.context() as patch, contextlib.suppress(
            KeyboardInterrupt):
          patch.setattr(swap.files, 'write_file', stopping(write))
          patch.setattr(swap.os, 'remove', stopping(remove))
          call()
        mend()
        swap.uninstall(str(root))
        assert_clean(root)


def test_a_record_that_is_damaged_or_somebody_elses(root, student):
  """Nothing is replaced."""
  record = root / (checkout.MODELS_PY + swap.RECORD)
  swap.install(str(root), str(student))
  for text in (record.read_text()[:-1], '\0', '', '# mine\n'):
    record.write_text(text)
    for call in (swap.install, swap.uninstall):
      with pytest.raises(UserError, match='was not written by install'):
        call(str(root))
    assert in_place(root) == b'import numpy\n'
    assert record.read_text() == text
