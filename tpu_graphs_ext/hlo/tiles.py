"""How a TPU stores a tensor, and which bounds a tile has along a dimension.

A tensor is stored in layout tiles of 8 x 128 elements along the two most minor
physical dimensions, or of 1024 elements at rank 1. A layout tile has only 2 or
4 rows if that holds them all: HLO has T(4,128) for [3, 32] and [4, 64]. Some
tensors of 1 or 2 bytes have 32 or 16, as the compiler thinks best.

Tile bounds count layout tiles, one bound for each physical dimension, most
major first: `output_bounds` of the tiled tensor, `kernel_bounds` of a
convolution's filter or of a pooling's window. The tiled tensor is a
convolution's output, else the operand of a reduction at the root, else the
root: see `_Nodes` in models.py. The rules were inferred from measured kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tpu_graphs_ext.data import schema

LANES = 128  # Elements of a layout tile on the most minor dimension.
SUBLANES = 8  # The same on the second most minor.

_BYTES = {'PRED': 1, 'S16': 2, 'U16': 2, 'F16': 2, 'BF16': 2, 'S64': 8,
          'U64': 8, 'F64': 8, 'C64': 8, 'C128': 16}


def element_bytes(type_name: str) -> int:
  """Bytes of an element of a type, by XLA's name, unpacked; 4 if unknown."""
  return 1 if re.match('[SUF][248]', type_name) else _BYTES.get(type_name, 4)


def listed_type(type_name: str) -> str:
  """The data set's type that stands for a type, both by XLA's name.

  S8 for other types of a byte or less, '' for others that the data set lacks.
  """
  if type_name in schema.ELEMENT_TYPES:
    return type_name
  return 'S8' if element_bytes(type_name) == 1 else ''


def layout_units(sizes: Sequence[int]) -> list[int]:
  """Elements of a layout tile along dimensions of these sizes, minor last."""
  rank = len(sizes)
  if rank < 2:
    return [LANES * SUBLANES] * rank
  rows = next(few for few in (2, 4, SUBLANES)
              if sizes[-2] <= few or few == SUBLANES)
  return [1] * (rank - 2) + [rows, LANES]


def physical_dims(minor_to_major: Sequence[int], rank: int) -> list[int]:
  """Logical dimensions in physical order, most major first.

  Row-major unless the layout is a permutation of the dimensions.
  """
  dims = [int(dim) for dim in minor_to_major][::-1]
  return dims if sorted(dims) == list(range(rank)) else list(range(rank))


class Stored(NamedTuple):
  """A tensor that a compiled kernel reads or writes, as a TPU stores it."""
  is_result: bool
  sizes: tuple[int, ...]  # Physical, most major first, without ones.
  listed_bytes: int  # Of an element, as features have it: 4 of other types.
  element_bytes: float  # Below 1 of packed ones.
  rows: int  # Of a layout tile; 16 of some 2-byte elements, 32 of 1 byte.
  # Operations that read a copy of it in layout tiles of 8 rows.
  layout_copies: int = 0
  is_operand: bool = False  # Whether a product reads it as it is.
  element_type: str = ''  # XLA's name.
  copied_as: tuple[int, ...] = ()  # Sizes of its reshaped copy, else its own.


def bound_candidates(units: int, step: int = 1) -> list[int]:
  """Tile bounds to try along a dimension, largest first.

      {ceil(units / n) for n = 1, 2, ...}, rounded up to a multiple of `step`

  The largest is always the whole dimension, multiple or not.
  """
  root = math.isqrt(units)
  bounds = {-(-units // n) for n in range(1, root + 2)}
  bounds |= set(range(1, root + 1))  # Below the root each bound has its n.
  return sorted({min(units, -(-bound // step) * step) for bound in bounds},
                reverse=True)
