"""Trains models x seeds x data sets and writes a table of how well they rank.

  python benchmarks/accuracy.py

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
from accuracy_run import SPLITS, RunSpec
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

# Kernels of Google's TPU compiler, with its estimates as runtimes.
COMPILED = 'compiled_v3'


# --- Data --------------------------------------------------------------------


def data_sets(args) -> list[DataSet]:
  """The chosen data sets; sample data are written where they are missing.

  Raises:
    UserError: a data set is unknown, or a file or folder is missing.
  """
  extra = {}
  for pair in args.extra_data:
    name, equals, folder = pair.partition('=')
    if not equals or name in ('', COMPILED, *extra):
      raise UserError(f'--extra_data={pair}: must be NAME=DIR with a new name')
    extra[name] = files.full_path(folder)
  known = [COMPILED, *extra]
  sets = []
  for name in args.data.split(',') if args.data else known:
    if name not in known:
      raise UserError(f'--data={args.data}: there is no data set {name!r}; '
                      f'choose from {", ".join(known)}')
    sets.append(_compiled(args) if name == COMPILED else DataSet(
        name, extra[name], SPLITS, 'as given', content_of(extra[name])))
  return sets


def real_source(path: str) -> str:
  """The file of real kernels; empty where none is given or found."""
  if path:
    if not os.path.isfile(files.full_path(path)):
      raise UserError(f'--real={path}: no such file')
    return files.full_path(path)
  root = checkout.find()
  found = os.path.join(root, checkout.REAL_KERNELS) if root else ''
  return found if os.path.isfile(found) else ''


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
  """All runs asked for: a whole seed after the other.

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
  return [(_spec(args, data, *row, seed, models_py), data)
          for seed in args.seeds for data in sets for row in rows]


def _spec(args, data: DataSet, name: str, model: str, kwargs: dict[str, Any],
          seed: int, models_py: str) -> RunSpec:
  row = model if name == model else f'{model} {name}'
  folder = re.sub(r'[^\w.-]+', '_',
                  f'{data.name} {row} seed {seed} epochs {args.epochs}')
  return RunSpec(
      data=data.name, source=data.source, protocol=data.protocol, name=name,
      model=model, kwargs=json.dumps(kwargs, sort_keys=True), seed=seed,
      epochs=args.epochs, real=real_source(args.real),
      models_py=booster.__file__ if model == booster.NAME else models_py,
      folder=os.path.join(args.work_dir, 'runs', folder),
      cache_dir=os.path.join(args.work_dir, 'cache'),
      threads=max(1, cores() // args.jobs))


# --- Command line ------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
  flags = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  add = flags.add_argument
  add('--models', help='comma-separated; if not given all of models.py and '
      f'{booster.NAME}; empty: none')
  add('--data', help=f'comma-separated: {COMPILED} and names of --extra_data; '
      'all there are if not given')
  add('--extra_data', action='append', default=[], metavar='NAME=DIR',
      help='another labelled data root; may be given again')
  add('--real', default='', metavar='FILE.pb',
      help='real kernels to measure on as well; if not given those of the '
      f'checkout that {checkout.ROOT_VARIABLE} names')
  add('--epochs', type=positive, default=100, help='at most, for all models')
  add('--kernels', type=int, default=700,
      help='kernels of the sample data')
  add_flags(add, 'tile', 'accuracy.csv', 'models.py')
  add('--readme', metavar='FILE.md', default='',
      help='also put the main numbers between their marks in this file')
  return flags


def benchmark(args) -> int:
  """Does what the flags say; returns how many runs failed."""
  args.work_dir = files.full_path(args.work_dir)
  results = accuracy_table.Results(files.full_path(args.results))
  failures = 0
  if not args.table_only:
    models_py = kept_models_py(args)
    runs = run_list(args, data_sets(args), models_py)
    left = still_to_run(runs, results.rows(), args.rerun_changed)
    if any(spec.model == booster.NAME for spec, _ in left):
      booster.lightgbm()  # That it is missing is told now, not after hours.
    failures = run_all(left, args, results)
  print(write_table(results))
  if args.readme:
    with open(args.readme, encoding='utf-8') as file:
      text = file.read()
    files.write_file(args.readme, accuracy_table.with_readme_table(
        text, results.rows()).encode())
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
