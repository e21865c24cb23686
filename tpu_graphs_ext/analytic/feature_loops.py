"""The loop nest of a kernel on a TPU, read off its stored features alone.

Features list operands in sorted order, so sizes say which operand of a
convolution is the filter. `models.py` reads the same in TensorFlow, in 50 ms a
kernel instead of 0.4; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext.analytic.tile_counts import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import tiles
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid

# Vector instructions on an element of the result: none, `SLOW_COST`, else one.
FREE = frozenset((
    'parameter', 'constant', 'bitcast', 'tuple', 'fusion', 'get-tuple-element',
    'convolution', 'dot', 'reshape', 'broadcast', 'iota'))
SLOW = frozenset((
    'transpose', 'divide', 'rsqrt', 'sqrt', 'exponential', 'log', 'tanh',
    'log-plus-one', 'exponential-minus-one', 'logistic', 'power', 'rng', 'sine',
    'cosine'))
SLOW_COST = 8.0
_ELEMENT_BYTES = list(map(tiles.element_bytes, schema.ELEMENT_TYPES))


class _Graph:
  """The nodes of a kernel, and what their features say."""

  def __init__(self, kernel: Kernel):
    self.nodes = range(kernel.num_nodes)
    self._table = _widened(kernel.node_feat, len(schema.NODE_FEATURES), float)
    self.opcode = [schema.OPCODE_NAMES.get(int(number), '')
                   for number in kernel.node_opcode]
    self.producers = [[] for _ in self.nodes]
    self.consumed = np.zeros(kernel.num_nodes, bool)
    for consumer, producer in kernel.edge_index:
      self.producers[consumer].append(int(producer))
      self.consumed[producer] = True
    self.is_root = self.columns('is_root')[:, 0] > 0
    self.dims = [[int(size) for size in row if size > 0]
                 for row in self.columns('shape_dimensions')[:, :6]]

  def columns(self, group: str) -> np.ndarray:
    """float64 [nodes, columns of the group]."""
    return self._table[:, schema.NODE_GROUPS[group]]

  def elements(self, node: int) -> int:
    return math.prod(self.dims[node])

  def axes(self, node: int) -> dict[int, Axis]:
    """Logical dimension -> size and layout unit, in physical order."""
    dims, rank = self.dims[node], len(self.dims[node])
    order = tiles.physical_dims(
        self.columns('layout_minor_to_major')[node, :rank], rank)
    sizes = [dims[dim] for dim in order]
    return dict(zip(order, map(Axis, sizes, tiles.layout_units(sizes))))

  def axis_of(self, node: int) -> dict[int, int]:
    """Logical dimension -> its place in physical order."""
    return {dim: axis for axis, dim in enumerate(self.axes(node))}

  def element_bytes(self, node: int) -> float:
    one_hot = self.columns('shape_element_type')[node] > 0
    return float((one_hot * _ELEMENT_BYTES).max() or 4)

  def padded(self, node: int) -> int:
    """Elements in whole layout tiles."""
    return math.prod(axis.units * axis.unit
                     for axis in self.axes(node).values())

  def operands(self, node: int) -> list[int]:
    """Producers without the roots of computations that the node calls."""
    return [p for p in self.producers[node] if not self.is_root[p]]

  def vector_ops(self, tiled: int) -> float:
    """Vector instructions on an element of the tiled tensor."""
    return sum(
        SLOW_COST if opcode in SLOW else float(opcode not in FREE)
        for node, opcode in enumerate(self.opcode)
        if self.dims[node] == self.dims[tiled])


def _widened(table: np.ndarray, width: int, dtype) -> np.ndarray:
  """The table cut, or padded with zeros, to a number of columns."""
  wide = np.zeros((len(table), width), dtype)
  known = min(width, table.shape[1])
  wide[:, :known] = np.rint(table[:, :known])
  return wide


def loop_tiles(loops: Loops, config_feat: np.ndarray) -> np.ndarray:
  """int64 [configs, axes]: tile bounds of float32 [configs, columns].

  A bound that is 0 or has no column stands for the whole dimension.
  """
  wide = _widened(config_feat, len(schema.CONFIG_FEATURES), np.int64)
  output, kernel = (wide[:, schema.CONFIG_GROUPS[group]][:, :schema.MAX_DIMS]
                    for group in ('output_bounds', 'kernel_bounds'))
  grid = loops.grid
  bounds = grid.tiles(output[:, :grid.num_output_axes],
                      kernel[:, :len(grid.kernel_axes)])
  return np.where(bounds > 0, bounds, grid.whole())


def kernel_loops(kernel: Kernel) -> Loops:
  """The loop nest of a kernel; columns that its `node_feat` lacks count as 0.
  """
  graph = _Graph(kernel)
  root = max(graph.nodes, key=lambda n: (
      int(graph.is_root[n]) - int(graph.consumed[n]), graph.elements(n)))
  main = root  # The root of the fused computation.
  if graph.opcode[root] == 'fusion':
    main = next((p for p in graph.producers[root][::-1] if graph.is_root[p]),
                root)
  outputs = [main]
  if graph.opcode[main] == 'tuple' and graph.operands(main):
    outputs = graph.operands(main)
  # Without a fusion: the parameters of a reduction's computation are scalars.
  inputs = [n for n in (graph.nodes if main == root else graph.producers[root])
            if graph.opcode[n] == 'parameter' and (
                main != root or graph.dims[n])]
  convolutions = [n for n in graph.nodes if graph.opcode[n] == 'convolution'
                  and graph.operands(n)]
  if convolutions:  # Earlier ones make operands of the last.
    return _Convolution(graph, convolutions[-1]).loops(inputs, outputs)
  reductions = [n for n in outputs if graph.opcode[n] == 'reduce']
  reduced = [operand for n in reductions for operand in graph.operands(n)]
  tiled = max(reduced or outputs, key=graph.elements)
  axes = tuple(graph.axes(tiled).values())
  return Loops(
      TileGrid(axes, len(axes), bounded=graph.opcode[root] != 'reshape'),
      (*_streams(graph, outputs, tiled, 'output'),
       *_streams(graph, inputs, tiled, 'input')),
      graph.vector_ops(tiled) + len(reductions),
      updated=_updated(graph, tiled))


def _updated(graph, tiled) -> tuple:
  """Sizes of what an update in place writes, in the order of the axes."""
  dims = graph.dims[tiled]
  if graph.opcode[tiled] != 'dynamic-update-slice':
    return ()
  updates = [graph.dims[n] for n in graph.operands(tiled)
             if len(graph.dims[n]) == len(dims)]
  update = min(updates, key=math.prod, default=dims)
  return tuple(update[dim] for dim in graph.axes(tiled))


def _streams(graph, nodes, tiled, kind) -> list[Stream]:
  """Tensors that are read or written along the tiled one."""
  follow = {dim: (axis,) for dim, axis in graph.axis_of(tiled).items()}
  return [_stream(graph, node, tiled, kind, follow) for node in nodes]


def _stream(graph, node, other, kind,
            follow: Mapping[int, tuple]) -> Stream:
  """A tensor that is cut like another one; 'image' and 'filter' make that.

  `follow`: dimension of the other -> an `Extent`'s axis, scale, window, spread.
  """
  others, element_bytes = graph.dims[other], graph.element_bytes(node)
  is_part = kind in ('image', 'filter')
  mapping = _dims_along(graph, node, other, is_part)
  if mapping is None and 0.5 < (
      graph.elements(node) / graph.elements(other)) < 2:
    # It is the other one, reshaped.
    element_bytes *= graph.padded(node) / graph.padded(other)
    node, mapping = other, range(len(others))
  axes = graph.axes(node)
  if mapping is None:
    mapping = _matched_from_right(graph.dims[node], others)
    if is_part:  # Something small that is broadcast.
      kind = 'input'
      mapping = [-1 if axes[dim].size <= axes[dim].unit else match
                 for dim, match in enumerate(mapping)]
  extents = []
  for dim, axis in axes.items():
    extent, match = Extent(*axis), mapping[dim]
    # Else the dimension has another meaning, and is read whole.
    if match >= 0 and 0.2 < axis.size / others[match] < 5:
      extent = Extent(*axis, *follow.get(match, ()))
      extent = extent._replace(scale=extent.scale * axis.size / others[match])
    extents.append(extent)
  return Stream(kind, tuple(extents), element_bytes)


def _dims_along(graph, node, other, is_part) -> Optional[Sequence[int]]:
  """For each dimension the other's that it is; None if order does not say."""
  dims, others = graph.dims[node], graph.dims[other]
  reshaped = dims != others and math.prod(dims) == math.prod(others)
  if len(dims) == len(others) and not reshaped and not (is_part and any(
      a >= 5 * b or b >= 5 * a for a, b in zip(dims, others))):
    return range(len(dims))
  if graph.opcode[node] == 'reduce' and len(dims) < len(others):
    removed = graph.columns('dimensions')[node, :len(others) - len(dims)]
    kept = [d for d in range(len(others)) if d not in removed]
    if len(kept) == len(dims):
      return kept
  return None


