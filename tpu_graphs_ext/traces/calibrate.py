"""Times of kernels learned from a trace, to predict the kernels of others.

    time = least_us + us_per_million * (size / 1e6) ** exponent

A kernel's size is what its operator computes (`multiply_adds`) or moves
(`bytes`), or the `threads` that it launches, whichever explains its times best.
Each kernel function has such curves, shrunk towards those of its kind.
"""

from __future__ import annotations

import collections
import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError

FILE = files.Output('--calibrate', '{\n "calibration": {', 'calibration')
COMMUNICATION, SORT = 'communication', 'sort or scan'
ANY_OTHER = 'any other'  # Of kinds never seen; learned from all.
_KINDS = [(kind, re.compile(pattern)) for kind, pattern in (
    (COMMUNICATION, r'nccl|rccl|AllReduce|SendRecv'),
    ('copy to or from host', r'^Memcpy (HtoD|DtoH)'),
    ('copy or fill', r'^Mem(cpy|set)'),
    ('product', r'(?<!fb)gemm|gemv|cutlass|splitK|cublas|dot_kernel|'
                r'globalKernel'),
    ('normalisation', r'[nN]orm|bn_[bf]w'),
    ('convolution', r'conv|[wd]grad|cudnn|winograd|nchwTo|nhwcTo'),
    ('embedding', r'embedding|bounds_check|pooled_emb'),
    (SORT, r'RadixSort|Scan|Sort|Histogram|[uU]nique|cub::|thrust'),
    ('concat', r'CatArray'), ('optimizer', r'multi_tensor'),
    ('reduction', r'[rR]educe|softmax'),
    ('indexing', r'index|gather|scatter|permute|jagged|bucketize|sparse|'
                 r'lengths|segment'),
    ('element-wise', r'elementwise|Functor|_kernel_cuda'))]
# They read only some rows of their inputs.
LOOKING_UP = 'embedding', 'indexing'
# A formula carries further than a number of threads, if both explain alike:
# factors of a curve's spread.
SIZES = {'multiply_adds': 0.7, 'bytes': 0.85, 'threads': 1.0}

# Standard deviations of log(least), log(rest) and exponent around the prior of
# the curve of all kernels (almost free), of a kind, of a function.
_OF_ALL, _OF_KIND, _OF_FUNCTION = (
    (2.0, 20.0, 0.05), (1.0, 1.5, 0.05), (0.5, 1.5, 0.05))
_EXPONENT = 0.95
_NOISE = 0.1  # Standard deviation of the logarithm of a duration.
_BOUNDS = ((-5.0, -50.0, 0.2), (20.0, 30.0, 1.3))
_MOST_REPEATS = 10


class Curve(NamedTuple):
  """Time over size, and `spread`: the mean |log(measured / predicted)|."""
  least_us: float
  us_per_million: float
  exponent: float
  spread: float

  def us(self, size: float) -> float:
    return self.least_us + self.us_per_million * (size / 1e6)**self.exponent


class Function(NamedTuple):
  """The times of a kernel function, or of all functions of a kind."""
  count: int  # Kernels that it was learned from.
  # The median; of communication, whose sizes are unknown, the mean, because the
  # sum over a step is what counts.
  typical_us: float
  # Sum of measured times / sum of predicted times: medians add up to too little
  # (the smearing estimate of Duan, 1983).
  mean_ratio: float
  curves: Mapping[str, Curve]  # By size (of `SIZES`), the best first.
  launches: Mapping[tuple, float]  # Time by sizes, in the order of `SIZES`.

  def us(self, sizes: Mapping[str, float]) -> Optional[float]:
    """The predicted duration; None if the sizes are unknown."""
    seen = self.launches.get(_key(sizes))
    if seen is not None:
      return seen
    for size, curve in self.curves.items():
      if size in sizes:
        return curve.us(sizes[size])
    return None if self.curves else self.typical_us


class Calibration(NamedTuple):
  """What a trace's kernels taught."""
  source: str  # Trace, GPU and steps, in words.
  kinds: Mapping[str, Function]
  functions: Mapping[str, Function]
  host: Mapping[str, float]  # See `replay`.

  def us(self, name: str, sizes: Mapping[str, float],
         mean: bool = False) -> Optional[float]:
    """The predicted duration of a kernel; None if its sizes are unknown.

    The median, or with `mean` the mean, which adds up to the time of many.
    """
    kind = kind_of(name)
    others = self.kinds.get(ANY_OTHER) if kind != COMMUNICATION else None
    for known in (self.functions.get(name), self.kinds.get(kind), others):
      if known and (found := known.us(sizes)) is not None:
        return found * known.mean_ratio if mean else found
    return None


def kind_of(name: str) -> str:
  """The kind of a kernel, by its function's name."""
  return next((kind for kind, pattern in _KINDS if pattern.search(name)),
              'other')


