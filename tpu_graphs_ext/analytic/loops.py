"""A kernel as a loop nest: what streams through each of its tiles.

The loops are those that tile bounds divide (`hlo/tiles.py`): the tiled tensor's
dimensions in physical order, most major outermost, then a convolution's
contracted dimensions (window and input features).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from tpu_graphs_ext.hlo.tiles import TileGrid


class Extent(NamedTuple):
  """One physical dimension of an operand, and how a tile covers it.

  Attributes:
    size: of the dimension, in elements.
    unit: elements of one layout tile of the operand.
    axis: number of the loop that walks over it; -1 for none, so it is whole.
    scale: elements of this dimension for one element of the axis.
    window: number of the axis whose tile widens the extent (a convolution
      window's taps), or -1.
    spread: elements of this dimension from one tap to the next.
  """
  size: int
  unit: int
  axis: int = -1
  scale: float = 1.0
  window: int = -1
  spread: float = 1.0


class Stream(NamedTuple):
  """An operand or a result of the kernel, as its tiles come and go.

  Attributes:
    kind: 'input', 'output', or a convolution's 'image' or 'filter'.
    extents: an `Extent` for each physical dimension, most major first.
    element_bytes: of its type.
    is_operand: whether it stands for a convolution's operand: the first tensor
      that the operand is computed from.
  """
  kind: str
  extents: tuple
  element_bytes: float
  is_operand: bool = False


class Matrix(NamedTuple):
  """How a convolution occupies the matrix unit.

  Attributes:
    row_axes: loops over rows that share weights.
    batch_axes: loops whose every step has weights of its own.
    window_axes: loops over the window's taps.
    contracted: axis of the input features, of one group.
    feature: axis of the output features.
    sum_bytes: of an element of the sums; 0 if the result has room for them.
  """
  row_axes: tuple
  batch_axes: tuple
  window_axes: tuple
  contracted: int
  feature: int
  sum_bytes: float = 4.0


class Loops(NamedTuple):
  """A kernel's loop nest.

  Attributes:
    grid: its loops and their tile bounds.
    streams: a `Stream` for each operand and result.
    vector_ops: vector instructions for an element of the tiled tensor.
    matrix: of a convolution or product, else None.
    updated: elements of each axis that an update in place writes; empty if
      the whole tensor is written.
    in_elements: whether bounds count elements, of logical dimensions.
    dims, filter_dims: logical dimensions in the order of the axes.
  """
  grid: TileGrid
  streams: tuple
  vector_ops: float
  matrix: Optional[Matrix] = None
  updated: tuple = ()
  in_elements: bool = False
  dims: tuple = ()
  filter_dims: tuple = ()
