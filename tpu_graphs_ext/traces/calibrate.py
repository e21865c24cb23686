"""Times of kernels learned from traces, to predict the kernels of others.

    time = (least_us + multiply_adds / rate + bytes / bandwidth) * correction

Each kind and arithmetic has its formula, of threads where bytes are unknown;
the correction is kriging (Gaussian process regression) of what it misses.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import kinds
from tpu_graphs_ext.traces.sizes import SIZES

FILE = files.Output('--calibrate', '{\n "calibration": {', 'calibration')
ALL = ''  # Of all kernels but communication, in `formulas`.
# Of a formula, by the size that must be known: which of 1 and `SIZES` it has.
_FORMULAS = {'bytes': [0, 1, 2], 'threads': [0, 3], '': [0]}
_LEAST_US = 0.1  # Of a formula.
# Of kernels of the same arithmetic, family and function: standard deviations
# of the logarithm of their correction, and of a part of it that fades with the
# distance of their sizes, to 2/3 at the length beside it (in logarithms).
# Chosen by leaving out launches of an H200's sweep, the last on an H100.
_LEVELS = (0.0, 0.4, 1.5), (0.4, 0.4, 1.5), (0.3, 0.3, 1.2)
_NOISE = 0.05  # Of a size's median; a single duration has twice as much, and
# where means and medians differ three times their mean distance.
# What launches count if nothing, the known sizes, what ran beside, both differ.
_OTHER = np.array([1, 0.5, 0.95, 0.475])
_NEAREST = 24  # Launches to learn from.


@dataclasses.dataclass(frozen=True)
class Calibration:
  """What traces taught."""
  sources: tuple  # Trace, GPU, steps and number of kernels, in words.
  gpu: str  # Its name, or 'a GPU'.
  # By function and sizes, in the order of `SIZES`, 0 if unknown: typical and
  # mean microseconds, and their number.
  launches: Mapping[str, Mapping[tuple, tuple]]
  host: Mapping[str, tuple]  # Mean microseconds and their number, see `replay`.

  def us(self, name: str, sizes: Mapping[str, float],
         mean: bool = False) -> Optional[float]:
    """A kernel's predicted duration, of the least relative error; or its mean,
    which adds up; of communication always that. None if nothing is known."""
    kind, point = kinds.kind_of(name), _point(sizes)
    seen = self.launches.get(name, {})
    times = [*(seen.values() or self._known.get(kind, [()])[0])]
    if kind == kinds.COMMUNICATION:  # Versions differ in what is behind a (.
      off = [(abs(np.log(np.maximum(other, 1) / np.maximum(point, 1))).sum(),
              each) for function, points in self.launches.items()
             if function.split('(')[0] == name.split('(')[0]
             for other, each in points.items()]
      near = [each for far, each in off if far == min(off)[0]]
      return _joined(*near or times)[1] if times else None
    if not self.formulas:
      return None
    us = self.formula_us(name, point) * math.exp(self._correction(name, point))
    # The prediction counts as one more launch of a size that was seen.
    typical_us, mean_us, count = seen.get(point) or (
        *(_joined(*times)[:2] if times else (1, 1)), 0)
    us *= (typical_us / us)**(count / (count + 1))
    return us * mean_us / typical_us if mean else us

  def formula_us(self, name: str, point: Sequence[float]) -> float:
    """By the finest class that was seen, or as a product or element-wise."""
    kind, known = kinds.kind_of(name), kinds.class_of(name)
    terms = np.array([1, *point])
    for key in (known, kind, known.replace(kind, kinds.PRODUCT)
                if known != kind else kinds.ELEMENTWISE, ALL):
      for size, rates in self.formulas.get(key, {}).items():
        if terms[_FORMULAS[size][-1]]:
          return max(_LEAST_US, float(terms[_FORMULAS[size]] @ rates))
    return _LEAST_US

  @functools.cached_property
  def formulas(self) -> dict[str, dict[str, np.ndarray]]:
    """By class ('kind', 'kind, arithmetic' or `ALL`), then as in `_FORMULAS`:
    least_us and microseconds for each unit of its sizes, float64."""
    rows = collections.defaultdict(list)
    for name, points in self.launches.items():
      if (kind := kinds.kind_of(name)) != kinds.COMMUNICATION:
        for point, times in points.items():
          for key in {ALL, kind, kinds.class_of(name)}:
            rows[key].append((*point, times[0]))
    return {key: _fitted(np.array(table)) for key, table in rows.items()}

  @functools.cached_property
  def _known(self) -> dict[str, tuple]:
    """By kind, of all launches: times, sizes [.., 5], log(median / formula)
    and its variance, and labels [3, ..]."""
    rows, known = collections.defaultdict(list), {}
    for name, points in self.launches.items():
      for point, times in points.items():
        rows[kinds.kind_of(name)].append((
            times, point, kinds.labels_of(name),
            math.log(times[0] / self.formula_us(name, point))))
    for kind, launches in rows.items():
      times, points, labels, residual = zip(*launches)
      typical_us, mean_us, count = np.array(times).T
      # The more the sizes leave open, the more launches of one size differ.
      skew = np.average(abs(np.log(mean_us / typical_us)), weights=count)
      noise = _NOISE**2 + max(2 * _NOISE, 3 * skew)**2 / count
      known[kind] = (times, np.array(points), np.array(residual), noise,
                     np.array(labels, object).T)
    return known

  def _correction(self, name: str, point: Sequence[float]) -> float:
    """The logarithm of time / formula, expected from similar launches."""
    if kinds.kind_of(name) not in self._known:
      return 0.0
    _, sizes, residual, noise, labels = self._known[kinds.kind_of(name)]
    apart = np.log(np.maximum(sizes, 1)) - np.log(np.maximum(point, 1))
    other = (sizes == 0) != (np.array(point) == 0)
    apart[other], other = 0, other[:, :3].any(1) + 2 * other[:, 3:].any(1)
    covariance = _covariance(
        labels == np.array(kinds.labels_of(name), object)[:, None],
        (apart**2).sum(1), other)
    near = np.argsort(-covariance, kind='stable')[:_NEAREST]
    apart, other, labels = apart[near], other[near], labels[:, near]
    between = _covariance(
        labels[:, :, None] == labels[:, None],
        ((apart[:, None] - apart)**2).sum(2), other[:, None] ^ other)
    return float(covariance[near] @ np.linalg.solve(
        between + np.diag(noise[near]), residual[near]))


def _covariance(same, square, other) -> np.ndarray:
  """By squared distances of sizes, places in `_OTHER`, both [..], and whether
  labels are the same, [3, ..]."""
  return _OTHER[other] * sum(
      alike * (constant**2 + local**2 / (1 + square / (2 * length**2)))
      for alike, (constant, local, length) in zip(same, _LEVELS))


def _point(sizes: Mapping[str, float]) -> tuple:
  return tuple(float(sizes.get(size, 0)) for size in SIZES)


def _joined(*parts: Optional[tuple]) -> tuple:
  """Of (means.., count)s: the means over all of them, and their number."""
  *means, counts = zip(*filter(None, parts))
  return *np.average(means, 1, counts).tolist(), sum(counts)


def calibrate(source: str, gpu: str, kernels: Iterable[tuple],
              host: Mapping[str, tuple],
              earlier: Optional[Calibration] = None) -> Calibration:
  """Adds a (name, {size: value}, microseconds) for each kernel."""
  by_size = collections.defaultdict(list)
  for name, sizes, us in kernels:
    if us > 0:
      by_size[name, _point(sizes)].append(us)
  earlier = earlier or Calibration((), gpu, {}, {})
  launches = {name: dict(times) for name, times in earlier.launches.items()}
  for (name, point), each in by_size.items():
    points = launches.setdefault(name, {})
    points[point] = _joined(points.get(point), (
        _typical(each), statistics.fmean(each), len(each)))
  return Calibration((*earlier.sources, source), gpu, launches, {
      **earlier.host, **{key: _joined(earlier.host.get(key), pair)
                         for key, pair in host.items()}})


def _typical(times: Sequence[float]) -> float:
  """The median weighted by 1 / us: its relative errors are the least."""
  times = np.sort(times)
  weight = np.cumsum(1 / times)
  return float(np.interp(weight[-1] / 2, weight - 0.5 / times, times))


def _fitted(table: np.ndarray) -> dict[str, np.ndarray]:
  """least_us, at most what the shortest tenth takes, and rates of each formula.

  table: float64 [launches, 6]: `SIZES` and microseconds. Minimizes the sum of
  |log(formula / time)|.
  """
  from scipy import optimize
  fitted = {}
  for size, columns in _FORMULAS.items():
    terms = np.insert(table[:, :-1], 0, 1, axis=1)[:, columns]
    some = terms[:, -1] > 0
    if not some.any():
      continue
    us = table[some, -1]
    terms = terms[some] / us[:, None]
    scale, weight = terms.max(0) + 1e-300, np.ones(len(us))
    least = np.quantile(us, 0.1) * scale[0]
    for _ in range(20):
      root = np.sqrt(weight)[:, None]
      rates = optimize.lsq_linear(terms / scale * root, root[:, 0], (
          0, [least, *[np.inf] * len(columns[1:])]), method='bvls').x
      ratio = terms / scale @ rates
      weight = 1 / (np.maximum(abs(ratio - 1), 0.1) * ratio.clip(0.01, 100))
    fitted[size] = rates / scale
  return fitted


def to_json(learned: Calibration) -> str:
  """The content of a file for `read`."""
  return json.dumps({'calibration': {
      **dataclasses.asdict(learned),
      'launches': {name: [[*point, *times] for point, times in points.items()]
                   for name, points in learned.launches.items()}}}, indent=1)


def read(path: str, flag: str = '--hardware') -> Calibration:
  """Reads what `--calibrate` wrote; UserError if a field is another."""
  content = files.read_json(os.path.expanduser(path))
  try:
    known = content['calibration']
    return Calibration(
        tuple(map(str, known['sources'])), str(known['gpu']),
        {name: {row[:5]: row[5:] for row in _numbers(rows, 8, 5)}
         for name, rows in known['launches'].items()},
        dict(zip(known['host'], _numbers([*known['host'].values()], 2, 1))))
  except (ValueError, TypeError, LookupError, AttributeError) as error:
    raise UserError(
        f'{flag}={path}: was not written by --calibrate of this version, or is '
        f'damaged ({ascii(str(error))[1:-1][:200]}); calibrate into another '
        'file') from error


def _numbers(rows: list, count: int, times: int) -> list[tuple]:
  """Rows of numbers; those from a place on are times and counts."""
  table = np.array(rows, float).reshape(len(rows), count)
  wrong = ~((table >= 0) & (table <= 1e30)).all(1) | ~table[:, times:].all(1)
  if wrong.any():
    raise ValueError(f'{rows[wrong.argmax()]!r:.60} must be numbers from 0 to '
                     '1e30, and times and counts above 0')
  return [*map(tuple, table.tolist())]
