"""Predicted against measured times of a trace's kernels and steps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import calibrate, kineto, replay, sizes
from tpu_graphs_ext.traces.calibrate import Calibration
from tpu_graphs_ext.traces.kineto import Trace

ALL = 'all of these'
COLUMNS = ['kernel', 'operator', 'kind', 'start_us', 'measured_us',
           'predicted_us', 'error', *calibrate.SIZES]


class Comparison(NamedTuple):
  """Predicted and measured times of a trace."""
  trace: Trace
  source: str  # Of the calibration.
  kernels: pd.DataFrame  # `COLUMNS` of each kernel, copy and fill, by start.
  # Microseconds from the first launch to the last end of work: measured,
  # predicted, and with communication as recorded; {} without a launch.
  step: dict[str, float]
  communication_us: float  # Time of kernels that wait for other processes.
  coverage: float  # Share of the GPU's other time that is predicted.


def calibrated(path: str, steps: Optional[Sequence[int]] = None) -> Calibration:
  """Learns the constants of a GPU from the kernels of a trace's steps, or all.

  Raises UserError unless it is a trace with GPU work in these steps.
  """
  trace = _work_of(path, steps)
  where = f'steps {trace.steps[0]}-{trace.steps[-1]}' if trace.steps else 'all'
  return calibrate.calibrate(
      f'{os.path.basename(path)}, {trace.gpu}, {where}',
      ((one.name, sizes.sizes_of(one), one.duration_us) for one in trace.work),
      replay.host_of(trace))


def compared(path: str, steps: Optional[Sequence[int]],
             learned: Calibration) -> Comparison:
  """Predicts a trace's kernels and steps; raises UserError as `calibrated`."""
  trace = _work_of(path, steps)
  rows, means, recorded = [], {}, {}
  for one in trace.work:
    size, kind = sizes.sizes_of(one), calibrate.kind_of(one.name)
    mean = learned.us(one.name, size, mean=True)
    means[one] = one.duration_us if mean is None else mean
    us = learned.us(one.name, size)
    if kind == calibrate.COMMUNICATION:
      us, recorded[one] = None, one.duration_us
    rows.append([one.name, one.caller.name if one.caller else '', kind,
                 one.start, one.duration_us, us, None,
                 *(size.get(name) for name in calibrate.SIZES)])
  kernels = pd.DataFrame(rows, columns=COLUMNS).astype(
      dict.fromkeys(COLUMNS[3:], float))
  us, predicted_us = kernels.measured_us, kernels.predicted_us
  kernels['error'] = (predicted_us - us).abs() / us.where(us > 0)
  predicted, measured = replay.replay(trace, learned.host, means)
  known, _ = replay.replay(trace, learned.host, {**means, **recorded})
  step = {'measured_us': measured, 'predicted_us': predicted,
          'communication_as_recorded_us': known} if measured else {}
  rest = us[kernels.kind != calibrate.COMMUNICATION].sum()
  return Comparison(
      trace, learned.source, kernels, step, float(us.sum() - rest),
      float(us[predicted_us.notna()].sum() / rest) if rest else 0.0)


def _work_of(path: str, steps: Optional[Sequence[int]]) -> Trace:
  trace = kineto.steps_of(kineto.read(path), steps)
  if not any(one.duration_us > 0 for one in trace.work):
    raise UserError(f'{path}: has no GPU work in these steps; record it with '
                    'ProfilerActivity.CUDA')
  return trace


def summary(kernels: pd.DataFrame, by: str = 'kind') -> pd.DataFrame:
  """Predicted kernels by a column, the longest first, all of them last."""
  known = kernels[kernels.predicted_us.notna()]
  # Errors below 1 % count as 1 %, so that a single 0 does not decide.
  known = known.assign(log=np.log(known.error.clip(lower=0.01)))
  both = pd.concat([known, known.assign(**{by: ALL})])
  found = both.groupby(by).agg(
      kernels=('kind', 'size'), measured_us=('measured_us', 'sum'),
      predicted_us=('predicted_us', 'sum'), mean_error=('error', 'mean'),
      geometric_error=('log', 'mean'))
  found['geometric_error'] = np.exp(found.geometric_error)
  found.insert(3, 'ratio', found.predicted_us / found.measured_us)
  order = found.measured_us.where(found.index != ALL, -1)
  return found.loc[order.sort_values(ascending=False).index]


def text(found: Comparison, top: int = 15) -> str:
  """Tables of the kinds, the step, and the `top` largest errors in us."""
  trace, kernels = found.trace, found.kernels
  steps = ', '.join(map(str, trace.steps)) or 'all of it'
  lines = [f'{trace.path}: {trace.gpu}, steps {steps}',
           f'  learned from {found.source}', '',
           'By kind; times in us, errors |predicted - measured| / measured',
           _table(summary(kernels)),
           f'{100 * found.coverage:.1f} % of the time of the GPU is predicted, '
           'without communication, which takes '
           f'{found.communication_us:,.0f} us', '']
  if found.step:
    measured, predicted, known = found.step.values()
    lines += ['From the first launch to the last end, in us: measured '
              f'{measured:,.1f}, predicted {predicted:,.1f} '
              f'({100 * (predicted / measured - 1):+.1f} %), with '
              f'communication as recorded {known:,.1f} '
              f'({100 * (known / measured - 1):+.1f} %)', '']
  by_function = summary(kernels, 'kernel').drop(ALL, errors='ignore')
  off = (by_function.predicted_us - by_function.measured_us).abs()
  dearest = off.sort_values(ascending=False).index[:top]
  return '\n'.join([*lines, 'Kernel functions with the largest errors in us',
                    _table(by_function.loc[dearest])])


_FORMATS = {'kernels': '{:,d}'.format, 'ratio': '{:.3f}'.format,
            **dict.fromkeys(('measured_us', 'predicted_us'), '{:,.1f}'.format),
            **dict.fromkeys(('mean_error', 'geometric_error'),
                            lambda share: f'{100 * share:.1f} %')}


def _table(frame: pd.DataFrame) -> str:
  if frame.empty:
    return '  none'
  shown = frame.rename(lambda name: name[:60]).rename_axis(None)
  return shown.to_string(formatters=_FORMATS, na_rep='-')


def to_json(found: Comparison) -> dict[str, Any]:
  """Everything; times in microseconds, errors as fractions."""
  kinds, kernels = (
      json.loads(frame.to_json(orient='records', double_precision=15))
      for frame in (summary(found.kernels).reset_index(), found.kernels))
  return {
      'file': found.trace.path, 'gpu': found.trace.gpu,
      'steps': list(found.trace.steps), 'learned_from': found.source,
      'communication_us': found.communication_us, 'coverage': found.coverage,
      'step': found.step, 'kinds': kinds, 'kernels': kernels}
