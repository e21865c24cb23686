"""Reads the loop nest of a kernel, as `loops.py` defines it, off its HLO."""

from __future__ import annotations

import dataclasses
import math

from tpu_graphs_ext.analytic.loops import Extent, Loops, Matrix, Stream
from tpu_graphs_ext.hlo import layout, protos, tiles
from tpu_graphs_ext.hlo.fused import FusedKernel

# Vector instructions an element of the result takes; 1 unless listed.
VECTOR_COST = {
    'parameter': 0, 'constant': 0, 'bitcast': 0, 'tuple': 0, 'fusion': 0,
    'get-tuple-element': 0, 'convolution': 0, 'dot': 0, 'reshape': 0,
    'broadcast': 0.25, 'iota': 0.25, 'slice': 0.5, 'pad': 1.5,
    'concatenate': 1.5, 'copy': 0.5, 'transpose': 6, 'reverse': 4, 'divide': 5,
    'rsqrt': 4, 'sqrt': 5, 'exponential': 9, 'log': 9, 'log-plus-one': 10,
    'tanh': 11, 'exponential-minus-one': 10, 'logistic': 14, 'power': 18,
    'rng': 12, 'sine': 14, 'cosine': 14,
}


def kernel_loops(module) -> Loops:
  """Reads the loop nest off an `HloModuleProto` of one kernel."""
  kernel = FusedKernel(module)
  of_kind = _convolution_loops if kernel.product else _plain_loops
  return of_kind(kernel, tiles.grid_of(kernel))


def _element_bytes(shape) -> float:
  return layout.element_bytes(protos.PrimitiveType.Name(shape.element_type))


def _axis_of(shape) -> dict[int, int]:
  """Logical dimension -> its place in physical order, most major first."""
  return {dim: axis
          for axis, (dim, _) in enumerate(layout.physical_shape(shape))}


def _vector_ops(computation, dims) -> float:
  """Vector instructions per element, over instructions of these dims."""
  return sum(
      VECTOR_COST.get(node.opcode, 1)
      for node in computation.instructions
      if list(node.shape.dimensions) == dims)


# --- Kernels without a convolution -------------------------------------------


def _plain_loops(kernel, grid) -> Loops:
  main, tiled = kernel.main, kernel.tiled().shape
  ops = _vector_ops(main, list(tiled.dimensions))
  ops += sum(_reduction_ops(node) for node in main.instructions)
  streams = [_output_stream(node, tiled) for node in kernel.results()]
  streams += [
      _input_stream(node, tiled)
      for node in main.instructions if node.opcode == 'parameter']
  return Loops(grid, tuple(streams), ops, updated=_updated(kernel))


def _updated(kernel) -> tuple:
  """`Loops.updated`: the sizes of the update, in the order of the axes."""
  tiled = kernel.tiled()
  if tiled.opcode != 'dynamic-update-slice':
    return ()
  update = kernel.nodes[tiled.operand_ids[1]].shape.dimensions
  return tuple(update[dim] for dim, _ in layout.physical_shape(tiled.shape))


def _reduction_ops(node) -> float:
  if node.opcode == 'reduce':
    return 1.0
  if node.opcode in ('reduce-window', 'select-and-scatter'):
    return 0.5 * math.prod(w.size for w in node.window.dimensions)
  return 0.0


def _output_stream(root, tiled) -> Stream:
  if root.opcode == 'reduce' and len(root.shape.dimensions) != len(
      tiled.dimensions):
    kept = [d for d in range(len(tiled.dimensions))
            if d not in root.dimensions]
    if len(kept) == len(root.shape.dimensions):
      return _mapped_stream('output', root.shape, tiled, kept)
  return _input_stream(root, tiled, 'output')


def _input_stream(node, tiled, kind='input') -> Stream:
  """A tensor read along the tiled one: dims matched by size from the right."""
  dims = list(node.shape.dimensions)
  same_rank = len(dims) == len(tiled.dimensions)
  if same_rank and not _seen_otherwise(dims, list(tiled.dimensions)):
    mapping = list(range(len(dims)))
  elif _as_many(node.shape, tiled):
    same = _mapped_stream(kind, tiled, tiled, range(len(tiled.dimensions)))
    return _with_bytes_of(node.shape, same)
  else:
    mapping = _matched_from_right(dims, tiled.dimensions)
  return _mapped_stream(kind, node.shape, tiled, mapping)


