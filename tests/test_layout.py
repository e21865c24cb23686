"""The package is a few wings that import one another in one direction.

    data -> hlo, stacks -> engine, analytic -> tasks
         -> course, report, sample, serving -> traces, sweep -> top

The tables below are the rules; a new wing is a line in `MAY_IMPORT`. They are
read off the sources, and nothing is imported.
"""

import ast
import importlib.machinery
import pathlib
import re
import sys
import sysconfig

import pytest

from support.places import PROJECT, TESTS

PACKAGE = PROJECT / 'tpu_graphs_ext'
NAME = PACKAGE.name

# Every wing, and what it may import: wings above it, files of the top.
MAY_IMPORT = {
    'data': (),
    'stacks': (),
    'hlo': ('data',),
    'engine': ('data', 'stacks', 'load_models', 'models'),
    'analytic': ('data', 'hlo'),
    'tasks': ('data', 'engine', 'load_models'),
    'sample': ('data', 'hlo', 'analytic'),
    'course': ('data', 'stacks', 'engine', 'tasks', 'load_models'),
    'report': ('data', 'analytic', 'engine', 'tasks'),
    'serving': ('data', 'hlo', 'engine', 'analytic', 'tasks', 'load_models'),
    'traces': ('engine', 'analytic'),
    'sweep': ('data', 'stacks', 'hlo', 'engine', 'tasks', 'serving',
              'load_models'),
    'cli': ('data', 'stacks', 'hlo', 'engine', 'analytic', 'tasks', 'sample',
            'course', 'report', 'serving', 'traces', 'sweep'),
}
# Every wing may import these, and the package itself (its version).
FOR_ALL = ('errors', 'files', 'file_ownership', 'csv_text')
# Files of the top, and what each may import.
TOP = {
    # Keras must be chosen first; the others are for type checkers alone.
    '__init__': ('stacks', 'errors', 'data', 'engine', 'tasks', 'analytic',
                 'serving'),
    'errors': (),
    'files': ('errors',),
    'file_ownership': ('errors', 'files'),
    'csv_text': (),
    'models': (),
    'layout_models': (),
    'load_models': ('errors', 'models', 'layout_models'),
    'quickstart': (*MAY_IMPORT, *FOR_ALL, 'load_models', 'quickstart_layout'),
    'quickstart_layout': (*MAY_IMPORT, *FOR_ALL, 'load_models'),
}
# A file's imports against the direction, which must be inside functions.
LATE = {'tasks/kernel_inputs.py': ('hlo.tuning',)}
# Other people's packages, where not all are allowed, when a module is loaded.
THEIRS = {'data': ('numpy', 'tqdm'), 'stacks': (), 'errors': (), 'files': (),
          'file_ownership': (), 'csv_text': (), 'load_models': (), '__init__': ()}
# Folders of tests that are no wing's.
OTHER_TESTS = {'models', 'benchmarks', 'docs', 'run_scripts', 'support'}


def imports_of(tree, place):
  """(line, module, whether it is inside a function) of each import.

  Args:
    tree: of the file.
    place: of the file within the package, as 'tasks/kernel_inputs.py'.
  """
  late = {id(inner) for node in ast.walk(tree)
          if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
          for inner in ast.walk(node)}
  folders = [NAME, *place.split('/')[:-1]]
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      start = folders[:len(folders) - node.level + 1] if node.level else []
      module = '.'.join([*start, *filter(None, [node.module])])
      modules = [f'{module}.{alias.name}' for alias in node.names]
    else:
      continue
    for module in modules:
      yield node.lineno, module, id(node) in late


def is_standard(module: str) -> bool:
  """Whether a module comes with Python."""
  name = module.split('.')[0]
  if name in sys.builtin_module_names:
    return True
  spec = importlib.machinery.PathFinder.find_spec(name)
  if spec is None or spec.origin is None:
    return False
  folder = pathlib.Path(sysconfig.get_path('stdlib')).resolve()
  return (folder in pathlib.Path(spec.origin).resolve().parents
          and 'site-packages' not in spec.origin)


