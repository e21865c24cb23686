"""Runs a script in a process where this package cannot be imported.

  python -I without_package.py '{"folders": [], "memory": 2}' SCRIPT [ARG ...]

As at the graders': the script sees its working folder, the standard library
and what is installed, but no tpu_graphs_ext, however that is installed. The
first argument names more folders to import from, and how many bytes of memory
the script may take.

On the current stack nobody's plain Python can run the baseline, so there the
imports are prepared first, as `tpu-graphs-ext run` does; the package is gone
again before the script starts.
"""

import ctypes
import importlib
import importlib.abc
import json
import os
import runpy
import signal
import sys

try:
  import resource
except ImportError:  # Not on Windows: there memory has no limit.
  resource = None

HIDDEN = 'tpu_graphs_ext'
# Bytes of one file; what a hand-in needs to write is a CSV.
MAX_FILE = 4 << 30
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.
# There with a GPU of NVIDIA's, whose driver reserves more addresses than the
# machine has memory; then only what is written to counts.
_GPU = '/dev/nvidiactl'


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


def end_with_parent() -> None:
  """Has this process killed when the one that started it dies, on Linux."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def limit(size: int) -> None:
  """Bounds memory and files; no core file is left behind."""
  if resource is None:
    return
  memory = (resource.RLIMIT_DATA if os.path.exists(_GPU)
            else resource.RLIMIT_AS)
  for kind, most in ((memory, size), (resource.RLIMIT_FSIZE, MAX_FILE),
                     (resource.RLIMIT_CORE, 0)):
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
      most = min(most, hard)
    try:
      resource.setrlimit(kind, (most, most))
    except (ValueError, OSError):
      pass  # Some systems have no such limit.


def main() -> None:
  request, script = json.loads(sys.argv[1]), sys.argv[2]
  end_with_parent()
  limit(request['memory'])
  more_folders = request['folders']
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
