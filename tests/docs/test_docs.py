"""What the pages say is so: links, files, verbs, models, columns, versions."""

import ast
import os
import re
import shlex

import pytest

import tpu_graphs_ext
from support.places import PROJECT
from tpu_graphs_ext import cli
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import recipes

PAGES = ('README.md', 'CONTRIBUTING.md', 'SECURITY.md',
         'benchmarks/README.md', *sorted(
    f'docs/{path.name}' for path in (PROJECT / 'docs').glob('*.md')))
PACKAGE = PROJECT / 'tpu_graphs_ext'
# Verbs whose flags depend on --task.
VERBS_OF_TASKS = ('train', 'evaluate', 'predict', 'rank')
FOLDERS = ('.ci', 'benchmarks', 'constraints', 'docs', 'run_scripts', 'tests',
           'tpu_graphs_ext')
# Files that pages name and that are not of this project: the baseline's and
# the course's, the reader's, and those whose style CONTRIBUTING.md points to.
ELSEWHERE = {
    'tiles_train.py', 'tiles_evaluate.py', 'tiles_gen_predictions_csv.py',
    'create_kaggle_csv.py',
    'echo_download_commands.py', 'tpu_graphs/baselines/tiles/models.py',
    'tpu_graphs/tpu_graphs/baselines/tiles/models.py', 'my_models.py',
    'kaggle.csv', 'predictions_model_output.csv', 'results_1700000000000.csv',
    'sample_submission.csv', 'model.py', 'nn/conv/sage_conv.py', 'graph.py',
    'utils_test.py', 'tests/test_models.py', 'data/data.py',
    'layout_train.py', 'layout_evaluate.py', 'tiles_beam_experiments.py',
    'tpu_graphs/baselines/layout/models.py'}


def text_of(page):
  return (PROJECT / page).read_text(encoding='utf-8')


def table_rows(text):
  """The cells of all lines of all tables."""
  return [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
          for line in text.splitlines() if line.startswith('|')]


def code_of(text):
  """Code in the line, and the lines of code blocks, without comments."""
  blocks = re.findall(r'^```\w*\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
  spans = re.findall(
      r'`([^`]+)`', re.sub(r'^```.*?^```', '', text,
                           flags=re.DOTALL | re.MULTILINE))
  lines = [re.sub(r'\s#.*', '', line) for block in blocks
           for line in block.replace('\\\n', ' ').splitlines()]
  return [' '.join(span.split()) for span in spans] + lines


def anchors_of(text):
  """The names that GitHub gives to headings."""
  return {re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')
          for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE)}


def test_the_readme_is_short():
  assert len(text_of('README.md').splitlines()) <= 160


def test_the_readme_leads_to_every_page():
  links = re.findall(r'\]\(([^)\s#]+)', text_of('README.md'))
  assert set(PAGES) - {'README.md', 'docs/index.md'} <= set(links)


def test_the_reference_has_every_public_name():
  """mkdocs builds it of their docstrings, and stops at one that is missing."""
  names = re.findall(r'^## (\w+)\n\n::: tpu_graphs_ext\.([\w.]+)$',
                     text_of('docs/api.md'), re.MULTILINE)
  assert [name for name, _ in names] == tpu_graphs_ext.__all__
  for name, home in names:
    assert home == f'{tpu_graphs_ext._HOMES[name]}.{name}'


@pytest.mark.parametrize('page', PAGES)
def test_every_relative_link_leads_somewhere(page):
  links = re.findall(r'\]\(([^)\s]+)\)', text_of(page))
  for link in links:
    if re.match(r'https?:', link):
      continue
    path, _, anchor = link.partition('#')
    target = (PROJECT / page).parent / path if path else PROJECT / page
    assert target.exists(), link
    if anchor:
      assert anchor in anchors_of(target.read_text(encoding='utf-8')), link


@pytest.fixture(scope='module')
def file_names():
  """Names of all files of the project, without their folders."""
  return {name for folder in FOLDERS
          for _, _, names in os.walk(PROJECT / folder) for name in names} | {
              path.name for path in PROJECT.iterdir()}


