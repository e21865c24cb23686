"""Trains models x seeds x data sets and writes rows of how well they rank.

  python benchmarks/accuracy.py

What is in the CSV already is not run again, so the same command continues an
interrupted benchmark. `benchmarks/README.md` says what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from typing import Any, NamedTuple, Optional

from tqdm import tqdm

import accuracy_rows
import accuracy_run
import booster
from accuracy_run import RunSpec, npz_files
from machine import cores, machine, shown
from tables import code_hash
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import pool
from tpu_graphs_ext.tasks import TILE

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Kernels of Google's TPU compiler, with its estimates as runtimes.
COMPILED = 'compiled_v3'
COLLECTIONS = tuple(f'{source}:{search}' for source, search in
                    itertools.product(('xla', 'nlp'), ('default', 'random')))
TASKS = {'tile': accuracy_rows.TILE, 'layout': accuracy_rows.LAYOUT}


class DataSet(NamedTuple):
  """Where problems are.

  Attributes:
    name: in the tables.
    source: folder of splits.
    recipe: how it was made, in words.
    content: start of a hash over all that is measured or trained on.
  """
  name: str
  source: str
  recipe: str
  content: str


# --- Data --------------------------------------------------------------------


def data_sets(args) -> list[DataSet]:
  """The chosen data sets; sample data are written if they are missing.

  Raises:
    UserError: a data set is unknown, or a file or folder is missing.
  """
  known = _known_layouts(args) if args.task == 'layout' else _known_tiles(args)
  chosen = args.data.split(',') if args.data else list(known)
  for name in chosen:
    if name not in known:
      raise UserError(
          f'--data={args.data}: there is no data set {name!r}; choose from '
          f'{", ".join(known)}; others need ' + (
              '--extra_data NAME=DIR' if args.task == 'tile' else '--real DIR '
              'with .npz files in <source>/<search>/train, valid and test'))
  return [_data_set(name, known[name], args) for name in chosen]


def _known_tiles(args) -> dict[str, str]:
  """Name of a data set -> its folder, '' for the sample data."""
  known = {COMPILED: ''}
  for pair in args.extra_data:
    name, equals, folder = pair.partition('=')
    if not equals or not name or name in known:
      raise UserError(f'--extra_data={pair}: must be NAME=DIR with a new name')
    known[name] = files.full_path(folder)
  return known


def _known_layouts(args) -> dict[str, str]:
  known = {f'sample:xla:{search}': '' for search in ('default', 'random')}
  for name in COLLECTIONS if args.real else ():
    folder = os.path.join(files.full_path(args.real), *name.split(':'))
    if all(npz_files(os.path.join(folder, split))
           for split in ('train', 'valid', 'test')):
      known[f'real:{name}'] = folder
  return known


def _data_set(name: str, folder: str, args) -> DataSet:
  if args.task == 'tile':
    recipe = 'as given'
    if not folder:
      from tpu_graphs_ext.sample import write
      settings = write.SampleDataSettings(
          out=os.path.join(args.work_dir, COMPILED))
      summary = write.write_sample_data(settings)
      folder, recipe = settings.out, '`tpu-graphs-ext sample-data`, {} kernels'
      print(summary.text(), file=sys.stderr)
  else:
    recipe = 'files of the public collections, as given; {}'
    if not folder:
      from tpu_graphs_ext.sample import write
      written = write.write_layout_data(
          os.path.join(args.work_dir, 'layout_sample'))
      folder = os.path.join(written.out, *name.split(':')[1:])
      recipe = '`tpu-graphs-ext sample-data --task layout`; {}'
      print(written.text(), file=sys.stderr)
  sizes = '/'.join(str(len(npz_files(os.path.join(folder, split))))
                   for split in ('train', 'valid', 'test'))
  return DataSet(name, folder, recipe.format(f'{sizes} for train/valid/test'),
                 _content_of(folder))


def _content_of(source: str) -> str:
  """First digits of a hash over the arrays of a folder's splits.

  By the sums in the zip archives, as files differ where a zlib does.
  """
  from tpu_graphs_ext.data import npz
  digest = hashlib.sha256(b'tpu_graphs_ext tile cache 1')
  for split in ('train', 'valid', 'test', 'test_labelled'):
    for name in sorted(npz_files(os.path.join(source, split))):
      with npz.opened(os.path.join(source, split, name)) as archive:
        digest.update(repr((name, [
            (member.filename, member.file_size, member.CRC)
            for member in archive.infolist()])).encode())
  return digest.hexdigest()[:12]


# --- Runs --------------------------------------------------------------------


def run_list(args, sets: list[DataSet],
             models_py: str) -> list[tuple[RunSpec, DataSet]]:
  """All runs asked for: a whole seed after the other.

  Raises:
    UserError: there is no such model.
  """
  if args.models is not None:
    names = [name for name in args.models.split(',') if name]
  else:
    names = load_models.model_names(models_py)
    if args.task == 'tile':
      names.append(booster.NAME)
  rows = [(name, name, {}) for name in names]
  rows += [_changed_row(text) for text in args.changed]
  for _, model, _ in rows:
    if model != booster.NAME:
      load_models.model_class(model.partition(':')[0], models_py)
  return [(_spec(args, data, *row, seed, models_py), data)
          for seed in args.seeds for data in sets for row in rows]


def _changed_row(text: str) -> tuple[str, str, dict]:
  """(name, model, kwargs) of NAME=MODEL{JSON}."""
  match = re.fullmatch(r'([^=]+)=(\w+)(\{.*\})', text)
  try:
    name, model, kwargs = match.groups() if match else ('', '', '{')
    return name, model, json.loads(kwargs)
  except ValueError as error:
    raise UserError(f'--changed={text}: must be NAME=MODEL{{JSON}}, such as '
                    'narrow=MyLayoutSAGE{"hidden_dim": 32}') from error


def _spec(args, data: DataSet, name: str, model: str, kwargs: dict[str, Any],
          seed: int, models_py: str) -> RunSpec:
  row = model if name == model else f'{model} {name}'
  folder = re.sub(r'[^\w.-]+', '_',
                  f'{data.name} {row} seed {seed} epochs {args.epochs}')
  return RunSpec(
      task=args.task, data=data.name, source=data.source, name=name,
      model=model, kwargs=json.dumps(kwargs, sort_keys=True), seed=seed,
      epochs=args.epochs, real=_real_source(args, data.name),
      models_py=booster.__file__ if model == booster.NAME else models_py,
      folder=os.path.join(args.work_dir, 'runs', folder),
      cache_dir=os.path.join(args.work_dir, 'cache'),
      threads=1 if model == booster.NAME else max(1, cores() // args.jobs))


def _real_source(args, data: str) -> str:
  """Real kernels or a real collection to measure on as well; '' if none."""
  real = args.real and files.full_path(args.real)
  if args.task == 'layout':
    kind, *collection = data.split(':')
    return os.path.join(real, *collection) if real and kind == 'sample' else ''
  if real and not os.path.isfile(real):
    raise UserError(f'--real={args.real}: no such file')
  if not real and (root := checkout.find()):
    path = os.path.join(root, TILE.quickstart.real)
    return path if os.path.isfile(path) else ''
  return real


def still_to_run(runs: list[tuple[RunSpec, DataSet]],
                 rows: list[accuracy_rows.Row],
                 rerun_changed: bool) -> list[tuple[RunSpec, DataSet]]:
  """The runs without a finished row of the same data.

  Failed runs, and runs on data of other content, are repeated; those of
  another models.py only if asked for.
  """
  finished = {accuracy_rows.key_of(row): row for row in rows
              if row['status'] == 'ok'}
  left, changed = [], 0
  for spec, data in runs:
    row = finished.get(accuracy_rows.key_of(dataclasses.asdict(spec)))
    is_changed = bool(row) and row['models_py'] != code_hash(spec.models_py)
    if not row or row['content'] != data.content or (
        is_changed and rerun_changed):
      left.append((spec, data))
    changed += is_changed
  print(f'{len(runs) - len(left)} of {len(runs)} runs are done; {changed} were '
        'made with another models.py (--rerun_changed)', file=sys.stderr)
  return left


def run_all(left: list[tuple[RunSpec, DataSet]], args,
            results: accuracy_rows.Results) -> int:
  """Does the runs, and writes each one's row; returns how many failed."""
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
          **dataclasses.asdict(spec), **data._asdict(), 'machine': machine(),
          'command': args.command, 'name': spec.name,
          'protocol': 'splits' if args.task == 'tile' else 'layout splits',
          'date': datetime.date.today().isoformat(),
          'models_py': code_hash(spec.models_py),
          'status': 'failed' if error else 'ok', 'error': error,
          **(row or {})})
  return failures


