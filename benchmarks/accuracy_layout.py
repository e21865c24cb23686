"""The accuracy benchmark of the layout task.

  python benchmarks/accuracy.py --task layout

As `accuracy.py`, which has the words: models x seeds x collections, a process
a run, a row a run, continued by the same command.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys

import accuracy_layout_table
import accuracy_table
from accuracy_layout_run import npz_files
from accuracy_run import LAYOUTS, RunSpec
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
from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError

COLLECTIONS = tuple(f'{source}:{search}' for source, search in
                    itertools.product(('xla', 'nlp'), ('default', 'random')))
# The baseline's first, then ours, then those of other documents.
MODELS = ('ResModel', 'MyLayoutSAGE', 'LayoutGCN', 'LayoutGAT',
          'GRURuntimePredictor')


# --- Data --------------------------------------------------------------------


def data_sets(args) -> list[DataSet]:
  """The chosen collections; sample data are made where they are missing.

  Raises:
    UserError: there is no such collection.
  """
  known = [f'sample:xla:{search}' for search in ('default', 'random')]
  if args.real:
    known += [f'real:{name}' for name in COLLECTIONS if all(
        npz_files(os.path.join(_real(args), *name.split(':'), split))
        for split in ('train', 'valid', 'test'))]
  chosen = args.data.split(',') if args.data else known
  for name in chosen:
    if name not in known:
      raise UserError(
          f'--data={args.data}: there is no data set {name!r}; choose from '
          f'{", ".join(known)}; real ones need --real DIR with .npz files in '
          '<source>/<search>/train, valid and test')
  sample = _sample(args) if any(
      name.startswith('sample:') for name in chosen) else ''
  return [_data_set(name, sample, args) for name in chosen]


def _real(args) -> str:
  return os.path.abspath(os.path.expanduser(args.real))


def _cache_dir(args) -> str:
  return os.path.join(args.work_dir, 'cache')


def _sample(args) -> str:
  """The sample data's root, made where it is missing."""
  from tpu_graphs_ext.sample import write_layouts
  written = write_layouts.write_layout_data(
      os.path.join(args.work_dir, 'layout_sample'))
  print(written.text(), file=sys.stderr)
  return written.out


def _data_set(name: str, sample: str, args) -> DataSet:
  kind, source, search = name.split(':')
  root, recipe = ((_real(args), 'files of the public collections, as given')
                  if kind == 'real' else
                  (sample, '`tpu-graphs-ext sample-data --task layout`'))
  folder = os.path.join(root, source, search)
  sizes = '/'.join(str(len(npz_files(os.path.join(folder, split))))
                   for split in ('train', 'valid', 'test'))
  return DataSet(name, folder, LAYOUTS,
                 f'{recipe}; {sizes} for train/valid/test', content_of(folder))


# --- Runs --------------------------------------------------------------------


def run_list(args, sets: list[DataSet],
             models_py: str) -> list[tuple[RunSpec, DataSet]]:
  """All runs asked for: a whole seed after the other.

  Raises:
    UserError: there is no such model.
  """
  names = [name for name in args.models.split(',') if name]
  for name in names:
    load_models.model_class(name, models_py)
  rows = [(name, name, {}) for name in names]
  rows += [changed_row(text, models_py) for text in args.changed]
  return [(_spec(args, data, *row, seed, models_py), data)
          for seed in args.seeds for data in sets for row in rows]


def _spec(args, data: DataSet, name: str, model: str, kwargs: dict, seed: int,
          models_py: str) -> RunSpec:
  row = model if name == model else f'{model} {name}'
  folder = re.sub(r'[^\w.-]+', '_',
                  f'{data.name} {row} seed {seed} epochs {args.epochs}')
  kind, source, search = data.name.split(':')
  return RunSpec(
      data=data.name, source=data.source, protocol=data.protocol, name=name,
      model=model, kwargs=json.dumps(kwargs, sort_keys=True), seed=seed,
      epochs=args.epochs, models_py=models_py,
      real=(os.path.join(_real(args), source, search)
            if args.real and kind == 'sample' else ''),
      folder=os.path.join(args.work_dir, 'runs', folder),
      cache_dir=_cache_dir(args), threads=max(1, cores() // args.jobs))


# --- Command line ------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
  """The flags."""
  flags = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  add = flags.add_argument
  add('--models', default=','.join(MODELS),
      help='comma-separated; empty: none but those of --changed')
  add('--data', help='comma-separated: sample:<source>:<search> and, of '
      '--real, real:<source>:<search>; all there are if not given')
  add('--real', default='', metavar='DIR',
      help='data root of real files, <source>/<search>/train, valid and test: '
      'what is trained on sample data is measured on them, too')
  add('--epochs', type=positive, default=50, help='at most, for all models')
  add_flags(add, 'layout', 'accuracy_layout.csv',
            'layout_models.py')
  return flags


def benchmark(args) -> int:
  """Does what the flags say; returns how many runs failed."""
  args.work_dir = os.path.abspath(os.path.expanduser(args.work_dir))
  results = accuracy_table.Results(
      os.path.abspath(os.path.expanduser(args.results)),
      accuracy_layout_table.COLUMNS, accuracy_layout_table.markdown)
  rows = results.rows()
  failures = 0
  if not args.table_only:
    models_py = kept_models_py(args)
    runs = run_list(args, data_sets(args), models_py)
    left = still_to_run(runs, rows, args.rerun_changed)
    failures = run_all(left, args, results)
  print(write_table(results))
  return failures
