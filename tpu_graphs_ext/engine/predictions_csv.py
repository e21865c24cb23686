"""The predictions CSV of the baseline, written and read.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>

Configuration indices count from 0, fastest first, padded with 0; there is no
final newline. In the layout task, IDs are layout:<source>:<search>:<program>,
all configurations are listed, and a newline ends each line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Union

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

Best = Union[Mapping[str, Sequence[int]], Iterable[tuple[str, Sequence[int]]]]

HEADER = ['ID', 'TopConfigs']
KIND = ','.join(HEADER), 'predictions CSV'  # For `files.Output`.
MAX_BYTES = 1 << 28  # The layout rows of the competition take 30 MB.
MAX_FAULTS = 10  # In one message; the rest is only counted.
_INDICES = re.compile('[0-9]{1,9}(;[0-9]{1,9})*')  # Each fits int32.
_ID = re.compile(r'[^\x00-\x1f\x7f]{1,300}')


def write(path: str, best: Best, prefix: str = '', end: str = '') -> None:
  """Writes the file described above, which appears when complete.

  `best` are names with configuration indices, best first; `prefix` comes before
  each name, `end` after the last line.
  """
  files.require_kind(path, *KIND)
  with files.new_file(path) as file:
    file.write(KIND[0].encode())
    for name, indices in best.items() if isinstance(best, Mapping) else best:
      name = prefix + name
      if re.search(r'[,"\r\n]', name):
        name = '"' + name.replace('"', '""') + '"'
      file.write(f'\n{name},{";".join(map(str, indices))}'.encode())
    file.write(end.encode())


def read(path: str) -> dict[str, list[int]]:
  """ID -> configuration indices of a predictions CSV, or a UserError."""
  # A layout row with every configuration is longer than csv's limit.
  limit = csv.field_size_limit(MAX_BYTES)
  rows, faults = {}, []
  try:
    content = files.read_file(path, MAX_BYTES)
    header, *lines = [*csv.reader(io.StringIO(
        content.decode('utf-8-sig'), newline=''))] or [[]]
  except (ValueError, csv.Error) as error:
    raise UserError(f'{path}: is not a CSV ({error})') from error
  finally:
    csv.field_size_limit(limit)
  if header != HEADER:
    raise UserError(f'{path}: its first line must be {KIND[0]}; it '
                    f'is {",".join(header)[:80]!r}')
  for number, line in enumerate(lines, 2):
    if (len(line) == 2 and _ID.fullmatch(line[0])
        and _INDICES.fullmatch(line[1]) and line[0] not in rows):
      rows[line[0]] = list(map(int, line[1].split(';')))
    elif line:
      faults.append(f'line {number} is {",".join(line)[:60]!r}; expected an ID '
                    'and indices, as in tile:xla:abc,3;0;2;1;4, each ID once')
  raise_all(path, faults)
  return rows


def is_order(places: Sequence[int], num_configs: int) -> bool:
  """True for distinct indices of a kernel, padded with 0 if it has too few."""
  first, padding = places[:num_configs], places[num_configs:]
  return (all(0 <= index < num_configs for index in first)
          and len(set(first)) == len(first) and not any(padding))


def raise_all(path: str, faults: list[str]) -> None:
  """Raises one UserError for all faults of a file, if there are any."""
  if faults:
    raise UserError('\n  '.join(
        [f'{path}: {len(faults)} faults', *faults[:MAX_FAULTS]]))
