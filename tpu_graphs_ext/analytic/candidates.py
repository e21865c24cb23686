"""The legal tiles of a kernel: those that a TPU's tuner would choose from.

docs/ranking.md has the rules, and how well they do. A loop's bounds are those
of `hlo.tiles.bound_candidates`, in steps where a tile would otherwise end
inside something that is moved whole. A tile must fit on-chip memory, by
estimate: see `memory`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np

from tpu_graphs_ext.analytic import geometry
from tpu_graphs_ext.analytic.geometry import Loops
from tpu_graphs_ext.hlo import tiles

MOST_COMBINATIONS = 2**22  # Of bounds to try; of more, an even sample.
_AT_ONCE = 2**15  # Combinations in memory.
# Of blocks, in `vmem_limit_bytes`: of products and poolings of which it is
# known what is on the chip; `Machine.fills` has those of others. The estimate
# is low for products that compute their operands, and the largest rank first.
_FILLS = 0.95, 1.0
_KEPT = 2**19  # Bytes that the compiler leaves, where the estimate is exact.


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
  looked_at, fitting = 0, []
  held, most_bytes = memory(loops)
  for numbers in _numbers(total):
    tried = _tiles_of(numbers, choices)
    fits = held.counts(tried)['footprint_bytes'] <= most_bytes
    fitting.append(numbers[fits & loops.cuts_as_one(tried)])
    looked_at += len(numbers)
  numbers = np.concatenate(fitting)
  number_fitting = len(numbers)
  if most is not None and number_fitting > most:
    numbers = np.sort(np.random.default_rng(0).choice(
        numbers, most, replace=False))
  return Candidates(
      _tiles_of(numbers, choices), total, looked_at, number_fitting)


def memory(loops: Loops) -> tuple[Loops, float]:
  """(loops whose `footprint_bytes` are what their tiles need, the most bytes).

  What a pooling reads is copied in float32, on a v3 too.
  """
  machine, streams = loops.machine, loops.nest.streams
  kind = 0 if loops.is_product else 1 if loops.is_pooling else 2
  most_bytes = machine.vmem_limit_bytes * machine.fills[kind]
  if loops.is_compiled and kind < 2 and not machine.copies:
    return _noted_memory(loops)
  if loops.is_compiled and machine.copies and loops.is_product:
    # The compiler leaves it, though larger tiles were timed on a v3.
    most_bytes = machine.vmem_limit_bytes - _KEPT
  if machine.copies and loops.is_pooling:
    return _held(loops, _pooled_copies(loops), streams.follows, 0.0), most_bytes
  return loops, most_bytes


def _noted_memory(loops: Loops) -> tuple[Loops, float]:
  """The same for a product or pooling whose compiled kernel is known.

  Operands on the chip need no blocks. Sums are kept in a whole result of 4
  bytes, else beside the result; those that a softmax reads always beside it.
  """
  streams, size = loops.nest.streams, loops.element_bytes[:, np.newaxis]
  most_bytes = loops.machine.vmem_limit_bytes * _FILLS[loops.is_pooling]
  is_result = streams.kind[:, np.newaxis] == geometry.OUTPUT
  on_chip = loops.on_chip[:, np.newaxis] & ~is_result
  has_softmax = loops.is_product and (loops.windows[:loops.rank] > 1).any()
  has_room = is_result & (size == 4) & (
      8 * streams.size.prod(1, keepdims=True) > loops.size[:loops.rank].prod())
  sum_bytes = 4.0 * (has_softmax or not has_room.any())
  copies, lane_sums, turned, widened = _pooled_copies(loops), 0, (), ()
  if loops.is_product:
    copies, is_exact, widened = _operand_copies(loops)
    turned = _turned(loops, copies)
    copies[[number for number, _ in turned]] = 0
    if is_exact:
      most_bytes = loops.machine.vmem_limit_bytes - _KEPT
    # A sum over lanes keeps a number for each lane until it ends. Of a square
    # result it is unknown which dimension is summed.
    lane_sums = int((
        is_result[:, 0] & (streams.size.prod(1) > 1)
        & (streams.size != loops.size[loops.rank - 1]).all(1)).sum())
  # Operations that read a copy do not share its two blocks.
  others = np.maximum(loops.layout_copies - 1, 0)[:, np.newaxis]
  copies = copies + 2 * others * ~on_chip
  # A tensor that no loop changes has one block, and on the chip none.
  held = _held(loops, copies - on_chip,
               np.where(on_chip, 0, streams.follows), sum_bytes)
  held.lane_sums, held.turned, held.widened = lane_sums, turned, widened
  held.on_chip = loops.on_chip
  return held, most_bytes


def _pooled_copies(loops: Loops) -> np.ndarray:
  """Blocks more of what windows are read from, in float32: [streams, 1]."""
  return 4 / loops.element_bytes[:, np.newaxis] * (
      loops.nest.streams.kind[:, np.newaxis] == geometry.INPUT)


def _held(loops: Loops, copies: np.ndarray, follows: np.ndarray,
          sum_bytes: float) -> Loops:
  """The loops with so many blocks more, [streams, 1], of streams that follow
  these axes, [streams, 12], and so many bytes for a sum."""
  streams, size = loops.nest.streams, loops.element_bytes[:, np.newaxis]
  streams = streams._replace(
      copies=copies.astype(np.float32), follows=follows.astype(np.float32),
      tile_bytes=np.float32(size * streams.unit.prod(1, keepdims=True)))
  return Loops(
      loops.nest._replace(streams=streams, sum_bytes=np.float32([sum_bytes])),
      dataclasses.replace(loops.machine, copies=True))


def _operand_copies(
    loops: Loops) -> tuple[np.ndarray, bool, tuple[tuple[int, float], ...]]:
  """How many more blocks of each operand a product holds, for the matrix unit:
  float [streams, 1]; whether each is read from one tensor; `Loops.widened`.

  The unit multiplies a copy in bfloat16, or in bytes of a type that it has.
  """
  streams, size = loops.nest.streams, loops.element_bytes[:, np.newaxis]
  kind, is_operand = streams.kind[:, np.newaxis], streams.copies > 0
  is_read = (streams.size.prod(1, keepdims=True) > 1) & (kind < geometry.INPUT)
  number = np.where(kind == 1, *((is_read & (kind == side)).sum()
                                 for side in (1, 0)))  # Of tensors read.
  is_plain = (number == 1) & (
      (size == 2) | (np.unique(size[is_read]).size < 2))
  is_summed = np.split(
      _elements(loops) * loops.nest.features[0], 2, axis=2)[1].any(2)
  is_native, in_two = _of_bytes(loops, is_plain)
  copies = np.maximum(
      _times_copied(loops, is_summed, is_plain), 1 + in_two)
  copy = np.where(is_plain & is_native | (size > 1),
                  np.minimum(2 / size, 1), 2 / size)
  if loops.machine.accumulates:  # By the log of a v7x's compiler.
    copy = np.where(is_plain & loops.is_operand[:, np.newaxis]
                    & (copies == 1), 0.25, copy)
  # Summands in 2 or 4 rows get the 16 of bfloat16.
  rows = np.where(is_summed & (streams.size > 1), streams.unit, 8)
  rows = np.where(rows > 1, rows, 8).min(1, keepdims=True)
  copies = is_operand * np.where(rows < 8, 32 / rows / size, copies * copy)
  return (copies, bool((is_plain & is_operand).sum() == 2),
          _widened(loops, is_operand & ~is_plain, in_two))


def _of_bytes(loops: Loops,
              is_plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Whether the matrix unit multiplies an operand's type, and whether bytes are
  copied twice to become bfloat16: bool [streams, 1] each."""
  size, machine = loops.element_bytes[:, np.newaxis], loops.machine
  known = {'int8': ('S', 'U'), 'fp8': ('F8',)}.get(machine.narrow, ())
  is_native = np.array([[not name or name.startswith(known)]
                        for name in loops.element_types])
  # On a v7x floats and 4-bit numbers are copied once.
  is_direct = machine.accumulates & (is_native | (size < 1))
  is_filter = loops.nest.streams.kind[:, np.newaxis] == 1
  return is_native, (size <= 1) & np.where(
      is_plain, ~is_native, is_filter & ~is_direct)