def _kept_models_py(args) -> str:
  """A copy of models.py, so that an edit does not split the benchmark."""
  original = files.full_path(args.models_py)
  if not os.path.isfile(original):
    raise UserError(f'--models_py={args.models_py}: no such file')
  copy = os.path.join(args.work_dir, f'models_{code_hash(original)}.py')
  os.makedirs(args.work_dir, exist_ok=True)
  shutil.copyfile(original, copy + '.tmp')
  os.replace(copy + '.tmp', copy)
  return copy


# --- Command line ------------------------------------------------------------


def parsed(argv: list[str]) -> argparse.Namespace:
  """The flags; some defaults depend on the task."""
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = flags.add_argument
  add('--task', choices=['tile', 'layout'], default='tile')
  add('--models', help=f'comma-separated; if not given all, and {booster.NAME} '
      'for tiles; empty: none; NAME:best trains by --recipe best')
  add('--changed', action='append', default=[], metavar='NAME=MODEL{JSON}',
      help='also a model with other arguments; may be given again')
  add('--data', help=f'comma-separated: {COMPILED} and names of --extra_data; '
      'of layouts sample:<source>:<search> and, in --real, '
      'real:<source>:<search>; if not given all there are')
  add('--extra_data', action='append', default=[], metavar='NAME=DIR',
      help='another labelled data root of tiles; may be given again')
  add('--real', default='', metavar='PATH',
      help='real kernels to measure on as well, a .pb; if not given those of '
      f'the checkout that {checkout.ROOT_VARIABLE} names. Of layouts a data '
      'root of real files')
  add('--epochs', type=_positive, help='at most; default 100, of layouts 50')
  add('--seeds', type=lambda text: [int(part) for part in text.split(',')],
      default='0,1,2', help='comma-separated')
  add('--jobs', type=_positive, default=2,
      help='processes at once; they share the cores')
  add('--work_dir', default=os.path.join(PROJECT, 'out', 'accuracy'),
      help='for data, models and logs')
  add('--results', metavar='FILE.csv', help='the CSV')
  add('--models_py', help='another file of models')
  add('--rerun_changed', action='store_true',
      help='do runs of another file of models again')
  args = flags.parse_args(argv)
  epochs, results, models_py = {
      'tile': (100, 'accuracy.csv', 'models.py'),
      'layout': (50, 'accuracy_layout.csv', 'layout_models.py')}[args.task]
  args.epochs = args.epochs or epochs
  args.results = args.results or os.path.join(
      PROJECT, 'benchmarks', 'results', results)
  args.models_py = args.models_py or os.path.join(PROJECT, models_py)
  args.work_dir = files.full_path(args.work_dir)
  args.command = shown(
      shlex.join(['python', 'benchmarks/accuracy.py', *argv]))
  return args


def _positive(text: str) -> int:
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{text}: must be at least 1')
  return number


def benchmark(args) -> int:
  """Does what the flags say; returns how many runs failed."""
  results = accuracy_rows.Results(files.full_path(args.results),
                                   TASKS[args.task])
  models_py = _kept_models_py(args)
  runs = run_list(args, data_sets(args), models_py)
  left = still_to_run(runs, results.rows(), args.rerun_changed)
  if any(spec.model == booster.NAME for spec, _ in left):
    booster.lightgbm()  # Fails now if it is missing, not after hours.
  failures = run_all(left, args, results)
  print(results.path)
  return failures


def main(argv: Optional[list[str]] = None) -> int:
  """0: all is well; 1: a run failed or the flags cannot be used."""
  args = parsed(sys.argv[1:] if argv is None else argv)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    return 1 if benchmark(args) else 0
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print('interrupted; the same command continues', file=sys.stderr)
    return 130


if __name__ == '__main__':
  # SIGTERM ends the processes of the runs too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  sys.exit(main())
