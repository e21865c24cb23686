"""Duplicate configurations of a kernel, and which to try first.

Files list one tile several times, mostly the compiler's default, and a model
gives duplicates one score. Trying a tile once tells as much as trying it five
times: duplicates are worth a place only after every other tile.
"""

from __future__ import annotations

import dataclasses

import numpy as np


def first_copies(features: np.ndarray) -> np.ndarray:
  """The first row that equals each: [configs, G] -> int64 [configs]."""
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
  """A model's scores of the configurations of one problem; lower = faster.

  Attributes:
    given: float32 [configs], from the model's `forward`. It may have put
      duplicates last itself, as the new models of models.py do.
    first: int64 [configs], `first_copies` of the features that the model sees.
    keep_repeats: sort by `given` alone.
  """
  given: np.ndarray
  first: np.ndarray
  keep_repeats: bool = False

  @property
  def repeats(self) -> np.ndarray:
    """bool [configs]: duplicates of an earlier one; none if all are alike."""
    repeats = self.first != np.arange(self.first.size)
    return repeats & (np.count_nonzero(~repeats) > 1)

  @property
  def of_tiles(self) -> np.ndarray:
    """float32 [configs]: each configuration with the score of its tile."""
    return self.given[self.first]

  @property
  def order(self) -> np.ndarray:
    """int64 [configs]: indices, in the order to try them.

    Duplicates come last, sorted by their tiles' scores; ties keep the order of
    the file.
    """
    if self.keep_repeats:
      return np.argsort(self.given, kind='stable')
    return np.lexsort((self.of_tiles, self.repeats))
