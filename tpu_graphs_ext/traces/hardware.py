"""Writes a calibration to a file, and reads it with every field checked."""

from __future__ import annotations

import json
import os
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.engine import output_paths
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces.calibrate import SIZES, Calibration, Curve, Function

FILE = output_paths.Text('--calibrate', '{\n "calibration": {', 'calibration')
_LIMITS = {'least_us': (1e-9, 1e12), 'us_per_million': (1e-30, 1e18),
           'exponent': (0.1, 2), 'spread': (0, 1000), 'count': (1, 1e18),
           'typical_us': (1e-9, 1e12), 'mean_ratio': (1e-3, 1e3),
           'host': (0, 1e12), 'launches': (0, 1e30)}


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
  """Reads what `--calibrate` wrote.

  Raises:
    UserError: the file cannot be read, or a value is missing or out of range.
  """
  content = files.read_json(os.path.expanduser(path))
  try:
    content = content['calibration']
    if not isinstance(content['source'], str):
      raise TypeError(f'source is {content["source"]!r:.80}; it must be text')
    kinds, functions = (
        {name: _function(one) for name, one in content[part].items()}
        for part in ('kinds', 'functions'))
    return Calibration(
        content['source'], kinds, functions,
        {key: _number('host', us) for key, us in content['host'].items()})
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    reason = ascii(f'{type(error).__name__}: {error}'[:200])
    raise UserError(f'--hardware={path}: was not written by --calibrate, or is '
                    f'damaged ({reason}); calibrate again') from error


def _function(content: dict) -> Function:
  curves = {size: Curve(*(_number(name, curve[name]) for name in Curve._fields))
            for size, curve in content['curves'].items()}
  launches = {}
  for row in content['launches']:
    *sizes, us = (_number('launches', value) for value in row)
    if len(sizes) != len(SIZES):
      raise ValueError(f'launches must be [{", ".join(SIZES)}, microseconds]')
    launches[tuple(map(float, sizes))] = us
  return Function(curves=curves, launches=launches, **{
      name: _number(name, content[name])
      for name in ('count', 'typical_us', 'mean_ratio')})


def _number(name: str, value: Any) -> float:
  """A number within its limits, which excludes NaN and huge integers."""
  least, most = _LIMITS[name]
  if type(value) not in (int, float) or not least <= value <= most:
    raise ValueError(f'{name} is {value!r:.80}; it must be a number from '
                     f'{least:g} to {most:g}')
  return value
