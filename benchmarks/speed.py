"""Measures speed and memory, side by side with the baseline.

  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python benchmarks/speed.py

Every part runs in a process of its own. Rows go to results/speed.csv, where a
part that is measured again replaces its rows; results/speed.md shows
all. `benchmarks/README.md` says what is measured.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import os
import shutil
import sys

from tqdm import tqdm

from machine import machine
from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(HERE)
FIELDS = ('part', 'subject', 'case', 'measure', 'value', 'unit', 'date',
          'machine', 'versions')
# Part -> module and function.
PARTS = {
    'ranking': ('speed_in_turn', 'ranking'),
    'equality': ('speed_ranking', 'equality'),
    'memory': ('speed_ranking', 'memory'),
    'training': ('speed_training', 'training'),
    'loading': ('speed_training', 'loading'),
}
_WORKER_ONLY = {
    'rank_on_demand': ('speed_in_turn', 'rank_on_demand'),
    'one_kernel': ('speed_ranking', 'one_kernel'),
    'one_read': ('speed_training', 'one_read'),
    'host_steps': ('speed_training', 'host_steps'),
}
_WORKER = [sys.executable, os.path.abspath(__file__), '--worker']


def main(arguments: list[str] | None = None) -> int:
  """Runs the chosen parts and writes the table; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == ['--worker']:
    print(json.dumps(_work(*arguments[1:])))
    return 0
  args = _parsed(arguments)
  try:
    root = checkout.find() or ''
    parts = args.parts.split(',') if args.parts else list(PARTS)
    for part in parts:
      if part not in PARTS:
        raise UserError(f'--parts={args.parts}: there is no part {part!r}; '
                        f'choose from {", ".join(PARTS)}')
    os.makedirs(args.out, exist_ok=True)
    for part in tqdm(parts, unit='part', disable=None):
      tqdm.write(f'measuring {part}', file=sys.stderr)
      write_results(args.out, measured(part, root, args))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  print(os.path.join(args.out, 'speed.md'))
  return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parts', default='', help=', '.join(PARTS))
  parser.add_argument(
      '--data_root', default='',
      help='data to train on; sample data is made where none is given')
  parser.add_argument(
      '--full_data_root', default='',
      help='data to read; a data root of full size is made where none is '
           'given')
  parser.add_argument('--out', default=os.path.join(HERE, 'results'))
  parser.add_argument(
      '--work_dir', default=os.path.join(PROJECT, 'out', 'speed'),
      help='where sample data goes')
  return parser.parse_args(arguments)


def measured(part: str, root: str, args: argparse.Namespace) -> list[dict]:
  """Rows of one part, measured in a process of its own."""
  from speed_ranking import run_worker
  given = {
      'ranking': [root], 'memory': [root],
      'equality': lambda: [root, _data(args, False)],
      'training': lambda: [root, _data(args, False)],
      'loading': lambda: [root, _data(args, True)],
  }[part]
  rows = run_worker(_WORKER, part, *(given() if callable(given) else given))
  for row in rows:
    row.update(date=datetime.date.today().isoformat(), machine=machine(),
               versions=_versions())
  return rows


def _data(args: argparse.Namespace, full_size: bool) -> str:
  """The data root that was given, or sample data."""
  from tpu_graphs_ext.sample import write
  given = args.full_data_root if full_size else args.data_root
  if given:
    return os.path.abspath(os.path.expanduser(given))
  settings = write.SampleDataSettings(os.path.join(args.work_dir, 'sample'))
  write.write_sample_data(settings)
  return _full_size(args.work_dir, settings.out) if full_size else settings.out


def _full_size(work_dir: str, sample: str) -> str:
  """As many kernels as the published collection: links to the sample's."""
  from tpu_graphs_ext.data import read, schema
  root = os.path.join(work_dir, 'full_size')
  shutil.rmtree(root, ignore_errors=True)
  for split, count in schema.PUBLISHED_KERNELS.items():
    paths = read.find_npz(os.path.join(sample, split))
    os.makedirs(os.path.join(root, split))
    for number in range(count):
      os.link(paths[number % len(paths)],
              os.path.join(root, split, f'net_{number:016x}.npz'))
  return root


def _versions() -> str:
  from tpu_graphs_ext.engine import artifacts
  return ', '.join(f'{name} {version}'
                   for name, version in artifacts.versions().items())


def _work(part: str, *arguments: str) -> list[dict]:
  """What a process of one part does."""
  import importlib
  if part in ('memory', 'one_kernel'):
    # Keras imports them where they are installed. The scripts need them,
    # ranking does not, and their memory would hide what the models take.
    sys.modules['pandas'] = sys.modules['scipy'] = None
  module, function = {**PARTS, **_WORKER_ONLY}[part]
  call = getattr(importlib.import_module(module), function)
  if part in ('ranking', 'memory', 'training', 'loading'):
    return call(_WORKER, *arguments)
  if part == 'one_kernel':
    name, nodes, configs, *root = arguments
    return call(name, int(nodes), int(configs), *root)
  return call(*arguments)


# --- Results ------------------------------------------------------------------


def write_results(folder: str, rows: list[dict]) -> None:
  """Replaces the measured parts in the CSV; writes the table anew."""
  path = os.path.join(folder, 'speed.csv')
  kept = []
  if os.path.exists(path):
    with open(path, encoding='utf-8', newline='') as file:
      new = {row['part'] for row in rows}
      kept = [row for row in csv.DictReader(file) if row['part'] not in new]
  for row in rows:
    row['value'] = f'{row["value"]:.6g}'
  every = kept + rows
  text = io.StringIO()
  writer = csv.DictWriter(text, FIELDS, lineterminator='\n')
  writer.writeheader()
  writer.writerows(every)
  files.write_file(path, text.getvalue().encode())
  files.write_file(os.path.join(folder, 'speed.md'),
                       markdown(every).encode())


def markdown(rows: list[dict]) -> str:
  """A table for each part, and what it was measured on."""
  lines = ['# Speed and memory', '',
           'Written by `benchmarks/speed.py`; `benchmarks/README.md` says what '
           'is measured.', '']
  for part in dict.fromkeys(row['part'] for row in rows):
    own = [row for row in rows if row['part'] == part]
    lines += [f'## {part}', '',
              '| model | case | measure | value | unit |',
              '| --- | --- | --- | ---: | --- |']
    lines += [f'| {row["subject"]} | {row["case"]} | {row["measure"]} | '
              f'{float(row["value"]):.4g} | {row["unit"]} |' for row in own]
    lines += [''] + [f'- {text}' for text in dict.fromkeys(
        f'{row["date"]}; {row["machine"]}; {row["versions"]}'
        for row in own)] + ['']
  return '\n'.join(lines)


if __name__ == '__main__':
  sys.exit(main())