@pytest.mark.parametrize('page', PAGES)
def test_every_file_that_is_named_exists(page, file_names):
  places = (PROJECT, (PROJECT / page).parent, PACKAGE)
  for code in code_of(text_of(page)):
    for name in re.findall(
        r'(?<![\w/.~<>*])(?:\./)?[\w.-]+(?:/[\w.-]+)*\.(?:py|sh|md|csv|svg|png)'
        r'(?![\w*])', code):
      name = name[2:] if name.startswith('./') else name
      if name in ELSEWHERE:
        continue
      assert (name in file_names if '/' not in name else any(
          (place / name).is_file() for place in places)), (name, code)


@pytest.mark.parametrize('page', PAGES)
def test_code_in_python_imports_what_there_is(page):
  for block in re.findall(r'^```python\n(.*?)^```', text_of(page),
                          re.DOTALL | re.MULTILINE):
    for node in ast.walk(ast.parse(block)):
      if isinstance(node, ast.ImportFrom):
        folder = PROJECT / node.module.replace('.', '/')
        for alias in node.names:
          assert (folder / f'{alias.name}.py').is_file() or re.search(
              rf'^(class|def) {alias.name}\b|^{alias.name} =',
              folder.with_suffix('.py').read_text(), re.MULTILINE), alias.name


def test_the_map_has_every_wing_and_every_file_beside_them():
  there = {f'tpu_graphs_ext/{path.name}/' for path in PACKAGE.iterdir()
           if (path / '__init__.py').is_file()}
  # models.py is a link.
  there |= {path.name for path in PACKAGE.glob('*.py')
            if path.name not in ('__init__.py', 'models.py')}
  section = text_of('CONTRIBUTING.md').split('\n## The code\n')[1]
  section = section.split('\n## ')[0]
  named = {name for cells in table_rows(section)
           for name in re.findall(r'`([^`]+)`', cells[0])}
  named = {os.path.basename(name) if name.endswith('.py') else name
           for name in named}
  assert named - {'models.py', 'layout_models.py', 'benchmarks/', 'tests/',
                  'constraints/'} == there


# --- Verbs -------------------------------------------------------------------


def printed_help(capsys, *arguments):
  with pytest.raises(SystemExit) as stopped:
    cli.main([*arguments, '--help'])
  assert stopped.value.code == 0
  return capsys.readouterr().out


def test_the_table_of_verbs_is_that_of_the_command_line(capsys):
  verbs = re.findall(r'^ {4}([\w-]+)(?: |$)', printed_help(capsys),
                     re.MULTILINE)
  rows = table_rows(text_of('docs/commands.md'))[2:]
  named = [re.match(r'`([\w-]+)', cells[0]).group(1) for cells in rows]
  assert len(verbs) > 10
  assert sorted(set(named)) == sorted(verbs)  # `rank` does two things.


def test_every_command_takes_the_flags_that_pages_give_it(capsys):
  found = 0
  for page in PAGES:
    text = text_of(page)
    rows = [f'tpu-graphs-ext {cells[0].strip("`")}'
            for cells in table_rows(text) if page == 'docs/commands.md'][2:]
    for code in code_of(text) + rows:
      for command in re.findall(r'(?:^|[ /(])tpu-graphs-ext ([^)|]*)', code):
        verb, *words = shlex.split(command.replace('"', '')) or ['']
        if not re.fullmatch(r'[a-z][a-z-]*', verb):
          continue  # `tpu-graphs-ext VERB`
        task = ['--task=layout'] * (
            '--task layout' in command and verb in VERBS_OF_TASKS)
        flags, found = printed_help(capsys, verb, *task), found + 1
        for word in words:
          if verb == 'run' and word.endswith('.py'):
            break  # The rest are flags of the script.
          flag = word.strip('[]').split('=')[0]
          assert not flag.startswith('--') or re.search(
              rf'{flag}\b(?!-)', flags), (page, command, flag)
  assert found > 10


def test_recipes_are_those_of_the_host():
  text = text_of('docs/commands.md').split('\n## Recipes\n')[1]
  assert dict(re.findall(r'^- `(\w+)`: `(--.*)`$', text, re.MULTILINE)) == {
      name: ' '.join(f'--{flag} {value}' for flag, value in settings.items())
      for name, settings in recipes.RECIPES.items()}


# --- Models ------------------------------------------------------------------


def models_in(path):
  """Names of the public model classes of a file, which is not imported."""
  tree = ast.parse(text_of(path))
  bases = {node.name: [ast.unparse(base) for base in node.bases]
           for node in tree.body if isinstance(node, ast.ClassDef)}

  def is_model(name):
    return any(base == 'tf.keras.Model' or is_model(base)
               for base in bases.get(name, ()))

  return {name for name in bases if is_model(name) and name[0] != '_'}


