"""The tiles that a kernel may have: those that a TPU's tuner would choose from.

A loop's bounds are {ceil(units / n) for n = 1, 2, ...}, from
`hlo.tiles.bound_candidates`. They are rounded up to a multiple of a step where
a tile would otherwise end inside something that is moved whole: the lanes of
another tensor of a product, or of a result; an element of an image with zeros
in between. 1000 features that are rows of 8 in the output and lanes of 128 in
the filter go in steps of 16 rows. Rows of a product that are no tensor's lanes
have both the plain and the rounded bounds.

A tile must fit on-chip memory, by estimate: two blocks of each stream, or one
if it has no other; for a product also the operands as the matrix unit takes
them, and the sums unless the output's block holds them. Some measured tiles
need more than there is, so there is a tolerance. docs/ranking.md says which
share of real and of the compiler's tiles these rules list.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Callable, Optional

import numpy as np

from tpu_graphs_ext.analytic import tile_counts, tpu
from tpu_graphs_ext.analytic.loops import Loops
from tpu_graphs_ext.hlo import layout, tiles

# Combinations of bounds to try; of more, an even sample.
MOST_COMBINATIONS = 2**22
TOLERANCE = 1.2  # Of the estimate of on-chip memory.
PRODUCT_TOLERANCE = 1.04  # The same for a product.
_OPERAND_BYTES = 2  # Of an element that the matrix unit multiplies.
_AT_ONCE = 2**15  # Combinations in memory.


@dataclasses.dataclass(frozen=True)
class Candidates:
  """Tiles of one kernel, kept by number: 8 bytes each.

  Attributes:
    choices: bounds of each loop, largest first.
    numbers: int64 [tiles], rising: the tiles' numbers among all combinations
      of bounds; the last loop's bound changes fastest.
    extra: int64 [others, axes], tiles that come after those.
    combinations: number of all combinations.
    looked_at: how many of them were tried.
    fitting: how many of those fit.
  """
  choices: list[list[int]]
  numbers: np.ndarray
  extra: np.ndarray
  combinations: int
  looked_at: int
  fitting: int

  def __len__(self) -> int:
    return len(self.numbers) + len(self.extra)

  def tiles(self, start: int, stop: int) -> np.ndarray:
    """int64 [stop - start, axes]: some of the tiles, by place."""
    own = len(self.numbers)
    listed = tiles_of(self.numbers[start:stop], self.choices)
    return np.concatenate(
        [listed, self.extra[max(0, start - own):max(0, stop - own)]])

  def place_of(self, tile: np.ndarray) -> int:
    """The place of int64 [axes], which must be one of the tiles."""
    number = numbers_of(tile[np.newaxis], self.choices)[0]
    place = int(np.searchsorted(self.numbers, number))
    if number >= 0 and place < len(self.numbers) and (
        self.numbers[place] == number):
      return place
    return len(self.numbers) + int(np.flatnonzero(
        (self.extra == tile).all(axis=1))[0])

  def with_extra(self, others: np.ndarray) -> Candidates:
    """Adds those of int64 [others, axes] that are not listed yet."""
    others = np.unique(others, axis=0)
    known = np.isin(numbers_of(others, self.choices), self.numbers)
    return dataclasses.replace(
        self, extra=np.concatenate([self.extra, others[~known]]))


def candidates(loops: Loops, constants: tpu.TpuConstants = tpu.TPU_V3_LIKE, *,
               most: Optional[int] = None,
               progress: Callable[[int], object] = lambda looked_at: None
               ) -> Candidates:
  """The legal tiles of a kernel, in bounded memory.

  Args:
    loops: the kernel.
    constants: the machine; only its `memory_bytes` counts.
    most: at most this many, drawn evenly and always the same; None for all.
    progress: called now and then with how many more combinations were tried.

  Returns:
    The tiles; a kernel without bounds, such as a reshape, has one.
  """
  choices = choices_of(loops)
  total = math.prod(map(len, choices))
  looked_at, found = 0, []
  for numbers in _numbers(total):
    fitting = fits(loops, tiles_of(numbers, choices), constants)
    found.append(numbers[fitting])
    looked_at += len(numbers)
    progress(len(numbers))
  numbers = np.concatenate(found)
  if not loops.grid.bounded:  # It has one tile, whether it fits or not.
    numbers = np.zeros(1, np.int64)
  count = len(numbers)
  if most is not None and count > most:
    numbers = np.sort(np.random.default_rng(0).choice(
        numbers, most, replace=False))
  return Candidates(choices, numbers, np.zeros((0, len(choices)), np.int64),
                    total, looked_at, count)


def _numbers(total: int) -> Iterator[np.ndarray]:
  """Numbers below `total` in parts: all of them, or an even sample."""
  if total <= MOST_COMBINATIONS:
    for first in range(0, total, _AT_ONCE):
      yield np.arange(first, min(total, first + _AT_ONCE))
    return
  random = np.random.default_rng(0)
  parts = MOST_COMBINATIONS // _AT_ONCE
  for part in range(parts):  # Each from its own stretch, so none comes twice.
    first, end = part * total // parts, (part + 1) * total // parts
    yield np.unique(random.integers(first, end, _AT_ONCE))


def choices_of(loops: Loops) -> list[list[int]]:
  """The bounds of each loop, largest first."""
  axes = loops.grid.axes
  if not loops.grid.bounded:
    return [[axis.units] for axis in axes]
  return [_bounds(loops, number, axis) for number, axis in enumerate(axes)]


def _bounds(loops: Loops, number: int, axis: tiles.Axis) -> list[int]:
  if loops.updated:  # An update in place leaves the rest of the tensor.
    axis = axis._replace(size=loops.updated[number])
  step = 1
  for stream in loops.streams:
    for extent in stream.extents:
      # Whole elements of an image with zeros in between.
      if number in (extent.axis, extent.window) and (
          extent.window >= 0 and extent.scale < 1):
        step = math.lcm(step, round(1 / extent.scale))
      # Whole lanes of a product's operands, and of results that have more
      # than one tile of lanes.
      if extent.axis == number and extent.unit >= layout.LANES and (
          stream.kind in ('image', 'filter')
          or (stream.kind == 'output' and extent.size > layout.LANES)):
        step = math.lcm(step, max(1, layout.LANES // axis.unit))
  bounds = set(tiles.bound_candidates(axis.units, step))
  if loops.matrix is not None and axis.unit == layout.SUBLANES and step == 1:
    bounds |= set(tiles.bound_candidates(
        axis.units, layout.LANES // layout.SUBLANES))
  return sorted(bounds, reverse=True)


def fits(loops: Loops, tile_bounds: np.ndarray,
         constants: tpu.TpuConstants = tpu.TPU_V3_LIKE) -> np.ndarray:
  """bool [tiles]: whether int64 [tiles, axes] fit, with the tolerance."""
  tolerance = TOLERANCE if loops.matrix is None else PRODUCT_TOLERANCE
  return needed_bytes(loops, tile_bounds) <= tolerance * constants.memory_bytes


def needed_bytes(loops: Loops, tile_bounds: np.ndarray) -> np.ndarray:
  """float64 [tiles]: on-chip memory that a step takes, by estimate."""
  total = np.zeros(len(tile_bounds))
  for stream in loops.streams:
    block = tile_counts.block_bytes(loops, stream, tile_bounds)
    if stream.is_operand:  # A copy in the matrix unit's own type.
      block *= 1 + _OPERAND_BYTES / stream.element_bytes
    total += block * (1 + (tile_counts.fetches(loops, stream, tile_bounds) > 1))
  if loops.matrix is not None:
    total += loops.matrix.sum_bytes * tile_counts.tile_elements(
        loops, tile_bounds)
  return total


def tiles_of(numbers: np.ndarray, choices: list[list[int]]) -> np.ndarray:
  """int64 [tiles, axes] from their numbers among all combinations."""
  found = np.empty((len(numbers), len(choices)), np.int64)
  for column in range(len(choices) - 1, -1, -1):
    numbers, place = np.divmod(numbers, len(choices[column]))
    found[:, column] = np.array(choices[column], np.int64)[place]
  return found


def numbers_of(tile_bounds: np.ndarray,
               choices: list[list[int]]) -> np.ndarray:
  """int64 [tiles]: the tiles' numbers; -1 if a bound is not a choice."""
  numbers = np.zeros(len(tile_bounds), np.int64)
  listed = np.ones(len(tile_bounds), bool)
  for bounds, choice in zip(tile_bounds.T, choices):
    rising = np.array(choice[::-1], np.int64)
    place = np.minimum(np.searchsorted(rising, bounds), len(rising) - 1)
    listed &= rising[place] == bounds
    numbers = numbers * len(choice) + (len(choice) - 1 - place)
  return np.where(listed, numbers, -1)
