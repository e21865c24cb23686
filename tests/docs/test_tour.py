"""docs/tour.ipynb: it runs, and what it holds is what it gave."""

import ast
import os
import re
import xml.etree.ElementTree

import pytest

from support import notebook
from support.places import PROJECT

TOUR = PROJECT / 'docs' / 'tour.ipynb'
CELLS = notebook.cells_of(str(TOUR))


def test_it_was_run_from_its_first_cell_to_its_last():
  assert [cell['execution_count'] for cell in CELLS] == list(
      range(1, len(CELLS) + 1))
  kinds = [output['output_type'] for cell in CELLS
           for output in cell['outputs']]
  assert set(kinds) == {'stream', 'display_data'}  # No 'error'.
  assert all(cell['outputs'] for cell in CELLS)


def test_it_is_small_and_has_no_path_of_the_machine_where_it_ran():
  text = TOUR.read_text(encoding='utf-8')
  assert len(text) < 600_000
  shown = re.sub(r'"image/png": "[^"]*"', '', text)  # Letters of all kinds.
  assert not re.search(r'/(root|home|tmp|work|Users|usr|opt)/', shown)


def test_cells_are_python():
  for cell in CELLS:
    ast.parse(notebook.python_of(cell))
    assert all(len(line) <= 80 for line in cell['source'])


def test_links_lead_somewhere():
  links = [link for cell in notebook.cells_of(str(TOUR), 'markdown')
           for link in re.findall(r'\]\(([^)]+)\)', notebook.source_of(cell))]
  assert len(links) > 5
  assert [link for link in links if not (TOUR.parent / link).is_file()] == []


@pytest.mark.slow
def test_it_runs(tmp_path):
  # Without it the first cell would install it.
  pytest.importorskip('grandalf', reason='needs the extra [report]')
  found = notebook.run(str(TOUR), str(tmp_path))
  for cell, (printed, pictures) in zip(CELLS, found):
    kept = cell['outputs']
    svgs = [output for output in kept
            if 'image/svg+xml' in output.get('data', {})]
    assert len(pictures) == len(svgs)
    for picture in pictures:
      xml.etree.ElementTree.fromstring(picture)
      assert 'var(--' not in picture
    # The file of `%%writefile` and the figure of matplotlib are not printed.
    says = any(output.get('name') == 'stdout' for output in kept)
    assert bool(printed) == (says and not notebook.written_file(cell))
  assert sorted(os.listdir(tmp_path)) == ['outputs.json', 'tour']