def _seen_otherwise(dims, others) -> bool:
  """Whether a tensor has as many elements, but in other dimensions."""
  return dims != others and math.prod(dims) == math.prod(others)


def _matched_from_right(dims, others) -> list[int]:
  """For each dimension the last one left of its size, or -1."""
  mapping, last = [], len(others) - 1
  for size in reversed(dims):
    match = last
    while match >= 0 and others[match] != size:
      match -= 1
    mapping.insert(0, match)
    last = match - 1 if match >= 0 else last
  return mapping


def _with_bytes_of(shape, stream) -> Stream:
  """A tensor that is cut like another, but has the bytes of its own layout."""
  padded = layout.padded_elements(*zip(*(
      (shape.dimensions[dim], unit)
      for dim, unit in layout.physical_shape(shape))))
  cut = layout.padded_elements(*zip(*(
      (extent.size, extent.unit) for extent in stream.extents)))
  return dataclasses.replace(
      stream, element_bytes=_element_bytes(shape) * padded / cut)


def _mapped_stream(kind, shape, tiled, mapping) -> Stream:
  """mapping: for each logical dim of shape the tiled logical dim, or -1."""
  axis_of = _axis_of(tiled)
  extents = []
  for dim, unit in layout.physical_shape(shape):
    size, target = shape.dimensions[dim], mapping[dim]
    scale = size / tiled.dimensions[target] if target >= 0 else 1.0
    # Far from the tiled size: broadcast, or another meaning; taken whole.
    follows = target >= 0 and 0.2 < scale < 5
    extents.append(Extent(size, unit, axis_of[target] if follows else -1,
                          scale if follows else 1.0))
  return Stream(kind, tuple(extents), _element_bytes(shape))


# --- Convolutions ------------------------------------------------------------


def _convolution_loops(kernel, grid) -> Loops:
  main, conv, nodes = kernel.main, kernel.product, kernel.nodes
  image, filters = (nodes[i] for i in conv.operand_ids)
  rank, numbers = grid.num_output_axes, conv.convolution_dimension_numbers
  axis_of = _axis_of(conv.shape)
  feature = axis_of[numbers.output_feature_dimension]
  filter_axis = {
      dim: axis for (dim, _), (axis, _) in zip(
          layout.physical_shape(filters.shape), grid.kernel_axes)}
  # Spatial dimensions of the filter that follow the output are batches.
  spatial = [filter_axis[dim] for dim in numbers.kernel_spatial_dimensions]
  batch_axes = tuple(axis for axis in spatial if axis < rank)
  matrix = Matrix(
      row_axes=tuple(a for a in range(rank)
                     if a != feature and a not in batch_axes),
      batch_axes=batch_axes,
      window_axes=tuple(axis for axis in spatial if axis >= rank),
      contracted=filter_axis[numbers.kernel_input_feature_dimension],
      feature=feature, sum_bytes=_sum_bytes(kernel))
  image_axis = _image_extents(conv, image.shape, axis_of, filter_axis, rank)
  streams = [
      *_operand_streams('image', image, image_axis, kernel),
      *_operand_streams(
          'filter', filters,
          {d: (a,) for d, a in filter_axis.items()}, kernel),
      *_remaining_streams(kernel)]
  return Loops(
      grid, tuple(streams),
      _vector_ops(main, list(conv.shape.dimensions))
      + sum(_reduction_ops(node) for node in main.instructions), matrix)


def _sum_bytes(kernel) -> float:
  """Of a product's float32 sums: none where a result has room for them."""
  elements = math.prod(kernel.product.shape.dimensions)
  return 0.0 if any(
      _element_bytes(node.shape) == 4
      and math.prod(node.shape.dimensions) == elements
      for node in kernel.results()) else 4.0


