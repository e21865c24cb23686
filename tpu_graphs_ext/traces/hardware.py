"""Writes a calibration to a file, and reads it with every field checked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Callable

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.errors import UserError, shortened
from tpu_graphs_ext.traces.calibrate import SIZES, Calibration, Curve, Function

FILE = output_paths.Text('--calibrate', '{\n "calibration": {', 'calibration')
_LIMITS = {'least_us': (1e-9, 1e12), 'us_per_million': (1e-30, 1e18),
           'exponent': (0.1, 2), 'spread': (0, 1000), 'count': (1, 1e18),
           'typical_us': (1e-9, 1e12), 'mean_ratio': (1e-3, 1e3)}


def to_json(learned: Calibration) -> str:
  """The content of a file for `read`."""
  def functions(found):
    return {name: {
        **one._asdict(),
        'curves': {size: curve._asdict() for size, curve in one.curves.items()},
        'launches': [[*key, us] for key, us in one.launches.items()],
    } for name, one in found.items()}

  return json.dumps({'calibration': {
      **learned._asdict(), 'kinds': functions(learned.kinds),
      'functions': functions(learned.functions)}}, indent=1)


def read(path: str) -> Calibration:
  """Reads what `--calibrate` wrote; UserError if a value is missing or bad."""
  where = f'--hardware={path}'
  content = files.read_json(os.path.expanduser(path))
  content = _object(where, content, ('calibration',))['calibration']
  where += ': calibration'
  content = _object(where, content, Calibration._fields)
  if not isinstance(source := content['source'], str):
    raise UserError(f'{where}: source is {source!r:.80}; it must be text')

  def each(name: str, made: Callable) -> dict[str, Any]:
    place = f'{where}: {name}'
    return {key: made(f'{place}: {key!a:.80}', value)
            for key, value in _object(place, content[name]).items()}

  return Calibration(
      source, each('kinds', _function), each('functions', _function),
      each('host', lambda place, us: _number(place, us, 0, 1e12)))


def _function(where: str, content: Any) -> Function:
  content = _object(where, content, Function._fields)
  curves = {}
  for size, curve in _object(f'{where}: curves', content['curves']).items():
    place = f'{where}: {size!a:.80}'
    curves[size] = Curve(**_numbers(
        place, _object(place, curve, Curve._fields), Curve._fields))
  rows, launches = content['launches'], {}
  if not isinstance(rows, list) or not all(
      isinstance(row, list) and len(row) == len(SIZES) + 1 for row in rows):
    raise UserError(f'{where}: launches must be a list of '
                    f'[{", ".join(SIZES)}, microseconds]')
  for row in rows:
    *sizes, us = (_number(f'{where}: launches', value, 0, 1e30)
                  for value in row)
    launches[tuple(map(float, sizes))] = us
  return Function(curves=curves, launches=launches, **_numbers(
      where, content, ('count', 'typical_us', 'mean_ratio')))


def _numbers(where: str, content: dict, names: Sequence[str]) -> dict:
  return {name: _number(f'{where}: {name}', content[name], *_LIMITS[name])
          for name in names}


def _number(where: str, value: Any, least: float, most: float) -> float:
  """A number within limits, which excludes NaN and huge integers."""
  if type(value) not in (int, float) or not least <= value <= most:
    raise UserError(f'{where} is {value!r:.80}; it must be a number from '
                    f'{least:g} to {most:g}')
  return value


def _object(where: str, content: Any, needed: Sequence[str] = ()) -> dict:
  """An object with exactly the needed fields, if any are."""
  if not isinstance(content, dict):
    raise UserError(f'{where}: must hold an object; it holds a '
                    f'{type(content).__name__}')
  if needed and set(content) != set(needed):
    raise UserError(f'{where}: its fields must be {", ".join(needed)}, as '
                    '--calibrate writes them; they are '
                    f'{shortened([*map(ascii, content)], 8)[:200] or "none"}')
  return content
