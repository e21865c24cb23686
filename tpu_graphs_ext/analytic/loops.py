"""A kernel as a loop nest: what streams through each of its tiles.

Its analytic time follows from which loops its tile bounds divide
(`hlo/tiles.py`), and which part of every operand one step of the loops
touches. Loops run over the dimensions of the tiled
tensor in physical order, most major outermost; the contracted dimensions of a
convolution (window and input features) are innermost.
"""

from __future__ import annotations

import dataclasses

from tpu_graphs_ext.hlo.tiles import TileGrid


@dataclasses.dataclass(frozen=True)
class Extent:
  """One physical dimension of an operand, and how a tile covers it.

  Attributes:
    size: of the dimension, in elements.
    unit: elements of one layout tile of the operand.
    axis: number of the loop that walks over it; -1 for none: it is whole.
    scale: elements of this dimension for one element of the axis.
    window: number of the axis whose tile widens the extent (the taps of a
      convolution's window), or -1.
    spread: elements of this dimension from one tap to the next.
  """
  size: int
  unit: int
  axis: int = -1
  scale: float = 1.0
  window: int = -1
  spread: float = 1.0


@dataclasses.dataclass(frozen=True)
class Stream:
  """An operand or a result of the kernel, as tiles of it come and go.

  Attributes:
    kind: 'input', 'output', or a convolution's 'image' or 'filter'.
    extents: physical dimensions, most major first.
    element_bytes: of its type.
    is_operand: whether it stands for a convolution's operand: the first tensor
      that the operand is made of.
  """
  kind: str
  extents: tuple
  element_bytes: float
  is_operand: bool = False


@dataclasses.dataclass(frozen=True)
class Matrix:
  """How a convolution occupies the matrix unit.

  Attributes:
    row_axes: loops over rows that meet the same weights.
    batch_axes: loops whose every step has weights of its own.
    window_axes: loops over taps of the window.
    contracted: axis of the input features, of one group.
    feature: axis of the output features.
    sum_bytes: of an element of the sums; 0 where the result has room for them.
  """
  row_axes: tuple
  batch_axes: tuple
  window_axes: tuple
  contracted: int
  feature: int
  sum_bytes: float = 4.0


@dataclasses.dataclass(frozen=True)
class Loops:
  """A kernel, ready for the runtime model.

  Attributes:
    grid: its loops and their tile bounds.
    streams: operands and results.
    vector_ops: vector instructions per element of the tiled tensor.
    matrix: for a convolution, else None.
    updated: elements of each axis that an update in place writes; empty where
      all of the tiled tensor is written.
    in_elements: bounds count elements, of logical dimensions.
    dims, filter_dims: logical dimensions in the order of the axes.
  """
  grid: TileGrid
  streams: tuple
  vector_ops: float
  matrix: Matrix | None = None
  updated: tuple = ()
  in_elements: bool = False
  dims: tuple = ()
  filter_dims: tuple = ()
