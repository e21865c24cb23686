"""The loop nest of a kernel on a TPU, read off its stored features alone.

Features list operands in sorted order, so sizes say which operand of a
convolution is the filter. They do not say where a computation begins.

`models.py` reads the same in TensorFlow, which takes 50 ms a kernel outside a
compiled graph instead of 0.4, and students edit it; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tpu_graphs_ext.analytic.tile_counts import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import layout
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid, has_tap_each

# Vector instructions on an element of the result: none, `SLOW_COST`, else one.
FREE = frozenset((
    'parameter', 'constant', 'bitcast', 'tuple', 'fusion', 'get-tuple-element',
    'convolution', 'dot', 'reshape', 'broadcast', 'iota'))
SLOW = frozenset((
    'transpose', 'divide', 'rsqrt', 'sqrt', 'exponential', 'log', 'tanh',
    'log-plus-one', 'exponential-minus-one', 'logistic', 'power', 'rng', 'sine',
    'cosine'))
SLOW_COST = 8.0


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

  def largest(self, nodes: Sequence[int]) -> int:
    return max(nodes, key=self.elements)

  def physical_dims(self, node: int) -> list[int]:
    """Logical dimensions in physical order; row-major without a layout."""
    rank = len(self.dims[node])
    return layout.physical_dims(
        self.columns('layout_minor_to_major')[node, :rank], rank)

  def axes(self, node: int) -> list[Axis]:
    """Size and layout unit of each physical dimension."""
    sizes = [self.dims[node][dim] for dim in self.physical_dims(node)]
    return list(map(Axis, sizes, layout.layout_units(sizes)))

  def element_bytes(self, node: int) -> float:
    one_hot = self.columns('shape_element_type')[node] > 0
    return float(max([layout.element_bytes(name) for name, is_type in zip(
        schema.ELEMENT_TYPES, one_hot) if is_type] or [4]))

  def stored_as(self, node: int, other: int) -> float:
    """Bytes of an element if the node's tensor had the other's shape."""
    padded, of_other = (math.prod(axis.units * axis.unit for axis in axes)
                        for axes in map(self.axes, (node, other)))
    return self.element_bytes(node) * (padded / of_other)

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
  """int64 [configs, axes]: tile bounds of each loop.

  A bound that is 0 or has no column stands for the whole dimension.

  Args:
    loops: from `kernel_loops`.
    config_feat: float32 [configs, columns of `schema.CONFIG_FEATURES`].
  """
  wide = _widened(config_feat, len(schema.CONFIG_FEATURES), np.int64)
  output, kernel = (wide[:, schema.CONFIG_GROUPS[group]][:, :schema.MAX_DIMS]
                    for group in ('output_bounds', 'kernel_bounds'))
  grid = loops.grid
  tiles = grid.tiles(output[:, :grid.num_output_axes],
                     kernel[:, :len(grid.kernel_axes)])
  units = np.array([axis.units for axis in grid.axes], np.int64)
  return np.where(tiles > 0, tiles, units)


def kernel_loops(kernel: Kernel) -> Loops:
  """The loop nest of a kernel, from its node features and edges.

  Args:
    kernel: its `node_feat` has the columns of `schema.NODE_FEATURES`; missing
      columns count as 0.
  """
  graph = _Graph(kernel)
  root = max(graph.nodes, key=lambda n: (
      int(graph.is_root[n]) - int(graph.consumed[n]), graph.elements(n)))
  main = root  # The root of the fused computation.
  for producer in graph.producers[root]:
    if graph.opcode[root] == 'fusion' and graph.is_root[producer]:
      main = producer
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
  return _plain_loops(graph, inputs, outputs, graph.opcode[root] != 'reshape')


# --- Kernels without a convolution --------------------------------------------


def _plain_loops(graph, inputs, outputs, bounded) -> Loops:
  tiled = graph.largest(outputs)
  reductions = [n for n in outputs if graph.opcode[n] == 'reduce']
  reduced = [operand for n in reductions for operand in graph.operands(n)]
  if reduced:
    tiled = graph.largest(reduced)
  axes = graph.axes(tiled)
  streams = [_stream(graph, node, tiled, kind) for kind, nodes in (
      ('output', outputs), ('input', inputs)) for node in nodes]
  return Loops(
      TileGrid(tuple(axes), len(axes), bounded=bounded), tuple(streams),
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
  return tuple(update[dim] for dim in graph.physical_dims(tiled))


def _stream(graph, node, tiled, kind) -> Stream:
  """A tensor read or written along the tiled one."""
  mapping = _dims_along(graph, node, tiled)
  element_bytes = graph.element_bytes(node)
  others = graph.dims[tiled]
  if mapping is None:
    element_bytes = graph.stored_as(node, tiled)
    node, mapping = tiled, list(range(len(others)))
  axis_of = {d: a for a, d in enumerate(graph.physical_dims(tiled))}
  extents = []
  for dim, (size, unit) in zip(graph.physical_dims(node), graph.axes(node)):
    target = mapping[dim]
    scale = size / others[target] if target >= 0 else 0.0
    if 0.2 < scale < 5:
      extents.append(Extent(size, unit, axis_of[target], scale))
    else:  # Broadcast, or with another meaning: read whole.
      extents.append(Extent(size, unit))
  return Stream(kind, tuple(extents), element_bytes)


def _dims_along(graph, node, tiled) -> Optional[list[int]]:
  """For each dimension the tiled one that it follows, or -1.

  None: the tensor is the tiled one, reshaped.
  """
  dims, others = graph.dims[node], graph.dims[tiled]
  if len(dims) == len(others) and not _reshaped(dims, others):
    return list(range(len(dims)))
  if graph.opcode[node] == 'reduce' and len(dims) < len(others):
    removed = graph.columns('dimensions')[node, :len(others) - len(dims)]
    kept = [d for d in range(len(others)) if d not in removed]
    if len(kept) == len(dims):
      return kept
  if _similar_size(dims, others):
    return None
  return _matched_from_right(dims, others)


def _reshaped(dims, others) -> bool:
  """Whether a tensor has as many elements, but in other dimensions."""
  return dims != others and math.prod(dims) == math.prod(others)


def _matched_from_right(dims, others) -> list[int]:
  """For each dimension the last unmatched one of its size, or -1."""
  mapping, last = [], len(others) - 1
  for size in reversed(dims):
    match = max((d for d in range(last + 1) if others[d] == size), default=-1)
    mapping.insert(0, match)
    last = match - 1 if match >= 0 else last
  return mapping


def _similar_size(dims, others) -> bool:
  return 0.5 < math.prod(dims) / math.prod(others) < 2


# --- Convolutions -------------------------------------------------------------


def _size(dims, dim) -> int:
  return dims[dim] if 0 <= dim < len(dims) else 0


class _Convolution:
  """A convolution: its operands, what their dimensions mean, and its loops."""

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
    self._axes = graph.axes(node)
    self._axis_of = {d: a for a, d in enumerate(graph.physical_dims(node))}
    self._feature_axis = self._axis_of.get(
        self._output_feature, len(self._dims) - 1)
    self._number_axes()

  def _like_filter(self, dims) -> int:
    """How many sizes say that an operand is the filter, not the image."""
    agree = [_size(dims, self._filter_out) == _size(
        self._dims, self._output_feature)]
    agree += [_size(dims, dim) == self._window[i]
              for i, dim in enumerate(self._filter_spatial)]
    return sum(agree) - (_size(dims, self._image_batch) == _size(
        self._dims, self._output_batch))

  def _number_axes(self) -> None:
    """Appends the filter's own axes; the others are the output's.

    Sets `_batch` {filter dimension: output axis it is a batch of}, `_windows`
    {number of a window: filter dimension of its taps}, `_filter_axis` {filter
    dimension: axis} and `_kernel_axes`, see `TileGrid`.
    """
    graph, image = self._graph, self._graph.dims[self._image]
    self._batch, self._windows = {}, {}
    for number, dim in enumerate(self._filter_spatial):
      output = self._output_spatial[number]
      if has_tap_each(
          self._window[number], self._stride[number], self._dilation[number],
          _size(image, self._image_spatial[number]), self._dims[output]):
        self._batch[dim] = self._axis_of[output]
      elif 0 <= dim < len(graph.dims[self._filter]):  # Features hold six.
        self._windows[number] = dim
    self._filter_axis = {self._filter_out: self._feature_axis, **self._batch}
    self._kernel_axes = []
    for dim, axis in zip(graph.physical_dims(self._filter),
                         graph.axes(self._filter)):
      if dim not in self._filter_axis:
        self._filter_axis[dim] = len(self._axes)
        self._axes.append(axis)
      self._kernel_axes.append((self._filter_axis[dim], axis.unit))

  def loops(self, inputs, outputs) -> Loops:
    graph, conv, rank = self._graph, self._node, len(self._dims)
    batch_axes = tuple(self._batch.values())
    matrix = Matrix(
        row_axes=tuple(a for a in range(rank)
                       if a != self._feature_axis and a not in batch_axes),
        batch_axes=batch_axes,
        window_axes=tuple(self._filter_axis[d] for d in self._windows.values()),
        contracted=self._filter_axis.get(self._filter_in, -1),
        feature=self._feature_axis,
        # A float32 result of the same size has room for the sums.
        sum_bytes=0.0 if any(
            graph.element_bytes(n) == 4
            and graph.elements(n) == graph.elements(conv)
            for n in outputs) else 4.0)
    streams, used = [], set()
    for kind, operand, axis_map in (
        ('image', self._image, self._image_axes()),
        ('filter', self._filter,
         {d: (a,) for d, a in self._filter_axis.items()})):
      nodes = self._parameters(operand, inputs)
      used.update(nodes)
      parts = [self._operand_stream(node, operand, kind, axis_map)
               for node in nodes]
      first = next((n for n, part in enumerate(parts) if part.kind == kind), -1)
      streams += [part._replace(is_operand=n == first)
                  for n, part in enumerate(parts)]
    streams += [_stream(graph, node, conv, 'output') for node in outputs]
    streams += [_stream(graph, node, conv, 'input')
                for node in inputs if node not in used]
    return Loops(
        TileGrid(tuple(self._axes), rank, tuple(self._kernel_axes)),
        tuple(streams), graph.vector_ops(conv), matrix)

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

  def _operand_stream(self, node, operand, kind, axis_map) -> Stream:
    """A kernel input, cut like the operand that it becomes a part of."""
    graph = self._graph
    dims, whole = graph.dims[node], graph.dims[operand]
    element_bytes = graph.element_bytes(node)
    alike = len(dims) == len(whole) and not _reshaped(dims, whole) and all(
        a < 5 * b and b < 5 * a for a, b in zip(dims, whole))
    if not alike and _similar_size(dims, whole):
      element_bytes = graph.stored_as(node, operand)
      node = operand
    elif not alike:  # Something small that is broadcast.
      kind, matched = 'input', _matched_from_right(dims, whole)
      unit = {dim: axis.unit for dim, axis in zip(
          graph.physical_dims(node), graph.axes(node))}
      whole = dims
      axis_map = {dim: axis_map[other] for dim, other in enumerate(matched)
                  if other in axis_map and dims[dim] > unit[dim]}
    extents = []
    for dim, (size, unit) in zip(graph.physical_dims(node), graph.axes(node)):
      extent = Extent(size, unit, *axis_map.get(dim, ()))
      extents.append(extent._replace(scale=extent.scale * size / whole[dim]))
    return Stream(kind, tuple(extents), element_bytes)
