"""What the pages say is so: links, files, commands, models, columns."""

import ast
import re
import shlex

import pytest

from support.places import PROJECT
from tpu_graphs_ext import cli, load_models
from tpu_graphs_ext.cli import app
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.engine import settings
from tpu_graphs_ext.tasks import TASKS

PAGES = ('README.md', 'CONTRIBUTING.md', 'SECURITY.md',
         'benchmarks/README.md', *sorted(
             f'docs/{path.name}' for path in (PROJECT / 'docs').glob('*.md')))
PACKAGE = PROJECT / 'tpu_graphs_ext'
# Verbs whose flags depend on --task.
VERBS_OF_TASKS = ('train', 'evaluate', 'predict', 'rank')
# Files of the baseline, and of the projects that CONTRIBUTING.md points to.
ELSEWHERE = {
    'tpu_graphs/baselines/tiles/models.py',
    'tpu_graphs/tpu_graphs/baselines/tiles/models.py',
    'tpu_graphs/baselines/layout/models.py', 'nn/conv/sage_conv.py',
    'tests/test_models.py', 'data/data.py'}
FILE = (r'(?<![\w/.~<>*])(?:\./)?'
        r'((?!out/)[\w.-]+(?:/[\w.-]+)+\.(?:py|sh|md|csv|svg|png))(?![\w*])')


def text_of(page):
  return (PROJECT / page).read_text(encoding='utf-8')


def table_rows(text):
  """The cells of all lines of all tables."""
  return [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
          for line in text.splitlines() if line.startswith('|')]


def section_of(page, heading):
  return text_of(page).split(f'\n## {heading}\n')[1].split('\n## ')[0]


BLOCK = re.compile(r'^```\w*\n(.*?)^```', re.DOTALL | re.MULTILINE)


def lines_of(text):
  """The lines of code blocks, without comments."""
  lines = '\n'.join(BLOCK.findall(text)).replace('\\\n', ' ').splitlines()
  return [re.sub(r'\s#.*', '', line) for line in lines]


def code_of(text):
  """The lines of code blocks, and inline code."""
  return lines_of(text) + [' '.join(span.split()) for span in re.findall(
      r'`([^`]+)`', BLOCK.sub('', text))]


def anchors_of(text):
  """The names that GitHub gives to headings."""
  return {re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')
          for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE)}


def test_the_readme_is_short_and_leads_to_every_page():
  text = text_of('README.md')
  assert len(text.splitlines()) <= 110
  links = re.findall(r'\]\(([^)\s#]+)', text)
  assert set(PAGES) - {'README.md', 'docs/index.md'} <= set(links)


def test_every_relative_link_leads_somewhere():
  lost = []
  for page in PAGES:
    for link in re.findall(r'\]\(([^)\s]+)\)', text_of(page)):
      path, _, anchor = link.partition('#')
      target = (PROJECT / page).parent / path if path else PROJECT / page
      if re.match('https?:', link):
        continue
      if not target.exists() or (anchor and anchor not in anchors_of(
          target.read_text(encoding='utf-8'))):
        lost.append((page, link))
  assert not lost


def test_every_file_that_is_named_with_its_folder_exists():
  lost = []
  for page in PAGES:
    folders = (PROJECT, (PROJECT / page).parent, PACKAGE)
    for code in code_of(text_of(page)):
      lost += [(page, name) for name in set(re.findall(FILE, code)) - ELSEWHERE
               if not any((folder / name).is_file() for folder in folders)]
  assert not lost


def test_the_map_has_every_folder_and_file_of_the_package():
  there = {f'tpu_graphs_ext/{path.name}/' for path in PACKAGE.iterdir()
           if (path / '__init__.py').is_file()}
  there |= {path.name for path in PACKAGE.glob('*.py')} - {'__init__.py'}
  named = {name for cells in table_rows(section_of(
      'CONTRIBUTING.md', 'The code')) for name in re.findall(
          r'`(?:tpu_graphs_ext/(?=\w+\.py))?([^`]+)`', cells[0])}
  assert named - {'benchmarks/', 'tests/', 'constraints/'} == there


def test_the_reference_is_made_of_the_public_names():
  """mkdocs makes it of `__all__`; see run_scripts/site_fields.py."""
  assert '\n::: tpu_graphs_ext\n' in text_of('docs/api.md')


# --- Commands ----------------------------------------------------------------


def printed_help(capsys, *arguments):
  with pytest.raises(SystemExit) as stopped:
    cli.main([*arguments, '--help'])
  assert stopped.value.code == 0
  return capsys.readouterr().out


def test_the_table_of_verbs_is_that_of_the_command_line(capsys):
  verbs = re.findall(r'^ {4}([\w-]+)(?: |$)', printed_help(capsys),
                     re.MULTILINE)
  named = {re.match(r'`([\w-]+)', cells[0]).group(1)
           for cells in table_rows(text_of('docs/commands.md'))[2:]}
  assert len(verbs) > 10
  assert sorted(named) == sorted(verbs)


