"""What a models.py may import to run at the graders', told from its text.

They put it into the baseline's checkout, so it may import what the baseline
itself needs, and nothing of this package.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tpu_graphs_ext import files

# All that whoever runs the baseline has installed.
ALLOWED = ('absl', 'numpy', 'tensorflow', 'tensorflow_gnn',
           'tensorflow_ranking')
# The checkout's own package; a relative import reaches it too.
BASELINE_PACKAGE = 'tpu_graphs'
OWN_PACKAGE = 'tpu_graphs_ext'
# This project's models.py has 120 KB.
MAX_BYTES = 8 << 20
_GUARDS = ('ImportError', 'ModuleNotFoundError', 'Exception')
# What parsing raises; the last two where the text is nested without end.
_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


class Import(NamedTuple):
  """One imported module: the line of the import, and the first name."""
  line: int
  name: str


def imports(source: str) -> list[Import]:
  """Every module that a file imports, wherever it does.

  Left out are imports in a `try` that goes on without the module.

  Raises:
    SyntaxError: the text is not Python.
  """
  return sorted(set(_imports_of(ast.parse(source))))


def faults_of(path: str) -> list[str]:
  """Why a models.py would not run at the graders'; empty where it would."""
  try:
    found = _imports_in(path)
  except OSError as error:
    return [f'{path}: cannot be read ({error.strerror or error}); name the '
            'models.py to hand in with --models_py']
  except _NO_PYTHON as error:
    return [f'{path}: is not a Python file ({error}); mend it']
  return [f'{path}: line {line} imports {name}, ' + (
      'which the graders do not have: models.py must stand alone; copy what it '
      'needs into it' if name == OWN_PACKAGE else
      'which an environment for the baseline need not have; it has the '
      f'standard library, {", ".join(ALLOWED)}')
          for line, name in found
          if name not in (*ALLOWED, BASELINE_PACKAGE) and not is_standard(name)]


def needs_baseline(path: str) -> bool:
  """True where a models.py imports the checkout's package."""
  try:
    return BASELINE_PACKAGE in [name for _, name in _imports_in(path)]
  except (OSError, *_NO_PYTHON):
    return False


def is_standard(name: str) -> bool:
  """True for a module of the standard library."""
  if hasattr(sys, 'stdlib_module_names'):
    return name in sys.stdlib_module_names
  try:  # Python 3.9 has no list.
    origin = str(getattr(importlib.util.find_spec(name), 'origin', ''))
  except ValueError:
    return False
  return origin in ('built-in', 'frozen') or (
      origin.startswith(sys.base_prefix) and '-packages' not in origin)


def _imports_in(path: str) -> list[Import]:
  with files.open_ordinary(path) as file:
    text = file.read(MAX_BYTES + 1)
  if len(text) > MAX_BYTES:
    raise ValueError(f'more than {MAX_BYTES:,} bytes')
  return imports(text.decode())


def _imports_of(node: ast.AST) -> Iterator[Import]:
  names = []
  if isinstance(node, ast.Import):
    names = [alias.name for alias in node.names]
  elif isinstance(node, ast.ImportFrom):
    names = [BASELINE_PACKAGE if node.level else node.module]
  elif isinstance(node, ast.Call) and _is_import_call(node):
    names = [node.args[0].value]
  for name in names:
    yield Import(node.lineno, name.split('.')[0])
  guarded = isinstance(node, ast.Try) and any(map(_catches, node.handlers))
  for child in ast.iter_child_nodes(node):
    if not (guarded and child in node.body):
      yield from _imports_of(child)


def _is_import_call(node: ast.Call) -> bool:
  """True for __import__('x') and importlib.import_module('x')."""
  name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
  return (name in ('__import__', 'import_module') and bool(node.args)
          and isinstance(node.args[0], ast.Constant)
          and isinstance(node.args[0].value, str))


def _catches(handler: ast.ExceptHandler) -> bool:
  """True where a handler goes on without the module."""
  return any(kind is None or getattr(kind, 'id', '') in _GUARDS
             for kind in getattr(handler.type, 'elts', [handler.type]))
