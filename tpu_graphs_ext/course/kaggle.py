"""The file for the Kaggle competition: 844 tile rows and 50 layout rows.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>
  layout:<xla|nlp>:<default|random>:<graph>,<i>;<i>; ... every configuration

Rows are matched by their ID, not by their number as in the course's
create_kaggle_csv.py.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Sequence

from tpu_graphs_ext.course import agreement
from tpu_graphs_ext.data import kernel, npz, read, schema
from tpu_graphs_ext.engine import predictions_csv, settings
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.files import require_path

TILE, LAYOUT = predictions_csv.TILE, 'layout:'
# Rows of the competition by the start of their ID: 844 and 50, 894 in all.
PUBLISHED = {TILE: schema.PUBLISHED_KERNELS['test'],
             'layout:xla:default:': 8, 'layout:xla:random:': 8,
             'layout:nlp:default:': 17, 'layout:nlp:random:': 17}
# Configurations of a tile row; the competition looks at no more.
TILE_PLACES = settings.TOP_CONFIGS

_log = logging.getLogger(__name__)
Rows = dict[str, list[int]]


def kaggle_csv(tile: str, out: str, *, sample: str, data_root: str = '',
               layout: Sequence[str] = ()) -> str:
  """Writes the competition's file.

  Args:
    tile: CSV of the tile rows, five or more configurations each.
    out: the file to write.
    sample: the course's sample_submission.csv, which names the rows.
    data_root: folder whose `test` holds the tile kernels, to check indices
      against; empty: not checked.
    layout: CSVs of layout rows, as `predict --task layout` writes them: all
      programs of each of their collections, all configurations of each. Other
      collections keep the rows of the sample: every configuration, in the
      order of the file.

  Returns:
    What was written, for the user.

  Raises:
    UserError: a file cannot be read, or its rows do not fit; lists all faults.
  """
  out = require_path('--out', out)
  expected = predictions_csv.read(sample)
  counts = _tile_counts(data_root, expected) if data_root else {}
  rows = _checked(tile, TILE, expected, counts)
  for path in layout:
    found = _checked(path, LAYOUT, expected, {})
    double = [name for name in found if name in rows]
    if double:
      raise UserError(f'{path}: {len(double)} rows are in another --layout '
                      f'file too ({shortened(double)})')
    rows.update(found)
  given = {TILE, *map(_start, rows)}
  missing = [name for name in expected
             if _start(name) in given and name not in rows]
  if missing:
    raise UserError(
        f'{", ".join([tile, *layout])}: has no row for {len(missing)} of the '
        f'{len(expected)} rows of the competition ({shortened(missing)}); was '
        'the model run on all of the test split?')
  predictions_csv.write(out, {name: rows.get(name, order)
                              for name, order in expected.items()},
                        prefix='', end='\n')
  numbers = collections.Counter(map(_start, expected))
  if numbers != PUBLISHED:
    _log.warning(
        'Kaggle will refuse %s: it has %d tile and %d layout rows, and the '
        'competition has 844 and 50', out, numbers[TILE],
        len(expected) - numbers[TILE])
  lines = [f'{start}* {number} rows'
           + ('' if start in given else ', in the order of their files')
           for start, number in numbers.items()]
  return '\n'.join([*lines, f'{len(expected)} rows: {out}'])


def _start(name: str) -> str:
  return name.rpartition(':')[0] + ':'


def _tile_counts(data_root: str, expected: Rows) -> dict[str, int]:
  """ID -> configurations of the kernels of the test split.

  Raises:
    UserError: a file is damaged, or there are other kernels than expected.
  """
  counts = {}
  for path in read.find_npz(os.path.join(data_root, 'test')):
    try:
      counts[TILE + kernel.tile_id_of(path)] = npz.shape_of(
          path, 'config_feat')[0]
    except (npz.DamagedError, KeyError, IndexError) as error:
      raise UserError(f'{path}: config_feat cannot be read ({error}); copy the '
                      'file again') from error
  named = {name for name in expected if name.startswith(TILE)}
  if named != set(counts):
    raise UserError(
        f'{data_root}: its test split does not match the sample: '
        f'{len(named - set(counts))} kernels of the sample are missing and '
        f'{len(set(counts) - named)} others are there; name the real data, or '
        'leave --data_root out')
  return counts


def _checked(path: str, prefix: str, expected: Rows,
             counts: dict[str, int]) -> Rows:
  """The rows of a CSV, tile rows cut to five places.

  Raises:
    UserError: lists the faults of all rows.
  """
  faults, chosen = [], {}
  for name, indices in predictions_csv.read(path).items():
    if not name.startswith(prefix):
      fault = f'is not a {prefix}* row; give it to the other flag'
    elif name not in expected:
      fault = 'is not a row of the competition'
    elif prefix == TILE:
      fault = tile_fault(indices, counts.get(name))
    else:
      # A layout row of the sample has every configuration.
      fault = _layout_fault(indices, len(expected[name]))
    if fault:
      faults.append(f'{name} {fault}')
    chosen[name] = indices[:TILE_PLACES] if prefix == TILE else indices
  predictions_csv.raise_all(path, faults)
  return chosen


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
  number = '' if num_configs is None else (
      f', and the kernel has {num_configs} configurations, 0 to '
      f'{num_configs - 1}')
  return (f'is {";".join(map(str, places))}; the indices must differ (or be 0 '
          f'where a kernel has no more){number}')


def _layout_fault(indices: Sequence[int], num_configs: int) -> str:
  """What is wrong with a layout row, or ''."""
  if sorted(indices) == list(range(num_configs)):
    return ''
  return (f'must name each of its {num_configs} configurations once; it has '
          f'{len(indices)} indices, {len(set(indices))} of them different, up '
          f'to {max(indices)}')
