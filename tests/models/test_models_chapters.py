"""The chapters of models.py: listed, and each uses earlier ones alone."""

import ast
import re

from support.places import PROJECT

SOURCE = (PROJECT / 'models.py').read_text()
MODULE = ast.parse(SOURCE)
HEADINGS = {line: found[1] for line, text in enumerate(SOURCE.splitlines(), 1)
            if (found := re.fullmatch(r'# -+ chapter: (.+)', text))}


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
  assert re.findall(r'^  (\S.*?): ', listed[1], re.MULTILINE) == list(
      HEADINGS.values())


def test_chapters_use_names_of_earlier_ones():
  home, order = homes(), ['', *HEADINGS.values()]
  for node in ast.walk(MODULE):
    if isinstance(node, ast.Name) and node.id in home:
      assert order.index(home[node.id]) <= order.index(chapter(node)), (
          f'line {node.lineno}: chapter {chapter(node)!r} uses {node.id}')
