"""What the accuracy benchmarks of both tasks share: data sets, runs, rows.

Each run is a process of its own, `accuracy_run.py`; one that fails becomes a
row that says why.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Optional

from tqdm import tqdm

import accuracy_table
from accuracy_run import ROW_FILE, RunSpec
from machine import machine
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.errors import UserError

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The format of the cache when the first rows were made. Another format of the
# cache is no other data, and the rows stay.
_CONTENT_SALT = 'tpu_graphs_ext tile cache 1'


@dataclasses.dataclass(frozen=True)
class DataSet:
  """Where kernels are.

  Attributes:
    name: in the tables.
    source: folder of splits, or file of real kernels.
    protocol: `SPLITS`, `LEAVE_ONE_OUT` or `LAYOUTS`.
    recipe: how it was made, in words.
    content: start of a hash over all that is measured or trained on.
  """
  name: str
  source: str
  protocol: str
  recipe: str
  content: str


def content_of(source: str) -> str:
  """First digits of a hash over the files of a source: a file, or splits."""
  from tpu_graphs_ext.data import cache, read
  if os.path.isfile(source):
    return file_hash(source)
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
  of another models.py only if asked for, and are told about otherwise.
  """
  finished = {accuracy_table.key_of(row): row for row in rows
              if row['status'] == 'ok'}
  left, changed = [], 0
  for spec, data in runs:
    row = finished.get(accuracy_table.key_of(dataclasses.asdict(spec)))
    if row is None or row['content'] != data.content:
      left.append((spec, data))
    elif row['models_py'] != file_hash(spec.models_py):
      changed += 1
      if rerun_changed:
        left.append((spec, data))
  if changed and not rerun_changed:
    print(f'{changed} of the finished runs were made with another models.py; '
          '--rerun_changed does them again', file=sys.stderr)
  return left


class Processes:
  """Runs specs in processes; all of them can be ended."""

  def __init__(self):
    self._running: set[subprocess.Popen] = set()
    self._lock = threading.Lock()
    self._ended = False

  def run(self, spec: RunSpec) -> Optional[dict[str, Any]]:
    """Columns of the run's row; None if it was ended from outside."""
    shutil.rmtree(spec.folder, ignore_errors=True)
    os.makedirs(spec.folder)
    spec_path = os.path.join(spec.folder, 'spec.json')
    with open(spec_path, 'w', encoding='utf-8') as file:
      json.dump(dataclasses.asdict(spec), file, indent=1)
    script = os.path.join(os.path.dirname(__file__), 'accuracy_run.py')
    log_path = os.path.join(spec.folder, 'log.txt')
    with open(log_path, 'w', encoding='utf-8') as log:
      with self._lock:
        if self._ended:
          return None
        process = subprocess.Popen(
            [sys.executable, script, spec_path], stdout=log, stderr=log,
            stdin=subprocess.DEVNULL)
        self._running.add(process)
      code = process.wait()
    with self._lock:
      self._running.discard(process)
      if self._ended:
        return None
    try:
      with open(os.path.join(spec.folder, ROW_FILE), encoding='utf-8') as file:
        return json.load(file)
    except FileNotFoundError:
      end = f'signal {-code}' if code < 0 else f'exit code {code}'
      return {'status': 'failed', 'error': f'ended by {end}; see {log_path}'}

  def end(self) -> None:
    """Ends what runs; nothing is started after that."""
    with self._lock:
      self._ended = True
      for process in self._running:
        process.terminate()


def run_all(left: list[tuple[RunSpec, DataSet]], args,
            results: accuracy_table.Results) -> int:
  """Does the runs, and writes each one's row; returns how many failed.

  Args:
    left: the runs.
    args: `jobs` at once, by the `command` that is to be in the rows.
    results: where the rows go.
  """
  shared = {'machine': machine(), 'command': args.command}
  processes, failures = Processes(), 0
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    try:
      futures = {pool.submit(processes.run, spec): (spec, data)
                 for spec, data in left}
      for future in tqdm(concurrent.futures.as_completed(futures),
                         total=len(futures), desc='accuracy', unit='run'):
        spec, data = futures[future]
        row = future.result()
        if row is None:
          continue
        if row['status'] != 'ok':
          failures += 1
          tqdm.write(f'failed: {spec.name}, {spec.data}, seed {spec.seed}: '
                     f'{row["error"]}', file=sys.stderr)
        results.put({
            **dataclasses.asdict(spec), **dataclasses.asdict(data), **shared,
            'name': spec.name, 'date': datetime.date.today().isoformat(),
            'models_py': file_hash(spec.models_py), **row})
        write_table(results)
    finally:
      processes.end()
      pool.shutdown(cancel_futures=True)
  return failures


def write_table(results: accuracy_table.Results) -> str:
  """Writes the Markdown beside the CSV; returns its path."""
  path = os.path.splitext(results.path)[0] + '.md'
  files.write_file(path, results.tables(results.rows()).encode())
  return path


def kept_models_py(args) -> str:
  """A copy of models.py, so that an edit does not split the benchmark."""
  original = os.path.abspath(os.path.expanduser(args.models_py))
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
  add('--seeds', type=_seeds, default='0,1,2', help='comma-separated')
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


def _seeds(text: str) -> list[int]:
  return [int(part) for part in text.split(',')]


def positive(text: str) -> int:
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{text}: must be at least 1')
  return number
