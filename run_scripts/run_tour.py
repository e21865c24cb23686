"""Runs docs/tour.ipynb from its first cell to its last and keeps the outputs.

  pip install nbclient ipykernel
  python run_scripts/run_tour.py

For maintainers, after changes of models or sample data. It takes some minutes;
what the notebook writes goes to a temporary folder.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import nbclient
import nbformat

PROJECT = pathlib.Path(__file__).parent.parent
TOUR = PROJECT / 'docs' / 'tour.ipynb'


def main() -> int:
  os.environ['PYTHONPATH'] = os.pathsep.join(
      filter(None, [str(PROJECT), os.environ.get('PYTHONPATH')]))
  notebook = nbformat.read(TOUR, as_version=4)
  with tempfile.TemporaryDirectory() as folder:
    nbclient.NotebookClient(
        notebook, timeout=None, kernel_name='python3', record_timing=False,
        resources={'metadata': {'path': folder}}).execute()
  for cell in notebook.cells:
    if cell.cell_type == 'code':  # Progress and warnings tell of one machine.
      cell.outputs = [output for output in cell.outputs
                      if output.get('name') != 'stderr']
  nbformat.write(notebook, TOUR)
  return 0


if __name__ == '__main__':
  sys.exit(main())
