"""Runs a script in a process where this package cannot be imported.

  python -I without_package.py '["folder", ...]' SCRIPT [ARGUMENT ...]

As at the graders': the script sees its working folder, the standard library
and what is installed, but no tpu_graphs_ext, however that is installed. The
first argument names more folders to import from.

On the current stack nobody's plain Python can run the baseline, so there the
imports are prepared first, as `tpu-graphs-ext run` does; the package is gone
again before the script starts.
"""

import importlib
import importlib.abc
import json
import os
import runpy
import sys

HIDDEN = 'tpu_graphs_ext'


class Hide(importlib.abc.MetaPathFinder):
  """Finds no module of the hidden package, and lets nobody else find it."""

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] == HIDDEN:
      raise ModuleNotFoundError(
          f'No module named {name!r}: the graders do not have it', name=name)
    return None


def holds_project(folder: str) -> bool:
  """True for a checkout of the project, whose other files are hidden too."""
  return (os.path.isdir(os.path.join(folder, HIDDEN))
          and os.path.isfile(os.path.join(folder, 'setup.py')))


def prepare_imports(project: str) -> None:
  """Imports what `stacks.imports` changes, and forgets the package again.

  Does nothing on the classic stack.

  Args:
    project: folder that the package lies in.
  """
  path = sys.path[:]
  sys.path.insert(0, project)
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


def main() -> None:
  more_folders, script = json.loads(sys.argv[1]), sys.argv[2]
  sys.argv = sys.argv[2:]
  installed = sys.path + [
      folder for folder in more_folders if folder not in sys.path]
  sys.path[:] = [os.getcwd()] + [
      folder for folder in installed if not holds_project(folder)]
  prepare_imports(os.path.dirname(os.path.dirname(os.path.dirname(
      os.path.abspath(__file__)))))
  sys.meta_path.insert(0, Hide())
  runpy.run_path(script, run_name='__main__')


if __name__ == '__main__':
  main()
