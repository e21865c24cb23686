"""Whether lists of chosen configurations follow from scores.

Configurations whose scores are equal but for rounding may change places; a
kernel with fewer configurations than places is padded with 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Scores of one model on one kernel agree to this, relatively, between hosts.
ROUNDING = 1e-5


class Agreement(NamedTuple):
  """Names of kernels, sorted into five lists.

  Attributes:
    same: the choice follows from the scores.
    different: it does not.
    impossible: the kernel lacks such a configuration, or one is named twice.
    unknown: a choice without scores.
    missing: scores without a choice.
  """
  same: list[str]
  different: list[str]
  impossible: list[str]
  unknown: list[str]
  missing: list[str]

  @property
  def odd(self) -> list[str]:
    """All but `same`."""
    return self.different + self.impossible + self.unknown + self.missing


def compare(chosen: Mapping[str, Sequence[int]],
            scores: Mapping[str, np.ndarray]) -> Agreement:
  """Compares choices with scores, kernel by kernel.

  Args:
    chosen: tile id -> configuration indices, best first, padded with 0.
    scores: tile id -> float [configs], lower is better.
  """
  result = Agreement([], [], [],
                     unknown=[name for name in chosen if name not in scores],
                     missing=[name for name in scores if name not in chosen])
  # A small score may be a difference of large terms, and no more exact.
  size = np.median([np.abs(s).max() for s in scores.values()] or [0])
  for name in [name for name in scores if name in chosen]:
    of_kernel, places = scores[name], list(chosen[name])
    first = places[:len(of_kernel)]
    if not is_possible(places, len(of_kernel)):
      result.impossible.append(name)
      continue
    follows = np.allclose(
        of_kernel[first], np.sort(of_kernel)[:len(first)], rtol=0,
        atol=ROUNDING * max(size, np.abs(of_kernel).max()))
    (result.same if follows else result.different).append(name)
  return result


def is_possible(places: Sequence[int], num_configs: int) -> bool:
  """True for distinct indices of a kernel, padded with 0 if it has too few."""
  first, padding = places[:num_configs], places[num_configs:]
  return (all(0 <= index < num_configs for index in first)
          and len(set(first)) == len(first) and not any(padding))
