"""The loop nest of a kernel, read off its stored features alone.

Features store operands in sorted order, so a convolution's image and filter
have to be told apart by their sizes; nor do they say where computations begin.
Besides what a TPU runs, this reads matrix products that no compiler has turned
into convolutions (`feature_dots.py`), and tiles that count elements.

`models.py` reads the same in TensorFlow. Both stay: a student edits models.py
or brings another, so what `rank`, `explain` and `report` print cannot depend on
it; they also need each stream by itself, in float64, within a millisecond; and
tests hold the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.analytic import feature_dots
from tpu_graphs_ext.analytic.loops import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import layout
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid, has_tap_each

# Vector instructions for an element of the result: none, many, else one.
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

  def __init__(self, kernel: Kernel, in_elements: bool = False):
    self.in_elements = in_elements
    self.nodes = range(kernel.num_nodes)
    self._table = np.rint(_widened(
        kernel.node_feat, len(schema.NODE_FEATURES), float))
    self.opcode = [schema.OPCODE_NAMES.get(int(number), '')
                   for number in kernel.node_opcode]
    self.producers = [[] for _ in self.nodes]
    self.consumed = np.zeros(kernel.num_nodes, bool)
    for consumer, producer in kernel.edge_index:
      self.producers[consumer].append(int(producer))
      self.consumed[producer] = True
    self.is_root = self._table[:, schema.NODE_COLUMN['is_root']] > 0
    self.dims = [[int(size) for size in row if size > 0]
                 for row in self.columns('shape_dimensions')[:, :6]]
    self.dots = {
        node: feature_dots.read_dot(
            self.dims[node], self.producers[node] or [node], self.dims)
        for node, opcode in enumerate(self.opcode) if opcode == 'dot'}
    for node, dot in self.dots.items():
      for group, values in (
          ('convolution_dim_numbers', dot.numbers),
          ('window_size', dot.window), ('window_base_dilation', dot.window),
          ('window_stride', [1] * feature_dots.SPATIAL)):
        self.columns(group)[node, :len(values)] = values

  def columns(self, group: str) -> np.ndarray:
    """float64 [nodes, columns of the group], a view."""
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
    units = [1] * len(sizes) if self.in_elements else layout.layout_units(sizes)
    return list(map(Axis, sizes, units))

  def padded(self, node: int) -> int:
    """Elements of the layout tiles that hold the tensor."""
    return math.prod(axis.units * axis.unit for axis in self.axes(node))

  def element_bytes(self, node: int) -> float:
    one_hot = self.columns('shape_element_type')[node] > 0
    return float(max([layout.element_bytes(name) for name, is_type in zip(
        schema.ELEMENT_TYPES, one_hot) if is_type] or [4]))

  def operands(self, node: int) -> list[int]:
    """Producers but the roots of computations that the node calls."""
    return [p for p in self.producers[node] if not self.is_root[p]]

  def turn(self, node: int, tiled: int) -> list[int]:
    """For a tensor before a transposition, the tiled dimension of each of its.

    Empty for a node that does not come before one.
    """
    turns = [n for n, opcode in enumerate(self.opcode)
             if opcode == 'transpose' and self.dims[n] == self.dims[tiled]]
    if not self.in_elements or not turns:
      return []
    before, found = {turns[0]}, set()
    for _ in range(9):
      before = {p for n in before for p in self.producers[n]}
      found |= before
    if node not in found:
      return []
    order = self.columns('dimensions')[turns[0]].astype(int).tolist()
    rank = len(self.dims[tiled])
    return [order[:rank].index(d) for d in range(rank)]


def _widened(table: np.ndarray, width: int, dtype) -> np.ndarray:
  """The table cut, or padded with zeros, to a number of columns."""
  wide = np.zeros((len(table), width), dtype)
  known = min(width, table.shape[1])
  wide[:, :known] = np.rint(table[:, :known])
  return wide


def loop_tiles(loops: Loops, config_feat: np.ndarray) -> np.ndarray:
  """int64 [configs, axes]: tile bounds of each loop.

  A bound of 0, or without a column, is the whole dimension.

  Args:
    loops: from `kernel_loops`.
    config_feat: float32 [configs, columns of `schema.CONFIG_FEATURES`].
  """
  wide = _widened(config_feat, len(schema.CONFIG_FEATURES), np.int64)
  output, kernel = (wide[:, schema.CONFIG_GROUPS[group]][:, :schema.MAX_DIMS]
                    for group in ('output_bounds', 'kernel_bounds'))
  if loops.in_elements:
    output = output[:, list(loops.dims)]
    kernel = kernel[:, list(loops.filter_dims)]
  grid = loops.grid
  tiles = grid.tiles(output[:, :grid.num_output_axes],
                     kernel[:, :len(grid.kernel_axes)])
  units = np.array([axis.units for axis in grid.axes], np.int64)
  return np.where(tiles > 0, tiles, units)


def kernel_loops(kernel: Kernel, in_elements: bool = False) -> Loops:
  """The loop nest of a kernel, from its node features and edges.

  Args:
    kernel: its `node_feat` has the columns of `schema.NODE_FEATURES`; missing
      columns count as 0.
    in_elements: whether tile bounds count elements, not layout tiles.
  """
  graph = _Graph(kernel, in_elements)
  root = max(graph.nodes, key=lambda n: (
      int(graph.is_root[n]) - int(graph.consumed[n]), graph.elements(n)))
  main = root  # The root of the computation that the kernel fuses.
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
  products = [n for n in graph.nodes
              if graph.opcode[n] in ('convolution', 'dot')
              and graph.operands(n)]
  if products:
    return _convolution_loops(
        graph, products[-1], inputs, outputs)  # Earlier ones make operands.
  return _plain_loops(
      graph, inputs, outputs, bounded=graph.opcode[root] != 'reshape')


def _vector_ops(graph, tiled) -> float:
  """Vector instructions for an element of the tiled tensor."""
  return sum(
      SLOW_COST if opcode in SLOW else float(opcode not in FREE)
      for node, opcode in enumerate(graph.opcode)
      if graph.dims[node] == graph.dims[tiled])


# --- Kernels without a convolution --------------------------------------------


def _plain_loops(graph, inputs, outputs, bounded) -> Loops:
  tiled = graph.largest(outputs)
  reductions = [n for n in outputs if graph.opcode[n] == 'reduce']
  if graph.in_elements and not reductions:  # Operations follow the reduction.
    reductions = [n for n, opcode in enumerate(graph.opcode)
                  if opcode == 'reduce' and graph.dims[n] == graph.dims[tiled]]
  reduced = [operand for n in reductions for operand in graph.operands(n)]
  if reduced:
    tiled = graph.largest(reduced)
  axes = graph.axes(tiled)
  streams = [_stream(graph, node, tiled, 'output') for node in outputs]
  streams += [_stream(graph, node, tiled, 'input') for node in inputs]
  return Loops(
      TileGrid(tuple(axes), len(axes), bounded=bounded), tuple(streams),
      _vector_ops(graph, tiled) + len(reductions),
      updated=_updated(graph, tiled),
      in_elements=graph.in_elements, dims=tuple(graph.physical_dims(tiled)))


def _updated(graph, tiled) -> tuple:
  """`Loops.updated`: the sizes of the update, in the order of the axes."""
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
  if mapping is None:  # The tiled tensor, seen in other dimensions.
    element_bytes *= graph.padded(node) / graph.padded(tiled)
    node, mapping = tiled, list(range(len(graph.dims[tiled])))
  others = graph.dims[tiled]
  axis_of = {d: a for a, d in enumerate(graph.physical_dims(tiled))}
  extents = []
  for dim, (size, unit) in zip(graph.physical_dims(node), graph.axes(node)):
    target = mapping[dim]
    scale = size / others[target] if target >= 0 else 0.0
    if 0.2 < scale < 5:
      extents.append(Extent(size, unit, axis_of[target], scale))
    else:  # Broadcast, or with another meaning: taken whole.
      extents.append(Extent(size, unit))
  return Stream(kind, tuple(extents), element_bytes)


def _dims_along(graph, node, tiled):
  """For each dimension the tiled one that it follows, or -1.

  None: the tensor is the tiled one, seen in other dimensions.
  """
  dims, others = graph.dims[node], graph.dims[tiled]
  turn = graph.turn(node, tiled)
  if len(dims) == len(others) and (turn or not _reshaped(dims, others)):
    return turn or list(range(len(dims)))
  if graph.opcode[node] == 'reduce' and len(dims) < len(others):
    removed = graph.columns('dimensions')[node, :len(others) - len(dims)]
    kept = [d for d in range(len(others)) if d not in removed]
    if len(kept) == len(dims):
      return kept
  if _similar_size(dims, others):
    return None
  mapping = _matched_from_right(
      dims, [others[d] for d in turn] if turn else others)
  return [turn[d] if turn and d >= 0 else d for d in mapping]


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


class _Numbers(NamedTuple):
  """Which dimension of a convolution's tensors is what."""
  image_batch: int
  image_feature: int
  image_spatial: tuple
  filter_in: int
  filter_out: int
  filter_spatial: tuple
  output_batch: int
  output_feature: int
  output_spatial: tuple