def _widened(loops: Loops, is_computed: np.ndarray,
             in_two: np.ndarray) -> tuple[tuple[int, float], ...]:
  """`Loops.widened`: computed operands pass through float32, in two blocks; a
  float32 filter in one.

  The compiler weighs no tile whose operands would not fit like this.
  """
  kind = loops.nest.streams.kind[:, np.newaxis]
  is_made = ~loops.is_operand[:, np.newaxis]
  is_wide = is_made & (loops.element_bytes[:, np.newaxis] > 2)
  blocks = is_computed * (
      2 * (in_two & (is_made | loops.machine.accumulates))
      + is_wide * np.where(kind == 0, 2, 1))
  return tuple((int(number), 4.0 * float(blocks[number, 0]))
               for number in np.flatnonzero(blocks))


def _times_copied(loops: Loops, is_summed: np.ndarray,
                  is_plain: np.ndarray) -> np.ndarray:
  """How often an operand is copied for the matrix unit, int [streams, 1].

  Twice if it is transposed: the unit wants a filter's summands in rows, and in
  a batch of products an image's in lanes. If one operand of a batch is
  transposed, the other is copied twice as well where its summands are padded,
  or where it is an image computed in float32.
  """
  streams, size = loops.nest.streams, loops.element_bytes[:, np.newaxis]
  image, filters = ((streams.copies > 0) & (
      streams.kind[:, np.newaxis] == side) for side in (0, 1))
  in_lanes = (is_summed & (streams.unit >= tiles.LANES)).any(1, keepdims=True)
  is_batch = _is_batch(loops).any()
  is_turned = image & ~in_lanes & is_batch | filters & in_lanes
  other_is = is_batch & (
      image & (is_turned & filters).any() | filters & (is_turned & image).any())
  is_ragged = (is_summed & (streams.size % tiles.LANES > 0)).any(
      1, keepdims=True)
  return 1 + is_turned + other_is * (
      is_ragged | image & ~is_plain & (size > 2))


