"""The walls inside models.py: which chapter uses names of which others."""

import ast
import re

from support.places import PROJECT

SOURCE = (PROJECT / 'models.py').read_text()
MODULE = ast.parse(SOURCE)
HEADINGS = {line: found[1] for line, text in enumerate(SOURCE.splitlines(), 1)
            if (found := re.fullmatch(r'# -+ chapter: (.+)', text))}
# In the order of the file. All may use the few names of its beginning.
USES = {
    'host': set(),
    'shared with layout_models.py': set(),
    'tensors': {'shared with layout_models.py'},
    'objectives': {'shared with layout_models.py'},
    'layers': {'shared with layout_models.py', 'tensors'},
    'ranker': {'shared with layout_models.py', 'tensors', 'objectives'},
    'baseline': {'shared with layout_models.py', 'tensors', 'ranker'},
    'tile ranker': {
        'shared with layout_models.py', 'tensors', 'layers', 'ranker'},
    'statistics': {'host', 'tensors'},
    'geometry': {
        'host', 'shared with layout_models.py', 'tensors', 'statistics'},
    'analytic': {
        'host', 'shared with layout_models.py', 'tensors', 'objectives',
        'layers', 'ranker', 'tile ranker', 'statistics', 'geometry'},
    'comparison': {
        'shared with layout_models.py', 'tensors', 'objectives', 'ranker',
        'baseline', 'tile ranker'},
}


def chapter(node: ast.AST) -> str:
  """The heading above a node; '' at the beginning of the file."""
  above = [line for line in HEADINGS if line < node.lineno]
  return HEADINGS[max(above)] if above else ''


def homes() -> dict[str, str]:
  """The chapter of each name of the module."""
  return {name: chapter(node) for node in MODULE.body for name in (
      [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else
      [target.id for part in getattr(node, 'targets', [])
       for target in ast.walk(part) if isinstance(target, ast.Name)])}


def test_the_table_of_contents_names_the_chapters():
  listed = re.search(
      r'\nChapters.*?:\n((?:  .+\n)+)', ast.get_docstring(MODULE))
  assert re.findall(r'^  (\S.*?): ', listed[1], re.MULTILINE) == list(USES)
  assert list(HEADINGS.values()) == list(USES)


def test_the_arrows_point_to_earlier_chapters():
  for i, (name, others) in enumerate(USES.items()):
    assert others <= set(list(USES)[:i]), name


def test_the_chapters_use_what_the_table_says():
  home, found, faults = homes(), {name: set() for name in USES}, []
  for node in ast.walk(MODULE):
    if isinstance(node, ast.Name) and home.get(node.id):
      user, other = chapter(node), home[node.id]
      found.setdefault(user, set()).add(other)
      if other not in USES.get(user, set()) | {user}:
        faults.append(f'line {node.lineno}: chapter {user!r} uses {node.id} of '
                      f'chapter {other!r}')
  assert not faults
  assert {name: others - {name} for name, others in found.items()} == USES
