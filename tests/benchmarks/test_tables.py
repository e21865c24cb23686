"""Pages have the numbers of the committed rows, and how rows become tables."""

import re

import pandas
import pytest

import tables
import traces
from support.places import BENCHMARKS, PROJECT


@pytest.fixture(scope='module')
def shown():
  return tables.views()


@pytest.mark.parametrize('page', [
    str(page.relative_to(PROJECT)) for page in tables.pages()])
def test_a_page_has_the_numbers_of_its_rows(page, shown):
  text = (PROJECT / page).read_text(encoding='utf-8')
  assert tables.with_tables(text, shown) == text, (
      'write them: python benchmarks/tables.py --write')


def test_one_changed_number_is_seen(shown):
  page = PROJECT / 'README.md'
  text = page.read_text(encoding='utf-8')
  block = tables.BLOCK.search(text)[0]
  number = re.search(r'\d\.\d', block)[0]
  changed = text.replace(block, block.replace(number, '9' + number, 1))
  assert tables.with_tables(changed, shown) == text


def test_every_table_stands_in_a_page(shown):
  named = [name for page in tables.pages() for name, _ in
           tables.BLOCK.findall(page.read_text(encoding='utf-8'))]
  assert sorted(named) == sorted(shown)


def test_rows_are_replaced_in_their_place(tmp_path, monkeypatch):
  monkeypatch.setattr(tables, 'RESULTS', tmp_path)
  (tmp_path / 'numbers.csv').write_text(','.join(tables.COLUMNS) + '\n')
  tables.put('t', {'a': {'x': 1.0}, 'b': {'x': 2.0, 'y': 5}},
             'benchmarks/tables.py', 'run me')
  # 1, 2 and 6: mean 3, squares 4 + 1 + 9 over 2 = 7, root 2.646.
  tables.put('t', {'a': {'x': [1, 2, 6]}}, 'benchmarks/tables.py', 'run me')
  tables.put('u', {'a': {'x': 1}}, 'benchmarks/tables.py', 'run me')
  tables.put('u', {'b': {'x': 2}}, 'benchmarks/tables.py', 'run me', whole=True)
  tables.put('t', {'a': {'x': [1, 2, 6]}, 'b': {'x': 2.0, 'y': 5}},
             'benchmarks/tables.py', 'run me', whole=True)
  assert list(tables.of_numbers('u')) == ['b']
  assert list(pandas.read_csv(tmp_path / 'numbers.csv')['table']) == [
      't', 't', 't', 'u']
  cells = tables.of_numbers('t')
  assert list(cells) == ['a', 'b'] and cells['b']['y'].value == 5
  lines = tables.text_of(tables.View(
      [('X', '{x:.1f}'), ('Y', '{y:.0f} s')], cells, {})).splitlines()
  assert lines[2:4] == ['| a | 3.0 ± 2.6 | - |', '| b | 2.0 | 5 s |']
  assert re.fullmatch(r'\*Measured \d+ \w+ \d{4} \(tables\.py \w{7}\)\.\*',
                      lines[5])


def test_commands_are_committed_without_folders_of_one_machine():
  assert tables.shown('python benchmarks/x.py --row a=/tmp/m/model_1,/q/model_2'
                      ' --real /root/op.pb --data out/d') == (
      'python benchmarks/x.py --row a=model_1,model_2 --real op.pb '
      '--data out/d')
  for path in (BENCHMARKS / 'results').glob('*.csv'):
    text = path.read_text(encoding='utf-8')
    assert not re.search(r'[ =,](/work|/tmp|/home|/root)/', text), path


def test_rows_of_older_code_are_named(monkeypatch):
  cells = {'a': {'x': tables.Cell(1, 0, 'benchmarks/tables.py:0123', '')}}
  monkeypatch.setattr(tables, 'views', lambda: {
      't': tables.View([], cells, {})})
  assert 'benchmarks/tables.py:0123' in tables.stale()
  monkeypatch.setattr(tables, 'code_hash', lambda unused_name: 'of today')
  assert 'docs/tour.ipynb' in tables.stale()


@pytest.mark.parametrize('page', ['README.md', *sorted(
    f'docs/{page.name}' for page in (PROJECT / 'docs').glob('*.md')
    if page.stem not in ('commands', 'traces'))])  # Units; errors of a method.
def test_percentages_stand_in_tables_alone(page):
  """A script makes those; what only prose says grows old."""
  prose = re.sub(r'^```.*?^```', '', tables.BLOCK.sub(
      '', (PROJECT / page).read_text(encoding='utf-8')), flags=re.M | re.S)
  assert not re.findall(r'(?<!top-)\b(?!95\b)\d+(?:\.\d+)? %', prose)


def test_traces_of_one_name_are_a_row_from_least_to_largest(
    tmp_path, monkeypatch):
  monkeypatch.setattr(traces, 'FILE', tmp_path / 'traces.csv')
  traces.FILE.write_text(
      'source,program,kernels,seen,mean,geometric,step,known\n'
      'a,b,90,99.0,5.0,4.0,+10.0,\na,b,1000,99.0,4.5,4.0,-2.0,\n'
      'a,c,7,,,,,\n')
  assert traces.table().splitlines()[2:] == [
      '| a | b | 90 to 1000 | 99.0 | 4.5 to 5.0 | 4.0 | -2.0 to +10.0 |  |',
      '| a | c | 7 |  |  |  |  |  |']