def _is_batch(loops: Loops) -> np.ndarray:
  """Which loops of the result both operands follow: bool [rank]."""
  streams = loops.nest.streams
  image, filters = (
      (streams.follows * ((streams.copies > 0) & (
          streams.kind[:, np.newaxis] == side))).any(0) for side in (0, 1))
  return (image & filters)[loops.axes[:loops.rank]]


def _turned(loops: Loops, copies: np.ndarray) -> tuple[tuple[int, float], ...]:
  """`Loops.turned` of a product whose operands have so many copies.

  A copy that has no dimension for its rows is padded to bfloat16's 16.
  """
  streams, batch = loops.nest.streams, loops.axes[:loops.rank][_is_batch(loops)]
  of_batch = (_elements(loops)[..., batch] > 0).any(2)  # [streams, 6]
  is_turned = (of_batch & (streams.unit == tiles.SUBLANES)).any(1)
  has_rows = ((streams.size > 1) & ~of_batch
              & (streams.unit < tiles.SUBLANES)).any(1)
  copy_bytes = copies[:, 0] * loops.element_bytes * np.where(has_rows, 1, 16)
  return tuple((int(number), float(copy_bytes[number]))
               for number in np.flatnonzero(is_turned & (copy_bytes > 0)))


def _numbers(total: int) -> Iterator[np.ndarray]:
  """Numbers below `total` in parts: all of them, or an even sample."""
  if total <= MOST_COMBINATIONS:
    for first in range(0, total, _AT_ONCE):
      yield np.arange(first, min(total, first + _AT_ONCE))
    return
  random = np.random.default_rng(0)
  parts = MOST_COMBINATIONS // _AT_ONCE
  # Python's integers where NumPy's are too short.
  dtype = np.int64 if total < 2**63 else object
  for part in range(parts):  # Each from its own stretch, so none comes twice.
    first, end = part * total // parts, (part + 1) * total // parts
    shares = random.integers(0, 2**62, _AT_ONCE).astype(object)
    yield np.unique((first + (shares * (end - first) >> 62)).astype(dtype))


def _tiles_of(numbers: np.ndarray, choices: list[list[int]]) -> np.ndarray:
  """int64 [tiles, loops] from their numbers among all combinations."""
  tiles = np.empty((len(numbers), len(choices)), np.int64)
  for column in range(len(choices) - 1, -1, -1):
    number = len(choices[column])
    numbers, places = numbers // number, (numbers % number).astype(np.int64)
    tiles[:, column] = np.array(choices[column])[places]
  return tiles


def choices_of(loops: Loops) -> list[list[int]]:
  """The bounds of each loop, largest first."""
  return [_bounds(loops, place) for place in range(len(loops.axes))]