def _numbers_of(graph, conv) -> _Numbers:
  row = [int(n) for n in graph.columns('convolution_dim_numbers')[conv]]
  rank = len(graph.dims[conv])
  named = sum(number >= 0 for number in row[12:14])
  spatial = max(0, min(rank - named, schema.MAX_SPATIAL_DIMS))
  # The output's spatial dimensions are not stored: they are those left over.
  left = [d for d in range(rank) if d not in row[12:14]]
  return _Numbers(row[0], row[1], tuple(row[2:2 + spatial]), row[6], row[7],
                  tuple(row[8:8 + spatial]), row[12], row[13],
                  tuple(left[:spatial]))


def _size(dims, dim) -> int:
  return dims[dim] if 0 <= dim < len(dims) else 0


def _operands(graph, conv, numbers) -> tuple[int, int]:
  """(image, filter), told apart by the sizes that must agree."""
  if conv in graph.dots:
    return graph.dots[conv].left, graph.dots[conv].right
  out, windows = graph.dims[conv], graph.columns('window_size')[conv]

  def like_filter(node):
    dims = graph.dims[node]
    agree = [_size(dims, numbers.filter_out) == _size(
        out, numbers.output_feature)]
    agree += [_size(dims, dim) == windows[i]
              for i, dim in enumerate(numbers.filter_spatial)]
    return sum(agree) - (_size(dims, numbers.image_batch) == _size(
        out, numbers.output_batch))

  operands = graph.operands(conv)
  filters = max(operands, key=lambda node: (
      like_filter(node), -graph.elements(node)))
  return next((n for n in operands if n != filters), filters), filters


