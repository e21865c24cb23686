"""The page in a browser, where there is one."""

import re

import pytest

from support import chromium, tiny_kernels, tiny_models
from tpu_graphs_ext.host import train
from tpu_graphs_ext.host.settings import LoadSettings
from tpu_graphs_ext.report import report

pytestmark = pytest.mark.skipif(
    chromium.find() is None, reason='needs Chromium, which is not installed: '
    f'none of {", ".join(chromium.NAMES)} is there')


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  folder = tmp_path_factory.mktemp('report')
  root = tiny_kernels.write_data_root(folder / 'data')
  train.train(tiny_models.tiny_settings(root, folder / 'out', epochs=1))
  loading = LoadSettings(models_py=tiny_models.__file__, cache_dir='')
  return report.report([str(folder / 'out')], loading=loading, num_kernels=1,
                       out=str(folder / 'report.html'))


@pytest.fixture(scope='module')
def page(path, tmp_path_factory):
  folder = tmp_path_factory.mktemp('chromium')
  with chromium.opened(folder) as page:
    yield page


@pytest.mark.parametrize('look', [
    {}, {'dark': True}, {'width': 380, 'height': 800},
    {'width': 380, 'height': 800, 'dark': True}, {'paper': True}],
    ids=['light', 'dark', 'phone', 'dark phone', 'paper'])
def test_every_figure_is_there_and_nothing_else_happens(page, path, look):
  page.requests.clear()
  page.logged.clear()
  page.look(**look)
  page.open('file://' + path)
  with open(path, encoding='utf-8') as file:
    figures = len(re.findall('<svg ', file.read()))
  seen = page.value('[...document.querySelectorAll("svg")].filter(svg => {'
                    'const box = svg.getBoundingClientRect();'
                    'return box.width > 100 && box.height > 60;}).length')
  assert seen == figures > 10
  assert page.logged == []
  assert page.requests in (['file://' + path],
                           ['file://' + path, 'data:,'])
  # Nothing but tables and graphs, which scroll by themselves, is too wide.
  assert page.value('document.documentElement.scrollWidth') <= page.value(
      'innerWidth')
  # Letters of figures can be read.
  assert page.value(
      'Math.min(...[...document.querySelectorAll("svg text")].map('
      'text => parseFloat(getComputedStyle(text).fontSize) '
      '* text.getScreenCTM().a))') >= (7 if 'paper' in look else 10)


def test_themes_differ_and_paper_is_light(page, path):
  grounds = {}
  for name, look in (('light', {}), ('dark', {'dark': True}),
                     ('paper', {'dark': True, 'paper': True})):
    page.look(**look)
    page.open('file://' + path)
    grounds[name] = page.value(
        'getComputedStyle(document.body).backgroundColor')
  assert grounds == {'light': 'rgb(255, 255, 255)', 'dark': 'rgb(22, 24, 29)',
                     'paper': 'rgb(255, 255, 255)'}


def test_the_keyboard_reaches_all_and_opens_what_is_folded(page, path):
  page.look()
  page.open('file://' + path)
  order = []
  for _ in range(60):
    page.press('Tab', 9)
    order.append(page.value(
        'document.activeElement.matches("summary") && !document.activeElement'
        '.parentElement.open ? "summary" : document.activeElement.className '
        '|| document.activeElement.tagName'))
    if order[-1] == 'summary':
      break
  assert order[0] == 'skip' and 'A' in order and 'scroll' in order
  assert order[-1] == 'summary'
  page.press('Enter', 13)
  assert page.value('document.activeElement.parentElement.open') is True
  # What has the focus is framed.
  assert page.value('getComputedStyle(document.activeElement).outlineStyle'
                    ) == 'solid'


def test_every_figure_has_a_name_and_a_description(page, path):
  page.open('file://' + path)
  nodes = page.send('Accessibility.getFullAXTree')['nodes']
  images = [node for node in nodes
            if node.get('role', {}).get('value') in ('image', 'img')]
  assert len(images) > 10
  for node in images:
    assert node['name']['value'] and node['description']['value']