def test_commands_in_pages_are_those_of_the_parser(capsys):
  """Whole ones of code blocks are parsed; others have flags that there are."""
  helps, wrong = {}, []
  for page in PAGES:
    text = text_of(page)
    for line in lines_of(text):
      for command in re.findall('^(?:until )?tpu-graphs-ext ([^;]*)', line):
        app.parse(shlex.split(command.replace('/latest ', '/model_1 ')))
    rows = table_rows(text)[2:] if page == 'docs/commands.md' else []
    for code in code_of(text) + [
        f'tpu-graphs-ext {cells[0].strip("`")}' for cells in rows]:
      for command in re.findall(r'(?:^|[ /(])tpu-graphs-ext ([^)|]*)', code):
        verb, *words = command.split()
        if not re.fullmatch('[a-z][a-z-]*', verb):
          continue  # `tpu-graphs-ext VERB`
        is_layout = verb in VERBS_OF_TASKS and 'layout' in words
        key = (verb, '--task=layout') if is_layout else (verb,)
        if key not in helps:
          helps[key] = printed_help(capsys, *key)
        # Of `run`, the rest are flags of the script.
        wrong += [(page, verb, flag) for flag in re.findall(
            r'(--\w[\w-]*)', command.split('.py')[0])
                  if not re.search(rf'{flag}\b(?!-)', helps[key])]
  assert len(helps) > 10 and not wrong


def test_recipes_are_those_of_the_engine():
  assert dict(re.findall(r'^- `(\w+)`: `(--.*)`$', section_of(
      'docs/commands.md', 'Recipes'), re.MULTILINE)) == {
          name: ' '.join(f'--{flag} {value}' for flag, value in flags.items())
          for name, flags in settings.RECIPES.items()}


# --- Models and data ---------------------------------------------------------


def test_tables_have_every_model_and_pages_no_other():
  tiles, layouts = (
      set(load_models.model_names(task.models_file)) for task in TASKS.values())
  for text, models in (
      (text_of('docs/models.md').split('\n## ')[0], tiles),
      (section_of('docs/models.md', 'The layout task'), layouts)):
    assert sorted(name for cells in table_rows(text)[2:] for name in re.findall(
        r'`(\w+)`', cells[0])) == sorted(models)
  for page in PAGES:
    text = text_of(page)
    named = set(re.findall(r'--model[ =](\w+)', text)) | set(re.findall(
        r'\b[A-Z]\w*[a-z](?:SAGE|GCN|GAT|TileModel)\b', text))
    assert named - {'NAME', 'MyModel', 'GraphSAGE'} <= tiles | layouts, page


def test_fields_are_those_of_the_schema():
  tile, layout = text_of('docs/data.md').split('A file of the layout task')
  for section, fields in ((tile, schema.TILE_FIELDS),
                          (layout, schema.LAYOUT_FIELDS[3:])):
    shown = {cells[0].strip('`'): (cells[1], cells[2])
             for cells in table_rows(section) if len(cells) == 5}
    expected = {field.name: (field.dtype, ', '.join(map(str, field.axes)))
                for field in fields}
    assert {name: shown.pop(name, None) for name in expected} == expected
    assert set(shown) <= {'field', '---'}
  assert schema.LAYOUT_FIELDS[:3] == schema.TILE_FIELDS[:3]


def test_columns_and_splits_are_those_of_the_schema():
  for name, groups in (('node_feat', schema.NODE_GROUPS),
                       ('config_feat', schema.CONFIG_GROUPS),
                       ('node_config_feat', schema.LAYOUT_CONFIG_GROUPS)):
    rows = table_rows(section_of('docs/data.md', f'Columns of `{name}`'))[2:]
    named = [re.findall(r'`(\w+)`', cells[1]) for cells in rows]
    assert [name for names in named for name in names] == list(groups)
    for cells, names in zip(rows, named):
      first, last = groups[names[0]].start, groups[names[-1]].stop - 1
      assert cells[0] == (f'{first}-{last}' if last > first else str(first))
  shown = {cells[0].strip('`'): cells[1].replace(',', '')
           for cells in table_rows(text_of('docs/data.md')) if len(cells) == 3}
  assert {split: shown[split] for split in schema.SPLITS} == {
      split: str(number) for split, number in schema.PUBLISHED_KERNELS.items()}


def test_messages_of_the_troubleshooting_page_are_those_of_the_code():
  literals = ' '.join(
      node.value for path in (*PACKAGE.rglob('*.py'), PROJECT / 'models.py')
      for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
      if isinstance(node, ast.Constant) and isinstance(node.value, str))
  messages = [message for cells in table_rows(text_of(
      'docs/troubleshooting.md')) for message in re.findall(
          '`([^`]{20,})`', cells[0])]
  assert len(messages) > 10
  lost = [(message, part.strip()) for message in messages
          for part in message.split('...') if part.strip() not in literals]
  assert not lost
