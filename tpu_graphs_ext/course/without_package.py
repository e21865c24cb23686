"""Runs a script where this package cannot be imported, as for the graders.

  python -I without_package.py FOLDERS SCRIPT [ARG ...]

The script sees its working folder, the standard library and what is installed;
FOLDERS names more folders to import from, joined as in PYTHONPATH.
"""

import importlib
import os
import runpy
import sys

PACKAGE = 'tpu_graphs_ext'
PROJECT = os.path.abspath(os.path.join(__file__, *3 * [os.pardir]))


def prepare_imports() -> None:
  """On the current stack, has `stacks.imports` load Keras 2; hides it then."""
  sys.path.insert(0, PROJECT)
  from tpu_graphs_ext.stacks import imports, versions
  if versions.stack_name() == 'current':
    importlib.import_module('tensorflow_gnn')
    importlib.import_module('tensorflow_ranking')
  sys.meta_path.remove(imports.finder)
  sys.path.remove(PROJECT)
  for name in [*sys.modules]:
    if name.startswith(PACKAGE):
      del sys.modules[name]
  sys.modules[PACKAGE] = None  # Then it cannot be imported.


if __name__ == '__main__':
  folders, script = sys.argv[1].split(os.pathsep), sys.argv[2]
  del sys.argv[:2]
  sys.path[:] = [os.getcwd(), *sys.path, *folders]
  prepare_imports()
  runpy.run_path(script, run_name='__main__')
