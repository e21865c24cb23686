"""Matrix products read off stored sizes alone, as the convolutions they are.

An .npz file has neither the order of operands nor the contracted dimensions.
The sizes tell both.
"""

from __future__ import annotations

from typing import NamedTuple

from tpu_graphs_ext.data import schema

SPATIAL = schema.MAX_SPATIAL_DIMS


class Dot(NamedTuple):
  """A matrix product.

  Attributes:
    left, right: nodes.
    numbers: the 14 columns `convolution_dim_numbers`; -1 for none.
    window: sizes, and base dilations, of the spatial dimensions.
  """
  left: int
  right: int
  numbers: list
  window: list


def read_dot(out: list, producers: list, dims: list) -> Dot:
  """The order of operands, and the contraction, that fit the sizes best.

  Args:
    out: sizes of the result.
    producers: nodes of its operands; the first and the last count.
    dims: sizes of every node.
  """
  first, last = min(producers), max(producers)
  choices = []
  for left, right in ((first, last), (last, first)):
    x, y = dims[left], dims[right]
    batch = len(x) + len(y) - len(out) - 2
    choices += [(left, right, batch, of_x, of_y)
                for of_x in (len(x) - 1, batch)
                for of_y in (batch, len(y) - 1)]
  left, right, batch, of_x, of_y = max(  # The first of equal ones.
      choices, key=lambda choice: _agreeing(out, dims, *choice))
  rows = [d for d in range(batch, len(dims[left])) if d != of_x]
  columns = [d for d in range(batch, len(dims[right])) if d != of_y]
  in_batch = list(range(batch))
  numbers = [
      *(rows[:1] or [-1]), of_x, *_four(in_batch + rows[1:]),
      of_y, *(columns[-1:] or [-1]), *_four(in_batch),
      batch if rows else -1, len(out) - 1 if columns else -1]
  return Dot(left, right, numbers, _four(out[:max(0, batch)], 1))


def _agreeing(out, dims, left, right, batch, of_x, of_y) -> int:
  """How many sizes are as the choice wants them."""
  x, y = dims[left], dims[right]
  kept_x = [size for d, size in enumerate(x) if d != of_x]
  kept_y = [size for d, size in enumerate(y) if d != of_y]
  same = 0 <= of_x < len(x) and 0 <= of_y < len(y) and x[of_x] == y[of_y]
  return same + sum(
      a == b for a, b in zip(kept_x + kept_y[max(0, batch):], out))


def _four(values, filler=-1) -> list:
  return (list(values) + SPATIAL * [filler])[:SPATIAL]
