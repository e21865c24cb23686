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
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.analytic.roofline import Gpu
from tpu_graphs_ext.errors import UserError, did_you_mean
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
_DEVICES = ('gpu', 'cpu')


class Hardware(NamedTuple):
  """Attributes:
    name: a preset's, or the file's.
    gpu: its peaks, also of a CPU.
    device: 'gpu', or 'cpu' where operators' own times on the host count.
    products: (batch, m, n, k) -> microseconds, measured matrix products.
  """
  name: str
  gpu: Gpu
  device: str = 'gpu'
  products: Optional[Mapping[tuple, float]] = None


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
      content = files.parse_json(file.read(1 << 20), where)
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  if not isinstance(content, dict):
    raise UserError(f'{where}: must hold an object with the fields of a '
                    f'machine; it holds a {type(content).__name__}')
  fields = {field.name: field for field in dataclasses.fields(Gpu)}
  known = [*fields, 'device', 'products']
  for name in content:
    if name not in known:
      hint = did_you_mean(name, known)
      raise UserError(f'{where}: {name} is no field; the fields are '
                      f'{", ".join(known)}{"; " if hint else ""}{hint}')
  missing = [name for name in ('dram_gb_s', 'gflop_s') if name not in content]
  if missing:
    raise UserError(f'{where}: lacks {" and ".join(missing)}, without which '
                    'nothing can be predicted')
  device = content.get('device', 'gpu')
  if device not in _DEVICES:
    raise UserError(f'{where}: device is {device!r}; it must be gpu or cpu')
  peaks = {name: _checked(where, name, content[name])
           for name in fields if name in content}
  # A cache that is not told of is none, and no faster than memory.
  peaks.setdefault('l2_gb_s', peaks['dram_gb_s'])
  peaks.setdefault('l2_bytes', 1)
  peaks.setdefault('multiprocessors', 1)
  return Hardware(path, Gpu(**peaks), device,
                  _products(where, content.get('products')))


_WHOLE = ('l2_bytes', 'multiprocessors')


def _checked(where: str, name: str, value: Any) -> Any:
  """A peak, which must be a number above 0; `kernel_us` may be 0."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  least = 'at least 0' if name == 'kernel_us' else 'above 0'
  if not number or not math.isfinite(value) or value < 0 or (
      value == 0 and name != 'kernel_us'):
    raise UserError(f'{where}: {name} is {value!r}; it must be a number '
                    f'{least}')
  if name in _WHOLE and value != int(value):
    raise UserError(f'{where}: {name} is {value!r}; it must be whole')
  return int(value) if name in _WHOLE else value


def _products(where: str, listed: Any) -> Optional[dict]:
  """{size: time} of [[batch, m, n, k, microseconds], ...]."""
  if listed is None:
    return None
  if not isinstance(listed, list) or not listed:
    raise UserError(f'{where}: products must be a list of [batch, m, n, k, '
                    'microseconds]')
  found = {}
  for row in listed:
    if not isinstance(row, list) or len(row) != 5 or not all(
        type(size) is int and size > 0 for size in row[:4]):
      raise UserError(f'{where}: products holds {row!r:.80}; each must be '
                      '[batch, m, n, k, microseconds], sizes at least 1')
    found[tuple(row[:4])] = _checked(where, 'products', row[4])
  return found
