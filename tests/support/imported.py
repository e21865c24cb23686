"""What a Python file imports."""

import ast


def packages(source: str) -> set[str]:
  """First parts of the names of all modules; '' for relative imports."""
  names = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names.append('' if node.level else node.module)
  return {name.split('.')[0] for name in names}
