"""The file for the Kaggle competition: 844 tile rows and 50 layout rows.

  ID,TopConfigs
  tile:xla:<tile_id>,<i>;<i>;<i>;<i>;<i>
  layout:<xla|nlp>:<default|random>:<graph>,<i>;<i>; ... every configuration

Rows are matched by their ID, not by their number as in the course's
create_kaggle_csv.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import require_path
from tpu_graphs_ext.tasks import TILE

PUBLISHED_ROWS = 894

_log = logging.getLogger(__name__)


def kaggle_csv(tile: str, out: str, *, sample: str,
               layout: Sequence[str] = ()) -> str:
  """Writes the competition's file; returns what was written, for the user.

  Args:
    tile: CSV of the tile rows, five or more configurations each.
    out: the file to write.
    sample: the course's sample_submission.csv, which names the rows.
    layout: CSVs of layout rows, as `predict --task layout` writes them: all
      programs of their collections, all configurations of each. Other
      collections keep the rows of the sample.

  Raises UserError, with all faults, if a file is damaged or its rows do not
  fit.
  """
  out = require_path('--out', out)
  for path in (tile, sample, *layout):
    if os.path.realpath(os.path.expanduser(path)) == os.path.realpath(out):
      raise UserError(f'--out: {out} is also read; name another file')
  expected = predictions_csv.read(sample)
  rows, faults = {}, []
  for path in (tile, *layout):
    for name, indices in predictions_csv.read(path).items():
      if fault := _fault(name, indices, path == tile, expected):
        faults.append(f'{name} {fault}')
      elif name in rows:
        faults.append(f'{name} is in two files')
      # The competition looks at no more configurations of a tile row.
      rows[name] = indices[:TILE.csv_configs] if path == tile else indices
  collections = {name.rpartition(':')[0] for name in (TILE.csv_id, *rows)}
  faults += [f'{name} is missing; was the model run on all of the test split?'
             for name in expected
             if name.rpartition(':')[0] in collections and name not in rows]
  predictions_csv.raise_all(', '.join([tile, *layout]), faults)
  predictions_csv.write(out, {name: rows.get(name, order)
                              for name, order in expected.items()},
                        prefix='', end='\n')
  if len(expected) != PUBLISHED_ROWS:
    _log.warning('Kaggle will refuse %s: it has %d rows, and the competition '
                 'has %d', out, len(expected), PUBLISHED_ROWS)
  return f'{len(expected)} rows: {out}'


def _fault(name: str, indices: Sequence[int], is_tile: bool,
           expected: dict[str, list[int]]) -> str:
  """What is wrong with a row, or ''."""
  if name.startswith(TILE.csv_id) != is_tile:
    return 'belongs into a file for the other flag, --tile or --layout'
  if name not in expected:
    return 'is not a row of the competition'
  if not is_tile:  # A layout row of the sample has every configuration.
    if sorted(indices) != list(range(len(expected[name]))):
      return f'must name each of its {len(expected[name])} configurations once'
  elif len(indices) < TILE.csv_configs:
    return f'has {len(indices)} indices; it must have {TILE.csv_configs}'
  elif _repeats(indices[:TILE.csv_configs]):
    return 'names a configuration twice; only zeros at the end may fill a row'
  return ''


def _repeats(indices: Sequence[int]) -> bool:
  """Whether any is there twice but for the 0s that pad a row at its end."""
  first = indices[:len(set(indices))]
  return len(set(first)) < len(first) or any(indices[len(first):])
