"""Which configurations of a kernel repeat another, and what comes first then.

Files list one tile several times, mostly the compiler's default. A model gives
what it cannot tell apart one score, so if it likes such a tile its first picks
are all that one. Trying the tile once tells as much as trying it five times:
repetitions are worth a place only after every other tile.
"""

from __future__ import annotations

import dataclasses

import numpy as np


def first_copies(features: np.ndarray) -> np.ndarray:
  """For each row the first that equals it: [configs, G] -> int64 [configs]."""
  # Equal numbers have equal bytes once -0 is 0. A table of them finds copies in
  # a fraction of the time that sorting rows takes.
  rows = np.asarray(features, np.float32) + np.float32(0)
  content, width = rows.tobytes(), rows.itemsize * rows.shape[1]
  seen: dict[bytes, int] = {}
  return np.array([
      seen.setdefault(content[row * width:(row + 1) * width], row)
      for row in range(len(rows))], np.int64)


@dataclasses.dataclass(frozen=True)
class Scores:
  """What a model thinks of the configurations of one kernel; lower = faster.

  Attributes:
    given: float32 [configs], as the model's `forward` gave them. It may have
      put repetitions last itself, as the new models of models.py do.
    first: int64 [configs], see `first_copies`; of features as the model sees
      them.
    keep_repeats: leave the order to `given` alone.
  """
  given: np.ndarray
  first: np.ndarray
  keep_repeats: bool = False

  @property
  def repeats(self) -> np.ndarray:
    """bool [configs]: which have the features of an earlier one.

    None are marked where all are alike, as there nothing else can be tried.
    """
    repeats = self.first != np.arange(self.first.size)
    return repeats & (np.count_nonzero(~repeats) > 1)

  @property
  def of_tiles(self) -> np.ndarray:
    """float32 [configs]: each configuration with the score of its tile."""
    return self.given[self.first]

  @property
  def order(self) -> np.ndarray:
    """int64 [configs]: indices, the one to try first before all others.

    Repetitions come last, in the order of their tiles' scores; what is equal
    keeps the order of the file.
    """
    if self.keep_repeats:
      return np.argsort(self.given, kind='stable')
    return np.lexsort((self.of_tiles, self.repeats))
