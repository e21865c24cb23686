"""Trains models with several seeds by a sweep, and measures how well they rank.

  python benchmarks/accuracy.py compiled_v3

TABLE is one of `TABLES`: its rows go to results/numbers.csv. The same command
continues an interrupted benchmark, as a sweep does; `benchmarks/README.md` says
what is measured.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shlex
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import booster
import tables
from pretrained import choices, columns, put, trees
from speed import OURS, REFERENCE, baseline
from tpu_graphs_ext import files
from tpu_graphs_ext.engine import evaluate, results, scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import sweep
from tpu_graphs_ext.sweep.trials import FINISHED
from tpu_graphs_ext.tasks import TASKS

# In the baseline.
REAL = 'tpu_graphs/process_data/tensorflow_ops/testdata/op_tuning_data.pb'


class Table(NamedTuple):
  """What is trained and measured.

  Attributes:
    rows: name -> keys of a model in a sweep's grid; by default the name is the
      model's. `booster.NAME` is LightGBM.
    splits: to measure on. 'test' is the labelled one, 'real' the kernels timed
      on a TPU that the baseline ships.
    task: its name.
    settings: of all rows.
  """
  rows: dict[str, dict[str, Any]]
  splits: tuple[str, ...] = ('valid',)
  task: str = 'tile'
  settings: Mapping[str, Any] = types.MappingProxyType({})


def _timed(*recipes: str) -> Table:
  return Table({OURS: {}, **{f'{OURS}:{recipe}': {
      'model': OURS, 'settings': {'recipe': recipe}} for recipe in recipes},
                REFERENCE: {}, booster.NAME: {}})


_LAYOUTS = 'MyLayoutSAGE ResModel LayoutGCN LayoutGAT GRURuntimePredictor'
TABLES = {
    'compiled_v3': Table({
        OURS: {}, 'without feature_stats': {
            'model': OURS, 'kwargs': {'feature_stats': None}},
        'AnalyticTileModel': {}, REFERENCE: {}, booster.NAME: {}},
                         ('valid', 'test', 'real')),
    'measured_tiles': _timed('quick', 'best'), 'gpu_tiles': _timed('best'),
    **{f'layout-{search}': Table(
        {name: {} for name in _LAYOUTS.split()}, ('valid', 'test'), 'layout',
        {'source': 'xla', 'search': search})
       for search in ('random', 'default')}}


def data_root(args) -> str:
  """The folder that was given, or sample data."""
  if args.data:
    return files.full_path(args.data)
  if args.table in ('measured_tiles', 'gpu_tiles'):
    raise UserError(f'--data: name the data root of {args.table}, which this '
                    'repository does not have')
  task = TASKS[TABLES[args.table].task]
  return task.write_sample(os.path.join(
      files.full_path(args.work_dir), f'sample_{task.name}')).out


def trained(args, rows: dict[str, dict], root: str) -> dict[str, list[str]]:
  """Row -> the folders of its models, one for each seed; by a sweep.

  Raises UserError if a training failed.
  """
  table = TABLES[args.table]
  models = {name: {'model': name, 'kwargs': {}, **row,
                   'settings': {**table.settings, **row.get('settings', {})}}
            for name, row in rows.items()}
  if not rows:
    return {}
  out = os.path.join(files.full_path(args.work_dir), args.table)
  path = os.path.join(files.check_folder('--work_dir', out), 'grid.json')
  files.write_file(path, json.dumps({
      'task': table.task, 'models': list(models.values()), 'seeds': args.seeds,
      'data_root': root}).encode())
  trials = sweep.sweep(path, out, workers=args.workers,
                       retry_failed=True).trials
  if error := ' '.join(trials['error'][trials['state'] != FINISHED]):
    raise UserError(error)
  return {name: [os.path.join(out, f'model_{run}') for run in trials['run'][
      trials['group'] == json.dumps(
          [model[key] for key in ('model', 'kwargs', 'settings')],
          sort_keys=True)]] for name, model in models.items()}


def source_of(split: str, root: str, table: Table) -> str:
  """Where the labelled problems of a split are."""
  if split == 'real':
    return os.path.join(baseline(), REAL)
  return os.path.join(root, *TASKS[table.task].collection(table.settings),
                      'test_labelled' if split == 'test' else split)


def measured(args, root: str) -> dict[str, dict[str, Any]]:
  """Row -> column -> a number for each seed, or for all."""
  table = TABLES[args.table]
  if unknown := set(args.rows or ()) - set(table.rows):
    raise UserError(
        f'--rows: {args.table} has no row {", ".join(sorted(unknown))}; choose '
        f'from {", ".join(table.rows)}')
  chosen = {name: row for name, row in table.rows.items()
            if not args.rows or name in args.rows}
  loading = TASKS[table.task].loading(data_root=root, cache_dir='')
  rankers = {name: [scoring.load_ranker(model, loading) for model in models]
             for name, models in trained(args, {
                 name: row for name, row in chosen.items()
                 if name != booster.NAME}, root).items()}
  if booster.NAME in chosen:
    rankers[booster.NAME] = [trees(root, seed) for seed in args.seeds]
  rows = collections.defaultdict(dict)
  for split in table.splits:
    source = source_of(split, root, table)
    problems = evaluate.labelled(
        loading.task.read(source, loading), source, loading.task)
    for name, seeds in rankers.items():
      frames = [evaluate.measure(ranker, problems, name) for ranker in seeds]
      of_row = [results.Summary(frame, len(frame)) for frame in frames]
      rows[name].update(columns(of_row, f'{split}_'))
    for name, cells in choices(of_row[0], f'{split}_').items():
      rows[name].update(cells)
  return rows


def main(arguments: list[str] | None = None) -> int:
  """0: all is well; 1: a training failed or the flags cannot be used."""
  arguments = sys.argv[1:] if arguments is None else arguments
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument('table', choices=TABLES)
  flags.add_argument('--data', help='data root; without it sample data')
  flags.add_argument('--rows', type=lambda text: text.split(','),
                     help='only these, separated by commas')
  flags.add_argument('--seeds', default='0,1,2', type=lambda text: [
      int(seed) for seed in text.split(',')])
  flags.add_argument('--workers', type=int, default=1,
                     help='processes, which share the cores')
  flags.add_argument('--work_dir', default='out/accuracy')
  args = flags.parse_args(arguments)
  code = ('layout_models.py' if TABLES[args.table].task == 'layout'
          else 'models.py')
  try:
    before = tables.code_hash(code)
    rows = measured(args, data_root(args))
    if tables.code_hash(code) != before:
      raise UserError(f'{code}: changed meanwhile, so it is not known what was '
                      'measured; run the same command again')
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    return 130
  put(args.table, rows, code, shlex.join(
      ['python', 'benchmarks/accuracy.py', *arguments]))
  return 0


if __name__ == '__main__':
  sys.exit(main())
