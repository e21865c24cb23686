"""Tuning data, programs and measured times -> .npz files of kernels."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import os
from collections.abc import Sequence

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel, readable
from tpu_graphs_ext.errors import UserError, reason_of
from tpu_graphs_ext.hlo import (
  features,
  kernel_sources,
  protos,
  tpu_compiler,
  tuning,
)

_COLUMNS = b'module,runtime_ns'  # Of run_scripts/time_modules.py.


def featurize(paths: Sequence[str], out_dir: str,
              tpu: str = schema.DEFAULT_TPU, jax_python: str = '',
              shapes: str = '') -> tuple[list[str], list[str]]:
  """Writes the kernels of files; (paths of the .npz files, messages of faults).

  Args:
    paths: tuning data, a CSV of `time_modules.py`, or a program as `rank` takes
      it, whose kernels have one tile, the compiler's, and no time.
    out_dir: the folder to write.
    tpu, jax_python, shapes: see `kernel_sources.read_source`.
  """
  written, faults = [], []
  for path in paths:
    try:
      results = _kernels(path, tpu, jax_python, shapes, faults)
      written += tuning.write_results(path, results, out_dir)
    except UserError as error:
      faults.append(str(error))
  return written, faults


def _kernels(path: str, tpu: str, jax_python: str, shapes: str,
             faults: list[str]) -> list:
  content = files.read_file(path, unpack=True) if (
      os.path.isfile(files.full_path(path))) else b''
  if content.startswith(_COLUMNS):
    return measured_kernels(path)
  if tuning.has_runs(content) or (protos.module_in(content) is None
                                  and tuning.parse_tuning_data('', content)):
    return tuning.read_results(path)
  source = kernel_sources.read_source(path, shapes, tpu, jax_python)
  faults += source.faults
  return [dataclasses.replace(kernel.kernel, tile_id=kernel_sources.tile_id(
      path, number, kernel.name))
          for number, kernel in enumerate(source.kernels) if kernel.kernel]


def measured_kernels(path: str) -> list[Kernel]:
  """The kernels of `rank --modules`, each with the tiles that were timed.

  Args:
    path: the CSV of `time_modules.py`, in the folder with the modules.

  Raises UserError if it, or `modules.json` beside it, is damaged.
  """
  try:
    return _measured(
        path, files.read_file(path, unpack=True).decode(errors='replace'))
  except (LookupError, TypeError, ValueError, AttributeError, OverflowError,
          csv.Error) as error:
    raise UserError(f'{path}: it, or modules.json beside it, is damaged '
                    f'({type(error).__name__}: {reason_of(error)})') from error


def _measured(path: str, text: str) -> list[Kernel]:
  folder = os.path.dirname(files.full_path(path))
  listed = {row['module']: row for row in files.read_json(
      os.path.join(folder, 'modules.json'))['modules']}
  timed = collections.defaultdict(list)
  for row in csv.DictReader(io.StringIO(text)):
    module, time = row['module'], row['runtime_ns'] or ''
    if module not in listed or not (
        time.isascii() and time.isdecimal() and int(time) > 1):
      raise UserError(f'{path}: module {module!r}, runtime_ns {time!r}: the '
                      'first must be in modules.json beside the file, the '
                      'second a whole number of at least 2 ns')
    timed[listed[module]['tile_id']].append((listed[module], int(time)))
  if not timed:
    raise UserError(f'{path}: no module was timed; time_modules.py says why')
  kernels = []
  for name, rows in timed.items():
    defaults = [time for row, time in rows if row['is_default']]
    if not defaults:
      raise UserError(f'{path}: kernel {name}: its default tile was not timed, '
                      'which the others are compared with')
    module = protos.as_module(files.read_file(
        os.path.join(folder, rows[0][0]['module'])))
    made = kernel_sources.source_kernel(
        tpu_compiler.kernels_of(module).kernels[0], name).kernel
    kernel = dataclasses.replace(
        made, config_feat=np.stack([features.config_features(
            row['kernel_bounds'], row['output_bounds']) for row, _ in rows]),
        runtime_ns=np.array([time for _, time in rows], np.int64),
        normalizer_ns=np.full(len(rows), defaults[0], np.int64))
    kernels.append(readable(kernel, f'{path}: kernel {name}'))
  return kernels
