"""Whether choices of configurations follow from scores.

Configurations whose scores are equal but for rounding may change places; a
kernel with fewer configurations than places is padded with 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tpu_graphs_ext.engine import predictions_csv

# Scores of one model on one kernel agree to this, relatively, between hosts.
ROUNDING = 1e-5
# How a choice departs from the scores; the last is from other data.
DIFFERENT = 'have other configurations'
OTHER_DATA = 'are not the kernels of the test split'


def differences(chosen: Mapping[str, Sequence[int]],
                scores: Mapping[str, np.ndarray]) -> dict[str, str]:
  """Kernels whose choice does not follow from their scores, and how.

  Args:
    chosen: tile id -> configuration indices, best first, padded with 0.
    scores: tile id -> float [configs], lower is better.
  """
  departures = dict.fromkeys(sorted(chosen.keys() ^ scores.keys()), OTHER_DATA)
  # A small score may be a difference of large terms, and no more exact.
  size = np.median([np.abs(s).max() for s in scores.values()] or [0])
  for name in sorted(chosen.keys() & scores.keys()):
    of_kernel = scores[name]
    first = list(chosen[name])[:len(of_kernel)]
    if not predictions_csv.is_order(chosen[name], len(of_kernel)):
      departures[name] = OTHER_DATA
    elif not np.allclose(
        of_kernel[first], np.sort(of_kernel)[:len(first)], rtol=0,
        atol=ROUNDING * max(size, np.abs(of_kernel).max())):
      departures[name] = DIFFERENT
  return departures
