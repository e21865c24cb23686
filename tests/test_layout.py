"""Where things live: import contracts, what folders say of themselves, budgets.

The contracts stand in pyproject.toml, under [tool.importlinter].
"""

import ast
import re
import subprocess
import sys

import pytest

from support.places import PROJECT, TESTS

PACKAGE = PROJECT / 'tpu_graphs_ext'
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob('*/__init__.py'))
DATA = sorted(path.stem for path in PACKAGE.glob('data/*.py'))
# Folders of tests that are not named like one of the package.
OTHER_TESTS = {'models', 'benchmarks', 'docs', 'run_scripts', 'support'}


def test_imports_run_in_one_direction():
  done = subprocess.run(
      [sys.executable, '-c', 'import sys; from importlinter import cli; '
       'sys.exit(cli.lint_imports(no_cache=True))'], cwd=PROJECT,
      env={'PYTHONPATH': str(PROJECT)}, capture_output=True, text=True,
      check=False)
  assert 'Contracts: ' in done.stdout, done.stdout + done.stderr
  assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('code, without', [
    ('import tpu_graphs_ext as t; assert set(t.__all__) <= set(dir(t))',
     {'numpy', 'tensorflow', 'pandas', 'typing'}),
    ('import tpu_graphs_ext as t; assert t.UserError and t.Kernel',
     {'tensorflow'}),
    ('import tpu_graphs_ext.cli', {'numpy', 'tensorflow', 'matplotlib'}),
    (f'from tpu_graphs_ext.data import {", ".join(DATA)}\n'
     'import tpu_graphs_ext.load_models', {'tensorflow', 'pandas', 'scipy'}),
    # It starts the processes whose memory is measured.
    ('import speed', {'tensorflow', 'pandas', 'scipy'})])
def test_what_needs_no_large_package_imports_none(code, without):
  """Packages that only some may load: import-linter does not see when."""
  done = subprocess.run(
      [sys.executable, '-S', '-c', f'import sys; sys.path[:0] = {sys.path!r}\n'
       f'{code}\nprint({without} & set(sys.modules))'],
      cwd=PROJECT, capture_output=True, text=True, check=False)
  assert done.stdout == 'set()\n', done.stdout + done.stderr


@pytest.mark.parametrize('folder', FOLDERS)
def test_a_folder_says_what_is_in_it(folder):
  """A line of its docstring starts with a module's name, or several."""
  docstring = ast.get_docstring(ast.parse(
      (PACKAGE / folder / '__init__.py').read_text()))
  lines = re.findall(r'^(\w+(?:, \w+)*)  +(\S.*)$', docstring, re.MULTILINE)
  listed = {name for names, _ in lines for name in names.split(', ')}
  mentioned = {word for _, text in lines for word in re.findall(r'\w+', text)}
  modules = {path.stem for path in (PACKAGE / folder).glob('*.py')} - {
      '__init__'}
  assert not modules - listed - mentioned, 'modules that it does not name'
  assert not listed - modules, 'names that are not modules'


def test_tests_mirror_the_folders():
  folders = {path.name for path in TESTS.iterdir() if path.is_dir()}
  assert folders - OTHER_TESTS - {'__pycache__'} == set(FOLDERS) - {'cli'}
  names = [path.name for path in TESTS.rglob('test_*.py')]
  assert len(names) == len(set(names))


def lines_of(name: str) -> int:
  """Of a file, or of the Python files of a folder; links do not count."""
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
  assert set(FOLDERS) <= set(budgets)
  over = {name: (lines_of(name), most) for name, most in budgets.items()
          if lines_of(name) > most}
  assert not over, f'lines, and the budget of CONTRIBUTING.md: {over}'
