"""What `evaluate` measured, as a CSV of one row a kernel and model.

Columns: the model's folder and the data, the fields of `KernelResult` by their
names, and those that depend on k once for each, as `slowdown_5`. Empty where a
measure is undefined. Slowdowns are parts: 0.2 is 20 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tpu_graphs_ext import csv_text
from tpu_graphs_ext.host import outputs
from tpu_graphs_ext.host.evaluate import Evaluation, KernelResult

_FIRST = ('model_dir', 'data', 'tile_id', 'program', 'kind', 'configs',
          'rankable', 'repeats')
_BY_K = ('slowdown', 'slowdown_kept', 'random')
_LAST = ('default', 'opa', 'kendall')
FILE = outputs.Text('--csv', ','.join(_FIRST), 'CSV of evaluate')


def text(evaluations: Sequence[Evaluation]) -> str:
  """The file that the module's docstring describes.

  Args:
    evaluations: all with the same `ks`.
  """
  ks = evaluations[0].ks
  rows = [[*_FIRST, *(f'{name}_{k}' for name in _BY_K for k in ks), *_LAST]]
  for evaluation in evaluations:
    for result in evaluation.results:
      rows.append([evaluation.model_dir, evaluation.data,
                   *_cells(result, ks)])
  return csv_text.of_rows(rows)


def _cells(result: KernelResult, ks: Sequence[int]) -> list[Any]:
  cells = [getattr(result, name) for name in _FIRST[2:]]
  cells += [getattr(result, name)[k] for name in _BY_K for k in ks]
  cells += [getattr(result, name) for name in _LAST]
  return ['' if isinstance(cell, float) and math.isnan(cell) else cell
          for cell in cells]