def _bounds(loops: Loops, place: int) -> list[int]:
  # An update in place leaves the rest of the tensor.
  unit, machine = int(loops.unit[place]), loops.machine
  units, step = -(-int(loops.written[place]) // unit), _step(loops, place)
  # Of an image with zeros in between whole elements; newer compilers also try
  # parts of them.
  whole = math.lcm(step, _zeros_step(loops, place))
  step = whole if machine.copies else step
  bounds = sorted({bound for each in {step, whole}
                   for bound in tiles.bound_candidates(units, each)},
                  reverse=True)
  if unit > 1 and loops.windows[place] > 1:
    return [units]  # Windows in rows or columns are not cut,
  if place == loops.rank - 2 and step == 1 and loops.windows[place + 1] > 1:
    return list(range(units, 0, -1))  # and beside columns all rows are tried.
  # Of products also 128 elements at a time, or 256 but of the image's rows.
  for columns in (
      {tiles.LANES, machine.block_columns} if loops.is_product else ()):
    if unit > 1 and (step == 1 if columns == tiles.LANES else
                     not _is_image_row(loops, place)):
      bounds = sorted({*bounds, *tiles.bound_candidates(
          units, math.lcm(step, max(1, columns // unit)))}, reverse=True)
  if unit == tiles.SUBLANES:
    rows = _rows(loops, place)
    bounds = [bound for bound in bounds
              if bound == units or bound % rows == 0]
  in_lanes = tiles.LANES // max(1, min(unit, tiles.LANES))
  if machine.divides and not loops.is_product and in_lanes > 1 and (
      _cuts_result_lanes(loops, place)):
    parts = -(-units // in_lanes)
    bounds = [bound for bound in bounds if bound == units or (
        bound % in_lanes == 0 and parts % (bound // in_lanes) == 0)]
  return bounds


def _elements(loops: Loops) -> np.ndarray:
  """[streams, 6, 12]: of a dimension for one of an axis."""
  streams = loops.nest.streams
  return streams.per_element * streams.unit[..., np.newaxis]


def _cuts_result_lanes(loops: Loops, place: int) -> bool:
  """Whether a loop follows a result's lanes, of which tiles take whole ones."""
  streams = loops.nest.streams
  # Fewer are whole if they are rows elsewhere, or by the machine's rule.
  has_columns = streams.follows[:, loops.axes[loops.rank - 1], np.newaxis] > 0
  is_long = (streams.size >= tiles.LANES) | (
      (streams.unit < loops.machine.cut_unit) & (loops.unit[place] > 1)
      & ~has_columns)
  return bool(((streams.kind[:, np.newaxis] == geometry.OUTPUT)
               & (_elements(loops)[..., loops.axes[place]] > 0) & is_long
               & (streams.unit >= tiles.LANES)).any())


def _is_image_row(loops: Loops, place: int) -> bool:
  """Whether a loop is of a result's rows that the filter does not have."""
  of_filter = loops.nest.streams.follows[loops.nest.streams.kind == 1]
  return (place < loops.rank and loops.unit[place] < tiles.LANES
          and not (of_filter[:, loops.axes[place]] > 0).any())


def _zeros_step(loops: Loops, place: int) -> int:
  """Elements of a result for each of an image with zeros in between."""
  elements = _elements(loops)
  of_output, of_taps = np.split(elements, 2, axis=2)
  follows = elements[..., loops.axes[place]] > 0
  scale = of_output.sum(2)[follows & of_output.any(2) & of_taps.any(2)]
  return math.lcm(1, *np.rint(1 / scale[scale < 1]).astype(int).tolist())


def _step(loops: Loops, place: int) -> int:
  """Layout tiles that a tile must not split."""
  axis, streams = loops.axes[place], loops.nest.streams
  follows = _elements(loops)[..., axis] > 0
  # A product's operands, or all that one without a stream is computed from.
  is_operand, kind = streams.copies > 0, streams.kind[:, np.newaxis]
  for side in range(geometry.INPUT):
    is_operand |= (kind == side) & ~(is_operand & (kind == side)).any()
  # Whole lanes of operands, of windows, and of results.
  is_untold = (
      loops.is_compiled and loops.is_product and place >= loops.rank
      and loops.unit[place] > 1 and not (follows & (kind == 0)).any())
  if is_untold or (follows & is_operand & (streams.unit >= tiles.LANES)
                    ).any() or (
      _cuts_result_lanes(loops, place)) or (
          loops.is_pooling and loops.windows[loops.rank - 1] < 2
          and (axis, tiles.LANES) in loops.kernel_axes):
    return max(1, tiles.LANES // int(loops.unit[place]))
  return 1


def _rows(loops: Loops, place: int) -> int:
  """Layout tiles of 8 rows that make one of 16 or 32, which is not cut."""
  streams = loops.nest.streams
  in_rows = ((_elements(loops)[..., loops.axes[place]] > 0)
             & (streams.unit == tiles.SUBLANES)).any(1)
  if not loops.is_product:  # What is read as it is can be cut.
    in_rows &= (streams.kind == geometry.OUTPUT) | (loops.layout_copies > 0)
  for side in range(geometry.INPUT):  # Not of bfloat16 in a float32 operand.
    of_side = (streams.kind == side) & (streams.size.prod(1) > 1)
    if (loops.element_bytes[of_side] == 4).any():
      in_rows &= ~(of_side & (loops.element_bytes == 2))
  return max([1, *(loops.rows[in_rows] // tiles.SUBLANES).tolist()])
