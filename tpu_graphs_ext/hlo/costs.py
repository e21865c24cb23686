"""What a kernel computes and moves, counted from its instructions.

Counted as XLA's own analysis counts: an addition or a comparison is one
operation, a multiplication with its addition two; padding is not counted.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.hlo import protos, tiles

# They move or rename values.
_MOVES = frozenset({
    'bitcast', 'bitcast-convert', 'broadcast', 'concatenate', 'constant',
    'convert', 'copy', 'dynamic-slice', 'dynamic-update-slice', 'fusion',
    'gather', 'get-tuple-element', 'iota', 'opt-barrier', 'pad', 'parameter',
    'reshape', 'reverse', 'slice', 'transpose', 'tuple'})
_SLICES = frozenset({'slice', 'dynamic-slice', 'gather'})


class Cost(NamedTuple):
  """Of one run of a kernel."""
  flops: int
  bytes: int  # Read and written, wherever the tensors are.
  hbm_bytes: int  # Those of them in main memory.
  on_chip_bytes: int  # The kernel's own buffers and its tensors on chip.


def cost_of(kernel: protos.HloModuleProto) -> Cost:
  """The cost of a kernel, as `tpu_compiler.kernels_of` splits it off."""
  computations = protos.by_id(kernel.computations)
  entry = computations[kernel.entry_computation_id]
  nodes = protos.by_id(entry.instructions)
  root = nodes[entry.root_id]
  moved, in_hbm, on_chip = 0, 0, _scoped_bytes(root)
  tensors = [(nodes[operand].shape, _bytes_read(place, root, computations))
             for place, operand in enumerate(root.operand_ids)]
  tensors += [(root.shape, _bytes_written(root, computations))]
  for shape, count in tensors:
    parts = list(shape.tuple_shapes) or [shape]
    whole = sum(map(_bytes_of, parts))
    count = whole if count is None else count
    hbm = sum(_bytes_of(part) for part in parts
              if part.layout.memory_space != protos.ON_CHIP)
    moved += count
    in_hbm += count * hbm // whole if whole else 0
    on_chip += whole - hbm
  return Cost(_flops(entry, computations, {}), moved, in_hbm, on_chip)


def _bytes_of(shape) -> int:
  bits = shape.layout.element_size_in_bits or 8 * tiles.element_bytes(
      protos.TYPE_NAMES.get(shape.element_type, ''))  # Fewer if packed.
  return -(-math.prod(shape.dimensions) * bits // 8)


def _scoped_bytes(root) -> int:
  """On-chip memory that the compiler gave the kernel itself."""
  try:
    used = json.loads(root.backend_config)['used_scoped_memory_configs']
    return sum(int(each['size']) for each in used
               if int(each['memory_space']) == protos.ON_CHIP)
  except (ValueError, LookupError, TypeError):
    return 0


def _bytes_read(place: int, node, computations: dict):
  """Of an operand of which a fusion reads slices; None: all of it."""
  if node.opcode in _SLICES and place == 0:
    return _bytes_of(node.shape)
  if node.opcode == 'dynamic-update-slice' and place == 0:
    return 0  # Written in place.
  if node.opcode != 'fusion' or not node.called_computation_ids:
    return None
  called = computations[node.called_computation_ids[0]]
  body = called.instructions
  names = {each.id for each in body if each.opcode == 'parameter'
           and each.parameter_number == place}
  total = 0
  for each in body:  # In order: users after what they use.
    for position, operand in enumerate(each.operand_ids):
      if operand not in names:
        continue
      if each.opcode == 'bitcast':
        names.add(each.id)
        continue
      count = _bytes_read(position, each, computations)
      if count is None:
        return None
      total += count
  return None if called.root_id in names else total  # Handed on as it is.


def _bytes_written(node, computations: dict):
  """Of a result that is updated in place; None: all of it."""
  called = node.called_computation_ids
  if node.opcode != 'fusion' or not called:
    return None
  body = protos.by_id(computations[called[0]].instructions)

  def written(each):
    while each.opcode == 'bitcast':
      each = body[each.operand_ids[0]]
    if each.opcode == 'dynamic-update-slice':
      return _bytes_of(body[each.operand_ids[1]].shape)
    return _bytes_written(each, computations)

  root = body[computations[called[0]].root_id]
  if root.opcode != 'tuple':
    return written(root)
  parts = [body[operand] for operand in root.operand_ids]
  return sum(_bytes_of(part.shape) if written(part) is None else written(part)
             for part in parts)


def _flops(computation, computations: dict, known: dict) -> int:
  """Of a computation with what its fusions call, each counted once."""
  if computation.id not in known:
    known[computation.id] = 0  # Ends a cycle.
    nodes = protos.by_id(computation.instructions)
    known[computation.id] = sum(
        _flops_of(node, nodes, computations, known) for node in nodes.values())
  return known[computation.id]


def _flops_of(node, nodes: dict, computations: dict, known: dict) -> int:
  if node.opcode == 'fusion':
    return sum(_flops(computations[called], computations, known)
               for called in node.called_computation_ids)
  if node.opcode in _MOVES:
    return 0
  # A tuple's parts have equal sizes, one for each value that is reduced.
  shape = (list(node.shape.tuple_shapes) or [node.shape])[0]
  results = math.prod(shape.dimensions)
  operands = [nodes[number].shape.dimensions for number in node.operand_ids]
  if node.opcode == 'dot':
    contracted = node.dot_dimension_numbers.lhs_contracting_dimensions
    return 2 * results * math.prod(operands[0][dim] for dim in contracted)
  if node.opcode == 'convolution':
    return _convolution(node, *operands[:2])
  if node.opcode == 'reduce':
    return max(0, math.prod(operands[0]) - results)
  if node.opcode == 'reduce-window':
    # One that sees all from each place is a sum, broadcast: as in a softmax.
    dims = list(zip(node.window.dimensions, operands[0], shape.dimensions))
    taps = math.prod(min(dim.size, size) for dim, size, _ in dims)
    return max(0, taps - 1) * math.prod(
        count for dim, size, count in dims if dim.size < 2 * size - 1)
  return results


def _convolution(node, image, taps) -> int:
  """Twice the pairs of an element of the output and a tap on the image."""
  numbers = node.convolution_dimension_numbers
  output = node.shape.dimensions
  pairs = 1
  for dim, place, place_out in zip(
      node.window.dimensions, numbers.input_spatial_dimensions,
      numbers.output_spatial_dimensions):
    size, base = image[place], max(1, dim.base_dilation)
    starts = np.arange(output[place_out]) * dim.stride - dim.padding_low
    count = 0
    for tap in range(dim.size):
      at = starts + tap * max(1, dim.window_dilation)
      count += int(((at >= 0) & (at < (size - 1) * base + 1)
                    & (at % base == 0)).sum())
    pairs *= count
  return 2 * pairs * math.prod(
      (output[numbers.output_batch_dimension],
       output[numbers.output_feature_dimension],
       taps[numbers.kernel_input_feature_dimension]))
