"""The README shows exactly what its commands print."""

import re
import sys

from support.libtpu import needs_libtpu
from support.places import PROJECT
from tpu_graphs_ext import quickstart

TEXT = (PROJECT / 'README.md').read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```\w*\n(.*?)^```', TEXT, re.DOTALL | re.MULTILINE)


@needs_libtpu
def test_the_example_prints_what_the_page_shows(monkeypatch, capsys):
  code, shown = BLOCKS[1:3]
  monkeypatch.chdir(PROJECT)
  exec(code, {})
  printed = capsys.readouterr().out.splitlines()
  head, *rows = shown.splitlines()
  start = next(number for number, line in enumerate(printed)
               if line.split() == head.split()) + 1
  printed = printed[start:start + len(rows)]
  if sys.version_info[:2] != (3, 11):
    # Another libtpu: kernels have other names, and other tiles may be first.
    rows, printed = ([line.split()[-1] for line in lines]
                     for lines in (rows, printed))
  assert printed == rows


def means_of(table):
  """Model -> the means that a table of the quickstart was made of."""
  found = {}
  for line in table.splitlines():
    name = line.split(' ')[0]
    numbers = [float(number) for number in re.findall(r'\d+\.\d+', line)]
    parts = [number / 100 for number in numbers[:3]]
    if name in quickstart.MODELS:
      found[name] = dict(zip(('slowdown_1', 'slowdown_5', 'slowdown_10',
                              'opa', 'kendall'), parts + numbers[3:]))
    for means in found.values():
      if name == 'default':
        means['default'], = parts
      elif name == 'random':
        means.update(zip(('random_1', 'random_5', 'random_10'), parts))
  return found


def test_the_quickstart_prints_its_end_as_the_page_shows_it():
  """With the same numbers, to the letter."""
  table, conclusion = next(
      block for block in BLOCKS if block.startswith('15 real')).split('\n\n')
  found = means_of(table)
  assert quickstart.comparison(table.split('\n')[0], found) == table
  assert quickstart.conclusion(found).strip() == conclusion.strip()
