"""Figures of a page as pictures of their own."""

import xml.etree.ElementTree as ElementTree

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import html, pictures, report

FIGURE = (
    '<svg class="chart" viewBox="0 0 40 30.5" role="img"><title id="a-t">'
    'A &amp; B</title><path d="M0 0" stroke="var(--run0)"/>'
    '<use xlink:href="#a-m"/></svg>')
SIZED = '<svg width="4" height="3" viewBox="-1 -2 4 3"><title>C</title></svg>'
SVG = '{http://www.w3.org/2000/svg}'


def test_each_figure_is_a_document_of_its_own(tmp_path):
  page = tmp_path / 'page.html'
  page.write_text(f'{report.START}<p>{FIGURE}</p>\n{html.paragraph("x")}{SIZED}')
  found = pictures.pictures(str(page))
  assert list(found) == ['A & B', 'C']
  chart, sized = map(ElementTree.fromstring, found.values())
  assert (chart.tag, chart.get('width'), chart.get('height')) == (
      f'{SVG}svg', '40', '30')
  assert chart.find(f'{SVG}path').get('stroke') == '#0072b2'  # On white.
  assert chart.find(f'{SVG}rect').get('fill') == '#ffffff'
  assert (sized.get('width'), sized.find(f'{SVG}rect').get('x')) == ('4', '-1')


@pytest.mark.parametrize('content, message', [
    (None, 'cannot be read'), (b'<html></html>', 'is no report'),
    (b'\xff\xfe', 'cannot be read')])
def test_other_files_are_refused(tmp_path, content, message):
  page = tmp_path / 'page.html'
  if content is not None:
    page.write_bytes(content)
  with pytest.raises(UserError, match=f'{page}: {message}'):
    pictures.pictures(str(page))
