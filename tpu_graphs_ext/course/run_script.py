"""Starts a script of the baseline, unchanged, on either stack.

`checkout.script_command` of ROOT SCRIPT ARGS... is what plain `python SCRIPT
ARGS...` would be, but TensorFlow comes with Keras 2 (see `stacks.imports`).
With ROOT, which may be empty, the script may lie outside of the checkout that
it imports `tpu_graphs` from.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Optional

from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import quiet


def find_script(script: str, root: Optional[str] = None) -> tuple[str, str]:
  """Full path of a script, and of the checkout that it may import from or ''.

  Args:
    script: path, or name in one of the folders below.
    root: checkout to look in, and in the course's folder beside it. None: the
      working folder first; its checkout is the working folder itself, or the
      one that TPU_GRAPHS_ROOT names.

  Raises:
    UserError: there is no such script, or the path named is not a checkout.
  """
  here = os.getcwd()
  checkout_root = checkout.find(
      here if not root and checkout.is_checkout(here) else root)
  folders = [*([] if root else [here]),
             *(checkout.course_folders(checkout_root) if checkout_root else ())]
  for folder in folders:
    path = os.path.join(folder, os.path.expanduser(script))
    if os.path.isfile(path):
      return path, checkout_root or ''
  raise UserError(
      f'run: there is no script {script} in {" or ".join(folders)}; name the '
      'checkout of the baseline that has it with --root or '
      + checkout.ROOT_VARIABLE)


def main() -> None:
  """Becomes the script that the command line names."""
  root, path, *arguments = sys.argv[1:]
  sys.argv = [path, *arguments]
  # As Python does it for a script.
  sys.path[:0] = filter(None, [
      os.path.dirname(os.path.abspath(path)), root])
  quiet.ignore_saving_warning()
  runpy.run_path(path, run_name='__main__')

