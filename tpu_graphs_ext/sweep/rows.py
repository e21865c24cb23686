"""A row a kernel: what it holds, of both kinds of ranking, and its columns.

  listed   the tiles that a file lists, as `rank --data`
  legal    all legal tiles, as `rank FILE`

Every row has every column of its kind; a file that cannot be ranked has a row
too, with `file` and `error` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from tpu_graphs_ext.errors import UserError, how_to_install

# Of what lies in a column: a name of a type, [what a list has], or a dict of
# the names in a structure.
_BOUNDS = ['int64']
_CHOICE = {
    'index': 'int64', 'score': 'float64', 'output_bounds': _BOUNDS,
    'kernel_bounds': _BOUNDS, 'runtime_ns': 'int64', 'slowdown': 'float64'}
_TILE = {
    'output_bounds': _BOUNDS, 'kernel_bounds': _BOUNDS,
    'output_elements': _BOUNDS, 'kernel_elements': _BOUNDS,
    'output_tiles': 'int64', 'kernel_tiles': 'int64', 'streams': 'int64',
    'moved_bytes': 'int64', 'least_bytes': 'int64', 'block_bytes': 'int64',
    'footprint_bytes': 'int64', 'padding': 'float64', 'rounding': 'float64',
    'terms': dict.fromkeys(
        ('launch', 'steps', 'traffic', 'pieces', 'matrix', 'vector',
         'first_transfer', 'unhidden'), 'float64'),
    'steps': 'int64', 'time_ns': 'float64', 'bound_by': 'string'}
_PICK = {
    'place': 'int64', 'score': 'float64', 'tile': _TILE,
    'predicted_ns': 'float64', 'over_default': 'float64',
    'measured_ns': 'int64'}
_FIRST = {'file': 'string', 'tile_id': 'string', 'nodes': 'int64'}
_LAST = {'unfamiliar': ['string'], 'error': 'string'}

LISTED = {**_FIRST, 'configs': 'int64', 'rankable': 'bool',
          'choices': [_CHOICE], **_LAST}
LEGAL = {**_FIRST, 'copies': 'int64', 'op_name': 'string',
         'share': 'float64', 'cycles': 'int64', 'opcodes': ['string'],
         'product': _BOUNDS,
         'combinations': 'int64', 'fitting': 'int64', 'scored': 'int64',
         'picks': [_PICK], 'default': _PICK, 'default_from': 'string',
         'notes': ['string'], **_LAST}

# How every file of rows begins.
START = b'{"file":'
PARQUET_START = b'PAR1'

# Of Parquet: rows, and tiles in them, that are in memory at a time.
_GROUP_ROWS = 4096
_GROUP_TILES = 1 << 18


def columns(all_tiles: bool) -> dict[str, Any]:
  """The columns of a kind of ranking."""
  return LEGAL if all_tiles else LISTED


def row(kind: dict[str, Any], file: str, **values: Any) -> dict[str, Any]:
  """A row with its columns in order; None in those without a value."""
  unknown = set(values) - set(kind)
  if unknown:
    raise ValueError(f'there are no columns {sorted(unknown)}')
  return {**dict.fromkeys(kind), 'file': file, **values}


def line_of(row: dict[str, Any]) -> bytes:
  """A row as a line of JSON.

  Raises:
    ValueError: it has a number that JSON cannot hold.
  """
  return json.dumps(row, allow_nan=False, ensure_ascii=False,
                    separators=(',', ':')).encode() + b'\n'


def names_of(unfamiliar: Sequence[Any]) -> list[str]:
  """'node_feat.is_root': the features of `host.unfamiliar`, by name alone."""
  return [f'{found.table}.{found.column}' for found in unfamiliar]


def of_ranking(file: str, ranking: Any, unfamiliar: Sequence[Any]) -> dict:
  """A row of a `host.rank.Ranking`."""
  return row(LISTED, file, **ranking.to_json(),
             unfamiliar=names_of(unfamiliar))


def of_advice(file: str, notes: Sequence[str], advice: Any) -> dict:
  """A row of an `advice.picks.Advice`; `notes` are of its file."""
  told = advice.to_json()
  name = told.pop('name')
  return row(LEGAL, file, tile_id=name, **{
      **told, 'notes': [*notes, *advice.notes],
      'unfamiliar': names_of(advice.unfamiliar)})


# ---------------------------------------------------------------- Parquet


def require_parquet(out: str) -> None:
  """Raises a UserError where pyarrow is not installed."""
  try:
    import pyarrow.parquet  # noqa: F401
  except ImportError as error:
    raise UserError(f'{out}: Parquet needs pyarrow, which is not installed; '
                    f'{how_to_install("scale")}, or name a .jsonl') from error


def write_parquet(file: BinaryIO, lines: Iterable[bytes],
                  kind: dict[str, Any]) -> None:
  """Writes rows, given as lines of JSON, in groups of a few thousand."""
  import pyarrow as pa
  from pyarrow import parquet
  schema = pa.schema(_arrow(kind))
  with parquet.ParquetWriter(file, schema) as writer:
    for group in _groups(lines):
      table = pa.Table.from_pylist(group, schema)
      writer.write_table(table, row_group_size=len(group))


def _groups(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
  """The same ones whatever parts the lines come from."""
  group, tiles = [], 0
  for line in lines:
    group.append(json.loads(line))
    tiles += len(group[-1].get('choices') or group[-1].get('picks') or ())
    if len(group) >= _GROUP_ROWS or tiles >= _GROUP_TILES:
      yield group
      group, tiles = [], 0
  if group:
    yield group


def _arrow(kind: dict[str, Any]) -> list[Any]:
  """The fields of a structure."""
  import pyarrow as pa

  def of(what: Any) -> Any:
    if isinstance(what, dict):
      return pa.struct(_arrow(what))
    if isinstance(what, list):
      return pa.list_(of(what[0]))
    return getattr(pa, {'bool': 'bool_'}.get(what, what))()

  return [pa.field(name, of(what)) for name, what in kind.items()]