def _convolution_loops(graph, conv, inputs, outputs) -> Loops:
  numbers = _numbers_of(graph, conv)
  image, filters = _operands(graph, conv, numbers)
  axes = graph.axes(conv)
  rank = len(axes)
  axis_of = {d: a for a, d in enumerate(graph.physical_dims(conv))}
  # Only a matrix product with a vector has no features.
  feature = axis_of.get(numbers.output_feature,
                        -1 if conv in graph.dots else rank - 1)
  batch, windows = _filter_axes(
      graph, conv, image, filters, numbers, axis_of)
  batch_axes = tuple(batch.values())
  filter_axis = {numbers.filter_out: feature, **batch}
  kernel_axes = []
  for dim, axis in zip(graph.physical_dims(filters), graph.axes(filters)):
    if dim not in filter_axis:
      filter_axis[dim] = len(axes)
      axes.append(axis)
    kernel_axes.append((filter_axis[dim], axis.unit))
  matrix = Matrix(
      row_axes=tuple(a for a in range(rank)
                     if a != feature and a not in batch_axes),
      batch_axes=batch_axes,
      window_axes=tuple(filter_axis[d] for d in windows.values()),
      contracted=filter_axis.get(numbers.filter_in, -1), feature=feature,
      # A float32 result of the same size has room for the sums.
      sum_bytes=0.0 if any(
          graph.element_bytes(n) == 4
          and graph.elements(n) == graph.elements(conv)
          for n in outputs) else 4.0)
  streams, used = [], set()
  for kind, operand, axis_map in (
      ('image', image, _image_axes(
          graph, conv, image, numbers, axis_of, filter_axis, windows)),
      ('filter', filters, {d: (a,) for d, a in filter_axis.items()})):
    nodes = _parameters(graph, operand, inputs)
    used.update(nodes)
    parts = [_operand_stream(graph, node, operand, kind, axis_map)
             for node in nodes]
    first = next((n for n, part in enumerate(parts) if part.kind == kind), -1)
    streams += [part._replace(is_operand=n == first)
                for n, part in enumerate(parts)]
  streams += [_stream(graph, node, conv, 'output') for node in outputs]
  streams += [_stream(graph, node, conv, 'input')
              for node in inputs if node not in used]
  return Loops(
      TileGrid(tuple(axes), rank, tuple(kernel_axes)), tuple(streams),
      _vector_ops(graph, conv), matrix, in_elements=graph.in_elements,
      dims=tuple(graph.physical_dims(conv)),
      filter_dims=tuple(graph.physical_dims(filters)))


