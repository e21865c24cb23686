"""How a TPU stores a tensor.

In layout tiles of 8 x 128 elements along the two most minor physical
dimensions, or of 1024 elements at rank 1. Tile bounds count these. A layout
tile has only 2 or 4 rows if that holds them all: HLO has T(4,128) for [3, 32]
and [4, 64].
"""

from __future__ import annotations

from collections.abc import Sequence

LANES = 128  # Elements of a layout tile on the most minor dimension.
SUBLANES = 8  # The same on the second most minor.
RANK_1_UNIT = LANES * SUBLANES

_BYTES = {'PRED': 1, 'S8': 1, 'U8': 1, 'S16': 2, 'U16': 2, 'F16': 2,
          'BF16': 2, 'S64': 8, 'U64': 8, 'F64': 8, 'C64': 8, 'C128': 16}


def element_bytes(type_name: str) -> int:
  """Bytes of one element of a type, by XLA's name; 4 if unknown."""
  return _BYTES.get(type_name, 4)


def layout_units(sizes: Sequence[int]) -> list[int]:
  """Elements of a layout tile along dimensions of these sizes, minor last."""
  rank = len(sizes)
  if rank == 0:
    return []
  if rank == 1:
    return [RANK_1_UNIT]
  rows = next((few for few in (SUBLANES // 4, SUBLANES // 2)
               if sizes[-2] <= few), SUBLANES)
  return [1] * (rank - 2) + [rows, LANES]


def physical_dims(minor_to_major: Sequence[int], rank: int) -> list[int]:
  """Logical dimensions in physical order, most major first.

  A tensor is row-major if its layout is missing or is not a permutation of its
  dimensions.
  """
  dims = [int(dim) for dim in minor_to_major][::-1]
  return dims if sorted(dims) == list(range(rank)) else list(range(rank))
