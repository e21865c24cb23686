"""The file for the Kaggle competition: 844 tile rows and 50 layout rows.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>
  layout:<xla|nlp>:<default|random>:<graph>,<i>;<i>; ... every configuration

Tile rows come from a model of tiles, layout rows from models of layouts. A
collection that is not given keeps the rows of the course's sample: every
configuration, in the file's order. Rows are matched by their ID; the course's
create_kaggle_csv.py goes by the row number.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence

from tpu_graphs_ext.course import agreement
from tpu_graphs_ext.data import kernel, npz, read, schema
from tpu_graphs_ext.engine import predictions_csv, settings
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.files import require_path

TILE = predictions_csv.TILE
LAYOUTS = tuple(f'layout:{source}:{search}:' for source in ('xla', 'nlp')
                for search in ('default', 'random'))
# Rows of the competition by the start of their ID: 844 and 50, 894 in all.
PUBLISHED = {TILE: schema.PUBLISHED_KERNELS['test'],
             'layout:xla:default:': 8, 'layout:xla:random:': 8,
             'layout:nlp:default:': 17, 'layout:nlp:random:': 17}
# Configurations of a tile row; the competition looks at no more.
TILE_PLACES = settings.TOP_CONFIGS
LAYOUT_ROOT = '~/data/tpugraphs/npz/layout'

_log = logging.getLogger(__name__)
Rows = dict[str, list[int]]


@dataclasses.dataclass(frozen=True)
class KaggleFile:
  """What was written.

  Attributes:
    path: the file.
    counts: start of the ID -> rows.
    given: start of the ID -> rows that came from --tile or --layout.
  """
  path: str
  counts: dict[str, int]
  given: dict[str, int]

  def text(self) -> str:
    lines = [f'{prefix}* {number} rows'
             + ('' if self.given[prefix] else ', in the order of their files')
             for prefix, number in self.counts.items() if number]
    return '\n'.join(
        [*lines, f'{sum(self.counts.values())} rows: {self.path}'])


def kaggle_csv(tile: str, out: str, *, layout: Sequence[str] = (),
               sample: str = '', data_root: str = '',
               layout_root: str = '') -> KaggleFile:
  """Writes the competition's file.

  Args:
    tile: CSV of the tile rows, five or more configurations each.
    out: the file to write.
    layout: CSVs of layout rows, as `predict --task layout` writes them: all
      programs of each of their collections, all configurations of each.
    sample: the course's sample_submission.csv, which names the rows; empty:
      the rows follow from the data.
    data_root: folder whose `test` holds the tile kernels, to check indices
      against. Empty: not checked, unless there is no sample.
    layout_root: folder with {xla,nlp}/{default,random}/test of the layout
      collection; the same.

  Raises:
    UserError: a file cannot be read, or its rows do not fit; lists all faults.
  """
  out = require_path('--out', out)
  counts = _config_counts(data_root, layout_root, sample)
  expected = predictions_csv.read(sample) if sample else {
      name: list(range(count)) for name, count in counts.items()}
  if data_root and sample:
    _compare_ids(sample, expected, data_root, counts)
  rows = _checked(tile, TILE, expected, counts)
  _require_all(tile, rows, TILE, expected)
  for path in layout:
    found = _checked(path, 'layout:', expected, counts)
    double = [name for name in found if name in rows]
    if double:
      raise UserError(f'{path}: {len(double)} rows are in another --layout '
                      f'file too ({shortened(double)})')
    rows.update(found)
  for prefix in LAYOUTS:
    if _number(rows, prefix):
      _require_all(', '.join(layout), rows, prefix, expected)
  merged = {name: rows.get(name, order) for name, order in expected.items()}
  predictions_csv.write(out, merged, prefix='', end='\n')
  result = KaggleFile(out, *({prefix: _number(some, prefix)
                              for prefix in PUBLISHED}
                             for some in (merged, rows)))
  if result.counts != PUBLISHED:
    tiles = result.counts[TILE]
    _log.warning(
        'Kaggle will refuse %s: it has %d tile and %d layout rows, and the '
        'competition has 844 and 50', out, tiles, len(merged) - tiles)
  return result


def tile_fault(indices: Sequence[int], num_configs: int | None) -> str:
  """What is wrong with a tile row, or ''.

  Args:
    indices: the row's configurations.
    num_configs: of the kernel; None: unknown, and it may be as few as the
      row's padding says.
  """
  if len(indices) < TILE_PLACES:
    return f'has {len(indices)} indices; it must have {TILE_PLACES}'
  places = list(indices[:TILE_PLACES])
  possible = ([num_configs] if num_configs is not None
              else [2, 3, 4, max(TILE_PLACES, *places) + 1])
  if any(agreement.is_possible(places, number) for number in possible):
    return ''
  shown = ';'.join(map(str, places))
  if num_configs is None or (
      num_configs >= TILE_PLACES and max(places) < num_configs):
    return f'is {shown}; the indices must differ'
  return (f'is {shown}, but the kernel has {num_configs} configurations, 0 to '
          f'{num_configs - 1}, each to be named once (and 0 where there are '
          'none left)')


def _layout_fault(indices: Sequence[int], num_configs: int) -> str:
  """What is wrong with a layout row, or ''."""
  if max(indices) >= num_configs:
    return (f'names configuration {max(indices)}, but the graph has '
            f'{num_configs}, 0 to {num_configs - 1}')
  if len(set(indices)) < len(indices):
    return 'names a configuration twice'
  if len(indices) < num_configs:
    return (f'names {len(indices)} of {num_configs} configurations; a layout '
            'row names each once')
  return ''


def _checked(path: str, prefix: str, expected: Rows,
             counts: dict[str, int]) -> Rows:
  """The rows of a CSV, tile rows cut to five places.

  Raises:
    UserError: lists the faults of all rows.
  """
  faults, chosen = [], {}
  for name, indices in predictions_csv.read(path).items():
    if not name.startswith(prefix):
      faults.append(f'{name} is not a {prefix}* row; give it to the other flag')
    elif name not in expected:
      faults.append(f'{name} is none of the {_number(expected, prefix)} rows '
                    f'{prefix}* of the competition')
    else:
      # A layout row of the sample has every configuration.
      fault = (tile_fault(indices, counts.get(name)) if prefix == TILE else
               _layout_fault(indices, counts.get(name, len(expected[name]))))
      if fault:
        faults.append(f'{name} {fault}')
      chosen[name] = indices[:TILE_PLACES] if prefix == TILE else indices
  predictions_csv.raise_all(path, faults)
  return chosen


def _require_all(where: str, rows: Rows, prefix: str, expected: Rows) -> None:
  """Raises a UserError unless there is a row for each that is expected."""
  missing = [name for name in expected
             if name.startswith(prefix) and name not in rows]
  if missing:
    raise UserError(
        f'{where}: has no row for {len(missing)} of the '
        f'{_number(expected, prefix)} rows {prefix}* ({shortened(missing)}); '
        'was the model run on all of the test split?')


def _config_counts(data_root: str, layout_root: str,
                   sample: str) -> dict[str, int]:
  """ID -> configurations, as the files in the named folders have them.

  Raises:
    UserError: a folder is missing, or a file in it is damaged.
  """
  if not sample:
    data_root = data_root or settings.DATA_ROOT
    layout_root = layout_root or LAYOUT_ROOT
  folders = [(TILE, os.path.join(data_root, 'test'), 'config_feat')
             ] if data_root else []
  for prefix in LAYOUTS if layout_root else ():
    _, source, search, _ = prefix.split(':')
    folders.append((prefix, os.path.join(layout_root, source, search, 'test'),
                    'config_runtime'))
  return {prefix + kernel.tile_id_of(path): _num_configs(path, key)
          for prefix, folder, key in folders for path in read.find_npz(folder)}


def _num_configs(path: str, key: str) -> int:
  try:
    return npz.shape_of(path, key)[0]
  except (npz.DamagedError, KeyError, IndexError) as error:
    raise UserError(f'{path}: {key} cannot be read ({error}); copy the file '
                    'again') from error


def _compare_ids(sample: str, expected: Rows, data_root: str,
                 counts: dict[str, int]) -> None:
  """Raises a UserError unless sample and data name the same tile kernels."""
  named = {name for name in expected if name.startswith(TILE)}
  there = {name for name in counts if name.startswith(TILE)}
  if named != there:
    raise UserError(
        f'{data_root}: its test split does not match {sample}: '
        f'{len(named - there)} kernels of the sample are missing and '
        f'{len(there - named)} others are there; name the real data, or leave '
        'out one of the two')


def _number(rows: Rows, prefix: str) -> int:
  return sum(name.startswith(prefix) for name in rows)
