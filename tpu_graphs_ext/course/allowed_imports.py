"""What a models.py may import: what the baseline needs, found in its text."""

from __future__ import annotations

import ast
import importlib.util
import sys

from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.load_models import BASELINE_PACKAGE

# Installed wherever the baseline runs.
ALLOWED = ('absl', 'numpy', 'tensorflow', 'tensorflow_gnn',
           'tensorflow_ranking')


def faults_of(path: str) -> list[str]:
  """Why a models.py would not run for the graders; empty if it would.

  Imports in a `try` are allowed: the file may do without the module.
  """
  try:
    nodes: list[ast.AST] = [load_models.parsed(path)[0]]
  except UserError as error:
    return [f'{error}; mend it, or name another file with --models_py']
  imported = set()
  while nodes:
    node, names = nodes.pop(), []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      # A relative import reaches the checkout's own package.
      names = [BASELINE_PACKAGE if node.level else node.module]
    imported |= {(node.lineno, name.split('.')[0]) for name in names}
    tried = node.body if isinstance(node, ast.Try) else ()
    nodes += [child for child in ast.iter_child_nodes(node)
              if child not in tried]
  return [f'{path}: line {line} imports {name}, which the graders may not '
          'have; models.py may import the standard library and '
          f'{", ".join(ALLOWED)}, so copy what it needs into it'
          for line, name in sorted(imported)
          if name not in (*ALLOWED, BASELINE_PACKAGE, '__main__')
          and not is_standard(name)]


def is_standard(name: str) -> bool:
  """Whether a module belongs to the standard library."""
  origin = str(getattr(importlib.util.find_spec(name), 'origin', ''))
  return origin in ('built-in', 'frozen') or (
      origin.startswith(sys.base_prefix) and '-packages' not in origin)
