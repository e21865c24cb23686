"""Predicted against measured times of a trace's kernels and steps."""

from __future__ import annotations

import collections
import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import calibrate, kinds, kineto, replay, sizes
from tpu_graphs_ext.traces.calibrate import Calibration

_log = logging.getLogger(__name__)

ALL = 'all of these'
COLUMNS = ['kernel', 'operator', 'kind', 'start_us', 'measured_us',
           'predicted_us', 'error', *sizes.SIZES]
# What the profiler adds to the host, where no sweep tells: of an H200, in us.
_ADDED = {'operator': 0.6, 'runtime': 7.4}


class Comparison(NamedTuple):
  """Predicted and measured times of a trace."""
  trace: kineto.Trace
  source: str  # Of the calibration.
  kernels: pd.DataFrame  # `COLUMNS` of each kernel, copy and fill, by start.
  step: dict[str, Any]  # See `_step`.
  communication_us: float  # Time of kernels that wait for other processes.


def calibrated(paths: str | Sequence[str],
               steps: Optional[Sequence[int]] = None,
               learned: Optional[Calibration] = None) -> Calibration:
  """Learns the constants of a GPU from the kernels of traces' steps, or all.

  Adds to what was `learned`; the host's constants only from programs. Raises
  UserError unless these are traces of one GPU, with GPU work in these steps.
  """
  for path in [paths] if isinstance(paths, str) else paths:
    trace = _work_of(path, steps)
    rows = [(each.name, size, each.duration_us)
            for each, size in zip(trace.work, sizes.all_sizes(trace))]
    part = f'steps {trace.steps[0]}-{trace.steps[-1]}' if trace.steps else 'all'
    part += f' of {_digest(trace)}'
    source = (f'{os.path.basename(path)}, {trace.gpu}, {part}, '
              f'{sum(us for *_, us in rows):,.0f} us in {len(rows):,}')
    if learned and any(_overlap(part, each) for each in learned.sources):
      raise UserError(f'{path}: the calibration already has these kernels, or '
                      'some of them; leave these steps out, or calibrate into '
                      'another file')
    if learned and trace.gpu != learned.gpu:
      raise UserError(
          f'{path}: is of {trace.gpu}, but the calibration of {learned.gpu}')
    host = {f'profiler {key}': (float(us), 1)
            for key, us in (trace.sweep or {}).items()
            if key in _ADDED and kineto.is_number(us) and us >= 0}
    # In another's sweep, of a great many kernels, hardly any runs twice a step.
    different = {(name, *map(size.get, sizes.SIZES[:3]))
                 for name, size, _ in rows}
    if trace.sweep is None and (
        len(different) <= max(1000, len(rows) / max(len(trace.steps), 1) / 3)):
      host = replay.host_of(trace)
    learned = calibrate.calibrate(source, trace.gpu, rows, host, learned)
  return learned


def _digest(trace: kineto.Trace) -> str:
  """Tells files apart by all their GPU work, whatever steps are chosen."""
  return hashlib.sha256(repr([
      (each.name, each.place, each.start, each.end)
      for each in trace.all_work]).encode()).hexdigest()[:12]


def _overlap(part: str, source: str) -> bool:
  """Whether a calibration's source has a step of the part 'steps N-M of file',
  or is of the same file without steps."""
  steps, _, file = part.rpartition(' of ')
  earlier = re.search(rf'(\d+-\d+|all) of {file},', source)
  if not earlier or 'all' in (steps, earlier[1]):
    return bool(earlier)
  (low, high), (first, last) = (
      map(int, text.split()[-1].split('-')) for text in (steps, earlier[1]))
  return low <= last and first <= high


def compared(path: str, steps: Optional[Sequence[int]],
             learned: Calibration) -> Comparison:
  """Predicts a trace's kernels and steps; raises UserError as `calibrated`."""
  trace = _work_of(path, steps)
  if trace.gpu != learned.gpu:
    _log.warning('%s: recorded on %s, but the calibration, and so each '
                 'prediction, is for %s', path, trace.gpu, learned.gpu)
  rows, means, recorded, known = [], {}, {}, {}
  # The best guess of a duration in whole microseconds is whole.
  whole = all(each.duration_us.is_integer() for each in trace.all_work)
  for each, size in zip(trace.work, sizes.all_sizes(trace)):
    key, kind = (each.name, *size.items()), kinds.kind_of(each.name)
    if key not in known:
      known[key] = [learned.us(each.name, size, mean) for mean in (False, True)]
    measured, (us, mean) = each.duration_us, known[key]
    us = round(us) if us and whole else us
    means[each] = measured if mean is None else mean
    if kind == kinds.COMMUNICATION:
      us, recorded[each] = None, measured
    rows.append([
        each.name, each.caller.name if each.caller else '', kind, each.start,
        measured, us, None, *map(size.get, sizes.SIZES)])
  kernels = pd.DataFrame(rows, columns=COLUMNS).astype(
      dict.fromkeys(COLUMNS[3:], float))
  us = kernels.measured_us
  kernels['error'] = (kernels.predicted_us - us).abs() / us.where(us > 0)
  return Comparison(trace, '; '.join(learned.sources), kernels,
                    _step(trace, learned, means, recorded),
                    sum(recorded.values()))