def _image_extents(conv, shape, axis_of, filter_axis, rank) -> dict:
  """Image dimension -> (axis, scale, window axis, spread), or its start."""
  numbers = conv.convolution_dimension_numbers
  feature = axis_of[numbers.output_feature_dimension]
  extents = {
      numbers.input_batch_dimension:
          (axis_of[numbers.output_batch_dimension],),
      numbers.input_feature_dimension:
          (filter_axis[numbers.kernel_input_feature_dimension],)}
  # Each group has its own part of the image's features, or of its batch.
  out_features = conv.shape.dimensions[numbers.output_feature_dimension]
  for groups, dim in (
      (conv.feature_group_count, numbers.input_feature_dimension),
      (conv.batch_group_count, numbers.input_batch_dimension)):
    if groups > 1:
      extents[dim] = (feature, shape.dimensions[dim] / out_features)
  for number, dim in enumerate(numbers.input_spatial_dimensions):
    axis = axis_of[numbers.output_spatial_dimensions[number]]
    window = conv.window.dimensions[number]
    taps = filter_axis[numbers.kernel_spatial_dimensions[number]]
    zeros = max(1, window.base_dilation)
    extents[dim] = (axis,) if taps < rank else (  # A batch, or a window.
        axis, window.stride / zeros, taps,
        max(1, window.window_dilation) / zeros)
  return extents


def _operand_streams(kind, operand, axis_of_dim, kernel) -> list:
  """The operand's own stream, or those of the producers fused into it."""
  whole = operand.shape
  own = _with_axes(kind, whole, whole, axis_of_dim)
  if operand.opcode != 'fusion':
    return [dataclasses.replace(own, is_operand=True)]
  body = kernel.computations[operand.called_computation_ids[0]]
  streams = []
  for number in operand.operand_ids:
    shape = kernel.nodes[number].shape
    if _same_rank(shape, whole):
      streams.append(_with_axes(kind, shape, whole, axis_of_dim))
    elif _as_many(shape, whole):
      streams.append(_with_bytes_of(shape, own))
    else:  # Broadcast. What a single layout tile holds never changes.
      matched = _matched_from_right(shape.dimensions, whole.dimensions)
      streams.append(_with_axes('input', shape, shape, {
          dim: axis_of_dim[matched[dim]]
          for dim, unit in layout.physical_shape(shape)
          if matched[dim] in axis_of_dim and shape.dimensions[dim] > unit}))
  ops = _vector_ops(body, list(whole.dimensions))
  for position, stream in enumerate(streams):
    if stream.kind == kind:  # The producers' work is counted once.
      streams[position] = dataclasses.replace(
          stream, vector_ops=ops, is_operand=True)
      break
  return streams


def _with_axes(kind, shape, whole, axis_of_dim) -> Stream:
  """A stream whose dimensions follow the operand's, in proportion."""
  extents = []
  for dim, unit in layout.physical_shape(shape):
    size = shape.dimensions[dim]
    extent = Extent(size, unit, *axis_of_dim.get(dim, ()))
    extents.append(dataclasses.replace(
        extent, scale=extent.scale * size / whole.dimensions[dim]))
  return Stream(kind, tuple(extents), _element_bytes(shape))


def _same_rank(shape, other) -> bool:
  """Whether two shapes differ in sizes only, as by padding or a window."""
  dims, others = list(shape.dimensions), list(other.dimensions)
  return len(dims) == len(others) and not _seen_otherwise(
      dims, others) and all(
          a < 5 * b and b < 5 * a for a, b in zip(dims, others))


def _as_many(shape, other) -> bool:
  """Whether one is the other seen in other dimensions, more or less."""
  return 0.5 < math.prod(shape.dimensions) / math.prod(other.dimensions) < 2


def _remaining_streams(kernel) -> list:
  """Streams of the results, and of parameters that the chain reads."""
  conv = kernel.product
  used = set(conv.operand_ids)
  for operand in conv.operand_ids:
    used |= set(kernel.nodes[operand].operand_ids)
  streams = [_output_stream(node, conv.shape) for node in kernel.results()]
  return streams + [
      _input_stream(node, conv.shape) for node in kernel.main.instructions
      if node.opcode == 'parameter' and node.id not in used]
