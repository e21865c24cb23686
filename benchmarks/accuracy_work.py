"""What the accuracy benchmarks of both tasks share: data sets, runs, rows."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable

from tqdm import tqdm

import accuracy_run
import accuracy_table
from accuracy_run import RunSpec
from machine import machine
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The format of the cache when the first rows were made. Another format of the
# cache is no other data, and the rows stay.
_CONTENT_SALT = 'tpu_graphs_ext tile cache 1'


@dataclasses.dataclass(frozen=True)
class DataSet:
  """Where kernels are.

  Attributes:
    name: in the tables.
    source: folder of splits.
    protocol: `SPLITS` or `LAYOUTS`.
    recipe: how it was made, in words.
    content: start of a hash over all that is measured or trained on.
  """
  name: str
  source: str
  protocol: str
  recipe: str
  content: str


def content_of(source: str) -> str:
  """First digits of a hash over the files of the splits of a folder."""
  from tpu_graphs_ext.data import cache, read
  paths = []
  for split in ('train', 'valid', 'test', 'test_labelled'):
    folder = os.path.join(source, split)
    if split != 'test_labelled' or os.path.isdir(folder):
      paths += read.find_npz(folder)
  return cache.content_key(paths, _CONTENT_SALT)[:12]


def file_hash(path: str) -> str:
  with open(path, 'rb') as file:
    return hashlib.sha256(file.read()).hexdigest()[:12]


# --- Runs ------------------------------------------------------------------


def still_to_run(runs: list[tuple[RunSpec, DataSet]],
                 rows: list[accuracy_table.Row],
                 rerun_changed: bool) -> list[tuple[RunSpec, DataSet]]:
  """The runs without a finished row of the same data.

  Failed runs, and runs on data of other content, are to be done again; those
  of another models.py only if asked for.
  """
  finished = {accuracy_table.key_of(row): row for row in rows
              if row['status'] == 'ok'}
  left, changed = [], 0
  for spec, data in runs:
    row = finished.get(accuracy_table.key_of(dataclasses.asdict(spec)))
    is_changed = bool(row) and row['models_py'] != file_hash(spec.models_py)
    if not row or row['content'] != data.content or (
        is_changed and rerun_changed):
      left.append((spec, data))
    changed += is_changed
  print(f'{len(runs) - len(left)} of {len(runs)} runs are done; {changed} were '
        'made with another models.py (--rerun_changed)', file=sys.stderr)
  return left


def run_all(left: list[tuple[RunSpec, DataSet]], args,
            results: accuracy_table.Results) -> int:
  """Does the runs, and writes each one's row; returns how many failed.

  Args:
    left: the runs.
    args: `jobs` at once, by the `command` that is to be in the rows.
    results: where the rows go.
  """
  shared = {'machine': machine(), 'command': args.command}
  runs, failures = {spec.folder: (spec, data) for spec, data in left}, 0
  with contextlib.closing(pool.run(
      accuracy_run.run, ((spec.folder, spec) for spec, _ in left),
      workers=args.jobs)) as outcomes:
    for folder, row, error in tqdm(outcomes, total=len(runs), desc='accuracy',
                                   unit='run'):
      spec, data = runs[folder]
      if error:
        failures += 1
        tqdm.write(f'failed: {spec.name}, {spec.data}, seed {spec.seed}: '
                   f'{error}', file=sys.stderr)
      results.put({
          **dataclasses.asdict(spec), **dataclasses.asdict(data), **shared,
          'name': spec.name, 'date': datetime.date.today().isoformat(),
          'models_py': file_hash(spec.models_py),
          'status': 'failed' if error else 'ok', 'error': error,
          **(row or {})})
      write_table(results)
  return failures


def write_table(results: accuracy_table.Results) -> str:
  """Writes the Markdown beside the CSV; returns its path."""
  path = os.path.splitext(results.path)[0] + '.md'
  files.write_file(path, results.tables(results.rows()).encode())
  return path


def kept_models_py(args) -> str:
  """A copy of models.py, so that an edit does not split the benchmark."""
  original = files.full_path(args.models_py)
  if not os.path.isfile(original):
    raise UserError(f'--models_py={args.models_py}: no such file')
  copy = os.path.join(args.work_dir, f'models_{file_hash(original)}.py')
  os.makedirs(args.work_dir, exist_ok=True)
  shutil.copyfile(original, copy + '.tmp')
  os.replace(copy + '.tmp', copy)
  return copy


# --- Flags -------------------------------------------------------------------


def add_flags(add: Callable, task: str, results: str, models_py: str) -> None:
  """The flags that both tasks have.

  Args:
    add: `add_argument` of a parser.
    task: 'tile' or 'layout'.
    results: name of the CSV.
    models_py: the models that are compared, below the project's folder.
  """
  add('--task', choices=['tile', 'layout'], default=task,
      help='of TpuGraphs; each has flags of its own')
  add('--changed', action='append', default=[], metavar='NAME=MODEL{JSON}',
      help='also a model with other arguments; may be given again')
  add('--seeds', type=lambda text: [int(part) for part in text.split(',')],
      default='0,1,2', help='comma-separated')
  add('--jobs', type=positive, default=2,
      help='processes at once; they share the cores')
  add('--work_dir', default=os.path.join(PROJECT, 'out', 'accuracy'),
      help='for data, models and logs')
  add('--results', metavar='FILE.csv',
      default=os.path.join(PROJECT, 'benchmarks', 'results', results),
      help='the CSV; the tables go beside it')
  add('--models_py', default=os.path.join(PROJECT, models_py),
      help='another file of models')
  add('--rerun_changed', action='store_true',
      help='do runs of another file of models again')
  add('--table_only', action='store_true',
      help='only write the tables anew')


def changed_row(text: str, models_py: str) -> tuple[str, str, dict]:
  """(name, model, kwargs) of NAME=MODEL{JSON}.

  Raises:
    UserError: it is not of that form, or there is no such model.
  """
  found = re.fullmatch(r'([^=]+)=(\w+)(\{.*\})', text)
  try:
    name, model, kwargs = found.groups() if found else ('', '', '{')
    kwargs = json.loads(kwargs)
  except ValueError as error:
    raise UserError(f'--changed={text}: must be NAME=MODEL{{JSON}}, such as '
                    'narrow=MyLayoutSAGE{"hidden_dim": 32}') from error
  load_models.model_class(model, models_py)
  return name, model, kwargs


def positive(text: str) -> int:
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{text}: must be at least 1')
  return number
