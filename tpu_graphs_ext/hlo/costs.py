"""What a kernel computes and moves, counted from its instructions.

Counted as XLA's own analysis counts: an addition or a comparison is one
operation, a multiplication with its addition two; padding is not counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos, stored, tiles

# They move or rename values.
_MOVES = frozenset({
    'bitcast', 'bitcast-convert', 'broadcast', 'concatenate', 'constant',
    'convert', 'copy', 'custom-call', 'dynamic-slice', 'dynamic-update-slice',
    'fusion', 'gather', 'get-tuple-element', 'iota', 'opt-barrier', 'pad',
    'parameter', 'reshape', 'reverse', 'slice', 'transpose', 'tuple'})
_SLICES = frozenset({'slice', 'dynamic-slice', 'gather'})
_MOST_TAPS = 1 << 20
# They change their first operand in place -> the operand with what is new.
_UPDATES = {'dynamic-update-slice': 1, 'scatter': -1}


class Cost(NamedTuple):
  """Of one run of a kernel."""
  flops: int
  bytes: int  # Read and written, wherever the tensors are.
  hbm_bytes: int  # Those of them in main memory.
  on_chip_bytes: int  # The kernel's own buffers and its tensors on chip.


class _Computation(NamedTuple):
  """What a computation does, each time it is called."""
  flops: int  # With those of what it calls.
  # Of each parameter, by its number, of which only parts are read; None: all.
  bytes_read: dict[int, Optional[int]]
  bytes_written: int  # Fewer than the result has if it is updated in place.
  # (The parameter whose tensor the result is, bytes changed in place), if any.
  origin: Optional[tuple[int, int]]


def cost_of(kernel: protos.HloModuleProto) -> Cost:
  """The cost of a kernel, as `tpu_compiler.kernels_of` splits it off.

  Raises UserError if an instruction refers to what does not precede it, or a
  number has more than 64 bits.
  """
  known: dict[int, _Computation] = {}
  try:
    for computation in kernel.computations:  # In order: callees first.
      known[computation.id] = _summary(computation, known)
    cost = _cost(kernel, known)
  except LookupError as error:
    raise UserError(
        f'HLO module {kernel.name!r}: an instruction refers to what does not '
        f'precede it ({error}); the module is damaged') from error
  if max(map(abs, cost)) >> 63:
    raise UserError(f'HLO module {kernel.name!r}: its operations or bytes '
                    'exceed 64 bits; the module is damaged')
  return cost


def _cost(kernel: protos.HloModuleProto,
          known: dict[int, _Computation]) -> Cost:
  entry = protos.by_id(kernel.computations)[kernel.entry_computation_id]
  nodes = protos.by_id(entry.instructions)
  root = nodes[entry.root_id]
  moved, in_hbm = 0, 0
  on_chip = stored.noted_bytes(root, 'used_scoped_memory_configs')
  tensors = [(nodes[operand].shape, _bytes_read(place, root, nodes, known))
             for place, operand in enumerate(root.operand_ids)]
  tensors.append((root.shape, known[root.called_computation_ids[0]]
                  .bytes_written if root.opcode == 'fusion' else None))
  for shape, count in tensors:
    parts = list(shape.tuple_shapes) or [shape]
    whole = sum(map(_bytes_of, parts))
    count = whole if count is None else count
    hbm = sum(_bytes_of(part) for part in parts
              if part.layout.memory_space != protos.ON_CHIP)
    moved += count
    in_hbm += count * hbm // whole if whole else 0
    on_chip += whole - hbm
  return Cost(known[entry.id].flops, moved, in_hbm, on_chip)


def _summary(computation, known: dict[int, _Computation]) -> _Computation:
  nodes = protos.by_id(computation.instructions)
  root, origins = nodes[computation.root_id], _origins(nodes, known)
  results = root.operand_ids if root.opcode == 'tuple' else [root.id]
  return _Computation(
      sum(_flops_of(node, nodes, known) for node in nodes.values()),
      {node.parameter_number: _bytes_used(
          node.parameter_number, root, nodes, origins, known)
       for node in nodes.values() if node.opcode == 'parameter'},
      sum(origins.get(part, (0, 0))[1] or _bytes_of(nodes[part].shape)
          for part in results),
      origins.get(root.id))


def _bytes_of(shape) -> int:
  bits = shape.layout.element_size_in_bits or 8 * tiles.element_bytes(
      protos.TYPE_NAMES.get(shape.element_type, ''))  # Fewer if packed.
  return -(-math.prod(shape.dimensions) * bits // 8)


def _bytes_read(place: int, node, nodes: dict, known: dict) -> Optional[int]:
  """Of an operand of which only parts are read; None: all of it."""
  if place == 0 and node.opcode in _SLICES:
    return _bytes_of(node.shape)
  if place == 0 and node.opcode in _UPDATES:  # In place; a scatter adds up.
    return (_bytes_of(nodes[node.operand_ids[-1]].shape)
            if node.opcode == 'scatter' else 0)
  if node.opcode != 'fusion':
    return None
  return known[node.called_computation_ids[0]].bytes_read.get(place, 0)


def _bytes_used(parameter: int, root, nodes: dict, origins: dict,
                known: dict) -> Optional[int]:
  """The same for a parameter, summed over its users."""
  same, total = (parameter, 0), 0
  if origins.get(root.id) == same:
    return None
  for node in nodes.values():
    for place, operand in enumerate(node.operand_ids):
      if origins.get(operand) == same != origins.get(node.id):
        count = _bytes_read(place, node, nodes, known)
        if count is None:
          return None
        total += count
  return total


def _origins(nodes: dict, known: dict) -> dict[int, tuple[int, int]]:
  """Instructions -> (parameter whose tensor it is, bytes changed in place)."""
  origins = {}
  for node in nodes.values():  # In order: users after what they use.
    place, new = 0, 0
    if node.opcode == 'parameter':
      origins[node.id] = node.parameter_number, 0
    elif node.opcode == 'custom-call' and not node.operand_ids:
      origins[node.id] = -1, 0  # Memory that nothing has filled.
    elif node.opcode == 'fusion':
      place, new = known[node.called_computation_ids[0]].origin or (None, 0)
    elif node.opcode in _UPDATES:
      new = _bytes_of(nodes[node.operand_ids[_UPDATES[node.opcode]]].shape)
    elif node.opcode not in ('bitcast', 'copy'):
      place = None
    source = origins.get(dict(enumerate(node.operand_ids)).get(place))
    if source and not (source[1] and node.opcode == 'copy'):
      origins[node.id] = source[0], source[1] + new
  return origins


def _flops_of(node, nodes: dict, known: dict) -> int:
  of_called = [known[called].flops for called in node.called_computation_ids]
  if node.opcode in _MOVES:  # Of a fusion what it calls counts.
    return sum(of_called)
  # A tuple's parts have equal sizes, one for each value that is reduced.
  shape = (list(node.shape.tuple_shapes) or [node.shape])[0]
  results = math.prod(shape.dimensions)
  operands = [nodes[number].shape.dimensions for number in node.operand_ids]
  if node.opcode == 'dot':
    contracted = node.dot_dimension_numbers.lhs_contracting_dimensions
    return 2 * results * math.prod(operands[0][dim] for dim in contracted)
  if node.opcode == 'convolution':
    return _convolution(node, operands[0], operands[1])
  each = of_called[0] if len(of_called) == 1 else 1  # A reducer's.
  if node.opcode == 'scatter':
    return math.prod(operands[-1]) * each
  if node.opcode == 'reduce':
    return max(0, math.prod(operands[0]) - results) * each
  if node.opcode == 'select-and-scatter':  # Compares each window, adds once.
    return math.prod([*operands[1], *(w.size for w in node.window.dimensions)])
  if node.opcode == 'reduce-window':
    # One that sees all from each place is a sum, broadcast: as in a softmax.
    dims = list(zip(node.window.dimensions, operands[0], shape.dimensions))
    taps = math.prod(min(dim.size, size) for dim, size, _ in dims)
    return each * max(0, taps - 1) * math.prod(
        count for dim, size, count in dims if dim.size < 2 * size - 1)
  return results * each


def _convolution(node, image, taps) -> int:
  """Twice the pairs of an element of the output and a tap on the image."""
  numbers = node.convolution_dimension_numbers
  output = node.shape.dimensions
  pairs = math.prod(
      _pairs(window, image[place], output[place_out])
      for window, place, place_out in zip(
          node.window.dimensions, numbers.input_spatial_dimensions,
          numbers.output_spatial_dimensions))
  return 2 * pairs * math.prod(
      (output[numbers.output_batch_dimension],
       output[numbers.output_feature_dimension],
       taps[numbers.kernel_input_feature_dimension]))


def _pairs(window, size: int, outputs: int) -> int:
  """Pairs of an output and a tap on the image, along one dimension.

  Output o has tap t at o * stride - padding + t * window dilation. That is on
  the image if it is a multiple of the base dilation, from 0 to the last one.
  """
  if not 0 <= window.size <= _MOST_TAPS:
    raise UserError(f'a window has {window.size:,} taps; at most '
                    f'{_MOST_TAPS:,} are counted')
  stride, base = max(1, window.stride), max(1, window.base_dilation)
  # Of output 0, in Python's integers: a damaged file may have any number.
  at = (np.arange(window.size).astype(object) * max(1, window.window_dilation)
        - window.padding_low)
  first = np.maximum(0, -(at // stride))
  last = np.minimum(outputs - 1, ((size - 1) * base - at) // stride)
  # Of the outputs in a row every `period`th one, from `start` on, has a tap.
  shared = math.gcd(stride, base)
  period = base // shared
  start = -at // shared * pow(stride // shared, -1, period) % period
  count = (last - start) // period - (first - 1 - start) // period
  return int(count[(at % shared == 0) & (last >= first)].sum())
