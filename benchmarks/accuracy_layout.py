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
from accuracy_layout_run import has_choice, npz_files
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

# Names a data root of real files.
REAL_VARIABLE = 'TPU_GRAPHS_EXT_REAL_LAYOUTS'
COLLECTIONS = tuple(f'{source}:{search}' for source, search in
                    itertools.product(('xla', 'nlp'), ('default', 'random')))
# The baseline's first, then ours, then those of other documents.
MODELS = ('ResModel', 'MyLayoutSAGE', 'LayoutGCN', 'LayoutGAT',
          'GRURuntimePredictor')


# --- Data --------------------------------------------------------------------


def data_sets(args) -> list[DataSet]:
  """The chosen collections; sample data are made where they are missing.

  Raises:
    UserError: there is no such collection, or it cannot be trained on.
  """
  known = [f'sample:{name}' for name in COLLECTIONS if name[:3] == 'xla']
  real = real_collections(args.real, _cache_dir(args))
  known += [f'real:{name}' for name in real]
  chosen = args.data.split(',') if args.data else known
  for name in chosen:
    if name not in known:
      hint = ('' if real
              else f'; real ones take --real DIR or {REAL_VARIABLE}')
      raise UserError(
          f'--data={args.data}: there is no data set {name!r}; choose from '
          f'{", ".join(known)}{hint}')
  root = _sample(args) if any(
      name.startswith('sample:') for name in chosen) else ''
  return [_data_set(name, root, args) for name in chosen]


def real_collections(root: str, cache_dir: str = '') -> list[str]:
  """Those of a data root that can be trained on and measured.

  All splits have files, and some program of train has configurations that
  differ.

  Raises:
    UserError: a folder is named and has none such, or a file is damaged.
  """
  from tpu_graphs_ext.data import programs
  if not root:
    return []
  full = os.path.abspath(os.path.expanduser(root))
  found = [name for name in COLLECTIONS if all(
      npz_files(os.path.join(full, *name.split(':'), split))
      for split in ('train', 'valid', 'test'))]
  if not found:
    raise UserError(f'--real={root}: must have .npz files in <source>/<search>/'
                    'train, valid and test of xla or nlp, default or random')
  alike = [name for name in found if not any(map(
      has_choice, programs.read_folder(
          os.path.join(full, *name.split(':'), 'train'), cache_dir=cache_dir)))]
  if alike:
    print(f'left out {", ".join(f"real:{name}" for name in alike)}: in each '
          'program of train all configurations are the same', file=sys.stderr)
  return [name for name in found if name not in alike]


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
  if kind == 'real':
    root, recipe = os.path.abspath(os.path.expanduser(args.real)), (
        'files of the public collections, as given')
  else:
    root, recipe = sample, '`tpu-graphs-ext sample-data --task layout`'
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
  real = _other_real_files(data.name, args.real)
  return RunSpec(
      data=data.name, source=data.source, protocol=data.protocol, name=name,
      model=model, kwargs=json.dumps(kwargs, sort_keys=True), seed=seed,
      epochs=args.epochs, real=real, models_py=models_py,
      folder=os.path.join(args.work_dir, 'runs', folder),
      cache_dir=_cache_dir(args),
      threads=max(1, cores() // args.jobs))


def _other_real_files(name: str, root: str) -> str:
  """The collection of real files that a run is measured on besides its own.

  For sample data that of the same name; for real files, which have those of
  their own in other columns, that of the other search.
  """
  if not root:
    return ''
  kind, source, search = name.split(':')
  if kind == 'real':
    search = {'default': 'random', 'random': 'default'}[search]
  return os.path.join(os.path.abspath(os.path.expanduser(root)), source, search)


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
  add('--real', default=os.environ.get(REAL_VARIABLE, ''), metavar='DIR',
      help='data root of real files, <source>/<search>/train, valid and test; '
      f'if not given, what {REAL_VARIABLE} names')
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