def _matched_from_right(dims, others) -> list[int]:
  """For each dimension the last unmatched one of its size, or -1."""
  mapping, last = [], len(others) - 1
  for size in reversed(dims):
    match = max((d for d in range(last + 1) if others[d] == size), default=-1)
    mapping.insert(0, match)
    last = match - 1 if match >= 0 else last
  return mapping


def _size(dims, dim) -> int:
  return dims[dim] if 0 <= dim < len(dims) else 0


class _Convolution:

  def __init__(self, graph: _Graph, node: int):
    self._graph, self._node = graph, node
    self._dims = graph.dims[node]
    row = graph.columns('convolution_dim_numbers')[node].astype(int).tolist()
    spatial = max(0, min(len(self._dims) - 2, schema.MAX_SPATIAL_DIMS))
    self._image_batch, self._image_feature = row[:2]
    self._image_spatial = row[2:2 + spatial]
    self._filter_in, self._filter_out = row[6:8]
    self._filter_spatial = row[8:8 + spatial]
    self._output_batch, self._output_feature = row[12:]
    # Not stored: the dimensions left over.
    self._output_spatial = [
        d for d in range(len(self._dims)) if d not in row[12:]][:spatial]
    (self._window, self._stride, self._spread, self._dilation) = (
        graph.columns(f'window_{name}')[node]
        for name in ('size', 'stride', 'window_dilation', 'base_dilation'))
    operands = graph.operands(node)
    self._filter = max(operands, key=lambda n: (
        self._like_filter(graph.dims[n]), -graph.elements(n)))
    self._image = next((n for n in operands if n != self._filter), self._filter)
    self._axis_of = graph.axis_of(node)
    self._number_axes()

  def _like_filter(self, dims) -> int:
    """How many sizes say that an operand is the filter, not the image."""
    features, batch = (_size(self._dims, dim) for dim in (
        self._output_feature, self._output_batch))
    taps = sum(_size(dims, dim) == self._window[number]
               for number, dim in enumerate(self._filter_spatial))
    return taps + (_size(dims, self._filter_out) == features) - (
        _size(dims, self._image_batch) == batch)

  def _number_axes(self) -> None:
    """Sets the numbers of axes, and the grid."""
    graph, image = self._graph, self._graph.dims[self._image]
    self._batch = {}  # Filter dimension -> output axis that it is a batch of.
    self._windows = {}  # Number of a window -> filter dimension of its taps.
    for number, dim in enumerate(self._filter_spatial):
      output = self._output_spatial[number]
      if tiles.has_tap_each(
          self._window[number], self._stride[number], self._dilation[number],
          _size(image, self._image_spatial[number]), self._dims[output]):
        self._batch[dim] = self._axis_of[output]
      elif 0 <= dim < len(graph.dims[self._filter]):  # Features hold six.
        self._windows[number] = dim
    rank = len(self._dims)
    self._feature_axis = self._axis_of.get(self._output_feature, rank - 1)
    # Filter dimension -> axis, maybe its own.
    self._filter_axis = {self._filter_out: self._feature_axis, **self._batch}
    axes, kernel_axes = [*graph.axes(self._node).values()], []
    for dim, axis in graph.axes(self._filter).items():
      if dim not in self._filter_axis:
        self._filter_axis[dim] = len(axes)
        axes.append(axis)
      kernel_axes.append((self._filter_axis[dim], axis.unit))
    self._grid = TileGrid(tuple(axes), rank, tuple(kernel_axes))

  def loops(self, inputs, outputs) -> Loops:
    graph, conv = self._graph, self._node
    streams, others = [], list(inputs)
    for kind, operand, follow in (
        ('image', self._image, self._image_axes()),
        ('filter', self._filter,
         {d: (a,) for d, a in self._filter_axis.items()})):
      nodes = self._parameters(operand, inputs)
      others = [node for node in others if node not in nodes]
      parts = [_stream(graph, node, operand, kind, follow) for node in nodes]
      first = next((n for n, part in enumerate(parts) if part.kind == kind), -1)
      streams += [part._replace(is_operand=n == first)
                  for n, part in enumerate(parts)]
    streams += [*_streams(graph, outputs, conv, 'output'),
                *_streams(graph, others, conv, 'input')]
    # A float32 result of the same size has room for the sums.
    has_room = any(graph.element_bytes(n) == 4
                   and graph.elements(n) == graph.elements(conv)
                   for n in outputs)
    batch_axes = tuple(self._batch.values())
    return Loops(self._grid, tuple(streams), graph.vector_ops(conv), Matrix(
        row_axes=tuple(a for a in range(len(self._dims))
                       if a != self._feature_axis and a not in batch_axes),
        batch_axes=batch_axes,
        window_axes=tuple(self._filter_axis[d] for d in self._windows.values()),
        contracted=self._filter_axis.get(self._filter_in, -1),
        feature=self._feature_axis, sum_bytes=0.0 if has_room else 4.0))

  def _image_axes(self) -> dict:
    """Image dimension -> the `Extent`'s axis, scale, window and spread."""
    whole = self._graph.dims[self._image]
    found = {
        self._image_batch: (self._axis_of.get(self._output_batch, -1),),
        self._image_feature: (self._filter_axis.get(self._filter_in, -1),)}
    features = max(1, _size(self._dims, self._output_feature))
    for groups, dim in (('feature_group_count', self._image_feature),
                        ('batch_group_count', self._image_batch)):
      if self._graph.columns(groups)[self._node, 0] > 1:
        found[dim] = (self._axis_of.get(self._output_feature, -1),
                      _size(whole, dim) / features)
    for number, dim in enumerate(self._image_spatial):
      axis = self._axis_of[self._output_spatial[number]]
      found[dim] = (axis,)
      if number in self._windows:
        zeros = max(1., self._dilation[number])
        found[dim] = (axis, self._stride[number] / zeros,
                      self._filter_axis[self._windows[number]],
                      max(1., self._spread[number]) / zeros)
    return found

  def _parameters(self, operand, inputs) -> list[int]:
    """Kernel inputs that an operand is computed from."""
    graph, number = self._graph, self._graph.columns('parameter_number')[:, 0]
    numbers = {number[node] for node in [operand, *graph.operands(operand)]
               if graph.opcode[node] == 'parameter'}
    return [node for node in inputs if number[node] in numbers]
