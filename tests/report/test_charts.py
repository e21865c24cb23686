"""Figures: what becomes of matplotlib's SVG in a page."""

import re
import sys

import pytest

from support.tiny_runs import Page
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.report import charts, html, style


@pytest.fixture(scope='module', autouse=True)
def without_a_screen():
  charts.require_matplotlib()


def simple(name='x'):
  look = charts.look_of(0, 'A')

  def draw(unused_figure, axes):
    axes.plot([1, 2, 3], [1, 3, 2], color=look.colour, marker=look.mark)
    axes.set_title('title <of> all')

  return charts.svg(draw, name=name, title='a < b', description='says "it"')


def test_a_figure_takes_all_colours_from_the_page():
  content = simple()
  assert not re.search(r'#[0-9a-f]{6}\b', content)
  assert set(re.findall(r'var\(--(\w+)\)', content)) >= {'run0', 'ink', 'line'}
  assert 'font-family' not in content and 'font:' not in content
  assert content.count('<style') == 0


def test_a_figure_says_in_words_what_it_shows():
  page = Page(simple())
  assert not page.unclosed and not page.outside
  assert 'a < b' in page.text and 'says "it"' in page.text
  assert 'title <of> all' in page.text  # Text stays text.
  assert {'#x-t', '#x-d'} <= set(page.targets)


def test_ids_of_two_figures_differ_and_all_targets_are_there():
  page = Page(simple('one') + simple('two'))
  assert len(page.ids) == len(set(page.ids))
  assert {target[1:] for target in page.targets} <= set(page.ids)
  assert any('one-' in target for target in page.targets)


def test_equal_figures_are_equal_texts():
  assert simple() == simple()


def test_groups_differ_in_colour_mark_or_line():
  looks = [charts.look_of(number, '') for number in range(24)]
  assert len({(look.colour, look.mark) for look in looks}) == 24
  assert len({look.mark for look in looks[:8]}) == 8


def test_blocks_of_ranges_have_a_line_each():
  look = charts.look_of(0, 'A')
  rows = [('one', [charts.Range(look, 1.0, 0.5, 2.0)]),
          ('two', [charts.Range(look, 3.0), charts.Range(look, 0.0)])]

  def draw(unused_figure, axes):
    charts.percent_scale(axes, 3.0)
    charts.draw_ranges(axes, rows)
    assert [text.get_text() for text in axes.get_yticklabels()] == ['A'] * 3
    assert [text.get_text() for text in axes.texts] == ['one', 'two']
    least, most = axes.get_ylim()
    assert least > max(axes.get_yticks()) and most < 0
    assert axes.get_xlim()[1] > 3

  charts.svg(draw, name='r', title='t', description='d',
             height=charts.ranges_height(rows))


def luminance(colour):
  """Of sRGB, by WCAG 2."""
  parts = [int(colour[place:place + 2], 16) / 255 for place in (1, 3, 5)]
  red, green, blue = (part / 12.92 if part <= 0.04045
                      else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
  low, high = sorted([luminance(one), luminance(other)])
  return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize('theme', [0, 1])
def test_colours_stand_out_from_the_page(theme):
  """WCAG 2: text 4.5 to 1, parts of figures 3 to 1."""
  colours = {name: both[theme] for name, both in style.COLOURS.items()}
  for name in ('ink', 'soft', 'link'):
    for ground in ('page', 'panel'):
      assert contrast(colours[name], colours[ground]) >= 4.5, name
  for name in colours:
    if name.startswith('run'):
      assert contrast(colours[name], colours['page']) >= 3, name


def test_without_the_extra_there_is_one_clear_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'grandalf.layouts', None)
  with pytest.raises(UserError, match=r'pip install -e "\.\[report\]"'):
    charts.require_matplotlib()


# --------------------------------------------------------------------- html


def test_numbers_as_text():
  assert html.number(-1.234, 1) == html.MINUS + '1.2'
  assert html.number(float('nan')) == html.number(None) == html.NOTHING
  assert html.percent(0.125) == '12.50'
  assert html.with_spread(1.0, None) == '1.00'
  assert html.with_spread(1.0, 0.25) == '1.00 ± 0.25'
  assert html.interval(1.0, 2.0) == '1.00 to 2.00'
  assert html.interval(float('nan'), float('nan')) == html.NOTHING
  assert [html.count(value) for value in (1234567.0, 0.5, 1.28125)] == [
      '1\u202f234\u202f567', '0.5', '1.28']


def test_text_of_files_is_escaped():
  content = html.table(html.Table('<i>', ('a&b',), [('<script>', '"x"')]))
  page = Page(content)
  assert 'script' not in page.counts and 'i' not in page.counts
  assert '<script>' in page.text and '"x"' in page.text
