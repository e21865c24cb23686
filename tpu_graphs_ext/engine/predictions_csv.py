"""The predictions CSV of the baseline, written and read.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>

Configuration indices count from 0 in the order of the file, lowest predicted
runtime first. A kernel with fewer configurations than asked for is padded with
0. Kernels are in the order of their file names; there is no final newline. In
the layout task, whose IDs are layout:<source>:<search>:<program>, all
configurations are listed and a newline ends each line, as in the baseline.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Union

from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import cannot_be_read, new_file, open_ordinary

Best = Union[Mapping[str, Sequence[int]], Iterable[tuple[str, Sequence[int]]]]

HEADER = ['ID', 'TopConfigs']
START, WHAT = ','.join(HEADER), 'predictions CSV'  # For `output_paths`.
TILE = 'tile:xla:'
# Of a file. The layout rows of the competition take 30 MB.
MAX_BYTES = 1 << 28
# A number that fits int32, in ASCII digits.
_INDEX = re.compile('[0-9]{1,9}')
# Nothing that would need quotes.
_ID = re.compile(r'[^,"\x00-\x1f\x7f]{1,300}')
# Faults in one message; the rest is only counted.
MAX_FAULTS = 10


def parts(best: Best, prefix: str = TILE, end: str = '') -> Iterator[str]:
  """The file described above, line by line.

  Args:
    best: name -> configuration indices, best first; or these as pairs.
    prefix: of each ID, before the name.
    end: of the last line.
  """
  yield START
  for name, indices in (
      best.items() if isinstance(best, Mapping) else best):
    yield f'\n{quoted(prefix + name)},{";".join(map(str, indices))}'
  yield end


def quoted(name: str) -> str:
  """A name as a cell: in quotes if it holds a comma, quote or line end."""
  if re.search(r'[,"\r\n]', name):
    return '"' + name.replace('"', '""') + '"'
  return name


def write(path: str, best: Best, prefix: str = TILE, end: str = '') -> None:
  """Writes `parts`; the file appears when complete.

  Raises:
    UserError: it cannot be written, or replaces a file of another kind.
  """
  require_own(path)
  with contextlib.closing(parts(best, prefix, end)) as lines, new_file(
      path) as file:
    for line in lines:
      file.write(line.encode())


def require_own(path: str) -> None:
  """Raises UserError if a file of another kind has the name."""
  output_paths.require_file(path, START.encode(), WHAT)


def read(path: str) -> dict[str, list[int]]:
  """ID -> configuration indices of a predictions CSV.

  Raises:
    UserError: the file is missing or not such a CSV; lists all faults.
  """
  # A layout row with every configuration is longer than csv's limit.
  csv.field_size_limit(min(sys.maxsize, 2 ** 31 - 1))
  rows, faults = {}, []
  text = _text(path)
  try:
    header, *lines = list(csv.reader(io.StringIO(text, newline=''))) or [[]]
  except csv.Error as error:
    raise UserError(f'{path}: is no CSV ({error})') from error
  if header != HEADER:
    raise UserError(f'{path}: its first line must be {START}; it '
                    f'is {",".join(header)[:80]!r}')
  for number, line in enumerate(lines, 2):
    if not line:
      continue
    name, indices = line[0], line[-1].split(';')
    if len(line) != 2 or not _ID.fullmatch(name) or not all(
        map(_INDEX.fullmatch, indices)):
      faults.append(f'line {number} is {",".join(line)[:60]!r}; expected an ID '
                    'and indices such as tile:xla:abc,3;0;2;1;4')
    elif name in rows:
      faults.append(f'line {number} names {name} for the second time')
    else:
      rows[name] = [int(index) for index in indices]
  raise_all(path, faults)
  return rows


def _text(path: str) -> str:
  try:
    with open_ordinary(os.path.expanduser(path)) as file:
      content = file.read(MAX_BYTES + 1)
  except OSError as error:
    raise cannot_be_read(path, error) from error
  if len(content) > MAX_BYTES:
    raise UserError(f'{path}: has more than {MAX_BYTES:,} bytes; no CSV of '
                    'predictions has')
  if b'\0' in content:
    raise UserError(f'{path}: is no CSV (there is a zero byte after '
                    f'{content.index(0):,} bytes)')
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise UserError(f'{path}: is no CSV ({error})') from error


def raise_all(path: str, faults: list[str]) -> None:
  """Raises one UserError for all faults of a file, if there are any."""
  if faults:
    more = len(faults) - MAX_FAULTS
    shown = faults[:MAX_FAULTS] + ([f'and {more} more'] if more > 0 else [])
    raise UserError(f'{path}: {len(faults)} faults\n  ' + '\n  '.join(shown))
