"""Pages have the numbers of the committed rows, and how rows become tables."""

import re
import sys

import pytest

from support.places import BENCHMARKS, PROJECT

sys.path.insert(0, str(BENCHMARKS))

import tables


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
  cells = tables.of_numbers('t')
  assert list(cells) == ['a', 'b'] and cells['b']['y'].value == 5
  lines = tables.text_of(tables.View(
      [('X', '{x:.1f}'), ('Y', '{y:.0f} s')], cells, {})).splitlines()
  assert lines[2:4] == ['| a | 3.0 ± 2.6 | - |', '| b | 2.0 | 5 s |']
  assert re.fullmatch(r'\*Measured \d+ \w+ \d{4} \(tables\.py \w{7}\)\.\*',
                      lines[5])


def test_rows_of_older_code_are_named(monkeypatch):
  cells = {'a': {'x': tables.Cell(1, 0, 'benchmarks/tables.py:0123', '')}}
  monkeypatch.setattr(tables, 'views', lambda: {
      't': tables.View([], cells, {})})
  assert tables.stale() == ['benchmarks/tables.py:0123']
