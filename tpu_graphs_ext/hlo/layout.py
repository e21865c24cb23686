"""How a TPU lays out a tensor in memory: the one place that knows.

A tensor is stored in layout tiles of 8 x 128 elements on its two most minor
physical dimensions, or of 1024 elements at rank 1. Tile bounds count them.
"""

from __future__ import annotations

from collections.abc import Sequence

LANES = 128  # Elements of a layout tile on the most minor dimension.
SUBLANES = 8  # The same on the second most minor.
RANK_1_UNIT = LANES * SUBLANES

_BYTES = {'PRED': 1, 'S8': 1, 'U8': 1, 'S16': 2, 'U16': 2, 'F16': 2,
          'BF16': 2, 'S64': 8, 'U64': 8, 'F64': 8, 'C64': 8, 'C128': 16}


def element_bytes(type_name: str) -> int:
  """Bytes of one element of a type, by XLA's name of it; 4 unless known."""
  return _BYTES.get(type_name, 4)


def layout_units(rank: int) -> list[int]:
  """Elements of a layout tile along each physical dimension, major first."""
  if rank == 1:
    return [RANK_1_UNIT]
  return ([1] * rank + [SUBLANES, LANES])[-rank:] if rank else []


def physical_dims(minor_to_major: Sequence[int], rank: int) -> list[int]:
  """Logical dimensions in physical order, most major first.

  A tensor without a layout, or with one that is no permutation of its
  dimensions, is row-major.
  """
  dims = [int(dim) for dim in minor_to_major][::-1]
  return dims if sorted(dims) == list(range(rank)) else list(range(rank))


def physical_shape(shape) -> list[tuple[int, int]]:
  """The dimensions of an HLO array in physical order, most major first.

  Returns:
    (logical dimension, elements of a layout tile along it) of each.
  """
  rank = len(shape.dimensions)
  return list(zip(physical_dims(shape.layout.minor_to_major, rank),
                  layout_units(rank)))
