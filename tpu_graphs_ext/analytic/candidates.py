"""The legal tiles of a kernel: those that a TPU's tuner would choose from.

docs/ranking.md has the rules. A loop's bounds are those of
`hlo.tiles.bound_candidates`, in steps where a tile would otherwise end inside
something that is moved whole. A tile must fit on-chip memory, by estimate; some
measured tiles need more than there is, hence the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np

from tpu_graphs_ext.analytic import tile_counts
from tpu_graphs_ext.analytic.tile_counts import Loops
from tpu_graphs_ext.hlo import tiles

MEMORY_BYTES = 16 * 2**20  # On-chip memory of a TPU v3 core.
TOLERANCE = 1.2  # Of the estimate of on-chip memory.
PRODUCT_TOLERANCE = 1.04  # The same for a product.
MOST_COMBINATIONS = 2**22  # Of bounds to try; of more, an even sample.
_AT_ONCE = 2**15  # Combinations in memory.
_OPERAND_BYTES = 2  # Of an element that the matrix unit multiplies.


class Candidates(NamedTuple):
  """Legal tiles of one kernel."""
  tiles: np.ndarray  # int64 [tiles, axes], the largest bounds first.
  combinations: int  # Of all bounds.
  looked_at: int  # Combinations that were tried.
  fitting: int  # How many of those fit on-chip memory.

  def with_extra(self, others: np.ndarray) -> Candidates:
    """Appends those of int64 [others, axes] that are not listed yet."""
    extra = sorted(set(map(tuple, others.tolist()))
                   - set(map(tuple, self.tiles.tolist())))
    return self._replace(tiles=np.concatenate([
        self.tiles, np.array(extra, np.int64).reshape(
            len(extra), others.shape[1])]))


def candidates(loops: Loops, most: Optional[int] = None) -> Candidates:
  """The legal tiles of a kernel; of more than `most`, the same even sample."""
  choices = choices_of(loops)
  total = math.prod(map(len, choices))
  tolerance = TOLERANCE if loops.matrix is None else PRODUCT_TOLERANCE
  if not loops.grid.bounded:
    tolerance = math.inf
  looked_at, found = 0, []
  for numbers in _numbers(total):
    needed = needed_bytes(loops, _tiles_of(numbers, choices))
    found.append(numbers[needed <= tolerance * MEMORY_BYTES])
    looked_at += len(numbers)
  numbers = np.concatenate(found)
  fitting = len(numbers)
  if most is not None and fitting > most:
    numbers = np.sort(np.random.default_rng(0).choice(
        numbers, most, replace=False))
  return Candidates(_tiles_of(numbers, choices), total, looked_at, fitting)


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


def _tiles_of(numbers: np.ndarray, choices: list[list[int]]) -> np.ndarray:
  """int64 [tiles, axes] from their numbers among all combinations."""
  found = np.empty((len(numbers), len(choices)), np.int64)
  for column in range(len(choices) - 1, -1, -1):
    numbers, place = np.divmod(numbers, len(choices[column]))
    found[:, column] = np.array(choices[column], np.int64)[place]
  return found


def choices_of(loops: Loops) -> list[list[int]]:
  """The bounds of each loop, largest first."""
  if not loops.grid.bounded:
    return [[axis.units] for axis in loops.grid.axes]
  return [_bounds(loops, number, axis)
          for number, axis in enumerate(loops.grid.axes)]


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
      if extent.axis == number and extent.unit >= tiles.LANES and (
          stream.kind in ('image', 'filter')
          or (stream.kind == 'output' and extent.size > tiles.LANES)):
        step = math.lcm(step, max(1, tiles.LANES // axis.unit))
  bounds = tiles.bound_candidates(axis.units, step)
  if loops.matrix is not None and axis.unit == tiles.SUBLANES and step == 1:
    bounds = sorted({*bounds, *tiles.bound_candidates(
        axis.units, tiles.LANES // tiles.SUBLANES)}, reverse=True)
  return bounds


def needed_bytes(loops: Loops, tile_bounds: np.ndarray) -> np.ndarray:
  """float64 [tiles]: on-chip memory that a step takes, by estimate."""
  total = np.zeros(len(tile_bounds))
  trip = tile_counts.trips(loops, tile_bounds)
  for stream in loops.streams:
    block = tile_counts.block_bytes(stream, tile_counts.covered_units(
        loops, stream, tile_bounds))
    if stream.is_operand:  # A copy in the matrix unit's own type.
      block *= 1 + _OPERAND_BYTES / stream.element_bytes
    total += block * (1 + (tile_counts.fetches(stream, trip) > 1))
  if loops.matrix is not None:
    total += loops.matrix.sum_bytes * tile_counts.tile_elements(
        loops, tile_bounds)
  return total