def faults_of(place: str, source: str) -> list:
  """Imports of one file that break a rule, one line each."""
  part = place.split('/')[0].removesuffix('.py')
  allowed = TOP.get(part, ())
  if part in MAY_IMPORT:
    allowed = (*MAY_IMPORT[part], *FOR_ALL, part)
  faults = []

  def fault(line, module, rule):
    faults.append(f'{NAME}/{place}:{line}: imports {module}; {rule}')

  for line, module, late in imports_of(ast.parse(source), place):
    first, _, name = module.partition('.')
    if first != NAME:
      if part in THEIRS and not late and not is_standard(module) and (
          first not in THEIRS[part]):
        fault(line, module, f'{part} may import only '
              f'{", ".join((*THEIRS[part], "what comes with Python"))}, '
              'unless inside a function')
      continue
    target = name.split('.')[0]
    if target not in (*MAY_IMPORT, *TOP) or target in allowed:
      continue
    if name in LATE.get(place, ()):
      if not late:
        fault(line, module, f'{place} may import it only inside a function')
      continue
    fault(line, module, f'of ours, {part} may import only '
          f'{", ".join(allowed) or "itself"}')
  return faults


def files_of(folder: pathlib.Path) -> list:
  """Places of the Python files, within the folder, as 'tasks/kernel_inputs.py'."""
  return sorted(path.relative_to(folder).as_posix()
                for path in folder.rglob('*.py'))


# --- The package -------------------------------------------------------------


def test_every_file_lies_in_a_wing_or_is_named():
  known = {f'{name}.py' for name in TOP}
  lost = [f'{NAME}/{place}: lies in no wing, nor does `TOP` name it'
          for place in files_of(PACKAGE)
          if place not in known
          and (place.count('/') != 1 or place.split('/')[0] not in MAY_IMPORT)]
  assert not lost, '\n' + '\n'.join(lost)


def test_imports_run_in_one_direction():
  faults = [fault for place in files_of(PACKAGE)
            for fault in faults_of(place, (PACKAGE / place).read_text())]
  assert not faults, '\n' + '\n'.join(faults)


def test_wings_may_import_only_those_above_them():
  above = set()
  for wing, allowed in MAY_IMPORT.items():
    assert set(allowed) - set(TOP) <= above, wing
    above.add(wing)


@pytest.mark.parametrize('place', LATE)
def test_exceptions_are_in_use(place):
  tree = ast.parse((PACKAGE / place).read_text())
  modules = {module for _, module, _ in imports_of(tree, place)}
  assert {f'{NAME}.{name}' for name in LATE[place]} <= modules


@pytest.mark.parametrize('wing', MAY_IMPORT)
def test_a_wing_says_what_is_in_it(wing):
  """A line of its docstring starts with a module's name, or several."""
  folder = PACKAGE / wing
  docstring = ast.get_docstring(ast.parse(
      (folder / '__init__.py').read_text()))
  lines = re.findall(r'^(\w+(?:, \w+)*)  +(\S.*)$', docstring, re.MULTILINE)
  listed = {name for names, _ in lines for name in names.split(', ')}
  mentioned = {word for _, text in lines for word in re.findall(r'\w+', text)}
  modules = {place[:-len('.py')] for place in files_of(folder)} - {'__init__'}
  missing, gone = modules - listed - mentioned, listed - modules
  assert not missing, f'{NAME}/{wing}/__init__.py does not name {missing}'
  assert not gone, f'{NAME}/{wing}/__init__.py names {gone}: no such module'


# --- The tests ---------------------------------------------------------------


def test_tests_mirror_the_wings():
  folders = {path.name for path in TESTS.iterdir()
             if path.is_dir() and path.name != '__pycache__'}
  assert folders - OTHER_TESTS == set(MAY_IMPORT) - {'cli'}
  for folder in folders - {'support'}:
    assert list((TESTS / folder).glob('test_*.py')), folder


def test_names_of_test_files_are_unique():
  names = [place.split('/')[-1] for place in files_of(TESTS)]
  assert len(names) == len(set(names))


