"""Machines by name, or from a small JSON file.

Peak figures of NVIDIA's data sheets: V100 (SXM2, January 2020), A100 (June
2021), H100 (2023), tensor cores without sparsity; half of the FLOPS there, as
`Gpu` counts multiply-adds. Data sheets have no bandwidth of the second-level
cache: it is that of table 3 of https://pmc.ncbi.nlm.nih.gov/articles/
PMC10448217, bytes a clock times the clock. Links are PCIe with 16 lanes, one
way, as their generation names them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic.roofline import Gpu
from tpu_graphs_ext.errors import UserError, did_you_mean
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.traces import calibrate
from tpu_graphs_ext.traces.calibrate import Calibration, Curve, Function
from tpu_graphs_ext.traces.calls import Device

_MB = 2**20
PRESETS: dict[str, Gpu] = {
    # The document's: bandwidths measured, throughput and cache as it has them.
    'notebook-v100': Gpu(),
    'v100': Gpu(900, 3133, 6 * _MB, 80, 7850, None, 62500, 16),
    'a100-40gb': Gpu(1555, 7219, 40 * _MB, 108, 9750, 78000, 156000, 32),
    'a100-80gb': Gpu(2039, 7219, 40 * _MB, 108, 9750, 78000, 156000, 32),
    'h100-pcie': Gpu(2000, 8986, 50 * _MB, 114, 25500, 189000, 378000, 64),
    'h100-sxm': Gpu(3350, 8986, 50 * _MB, 132, 33500, 247250, 494500, 64)}


class Hardware(NamedTuple):
  """Attributes:
    name: a preset's, or the file's.
    gpu: its peaks, also of a CPU; None in a file of a calibration alone.
    device: 'gpu', or 'cpu' where operators' own times on the host count.
    calibration: what a trace told; it goes before the peaks.
  """
  name: str
  gpu: Optional[Gpu]
  device: str = 'gpu'
  calibration: Optional[Calibration] = None


def find(given: str, device: Optional[Device] = None) -> Optional[Hardware]:
  """What to predict for.

  Args:
    given: name of a preset or path of a JSON file; empty: as the trace says.
    device: of the trace.

  Returns:
    None where nothing is given and the trace names no machine of the presets.

  Raises:
    UserError: it is neither, or the file's content is no machine.
  """
  if not given:
    name = _preset_of(device) if device else None
    return Hardware(name, PRESETS[name]) if name else None
  if given.lower() in PRESETS:
    return Hardware(given.lower(), PRESETS[given.lower()])
  if given.endswith('.json') or os.path.exists(os.path.expanduser(given)):
    return _read(given)
  hint = did_you_mean(given.lower(), list(PRESETS))
  raise UserError(f'--hardware={given}: must be one of {", ".join(PRESETS)}, '
                  f'or a .json file{"; " if hint else ""}{hint}')


def _preset_of(device: Device) -> Optional[str]:
  """The preset of a name such as 'NVIDIA A100-SXM4-80GB'."""
  name = device.name.upper()
  if 'V100' in name:
    return 'v100'
  if 'A100' in name:
    return ('a100-80gb' if '80GB' in name or device.memory_bytes > 60e9
            else 'a100-40gb')
  if 'H100' in name:
    return 'h100-pcie' if 'PCIE' in name else 'h100-sxm'
  return None


def _read(path: str) -> Hardware:
  where = f'--hardware={path}'
  try:
    with files.open_ordinary(os.path.expanduser(path)) as file:
      content = files.parse_json(file.read(_MOST_BYTES), where)
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  fields = [field.name for field in dataclasses.fields(Gpu)]
  _fields(where, content, (), (*fields, 'device', 'calibration'))
  learned = content.get('calibration')
  peaks = {name: _number(f'{where}: {name}', content[name],
                         0 if name == 'kernel_us' else _LEAST)
           for name in fields if name in content}
  if learned is None or peaks:
    _fields(where, content, ('dram_gb_s', 'gflop_s'), content)
  device = content.get('device', 'gpu')
  if device not in ('gpu', 'cpu'):
    raise UserError(f'{where}: device is {device!r:.80}; it must be gpu or cpu')
  for name in ('l2_bytes', 'multiprocessors'):
    # A cache that is not told of is none, and no faster than memory.
    if peaks and peaks.setdefault(name, 1) % 1:
      raise UserError(f'{where}: {name} is {peaks[name]}; it must be whole')
  if peaks:
    peaks.setdefault('l2_gb_s', peaks['dram_gb_s'])
    peaks.update({name: int(peaks[name])
                  for name in ('l2_bytes', 'multiprocessors')})
  return Hardware(path, Gpu(**peaks) if peaks else None, device,
                  None if learned is None else _calibration(
                      f'{where}: calibration', learned))


FILE = outputs.Text('--calibrate', '{\n "calibration": {', 'calibration')
_MOST_BYTES = 64 << 20
_LEAST, _MOST = 1e-9, 1e18


def _number(where: str, value: Any, least: float, most: float = _MOST) -> Any:
  """A number within limits, which neither NaN nor a huge integer is."""
  if type(value) not in (int, float) or not least <= value <= most:
    raise UserError(f'{where} is {value!r:.80}; it must be a number '
                    + ('above 0' if least == _LEAST else f'of at least {least}')
                    + (f', at most {most:g}' if most != _MOST else ''))
  return value


def _fields(where: str, content: Any, needed: Sequence,
            known: Sequence) -> None:
  """Raises a UserError unless it is an object with these fields."""
  if not isinstance(content, dict):
    raise UserError(f'{where}: must hold an object; it holds a '
                    f'{type(content).__name__}')
  for name in content:
    if name not in known:
      hint = did_you_mean(name, list(known))
      raise UserError(f'{where}: {name:.80} is no field; the fields are '
                      f'{", ".join(known)}{"; " if hint else ""}{hint}')
  missing = [name for name in needed if name not in content]
  if missing:
    raise UserError(f'{where}: lacks {" and ".join(missing)}, without which '
                    'nothing can be predicted')


# --------------------------------------------------------------- calibrations


def to_json(learned: Calibration) -> str:
  """The content of a file for `find`."""
  def functions(found):
    return {name: {
        'count': one.count, 'typical_us': one.typical_us,
        'curves': {size: curve._asdict() for size, curve in one.curves.items()},
        'launches': [[*key, us] for key, us in one.launches.items()],
    } for name, one in found.items()}

  return json.dumps({'calibration': {
      'source': learned.source, 'kinds': functions(learned.kinds),
      'functions': functions(learned.functions), 'host': learned.host,
  }}, indent=1)


def _calibration(where: str, content: Any) -> Calibration:
  names = Calibration._fields
  _fields(where, content, names, names)
  if not isinstance(content['source'], str):
    raise UserError(f'{where}: source is {content["source"]!r:.80}; it must be '
                    'text')
  found = {}
  for name in ('kinds', 'functions', 'host'):
    _fields(f'{where}: {name}', content[name], (), content[name])
    found[name] = {
        key: (_number(f'{where}: host: {key:.80}', value, 0, 1e12)
              if name == 'host'
              else _function(f'{where}: {name}: {key:.80}', value))
        for key, value in content[name].items()}
  return Calibration(content['source'], **found)


_LIMITS = {'least_us': (_LEAST, 1e12), 'us_per_million': (1e-30, 1e18),
           'exponent': (0.1, 2), 'spread': (0, 1000)}


def _function(where: str, content: Any) -> Function:
  names = Function._fields
  _fields(where, content, names, names)
  curves = {}
  _fields(f'{where}: curves', content['curves'], (), calibrate.SIZES)
  for size, curve in content['curves'].items():
    _fields(f'{where}: {size}', curve, Curve._fields, Curve._fields)
    curves[size] = Curve(*(
        _number(f'{where}: {size}: {name}', curve[name], *_LIMITS[name])
        for name in Curve._fields))
  launches = {}
  if not isinstance(content['launches'], list):
    raise UserError(f'{where}: launches must be a list')
  for row in content['launches']:
    if not isinstance(row, list) or len(row) != len(calibrate.SIZES) + 1:
      raise UserError(f'{where}: launches holds {row!r:.80}; each must be '
                      f'[{", ".join(calibrate.SIZES)}, microseconds]')
    *sizes, us = (_number(f'{where}: launches', value, 0, 1e30)
                  for value in row)
    launches[tuple(map(float, sizes))] = us
  return Function(
      _number(f'{where}: count', content['count'], 1),
      _number(f'{where}: typical_us', content['typical_us'], _LEAST, 1e12),
      curves, launches)