def calibrate(source: str, kernels: Iterable[tuple],
              host: Mapping[str, float]) -> Calibration:
  """Learns from a (name, {size: value}, microseconds) per kernel."""
  by_kind, by_name = (collections.defaultdict(list) for _ in range(2))
  for name, sizes, us in kernels:
    if us > 0:
      by_kind[kind_of(name)].append((sizes, us))
      by_name[name].append((sizes, us))
  fastest = sorted(us for rows in by_kind.values() for _, us in rows)
  start = Curve(fastest[len(fastest) // 50], 0.0, _EXPONENT, 0.0)
  whole = Function(0, 0.0, 1.0, dict.fromkeys(SIZES, start), {})
  computing = [row for kind, rows in by_kind.items() for row in rows
               if kind != COMMUNICATION]
  if computing:
    whole = _learned('', computing, whole, _OF_ALL)
  kinds = {kind: _learned(kind, rows, whole, _OF_KIND)
           for kind, rows in by_kind.items()}
  functions = {}
  for name, rows in by_name.items():
    kind = kind_of(name)
    functions[name] = _learned(
        kind, rows, kinds[kind], _OF_FUNCTION, launches=True)
  if computing:
    kinds[ANY_OTHER] = whole
  return Calibration(source, kinds, functions, host)


def _learned(kind: str, rows: Sequence[tuple], prior: Function,
             scatter: tuple, launches: bool = False) -> Function:
  """Learns from (sizes, microseconds) of kernels."""
  if kind == COMMUNICATION:
    return Function(
        len(rows), statistics.fmean(us for _, us in rows), 1.0, {}, {})
  curves = {}
  for size, center in prior.curves.items():
    known = [(sizes[size], us) for sizes, us in rows if sizes.get(size)]
    if known:
      curve = _fitted(known, center, scatter)
      curves[curve.spread * SIZES[size], size] = curve
  found = Function(
      len(rows), statistics.median(us for _, us in rows), 1.0,
      {size: curve for (_, size), curve in sorted(curves.items())}, {})
  if launches:
    found = found._replace(launches=_seen(rows, found))
  known = [(us, of) for sizes, us in rows if (of := found.us(sizes))]
  return found._replace(mean_ratio=sum(us for us, _ in known)
                        / sum(of for _, of in known)) if known else found


def _seen(rows: Sequence[tuple], function: Function) -> dict[tuple, float]:
  """Median time per size seen; the curve's time counts as one more kernel."""
  times, curve = collections.defaultdict(list), {}
  for sizes, us in rows:
    times[_key(sizes)].append(us)
    curve[_key(sizes)] = function.us(sizes) or function.typical_us
  return {key: math.exp(
      (len(found) * math.log(statistics.median(found)) + math.log(curve[key]))
      / (len(found) + 1)) for key, found in times.items()}


def _key(sizes: Mapping[str, float]) -> tuple:
  return tuple(float(sizes.get(size, 0)) for size in SIZES)


def _fitted(known: Sequence[tuple], center: Curve, scatter: tuple) -> Curve:
  """The curve of (size, microseconds), fitted on logarithms.

  Medians by size, a soft L1 loss, and `center` with `scatter` as a prior of
  log(least), log(rest of a size of 1e6) and exponent, so that few sizes
  suffice. A `center` without a rest gets one from the times.
  """
  from scipy import optimize
  by_size = collections.defaultdict(list)
  for size, us in known:
    by_size[size].append(us)
  log_size = np.log(np.array(list(by_size), float) / 1e6)
  log_us = np.log([statistics.median(times) for times in by_size.values()])
  weight = np.sqrt([min(len(times), _MOST_REPEATS)
                    for times in by_size.values()]) / _NOISE
  rest = center.us_per_million and math.log(center.us_per_million)
  if not center.us_per_million:
    above = np.maximum(np.exp(log_us) - center.least_us, np.exp(log_us) / 4)
    rest = float(np.median(np.log(above) - center.exponent * log_size))
  prior = np.array((math.log(center.least_us), rest, center.exponent))
  scatter = np.array(scatter)

  def residuals(at):
    off = np.logaddexp(at[0], at[1] + at[2] * log_size) - log_us
    return np.concatenate((off * weight, (at - prior) / scatter))

  low, high = map(np.array, _BOUNDS)
  # What the fastest took bounds the least time, however little of the rest
  # the size explains.
  high[0] = max(log_us.min(), low[0] + 1e-3)
  least, rest, exponent = optimize.least_squares(
      residuals, np.clip(prior, low + 1e-6, high - 1e-6),
      loss='soft_l1', bounds=(low, high)).x
  curve = Curve(math.exp(least), math.exp(rest), float(exponent), 0.0)
  spread = statistics.fmean(
      abs(math.log(us / curve.us(size))) for size, us in known)
  return curve._replace(spread=spread)


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
  """Reads what `--calibrate` wrote; UserError if a value is out of range."""
  content = files.read_json(os.path.expanduser(path))
  try:
    found = Calibration(**content['calibration'])
    _check_numbers('', [found.kinds, found.functions, found.host])
    return found._replace(kinds=_functions(found.kinds),
                          functions=_functions(found.functions))
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    reason = ascii(f'{type(error).__name__}: {error}'[:200])
    raise UserError(f'--hardware={path}: was not written by --calibrate, or is '
                    f'damaged ({reason}); calibrate again') from error


def _functions(content: dict) -> dict[str, Function]:
  return {name: Function(**{
      **one, 'curves': {size: Curve(**curve)
                        for size, curve in one['curves'].items()},
      'launches': {tuple(map(float, sizes)): us
                   for *sizes, us in one['launches']}})
          for name, one in content.items()}


def _check_numbers(name: str, value: Any) -> None:
  """Only numbers in range, which excludes NaN, huge integers and powers."""
  most = 2 if name == 'exponent' else 1e30
  if isinstance(value, dict):
    for key, one in value.items():
      _check_numbers(key, one)
  elif isinstance(value, list):
    for one in value:
      _check_numbers(name, one)
  elif type(value) not in (int, float) or not 0 <= value <= most:
    raise ValueError(f'{name} is {value!r:.80}; it must be a number from 0 to '
                     f'{most:g}')
