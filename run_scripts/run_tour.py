"""Runs docs/tour.ipynb from its first cell to its last and keeps the outputs.

  pip install -e ".[dev,tpu]"
  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python run_scripts/run_tour.py

For maintainers, after changes of models or sample data. It takes some minutes;
what the notebook writes goes to a temporary folder.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

import nbclient
import nbformat

from tpu_graphs_ext import files

PROJECT = pathlib.Path(__file__).resolve().parent.parent
TOUR = PROJECT / 'docs' / 'tour.ipynb'


def run(folder: str) -> nbformat.NotebookNode:
  """The notebook with the outputs of a run in `folder`; stderr is left out."""
  os.environ['PYTHONPATH'] = os.pathsep.join(
      filter(None, [str(PROJECT), os.environ.get('PYTHONPATH')]))
  notebook = nbformat.read(TOUR, as_version=4)
  nbclient.NotebookClient(
      notebook, timeout=None, kernel_name='python3', record_timing=False,
      resources={'metadata': {'path': folder}}).execute()
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs = [output for output in cell.outputs
                      if output.get('name') != 'stderr']
  # By which benchmarks/tables.py says that the tour is older than the models.
  notebook.metadata['models_py'] = files.sha256(str(PROJECT / 'models.py'))
  return notebook


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as temporary:
    nbformat.write(run(temporary), TOUR)
