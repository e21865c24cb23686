"""What a models.py may import to run at the graders', told from its text.

They put it into the baseline's checkout, so it may import what the baseline
itself needs, and nothing of this package.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
import sysconfig
from collections.abc import Iterator

from tpu_graphs_ext import files

# All that whoever runs the baseline has installed.
ALLOWED = ('absl', 'numpy', 'tensorflow', 'tensorflow_gnn',
           'tensorflow_ranking')
# The checkout's own package; a relative import reaches it too.
BASELINE_PACKAGE = 'tpu_graphs'
OWN_PACKAGE = 'tpu_graphs_ext'

_GUARDS = ('ImportError', 'ModuleNotFoundError', 'Exception')


# Of a models.py. This project's has 120 KB.
MAX_BYTES = 8 << 20
# What reading Python raises; the last two where it is nested without end.
_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclasses.dataclass(frozen=True)
class Import:
  """One imported module: its first name, and the line of the import."""
  name: str
  line: int


def imports(source: str) -> list[Import]:
  """Every module that a file imports, wherever it does.

  Left out are imports in a `try` that goes on without the module.

  Raises:
    SyntaxError: the text is no Python.
  """
  return sorted(set(_imports_of(ast.parse(source))),
                key=lambda found: (found.line, found.name))


def faults_of(path: str) -> list[str]:
  """Why a models.py would not run at the graders'; empty where it would."""
  try:
    found = _imports_in(path)
  except OSError as error:
    return [f'{path}: cannot be read ({error.strerror or error}); name the '
            'models.py to hand in with --models_py']
  except _NO_PYTHON as error:
    return [f'{path}: is no Python file ({error}); mend it']
  return [_fault(path, module) for module in found
          if module.name not in (*ALLOWED, BASELINE_PACKAGE)
          and not is_standard(module.name)]


def needs_baseline(path: str) -> bool:
  """True where a models.py imports the checkout's package."""
  try:
    return any(module.name == BASELINE_PACKAGE
               for module in _imports_in(path))
  except (OSError, *_NO_PYTHON):
    return False


def _imports_in(path: str) -> list[Import]:
  """Every module that a file imports; see `imports`."""
  with files.open_ordinary(path) as file:
    text = file.read(MAX_BYTES + 1)
  if len(text) > MAX_BYTES:
    raise ValueError(f'more than {MAX_BYTES:,} bytes')
  return imports(text.decode())


def is_standard(name: str) -> bool:
  """True for a module of the standard library."""
  if hasattr(sys, 'stdlib_module_names'):
    return name in sys.stdlib_module_names
  # Python 3.9 has no list; its library is one folder.
  folder = sysconfig.get_paths()['stdlib']
  compiled = os.path.join(folder, 'lib-dynload')
  return name in sys.builtin_module_names or any((
      os.path.exists(os.path.join(folder, name + '.py')),
      os.path.isdir(os.path.join(folder, name)),
      os.path.isdir(compiled) and any(
          file.split('.')[0] == name for file in os.listdir(compiled))))


def _fault(path: str, module: Import) -> str:
  if module.name == OWN_PACKAGE:
    why = ('which the graders do not have: models.py must stand alone; copy '
           'what it needs into it')
  else:
    why = ('which an environment for the baseline need not have; it has the '
           f'standard library, {", ".join(ALLOWED)}')
  return f'{path}: line {module.line} imports {module.name}, {why}'


def _imports_of(node: ast.AST) -> Iterator[Import]:
  if isinstance(node, ast.Import):
    for alias in node.names:
      yield Import(alias.name.split('.')[0], node.lineno)
  elif isinstance(node, ast.ImportFrom):
    name = node.module.split('.')[0] if not node.level else BASELINE_PACKAGE
    yield Import(name, node.lineno)
  elif isinstance(node, ast.Call) and node.args and _is_import_call(node):
    yield Import(node.args[0].value.split('.')[0], node.lineno)
  guarded = isinstance(node, ast.Try) and any(map(_catches, node.handlers))
  for child in ast.iter_child_nodes(node):
    if not (guarded and child in node.body):
      yield from _imports_of(child)


def _is_import_call(node: ast.Call) -> bool:
  """True for __import__('x') and importlib.import_module('x')."""
  function = node.func
  name = getattr(function, 'attr', getattr(function, 'id', ''))
  return (name in ('__import__', 'import_module')
          and isinstance(node.args[0], ast.Constant)
          and isinstance(node.args[0].value, str))


def _catches(handler: ast.ExceptHandler) -> bool:
  """True where a handler goes on without the module."""
  types = getattr(handler.type, 'elts', [handler.type])
  return any(kind is None or getattr(kind, 'id', '') in _GUARDS
             for kind in types)
