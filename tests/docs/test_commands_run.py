"""README.md and docs/*.md: every block of commands or Python runs as printed.

Each page runs from top to bottom in a copy of a clone in which README.md ran
before. `SMALLER` is all that differs from the printed text.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from support import tiny_traces
from support.libtpu import needs_libtpu
from support.places import PROJECT
from tpu_graphs_ext.course import checkout

PAGES = ('README.md', *sorted(
    f'docs/{path.name}' for path in (PROJECT / 'docs').glob('*.md')))
# Page -> first words of blocks that do not run here -> why not.
NOT_RUN = {
    'README.md': {'git clone "$REPOSITORY"': 'tests/docs/test_readme_starts.py',
                  'import jax': 'the same'},
    'docs/blocks.md': {'def seconds(choice):': 'needs a TPU'},
    'docs/scale.md': {'dask scheduler': 'needs several machines'}}
# Printed -> run: fewer epochs, models, kernels, trees and tests.
SMALLER = {
    'quickstart.sh ': 'quickstart.sh --epochs 1 ',
    './run_scripts/test.sh ': './run_scripts/test.sh tests/test_files.py ',
    '--epochs=3': '--epochs=1', '--epochs 100': '--epochs 1',
    'assignment_train.sh  ': 'assignment_train.sh --epochs=1  ',
    '--model=MyModel': '--model=MyModel --epochs=1',
    'ext train --': 'ext train --epochs 1 --',
    '_train.py --': '_train.py --epochs=1 --',
    "TrainSettings(model='": "TrainSettings(epochs=1, model='",
    '"recipe": "quick"': '"epochs": 1', '[0, 1, 2]': '[0]',
    '--kernels all': '--kernels 140', '--trees 500': '--trees 5'}
# End with 1 if they find fault, here with the small data and with tiles that
# the compiler changes.
FIND_FAULT = './run_scripts/assignment_setup.sh ', '--modules out/modules'


def blocks_of(page: str) -> list[tuple[str, str, str]]:
  """(section, language, code) of each block."""
  text = (PROJECT / page).read_text(encoding='utf-8')
  return [(section.split('\n')[0], language, code)
          for section in re.split('^## ', text, flags=re.MULTILINE)
          for language, code in re.findall(
              r'^ *```(\w*)\n(.*?)^ *```', section, re.DOTALL | re.MULTILINE)]


def left_out(page: str, code: str) -> list[str]:
  return [start for start in NOT_RUN.get(page, ()) if code.startswith(start)]


def test_each_block_runs_or_is_listed():
  seen = {}
  for page in PAGES:
    for section, language, code in blocks_of(page):
      assert language in ('bash', 'python', 'text'), (page, section)
      for start in left_out(page, code):
        assert language != 'text'
        seen.setdefault(page, {})[start] = NOT_RUN[page][start]
  assert seen == NOT_RUN


def run(page: str, clone: pathlib.Path) -> None:
  """Runs the page's blocks; Python follows on that of its section."""
  home, root = clone.parent / 'home', checkout.find()
  path = [clone / '.venv' / 'bin', sysconfig.get_path('scripts')]
  variables = {
      **os.environ, 'HOME': str(home), 'PYTHONPATH': str(clone),
      'PATH': os.pathsep.join([*map(str, path), os.environ['PATH']]),
      'VENV': '', 'PYTHON': '', 'TPU_GRAPHS_EXT_STACK': '',
      checkout.ROOT_VARIABLE: str(home / 'tpu_graphs') if root else ''}
  python = {}
  for section, language, code in blocks_of(page):
    if language == 'text' or left_out(page, code):
      continue
    for printed, smaller in SMALLER.items():
      code = code.replace(printed, smaller)
    for finds in FIND_FAULT:
      code = code.replace(finds, f'{finds} || [ $? = 1 ] ')
    if language == 'python':
      code = python[section] = python.get(section, '') + code
    command = (['bash', '-euo', 'pipefail', '-c'] if language == 'bash'
               else ['python', '-c'])
    done = subprocess.run(
        [*command, code], cwd=clone, env=variables, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(f'$ {code}\n{done.stdout}')
    assert done.returncode == 0, f'{page}: {code}\n{done.stdout[-3000:]}'


@pytest.fixture(scope='module')
def after_readme(tmp_path_factory) -> pathlib.Path:
  """A clone, installed, with all that README.md makes; and a home beside it."""
  folder = tmp_path_factory.mktemp('reader')
  clone, home = folder / 'clone', folder / 'home'
  shutil.copytree(PROJECT, clone, ignore=shutil.ignore_patterns(
      '.*', 'out', 'build', '__pycache__', '*.egg-info'))
  (clone / '.venv' / 'bin').mkdir(parents=True)
  # pip only says what it would install: the environment is the tests' own.
  for name, command in (('python', '"$@"'),
                        ('tpu-graphs-ext', '-m tpu_graphs_ext.cli "$@"'),
                        ('pip', '-m pip "$@" --dry-run')):
    script = clone / '.venv' / 'bin' / name
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {command}\n')
    script.chmod(0o755)
  subprocess.run(['bash', '-c', 'source run_scripts/environment.sh; install() '
                  '{ :; }; for extra in report dev ""; do make_environment '
                  '$extra; done'], cwd=clone, check=True)
  home.mkdir()
  root = checkout.find()
  if root:
    subprocess.run(['git', 'clone', '--quiet', root, home / 'tpu_graphs'],
                   check=True)
    shutil.copytree(checkout.course_scripts(root), home / 'tpu_graphs_scripts',
                    ignore=shutil.ignore_patterns('.git', 'tpu_graphs'))
  (home / 'my_models.py').write_text(''.join(
      (PROJECT / name).read_text() for name in ('models.py',
                                                'docs/my_model.py')))
  (home / 'data/tpugraphs/npz/tile').mkdir(parents=True)
  (home / 'data/tpugraphs/npz/tile/xla').symlink_to(
      clone / 'out/quickstart/sample_data')
  step = [*tiny_traces.one_step(), tiny_traces.op('nccl', 186, 6),
          tiny_traces.launch(13, 188), tiny_traces.kernel(13, 190, 5, 'nccl')]
  for name in ('recorded.json.gz', 'other.json.gz', 'rank0.json', 'rank1.json'):
    tiny_traces.write(clone / name, step, packed=name.endswith('.gz'))
  run('README.md', clone)
  return clone


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize('page', [page for page in PAGES if any(
    language != 'text' for _, language, _ in blocks_of(page))])
def test_the_blocks_of_a_page_run(page, after_readme, tmp_path):
  if page in ('docs/assignment.md', 'docs/models.md', 'docs/pretrained.md'
              ) and not checkout.find():
    pytest.skip(f'needs a checkout of the baseline, {checkout.ROOT_VARIABLE}')
  if page != 'README.md':
    for name in ('clone', 'home'):
      shutil.copytree(after_readme.parent / name, tmp_path / name,
                      symlinks=True, copy_function=os.link)
    run(page, tmp_path / 'clone')