# --- The rules themselves ----------------------------------------------------


def only(wing):
  return f'of ours, {wing} may import only ' + ', '.join(
      (*MAY_IMPORT[wing], *FOR_ALL, wing))


@pytest.mark.parametrize('place, source, rule', [
    ('data/read.py', 'from tpu_graphs_ext.hlo import tiles', only('data')),
    ('data/read.py', 'import tpu_graphs_ext.hlo.tiles', only('data')),
    ('data/read.py', 'from ..hlo import tiles', only('data')),
    ('data/read.py', 'from tpu_graphs_ext import models', only('data')),
    ('hlo/tiles.py', 'def f():\n  from tpu_graphs_ext.analytic import tpu',
     only('hlo')),
    ('analytic/tpu.py', 'from tpu_graphs_ext.engine import rank',
     only('analytic')),
    ('engine/rank.py', 'def f():\n  from tpu_graphs_ext.hlo import tuning',
     only('engine')),
    ('tasks/kernel_inputs.py', 'from tpu_graphs_ext.hlo import tuning',
     'tasks/kernel_inputs.py may import it only inside a function'),
    ('files.py', 'from tpu_graphs_ext.data import read',
     'of ours, files may import only errors'),
    ('errors.py', 'from tpu_graphs_ext import files',
     'of ours, errors may import only itself'),
    ('stacks/quiet.py', 'import numpy as np', 'stacks may import only what '
     'comes with Python, unless inside a function'),
    ('data/read.py', 'import tensorflow', 'data may import only numpy, tqdm, '
     'what comes with Python, unless inside a function'),
])
def test_imports_that_are_refused(place, source, rule):
  fault, = faults_of(place, source)
  where, said = fault.split(': imports ')
  assert where == f'tpu_graphs_ext/{place}:{source.count(chr(10)) + 1}'
  assert said.split('; ')[1] == rule


@pytest.mark.parametrize('place, source', [
    ('data/read.py', 'import os, numpy\nfrom tpu_graphs_ext.data import check'),
    ('data/read.py', 'from tpu_graphs_ext.errors import UserError'),
    ('data/read.py', 'from . import check'),
    ('engine/artifacts.py', 'from tpu_graphs_ext import __version__'),
    ('tasks/kernel_inputs.py', 'def f():\n  from tpu_graphs_ext.hlo import tuning'),
    ('stacks/imports.py', 'def f():\n  import tensorflow'),
    ('engine/train.py', 'import tensorflow'),
    ('sample/tiles.py', 'from tpu_graphs_ext.analytic import tpu'),
])
def test_imports_that_are_fine(place, source):
  assert not faults_of(place, source)


def test_what_comes_with_python():
  assert all(is_standard(name) for name in ('os', 'sys', 'json', 'math',
                                            'zlib', 'importlib.util'))
  assert not any(is_standard(name) for name in ('numpy', 'pytest', 'no_such'))
  assert is_standard('this') and 'this' not in sys.modules  # Not imported.


# --- How much there is --------------------------------------------------------


def lines_of(name: str) -> int:
  """Of a file, or of the Python files of a folder; links count nothing."""
  path = next(place / name for place in (PROJECT, PACKAGE)
              if (place / name).exists())
  files = [path] if path.is_file() else [
      file for file in path.rglob('*.py') if not file.is_symlink()]
  return sum(len(file.read_text(encoding='utf-8').splitlines())
             for file in files)


def test_nothing_is_larger_than_its_budget():
  text = (PROJECT / 'CONTRIBUTING.md').read_text(encoding='utf-8')
  section = text.split('\n## Budgets\n')[1].split('\n## ')[0]
  budgets = {name: int(lines.replace(',', '')) for name, lines in re.findall(
      r'^\| `([\w.]+)` \| ([\d,]+) \| \S', section, re.MULTILINE)}
  assert set(MAY_IMPORT) <= set(budgets)
  over = {name: (lines_of(name), most) for name, most in budgets.items()
          if lines_of(name) > most}
  assert not over, f'lines, and the budget of CONTRIBUTING.md: {over}'
