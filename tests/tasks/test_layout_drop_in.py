"""What layout_models.py must be to take the place of the baseline's file."""

import ast
import os
import re
import sys

import pytest

from support.places import PROJECT
from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import allowed_imports

PATH = PROJECT / 'layout_models.py'
SOURCE = PATH.read_text()
MODULE = ast.parse(SOURCE)
HEADINGS = {line: found[1] for line, text in enumerate(SOURCE.splitlines(), 1)
            if (found := re.fullmatch(r'# -+ chapter: (.+)', text))}
CHAPTERS = ['', *HEADINGS.values()]


def test_it_is_found_without_tensorflow():
  assert os.path.samefile(load_models.models_path('layout'), PATH)


@pytest.mark.skipif(sys.version_info < (3, 10),
                    reason='sys.stdlib_module_names came with Python 3.10')
def test_it_imports_nothing_but_what_the_graders_have_installed():
  names = {found.name for found in allowed_imports.imports(SOURCE)}
  assert names - set(sys.stdlib_module_names) == {
      'numpy', 'tensorflow', 'tensorflow_gnn'}


def chapter(node: ast.AST) -> int:
  """Number of the heading above a node; 0 at the beginning of the file."""
  return sum(line < node.lineno for line in HEADINGS)


def test_chapters_are_listed_and_use_names_of_earlier_ones():
  listed = re.search(
      r'\nChapters.*?:\n((?:  .+\n)+)', ast.get_docstring(MODULE))
  assert re.findall(r'^  (\S.*?): ', listed[1], re.MULTILINE) == CHAPTERS[1:]
  home = {name: chapter(node) for node in MODULE.body for name in (
      [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else
      [target.id for part in getattr(node, 'targets', [])
       for target in ast.walk(part) if isinstance(target, ast.Name)])}
  assert len(home) > 50
  faults = [f'line {node.lineno}: uses {node.id} of a later chapter'
            for node in ast.walk(MODULE) if isinstance(node, ast.Name)
            and home.get(node.id, 0) > chapter(node)]
  assert not faults


def test_the_shared_chapter_is_the_same_in_both_files():
  """Each file must work alone, so there are two copies of it."""
  chapters = []
  for path, other in ((PATH, 'models.py'),
                      (PROJECT / 'models.py', 'layout_models.py')):
    text = path.read_text()
    heading = re.search(
        rf'^# -+ chapter: shared with {re.escape(other)}$', text, re.MULTILINE)
    chapters.append(re.split(
        r'^# -+ chapter: ', text[heading.end():], flags=re.MULTILINE)[0])
  assert chapters[0] == chapters[1] and chapters[0].count('\ndef ') >= 3