@pytest.fixture(scope='module')
def models():
  return models_in('models.py')


@pytest.fixture(scope='module')
def layout_models():
  return models_in('layout_models.py')


def test_the_table_of_models_has_every_model(models):
  text = text_of('docs/models.md')
  rows = [cells for cells in table_rows(text.split('\n## ')[0])][2:]
  named = [name for cells in rows for name in re.findall(r'`(\w+)`', cells[0])]
  assert len(models) > 10
  assert sorted(named) == sorted(models)


def test_the_table_of_layout_models_has_every_model(layout_models):
  section = text_of('docs/models.md').split('\n## The layout task\n')[1]
  named = [name for cells in table_rows(section)[2:]
           for name in re.findall(r'`(\w+)`', cells[0])]
  assert sorted(named) == sorted(layout_models)


@pytest.mark.parametrize('page', PAGES)
def test_every_model_that_is_named_exists(page, models, layout_models):
  text = text_of(page)
  named = set(re.findall(r'--model[ =](\w+)', text)) - {'NAME', 'MyModel'}
  named |= set(re.findall(r'\b[A-Z]\w*[a-z](?:SAGE|GCN|GAT|TileModel)\b', text))
  assert named - {'GraphSAGE'} <= models | layout_models


# --- Data --------------------------------------------------------------------


def fields_in(text):
  """Name -> (type, shape) of the tables of fields."""
  return {cells[0].strip('`'): (cells[1], cells[2])
          for cells in table_rows(text) if len(cells) == 5}


def columns_in(section):
  """Group -> (first, last column) of a table of columns."""
  return {cells[1].strip('`'): cells[0] for cells in table_rows(section)[2:]}


def columns_of(groups):
  return {name: str(place.start) if place.stop - place.start == 1
          else f'{place.start}-{place.stop - 1}'
          for name, place in groups.items()}


def test_fields_are_those_of_the_schema():
  text = text_of('docs/data.md')
  tile, layout = text.split('A file of the layout task')
  for section, fields in ((tile, schema.TILE_FIELDS),
                          (layout, schema.LAYOUT_FIELDS[3:])):
    expected = {field.name: (field.dtype, ', '.join(map(str, field.axes)))
                for field in fields}
    shown = fields_in(section)
    assert {name: shown.get(name) for name in expected} == expected
    assert set(shown) - set(expected) <= {'field', '---'}
  assert schema.LAYOUT_FIELDS[:3] == schema.TILE_FIELDS[:3]


@pytest.mark.parametrize('heading, groups', [
    ('node_feat', schema.NODE_GROUPS),
    ('config_feat', schema.CONFIG_GROUPS),
    ('node_config_feat', schema.LAYOUT_CONFIG_GROUPS)])
def test_columns_are_those_of_the_schema(heading, groups):
  section = text_of('docs/data.md').split(f'\n## Columns of `{heading}`\n')[1]
  assert columns_in(section.split('\n## ')[0]) == columns_of(groups)


def test_splits_have_the_published_numbers_of_kernels():
  shown = {cells[0].strip('`'): cells[1].replace(',', '')
           for cells in table_rows(text_of('docs/data.md')) if len(cells) == 3}
  assert {split: shown[split] for split in schema.SPLITS} == {
      split: str(number) for split, number in schema.PUBLISHED_KERNELS.items()}


# --- Stacks ------------------------------------------------------------------


def test_versions_of_the_stacks_are_those_that_are_installed():
  rows = {cells[0]: cells for cells in table_rows(text_of('docs/stacks.md'))}
  for stack in ('classic', 'current'):
    _, pythons, tensorflow, _, ranking, numpy = rows[stack]
    first, last = (int(python.split('.')[1]) for python in pythons.split('-'))
    paths = sorted((PROJECT / 'constraints').glob(f'{stack}-python*.txt'))
    assert {path.stem.split('-python3.')[1] for path in paths} == {
        str(minor) for minor in range(first, last + 1)}
    for path in paths:
      pins = dict(line.split('==') for line in path.read_text().splitlines()
                  if '==' in line)
      assert pins['tensorflow'] == tensorflow
      assert pins['tensorflow-ranking'].startswith(ranking)
      assert any(pins['numpy'].startswith(part.strip() + '.')
                 for part in numpy.split(',')), (path.name, pins['numpy'])
