"""The predictions CSV of the baseline, written and read.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>

Configuration indices count from 0 in the order of the file, lowest predicted
runtime first. A kernel with fewer configurations than asked for is padded with
0. Kernels are in the order of their file names; there is no final newline.
"""

from __future__ import annotations

import csv
import os
import re
import sys

from tpu_graphs_ext import owned
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import write_file

HEADER = ['ID', 'TopConfigs']
TILE = 'tile:xla:'
# Faults in one message; the rest is only counted.
MAX_FAULTS = 10
_INDEX = re.compile('[0-9]{1,18}')  # Not the digits of all alphabets.


def text(best: dict[str, list[int]]) -> str:
  """The file that the module's docstring describes.

  Args:
    best: tile id -> configuration indices, best first.
  """
  rows = [f'{TILE}{tile_id},{";".join(map(str, indices))}'
          for tile_id, indices in best.items()]
  return ','.join(HEADER) + '\n' + '\n'.join(rows)


def write(path: str, best: dict[str, list[int]]) -> None:
  """Writes `text`; the file appears when complete.

  Raises:
    UserError: it cannot be written, or replaces a file of another kind.
  """
  require_own(path)
  write_file(path, text(best).encode())


def require_own(path: str) -> None:
  """Raises a UserError where a file of another kind has the name."""
  owned.require_file(path, ','.join(HEADER).encode(), 'predictions CSV')


def read(path: str) -> dict[str, list[int]]:
  """ID -> configuration indices of a predictions CSV.

  Raises:
    UserError: the file is missing or no such CSV; lists all faults.
  """
  # A layout row with every configuration is longer than csv's limit.
  csv.field_size_limit(min(sys.maxsize, 2 ** 31 - 1))
  rows, faults = {}, []
  try:
    with open(os.path.expanduser(path), encoding='utf-8-sig',
              newline='') as file:
      header, *lines = list(csv.reader(file)) or [[]]
  except OSError as error:
    raise UserError(f'{path}: cannot be read ({error.strerror})') from error
  except (csv.Error, UnicodeDecodeError) as error:
    raise UserError(f'{path}: is no CSV ({error})') from error
  if header != HEADER:
    raise UserError(f'{path}: its first line must be {",".join(HEADER)}; it '
                    f'is {",".join(header)[:80]!r}')
  for number, line in enumerate(lines, 2):
    if not line:
      continue
    name, indices = line[0], line[-1].split(';')
    if len(line) != 2 or not all(
        _INDEX.fullmatch(index) for index in indices):
      faults.append(f'line {number} is {",".join(line)[:60]!r}; expected an ID '
                    'and indices such as tile:xla:abc,3;0;2;1;4')
    elif name in rows:
      faults.append(f'line {number} names {name} for the second time')
    else:
      rows[name] = [int(index) for index in indices]
  raise_all(path, faults)
  return rows


def raise_all(path: str, faults: list[str]) -> None:
  """Raises one UserError for all faults of a file; none: does nothing."""
  if faults:
    more = len(faults) - MAX_FAULTS
    shown = faults[:MAX_FAULTS] + ([f'and {more} more'] if more > 0 else [])
    raise UserError(f'{path}: {len(faults)} faults\n  ' + '\n  '.join(shown))
