"""Damaged files, and the limits within which they must be refused."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies

MOST_SECONDS = 5  # Of the processor; tests run beside one another.
MOST_BYTES = 1 << 30

# Any JSON, and what tends to be forgotten: other types, sizes and signs.
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers()
    | strategies.floats() | strategies.text(max_size=20)
    | strategies.sampled_from([10 ** 12, -1, 0, 10 ** 400, '', '{', '[' * 5000,
                               float('nan'), [], {}]),
    lambda inner: strategies.lists(inner, max_size=4)
    | strategies.dictionaries(strategies.text(max_size=8), inner, max_size=4),
    max_leaves=12)


def examples(count: int) -> hypothesis.settings:
  """So many inputs, the same ones each time, and nothing kept on disk."""
  return hypothesis.settings(
      max_examples=count, derandomize=True, database=None, deadline=None,
      suppress_health_check=list(hypothesis.HealthCheck))


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
  """The bytes with a few flipped, cut out, doubled or cut off."""
  data = bytearray(content)
  for _ in range(rng.integers(1, 4)):
    at = int(rng.integers(len(data)))
    kind = rng.integers(4)
    if kind == 0:
      data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
      data[at] = int(rng.integers(256))
    elif kind == 2:
      del data[at:at + int(rng.integers(1, 40))]
    else:
      data[at:at] = data[at:at + int(rng.integers(1, 40))]
    if not data:
      break
  return bytes(data)


@contextlib.contextmanager
def within_limits(what: Any) -> Iterator[None]:
  """Fails the input `what` if it hangs, or takes memory without need."""
  def hangs(*_):
    raise AssertionError(f'{what!r}: hangs')

  before, started = _most_memory(), time.process_time()
  handler = signal.signal(signal.SIGALRM, hangs)
  signal.alarm(20 * MOST_SECONDS)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
  assert time.process_time() - started < MOST_SECONDS, what
  assert _most_memory() - before < MOST_BYTES, what


def _most_memory() -> int:
  """The most bytes that this process has ever had."""
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most if sys.platform == 'darwin' else 1024 * most


def with_something_else(content: Any, path: list[int], value: Any) -> Any:
  """A copy of some JSON with another value in one place.

  The numbers in `path` choose a member at each level, as deep as it goes.
  """
  if not path or not isinstance(content, (dict, list)) or not content:
    return value
  keys = list(content) if isinstance(content, dict) else range(len(content))
  key, changed = keys[path[0] % len(keys)], content.copy()
  changed[key] = with_something_else(content[key], path[1:], value)
  return changed


# One of every type, and of each what readers tend to forget.
HOSTILE = (
    None, True, -1, 0, 10 ** 30, 10 ** 400, -10 ** 400, 1e300, -0.5,
    float('nan'), float('inf'), '', 'x', '=1', '\ud800', '\0', '9' * 5000,
    '--1', 'ProfilerStep#' + '9' * 5000, [], [[]], [None], ['x', 1], {},
    {'a': []}, {'min': 1, 'max': 10 ** 400})


def hostile(content: Any) -> Iterator[tuple[str, Any]]:
  """(place and value, a copy of some JSON with that value in that place).

  Every place, at any depth, gets every value of `HOSTILE`.
  """
  for value in HOSTILE:
    yield f'all = {value!r:.60}', value
  if not isinstance(content, (dict, list)):
    return
  keys = list(content) if isinstance(content, dict) else range(len(content))
  for key in keys:
    for what, changed in hostile(content[key]):
      copy = content.copy()
      copy[key] = changed
      yield f'{key}/{what}', copy