def _step(trace: kineto.Trace, learned: Calibration, means: dict,
          recorded: dict) -> dict[str, Any]:
  """Microseconds of a step, None where no host or no kernel but communication
  is known, and the steps left out; {} without a launch."""
  (predicted, measured, busy, slow), (known, *_) = (
      replay.replay(trace, learned.host, times)
      for times in (means, {**means, **recorded}))
  # Formulas say something of every kernel but communication.
  if replay.PAUSE not in learned.host or not (
      learned.formulas or recorded.keys() == means.keys()):
    predicted = known = None
  count = len({call.step for call in trace.calls} - {None}) or 1
  calls = collections.Counter(call.kind for call in trace.calls)
  added_us = sum(learned.host.get(f'profiler {kind}', (us,))[0] * calls[kind]
                 for kind, us in _ADDED.items())
  return {} if not measured else {
      'measured_us': measured, 'predicted_us': predicted,
      'communication_as_recorded_us': known,
      'gpu_busy_us': busy, 'profiler_us': added_us / count, 'slow_steps': slow}


def _work_of(path: str, steps: Optional[Sequence[int]]) -> kineto.Trace:
  trace = kineto.steps_of(kineto.read(path), steps)
  if not any(each.duration_us > 0 for each in trace.work):
    raise UserError(
        f'{path}: has no GPU work in these steps, or not as kernel, gpu_memcpy '
        'and gpu_memset; record it with torch.profiler, ProfilerActivity.CUDA '
        'and PyTorch 1.13 or later, on a GPU of NVIDIA or AMD (Intel XPUs, and '
        "files of ROCm's own profiler, are not read)")
  return trace


def _step_lines(trace, measured, predicted, known, busy, added, slow) -> list:
  what = ('A step, from the end of one to the end of the next' if trace.steps
          else 'From the first launch to the last end')
  said = ('not predicted: this needs --calibrate on such kernels, and on a '
          'program, for the host')
  if predicted is not None:
    said = 'predicted ' + ', with communication as recorded '.join(
        f'{us:,.1f} ({100 * (us / measured - 1):+.1f} %)'
        for us in (predicted, known))
  lines = [f'{what}, in us: measured {measured:,.1f}, {said}']
  if busy < 0.9 * measured:
    lines.append(
        f'The GPU is busy for {busy:,.0f} us of it. The profiler adds about '
        f'{added:,.0f} us to the host; without it expect about '
        f'{max(busy, measured - added):,.0f} us')
  if slow:
    lines.append(f'Left out are steps that took longer: {str(slow)[1:-1]}')
  return lines


def summary(kernels: pd.DataFrame) -> pd.DataFrame:
  """Predicted kernels by kind, the longest first, all of them last."""
  known = kernels[kernels.predicted_us.notna()]
  table = pd.concat([known, known.assign(kind=ALL)]).groupby('kind').agg(
      kernels=('kind', 'size'), measured_us=('measured_us', 'sum'),
      predicted_us=('predicted_us', 'sum'), mean_error=('error', 'mean'),
      # Errors below 1 % count as 1 %, so that a single 0 does not decide.
      geometric_error=('error', lambda errors: np.exp(
          np.log(errors.clip(lower=0.01)).mean())))
  table.insert(3, 'ratio', table.predicted_us / table.measured_us)
  order = table.measured_us.where(table.index != ALL, -1)
  return table.loc[order.sort_values(ascending=False).index]


def text(result: Comparison) -> str:
  """A table of the kinds, and the step."""
  trace, table = result.trace, summary(result.kernels).rename_axis(None)
  lines = [f'{trace.path}: {trace.gpu}, steps '
           f'{str([*trace.steps])[1:-1] or "all of it"}',
           f'  learned from {result.source}']
  if trace.dropped:
    lines.append(
        f'  {trace.dropped:,} events are left out: they end after the next one '
        'of their stream begins, or take an hour')
  return '\n'.join([
      *lines, '', 'By kind; times in us, errors |predicted - measured| / '
      'measured', '  none' if table.empty else table.to_string(
          na_rep='-', float_format='{:,.3f}'.format),
      'Communication, which is not compared, takes '
      f'{result.communication_us:,.0f} us', '',
      *(_step_lines(trace, *result.step.values()) if result.step else ())])


def to_json(result: Comparison) -> dict[str, Any]:
  """Everything; times in microseconds, errors as fractions."""
  trace = result.trace
  return {
      'file': trace.path, 'gpu': trace.gpu, 'steps': list(trace.steps),
      'learned_from': result.source, 'dropped': trace.dropped,
      'communication_us': result.communication_us, 'step': result.step,
      **{name: json.loads(frame.to_json(orient='records', double_precision=15))
         for name, frame in (('kinds', summary(result.kernels).reset_index()),
                             ('kernels', result.kernels))}}
