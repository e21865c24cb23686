"""Runs the cells of a notebook in a process without Jupyter.

    python -m support.notebook NOTEBOOK OUTPUTS.json

It knows as much of IPython as the project's notebook uses: `display` of
pictures and the magics `%matplotlib` and `%%writefile`. OUTPUTS.json gets a
list with `[printed text, [picture, ...]]` of each cell.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Optional

from support.places import PROJECT, TESTS


def cells_of(notebook: str, kind: str = 'code') -> list[dict]:
  """The cells of one kind, in their order."""
  content = json.loads(pathlib.Path(notebook).read_text(encoding='utf-8'))
  return [cell for cell in content['cells'] if cell['cell_type'] == kind]


def source_of(cell: dict) -> str:
  return ''.join(cell['source'])


def python_of(cell: dict) -> str:
  """The source of a cell without magics of its lines."""
  return '\n'.join(line for line in source_of(cell).splitlines()
                   if not line.startswith('%'))


def written_file(cell: dict) -> Optional[str]:
  """The file that the cell is written to; None where it is run."""
  first = source_of(cell).split('\n')[0]
  return first.split()[1] if first.startswith('%%writefile ') else None


def run(notebook: str, folder: str) -> list:
  """What each cell gives when all are run in a process of their own.

  Args:
    notebook: the .ipynb.
    folder: the process's working folder.
  """
  outputs = os.path.join(folder, 'outputs.json')
  environment = {
      **os.environ, 'MPLBACKEND': 'agg',
      'PYTHONPATH': os.pathsep.join(map(str, (TESTS, PROJECT)))}
  done = subprocess.run(
      [sys.executable, '-m', 'support.notebook', notebook, outputs],
      cwd=folder, env=environment, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True, check=False)
  assert done.returncode == 0, done.stdout[-4000:]
  return json.loads(pathlib.Path(outputs).read_text())


def _main(notebook: str, outputs: str) -> None:
  pictures, found, names = [], [], {'__name__': 'notebook'}
  display = types.ModuleType('IPython.display')
  display.SVG = lambda text: text
  display.display = pictures.append
  # Not IPython itself, by which matplotlib would think that it runs.
  sys.modules['IPython.display'] = display
  for cell in cells_of(notebook):
    printed = io.StringIO()
    if written_file(cell):
      pathlib.Path(written_file(cell)).write_text(python_of(cell))
    else:
      with contextlib.redirect_stdout(printed):
        exec(compile(python_of(cell), source_of(cell)[:40], 'exec'), names)
    found.append([printed.getvalue(), list(pictures)])
    pictures.clear()
  pathlib.Path(outputs).write_text(json.dumps(found))


if __name__ == '__main__':
  _main(*sys.argv[1:])
