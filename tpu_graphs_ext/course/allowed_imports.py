"""What a models.py may import: what the baseline needs, found in its text."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

# Installed wherever the baseline runs.
ALLOWED = ('absl', 'numpy', 'tensorflow', 'tensorflow_gnn',
           'tensorflow_ranking')
# The checkout's own package; a relative import reaches it too.
BASELINE_PACKAGE = 'tpu_graphs'


def imports(source: str) -> list[tuple[int, str]]:
  """(line, first name) of every module that a file imports anywhere.

  Left out are imports in a `try`, which may do without the module.

  Raises:
    SyntaxError: the text is not Python.
  """
  return sorted(set(_imports_of(ast.parse(source))))


def faults_of(path: str) -> list[str]:
  """Why a models.py would not run for the graders; empty if it would."""
  try:
    imported = imports(files.read_file(path).decode())
  except UserError as error:
    return [f'{error}; name the models.py to hand in with --models_py']
  # The last two where the text is nested without end.
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    return [f'{path}: is not a Python file ({error}); mend it']
  return [f'{path}: line {line} imports {name}, which the graders may not '
          'have; models.py may import the standard library and '
          f'{", ".join(ALLOWED)}, so copy what it needs into it'
          for line, name in imported
          if name not in (*ALLOWED, BASELINE_PACKAGE) and not is_standard(name)]


def is_standard(name: str) -> bool:
  """Whether a module belongs to the standard library."""
  origin = str(getattr(importlib.util.find_spec(name), 'origin', ''))
  return origin in ('built-in', 'frozen') or (
      origin.startswith(sys.base_prefix) and '-packages' not in origin)


def _imports_of(node: ast.AST) -> Iterator[tuple[int, str]]:
  if isinstance(node, ast.Import):
    for alias in node.names:
      yield node.lineno, alias.name.split('.')[0]
  elif isinstance(node, ast.ImportFrom):
    name = BASELINE_PACKAGE if node.level else node.module.split('.')[0]
    yield node.lineno, name
  for child in ast.iter_child_nodes(node):
    if not (isinstance(node, ast.Try) and child in node.body):
      yield from _imports_of(child)
