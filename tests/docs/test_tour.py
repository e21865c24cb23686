"""docs/tour.ipynb: it runs, and what it holds is what it gave."""

import json
import re

import pytest

from support.places import PROJECT

TOUR = PROJECT / 'docs' / 'tour.ipynb'
TEXT = TOUR.read_text(encoding='utf-8')
CELLS = json.loads(TEXT)['cells']


def outputs_of(cells) -> list[list[str]]:
  """The kinds of outputs of each code cell."""
  return [[output['output_type'] for output in cell['outputs']]
          for cell in cells if cell['cell_type'] == 'code']


def test_it_was_run_from_its_first_cell_to_its_last():
  code = [cell for cell in CELLS if cell['cell_type'] == 'code']
  assert [cell['execution_count'] for cell in code] == list(
      range(1, len(code) + 1))
  assert {kind for kinds in outputs_of(CELLS) for kind in kinds} == {
      'stream', 'display_data'}
  assert len(TEXT) < 600_000
  shown = re.sub(r'"image/png": "[^"]*"', '', TEXT)  # Letters of all kinds.
  assert not re.search(r'/(root|home|tmp|work|Users|usr|opt)/', shown)


@pytest.mark.slow
@pytest.mark.usefixtures('checkout_root')  # It draws kernels that are there.
def test_it_runs(tmp_path, monkeypatch):
  for package in ('nbclient', 'ipykernel', 'libtpu', 'matplotlib'):
    pytest.importorskip(package)
  from run_scripts import run_tour
  monkeypatch.setenv('PYTHONPATH', str(PROJECT))
  cells = run_tour.run(str(tmp_path)).cells
  assert list(map(bool, outputs_of(cells))) == list(
      map(bool, outputs_of(CELLS)))
  assert [path.name for path in tmp_path.iterdir()] == ['tour']