def _filter_axes(graph, conv, image, filters, numbers,
                 axis_of) -> tuple[dict, dict]:
  """(filter dimension -> output axis that it is a batch of, window number ->
  filter dimension of its taps)."""
  batch, windows = {}, {}
  sizes, stride, dilation = (graph.columns(f'window_{name}')[conv] for name in (
      'size', 'stride', 'base_dilation'))
  for number, dim in enumerate(numbers.filter_spatial):
    output = numbers.output_spatial[number]
    if has_tap_each(
        sizes[number], stride[number], dilation[number],
        _size(graph.dims[image], numbers.image_spatial[number]),
        graph.dims[conv][output]):
      batch[dim] = axis_of[output]
    elif 0 <= dim < len(graph.dims[filters]):  # Features hold six.
      windows[number] = dim
  return batch, windows


def _image_axes(
    graph, conv, image, numbers, axis_of, filter_axis, windows) -> dict:
  """Image dimension -> (axis, scale, window axis, spread), or its start."""
  whole = graph.dims[image]
  found = {
      numbers.image_batch: (axis_of.get(numbers.output_batch, -1),),
      numbers.image_feature: (filter_axis.get(numbers.filter_in, -1),)}
  features = max(1, _size(graph.dims[conv], numbers.output_feature))
  for groups, dim in (('feature_group_count', numbers.image_feature),
                      ('batch_group_count', numbers.image_batch)):
    if graph.columns(groups)[conv, 0] > 1:
      found[dim] = (axis_of.get(numbers.output_feature, -1),
                    _size(whole, dim) / features)
  stride, spread, dilation = (
      graph.columns(f'window_{name}')[conv]
      for name in ('stride', 'window_dilation', 'base_dilation'))
  for number, dim in enumerate(numbers.image_spatial):
    axis = axis_of[numbers.output_spatial[number]]
    found[dim] = (axis,)
    if number in windows:
      zeros = max(1., dilation[number])
      found[dim] = (axis, stride[number] / zeros, filter_axis[windows[number]],
                    max(1., spread[number]) / zeros)
  return found


def _parameters(graph, operand, inputs) -> list[int]:
  """Kernel inputs that a convolution's operand is computed from."""
  number = graph.columns('parameter_number')[:, 0]
  numbers = {number[node] for node in [operand, *graph.operands(operand)]
             if graph.opcode[node] == 'parameter'}
  return [node for node in inputs if number[node] in numbers]


def _operand_stream(graph, node, operand, kind, axis_map) -> Stream:
  """A kernel input, cut like the operand that it becomes a part of."""
  dims, whole = graph.dims[node], graph.dims[operand]
  element_bytes = graph.element_bytes(node)
  alike = len(dims) == len(whole) and not _reshaped(dims, whole) and all(
      a < 5 * b and b < 5 * a for a, b in zip(dims, whole))
  if not alike:
    if _similar_size(dims, whole):
      element_bytes *= graph.padded(node) / graph.padded(operand)
      node, dims = operand, whole
    else:  # Something small that is broadcast.
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
