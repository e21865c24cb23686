"""Damaged files, and the limits within which they must be refused."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

MOST_SECONDS = 5  # Of the processor; tests run beside one another.
MOST_BYTES = 1 << 30


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

  def most_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

  before, started = most_bytes(), time.process_time()
  handler = signal.signal(signal.SIGALRM, hangs)
  signal.alarm(20 * MOST_SECONDS)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
  assert time.process_time() - started < MOST_SECONDS, what
  assert most_bytes() - before < MOST_BYTES, what


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
  for key in content if isinstance(content, dict) else range(len(content)):
    for what, changed in hostile(content[key]):
      copy = content.copy()
      copy[key] = changed
      yield f'{key}/{what}', copy
