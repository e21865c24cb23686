"""Measures speed and memory, side by side with the baseline.

  TPU_GRAPHS_ROOT=/path/to/tpu_graphs python benchmarks/speed.py

Rows go to results/speed.csv, where a part that is measured again replaces its
rows. `benchmarks/README.md` says what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import sys

from machine import machine
from tables import code_hash
from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ('ranking', 'memory', 'training', 'serving')


def baseline() -> str:
  """The checkout to compare with."""
  root = checkout.find()
  if not root:
    raise UserError(f'{checkout.ROOT_VARIABLE} names no checkout of the '
                    'baseline to compare with')
  return root


def main(arguments: list[str] | None = None) -> int:
  """Runs the chosen parts and writes the table; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == ['--worker']:
    print(json.dumps(_work(*arguments[1:])))
    return 0
  args = _parsed(arguments)
  try:
    root = baseline()
    for part in args.parts.split(','):
      if part not in PARTS:
        raise UserError(f'--parts={args.parts}: there is no part {part!r}; '
                        f'choose from {", ".join(PARTS)}')
      print(f'measuring {part}', file=sys.stderr)
      write_results(args.out, _measured(part, root, args))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  print(os.path.join(args.out, 'speed.csv'))
  return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parts', default=','.join(PARTS))
  parser.add_argument(
      '--data_root', default='',
      help='data to train on; sample data is made where none is given')
  parser.add_argument('--out', default=os.path.join(HERE, 'results'))
  parser.add_argument(
      '--work_dir', default=os.path.join(HERE, os.pardir, 'out', 'speed'),
      help='where sample data goes')
  return parser.parse_args(arguments)


def _measured(part: str, root: str, args: argparse.Namespace) -> list[dict]:
  import speed_parts
  from tpu_graphs_ext.engine import artifacts
  arguments = [root] if part in ('ranking', 'memory') else [root, _data(args)]
  versions = ', '.join(f'{name} {version}'
                       for name, version in artifacts.versions().items())
  return [{'part': part, **row, 'code': f'models.py:{code_hash("models.py")}',
           'date': datetime.date.today().isoformat(),
           'machine': machine(), 'versions': versions}
          for row in getattr(speed_parts, part)(*arguments)]


def _data(args: argparse.Namespace) -> str:
  """The data root that was given, or sample data."""
  from tpu_graphs_ext.sample import write
  if args.data_root:
    return files.full_path(args.data_root)
  settings = write.SampleDataSettings(os.path.join(args.work_dir, 'sample'))
  write.write_sample_data(settings)
  return settings.out


def _work(name: str, *arguments: str) -> list[dict]:
  """What a process of one part does."""
  if name == 'one_kernel':
    # Keras imports them where they are installed. The scripts need them,
    # ranking does not, and their memory would hide what the models take.
    sys.modules['pandas'] = sys.modules['scipy'] = None
  import speed_parts
  return getattr(speed_parts, name)(*arguments)


# --- Results ------------------------------------------------------------------


def write_results(folder: str, rows: list[dict]) -> None:
  """Replaces the measured parts in the CSV."""
  import pandas
  path = os.path.join(folder, 'speed.csv')
  new = pandas.DataFrame(rows).astype({'value': float})
  new['value'] = new['value'].map('{:.6g}'.format)
  if os.path.exists(path):
    old = pandas.read_csv(path, dtype=str, keep_default_na=False)
    new = pandas.concat([old[~old['part'].isin(new['part'])], new])
  text = io.StringIO()
  new.to_csv(text, index=False)
  files.write_file(path, text.getvalue().encode())


if __name__ == '__main__':
  sys.exit(main())
