"""The rows of `rank --workers`: one per kernel, with the columns of its kind.

  LISTED   the tiles that a file lists, as `rank --data`
  LEGAL    all legal tiles, as `rank FILE`

A file that cannot be ranked has a row with `file` and `error` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from tpu_graphs_ext.errors import UserError, how_to_install

# The type of a column: a name, [type of the items of a list], or a structure.
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
START, PARQUET_START = b'{"file":', b'PAR1'
# Parquet: rows, and tiles in them, that are in memory at a time.
_GROUP_ROWS, _GROUP_TILES = 4096, 1 << 18


def row(kind: dict[str, Any], file: str, **values: Any) -> dict[str, Any]:
  """A row with its columns in order; None in those without a value."""
  if unknown := set(values) - set(kind):
    raise ValueError(f'there are no columns {sorted(unknown)}')
  return {**dict.fromkeys(kind), 'file': file, **values}


def line_of(row: dict[str, Any]) -> bytes:
  """A row as a line of JSON.

  Raises:
    ValueError: it has a number that JSON does not have, such as NaN.
  """
  return json.dumps(row, allow_nan=False, ensure_ascii=False,
                    separators=(',', ':')).encode() + b'\n'


def of_ranking(file: str, ranking: Any,
               out_of_range: Sequence[Any]) -> dict[str, Any]:
  """A row of LISTED, from an `engine.rank.Ranking`."""
  return row(LISTED, file, **ranking.to_json(),
             unfamiliar=_names(out_of_range))


def of_advice(file: str, notes: Sequence[str], advice: Any) -> dict[str, Any]:
  """A row of LEGAL, from a `tile_advice.Advice`; `notes` are on its file."""
  found = advice.to_json()
  return row(LEGAL, file, tile_id=found.pop('name'), **{
      **found, 'notes': [*notes, *advice.notes],
      'unfamiliar': _names(advice.unfamiliar)})


def _names(out_of_range: Sequence[Any]) -> list[str]:
  return [f'{found.table}.{found.column}' for found in out_of_range]


def require_parquet(out: str) -> None:
  """Raises UserError if pyarrow is not installed."""
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
      writer.write_table(pa.Table.from_pylist(group, schema),
                         row_group_size=len(group))


def _groups(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
  """Groups that depend on the rows alone, not on the parts they come from."""
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
    return getattr(pa, 'bool_' if what == 'bool' else what)()

  return [pa.field(name, of(what)) for name, what in kind.items()]
