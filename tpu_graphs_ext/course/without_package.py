"""Runs a script where this package cannot be imported, as for the graders.

  python -I without_package.py FOLDERS SCRIPT [ARG ...]

The script sees its working folder, the standard library and what is installed;
FOLDERS names more folders to import from, joined as in PYTHONPATH.
"""

import importlib
import importlib.abc
import os
import runpy
import sys

HIDDEN = 'tpu_graphs_ext'
PROJECT = os.path.abspath(os.path.join(__file__, *3 * [os.pardir]))


class Hide(importlib.abc.MetaPathFinder):
  """Lets no other finder look for the hidden package."""

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] == HIDDEN:
      raise ModuleNotFoundError(
          f'No module named {name!r}: the graders do not have it', name=name)
    return None


def prepare_imports() -> None:
  """On the current stack, has `stacks.imports` load Keras 2; then hides it."""
  path = sys.path[:]
  sys.path.insert(0, PROJECT)
  imports = importlib.import_module(HIDDEN + '.stacks.imports')
  versions = importlib.import_module(HIDDEN + '.stacks.versions')
  if versions.stack_name() == 'current':
    importlib.import_module('tensorflow_gnn')
    importlib.import_module('tensorflow_ranking')
  sys.meta_path.remove(imports.finder)
  for name in [*sys.modules]:
    if name.partition('.')[0] == HIDDEN:
      del sys.modules[name]
  sys.path[:] = path
  sys.meta_path.insert(0, Hide())


if __name__ == '__main__':
  folders, script = sys.argv[1].split(os.pathsep), sys.argv[2]
  del sys.argv[:2]
  sys.path[:] = [os.getcwd(), *sys.path, *folders]
  prepare_imports()
  runpy.run_path(script, run_name='__main__')
