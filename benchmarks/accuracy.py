"""Trains models x seeds x data sets and writes a table of how well they rank.

  python benchmarks/accuracy.py

Each run is a process of its own; one that fails becomes a row that says why.
What is in the CSV already is not run again, so an interrupted benchmark is
continued by the same command. `benchmarks/README.md` says what is measured.
With `--task layout` it is that of the layout task, in `accuracy_layout.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import sys
from typing import Any, Optional

import accuracy_layout
import accuracy_table
import booster
import measured_tiles
from accuracy_run import LEAVE_ONE_OUT, SPLITS, RunSpec
from accuracy_work import (
  DataSet,
  add_flags,
  changed_row,
  content_of,
  kept_models_py,
  positive,
  run_all,
  still_to_run,
  write_table,
)
from machine import cores
from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

# --- The list of runs --------------------------------------------------------

# Kernels of Google's TPU compiler, with its estimates as runtimes.
COMPILED = 'compiled_v3'
REAL = 'real'
MEASURED = 'measured_tiles'
KNOWN = (COMPILED, MEASURED, REAL)


# --- Data --------------------------------------------------------------------


def data_sets(args) -> list[DataSet]:
  """The chosen data sets; sample data are written where they are missing.

  Raises:
    UserError: a data set is unknown, or a file or folder is missing.
  """
  extra = _extra_data(args.extra_data)
  found = {REAL: real_source(args.real),
           MEASURED: measured_tiles.source(args.measured_tiles)}
  real = found[REAL]
  known = [*KNOWN, *extra]
  chosen = args.data.split(',') if args.data else [
      name for name in known if found.get(name, True)]
  sets = []
  for name in chosen:
    if name == COMPILED:
      sets.append(_compiled(args))
    elif name in extra:
      sets.append(DataSet(name, extra[name], SPLITS, 'as given',
                          content_of(extra[name])))
    elif name == MEASURED and found[MEASURED]:
      sets.append(_measured_tiles(found[MEASURED], args))
    elif name == MEASURED:
      raise UserError(
          f'--data={args.data}: there are no measured tiles; give '
          f'--measured_tiles DIR, or set {measured_tiles.VARIABLE}')
    elif name == REAL and real:
      sets.append(DataSet(
          REAL, real, LEAVE_ONE_OUT, 'kernels timed on a TPU, of '
          f'{os.path.basename(real)}', content_of(real)))
    elif name == REAL:
      raise UserError(
          f'--data={args.data}: there are no real kernels; give --real '
          f'FILE.pb, or set {checkout.ROOT_VARIABLE} to a checkout of the '
          'baseline')
    else:
      raise UserError(f'--data={args.data}: there is no data set {name!r}; '
                      f'choose from {", ".join(known)}')
  return sets


def real_source(path: str) -> str:
  """The file of real kernels; empty where none is given or found."""
  if path:
    if not os.path.isfile(os.path.expanduser(path)):
      raise UserError(f'--real={path}: no such file')
    return os.path.abspath(os.path.expanduser(path))
  root = checkout.find()
  found = os.path.join(root, checkout.REAL_KERNELS) if root else ''
  return found if os.path.isfile(found) else ''


def _extra_data(pairs: list[str]) -> dict[str, str]:
  extra = {}
  for pair in pairs:
    name, equals, folder = pair.partition('=')
    if not equals or not name or name in (*KNOWN, *extra):
      raise UserError(f'--extra_data={pair}: must be NAME=DIR with a new name')
    extra[name] = os.path.abspath(os.path.expanduser(folder))
  return extra


def _measured_tiles(source: str, args) -> DataSet:
  root = measured_tiles.data_root(
      source, os.path.join(args.work_dir, MEASURED))
  return DataSet(MEASURED, root, SPLITS, 'tiles timed on a CPU; bounds count '
                 'elements, by logical dimension', content_of(root))


def _compiled(args) -> DataSet:
  from tpu_graphs_ext.sample import write
  settings = write.SampleDataSettings(
      out=os.path.join(args.work_dir, COMPILED), kernels=args.kernels)
  summary = write.write_sample_data(settings)
  print(summary.text(), file=sys.stderr)
  sizes = '/'.join(str(summary.splits[split]['kernels'])
                   for split in write.SPLITS)
  return DataSet(
      COMPILED, settings.out, SPLITS, f'`tpu-graphs-ext sample-data`, {sizes} '
      'kernels for train/valid/test', content_of(settings.out))


# --- Runs --------------------------------------------------------------------


def run_list(args, sets: list[DataSet],
             models_py: str) -> list[tuple[RunSpec, DataSet]]:
  """All runs asked for: a whole seed after the other, leave one out last.

  Raises:
    UserError: there is no such model.
  """
  names = ([name for name in args.models.split(',') if name]
           if args.models is not None
           else [*load_models.model_names(models_py), booster.NAME])
  for name in names:
    if name != booster.NAME:
      load_models.model_class(name, models_py)
  rows = [(name, name, {}) for name in names]
  rows += [changed_row(text, models_py) for text in args.changed]
  runs = []
  for seed in args.seeds:
    for data in sets:
      for name, model, kwargs in rows:
        runs.append((_spec(args, data, name, model, kwargs, seed, models_py),
                     data))
  return sorted(runs, key=lambda run: run[1].protocol == LEAVE_ONE_OUT)


def _spec(args, data: DataSet, name: str, model: str, kwargs: dict[str, Any],
          seed: int, models_py: str) -> RunSpec:
  loo = data.protocol == LEAVE_ONE_OUT
  epochs = args.real_epochs if loo else args.epochs
  row = model if name == model else f'{model} {name}'
  folder = re.sub(r'[^\w.-]+', '_',
                  f'{data.name} {row} seed {seed} epochs {epochs}')
  return RunSpec(
      data=data.name, source=data.source, protocol=data.protocol, name=name,
      model=model, kwargs=json.dumps(kwargs, sort_keys=True), seed=seed,
      epochs=epochs, real=real_source(args.real),
      models_py=booster.__file__ if model == booster.NAME else models_py,
      folder=os.path.join(args.work_dir, 'runs', folder),
      cache_dir=os.path.join(args.work_dir, 'cache'),
      threads=max(1, cores() // args.jobs))


def write_readme(path: str, results: accuracy_table.Results) -> None:
  """Puts the main numbers into the README.

  Raises:
    UserError: the file cannot be read, or has no place for them.
  """
  try:
    with open(path, encoding='utf-8') as file:
      text = file.read()
  except OSError as error:
    raise UserError(f'--readme={path}: {error.strerror}') from error
  files.write_file(path, accuracy_table.with_readme_table(
      text, results.rows()).encode())


# --- Command line ------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
  """The flags."""
  flags = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  add = flags.add_argument
  add('--models', help='comma-separated; if not given all of models.py and '
      f'{booster.NAME}; empty: none')
  add('--data', help=f'comma-separated: {", ".join(KNOWN)}, and '
      'names of --extra_data; all there are if not given')
  add('--extra_data', action='append', default=[], metavar='NAME=DIR',
      help='another labelled data root; may be given again')
  add('--real', default='', metavar='FILE.pb',
      help='real kernels; if not given those of the checkout that '
      f'{checkout.ROOT_VARIABLE} names')
  add('--measured_tiles', default='', metavar='DIR',
      help='tiles measured on other hardware: a data root, whose test split '
      f'may be missing; if not given, what {measured_tiles.VARIABLE} names')
  add('--epochs', type=positive, default=100, help='at most, for all models')
  add('--real_epochs', type=positive, default=10,
      help=f'epochs of leave one out on {REAL}')
  add('--kernels', type=int, default=700,
      help='kernels of the sample data')
  add_flags(add, 'tile', 'accuracy.csv', 'models.py')
  add('--readme', metavar='FILE.md', default='',
      help='also put the main numbers between their marks in this file')
  return flags


def benchmark(args) -> int:
  """Does what the flags say; returns how many runs failed."""
  args.work_dir = os.path.abspath(os.path.expanduser(args.work_dir))
  results = accuracy_table.Results(
      os.path.abspath(os.path.expanduser(args.results)))
  rows = results.rows()
  failures = 0
  if not args.table_only:
    models_py = kept_models_py(args)
    runs = run_list(args, data_sets(args), models_py)
    left = still_to_run(runs, rows, args.rerun_changed)
    print(f'{len(runs) - len(left)} of {len(runs)} runs are done',
          file=sys.stderr)
    if any(spec.model == booster.NAME for spec, _ in left):
      booster.lightgbm()  # That it is missing is told now, not after hours.
    failures = run_all(left, args, results)
  print(write_table(results))
  if args.readme:
    write_readme(args.readme, results)
  return failures


def main(argv: Optional[list[str]] = None) -> int:
  """0: all is well; 1: a run failed or the flags cannot be used."""
  argv = sys.argv[1:] if argv is None else argv
  # Each task has flags of its own.
  tasks = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  tasks.add_argument('--task', default='tile')
  is_layout = tasks.parse_known_args(argv)[0].task == 'layout'
  flags, work = ((accuracy_layout.parser, accuracy_layout.benchmark)
                 if is_layout else (parser, benchmark))
  args = flags().parse_args(argv)
  args.command = shlex.join(['python', 'benchmarks/accuracy.py', *argv])
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    return 1 if work(args) else 0
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print('interrupted; the same command continues', file=sys.stderr)
    return 130


if __name__ == '__main__':
  # Asked to end, it ends the processes of the runs too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  sys.exit(main())
