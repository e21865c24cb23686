"""Figures, numbers as text, and what the page makes of them."""

import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from support.tiny_runs import Page
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import charts, page


def test_bars_have_full_names_and_equal_ones_give_equal_figures():
  look = charts.look_of(0, 'MyModel, learning_rate=0.01')
  blocks = [('one', [(look, 1.0, 0.5, 2.0)]),
            ('', [(look, 3.0, np.nan, np.nan)])]
  svg = charts.forest(blocks, 'in % (log scale)', True)
  assert ElementTree.fromstring(svg).tag.endswith('svg')
  for text in ('>one<', '>MyModel,<', '>learning_rate=0.01<', '(log scale)'):
    assert text in svg, text


def test_without_its_packages_there_is_one_clear_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  with pytest.raises(UserError, match=r'pip install -e \"\.\[report\]\"'):
    charts.require_packages()


def test_numbers_as_text():
  nan = float('nan')
  assert [page.number(value) for value in (-1.234, -0.001, 12.34, 265.14)] == [
      page.MINUS + '1.23', '0.00', '12.3', '265']
  assert page.number(nan) == page.number(None) == page.NOTHING
  assert page.spread(1.0, nan) == '1.00'
  assert page.spread(1.0, 0.25) == '1.00 ± 0.25'
  assert page.interval(1.5, 1.0, 2.0) == '1.50 [1.00\u00a0to\u00a02.00]'
  assert page.interval(1.5, nan, nan) == '1.50'


def test_text_of_files_is_escaped():
  svg = charts.svg(lambda _, axes: axes.plot([1, 2, 3], [1, 3, 2]))
  evil = page.table('<i>', ('a&b',), [('<script>',)])
  content = page.render(
      comparison=None, task='tile', problems=['<u>'],
      kernels=None, trained='', curves=[page.Figure('A & "B"', 'said', svg)],
      groups=evil, runs=evil, flags=evil)
  read = Page(content)
  assert not read.unclosed and read.counts['img'] == 1
  assert not {'script', 'i', 'b', 'u'} & set(read.counts)
  assert '<script>' in read.text and '<u>' in read.text
