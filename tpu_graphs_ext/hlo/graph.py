"""The HLO graph of a whole program, simplified, with TPU-like layouts.

XLA's CPU compiler hands out the graph of a program before any optimisation.
Here it loses what every compiler removes first (identities, reshapes of
reshapes, shape arithmetic on constants, dead code). For kernels, its matrix
products become convolutions, as TPU kernels have them, and its tensors get
physical layouts.
"""

from __future__ import annotations

import math
import random
import zlib

from tensorflow.compiler.xla.service import hlo_pb2

# Sources that stay parameters of the kernels that read them.
OPAQUE = frozenset({
    'parameter', 'gather', 'scatter', 'sort', 'while', 'conditional', 'call',
    'custom-call', 'rng-bit-generator', 'get-tuple-element', 'tuple',
    'cholesky', 'triangular-solve', 'fft', 'infeed', 'after-all', 'map',
    'dynamic-update-slice', 'reverse-sequence',
})
# Results of at most this many elements that depend on constants alone are
# constants: the shape arithmetic of gradients.
_MAX_FOLDED_ELEMENTS = 64


def num_elements(shape) -> int:
  """Elements of an array shape; 1 for a scalar."""
  return math.prod(shape.dimensions)


class Graph:
  """The entry computation, simplified, as dictionaries over instruction ids.

  Attributes:
    nodes: id -> `HloInstructionProto`, operands before their users.
    operands: id -> ids, with identities skipped.
    users: id -> ids of distinct users.
    regions: id of a called computation -> `HloComputationProto`.
    outputs: ids that the program returns.
    position: id -> place in the program's order.

  With `for_kernels=False` products and reshapes stay what they are.
  """

  def __init__(self, module, seed: int, for_kernels: bool = True):
    self._seed = seed
    self.regions = {c.id: c for c in module.computations}
    entry = self.regions[module.entry_computation_id]
    alias = {}  # Instructions that repeat their operand -> that operand.
    nodes, operands, constant = {}, {}, {}
    for node in entry.instructions:
      sources = [alias.get(i, i) for i in node.operand_ids]
      if node.opcode == 'reshape' and nodes[sources[0]].opcode == 'reshape':
        sources = operands[sources[0]]  # One reshape does what two do.
      if _repeats(node, [nodes[i].shape for i in sources]):
        alias[node.id] = sources[0]
        continue
      constant[node.id] = node.opcode == 'constant' or (
          bool(sources) and all(constant[i] for i in sources)
          and node.opcode not in OPAQUE and node.opcode != 'rng'
          and num_elements(node.shape) <= _MAX_FOLDED_ELEMENTS)
      if constant[node.id]:
        node, sources = _folded(node), []
      nodes[node.id], operands[node.id] = node, sources
    root = alias.get(entry.root_id, entry.root_id)
    self._keep_reachable(nodes, operands, root)
    self.position = {i: place for place, i in enumerate(self.nodes)}
    if for_kernels:
      self._write_as_kernels()

  def _write_as_kernels(self):
    """Takes the opcodes that the kernels of a TPU have."""
    for node_id, node in self.nodes.items():
      if node.opcode == 'convolution':
        self._fold_reversal(node_id, node)
      elif node.opcode == 'dot':
        self.nodes[node_id] = _dot_as_convolution(
            node, [self.nodes[i].shape for i in self.operands[node_id]])
      elif node.opcode == 'reshape':
        self.nodes[node_id] = _renamed(node, 'bitcast')

  def _fold_reversal(self, node_id, node):
    """Lets the window run backward instead of reversing the filter."""
    filters = self.operands[node_id][1]
    spatial = list(node.convolution_dimension_numbers.kernel_spatial_dimensions)
    reverse = self.nodes[filters]
    if reverse.opcode != 'reverse' or sorted(reverse.dimensions) != sorted(
        spatial):
      return
    folded = _renamed(node, 'convolution')
    for window in folded.window.dimensions:
      window.window_reversal = not window.window_reversal
    self.nodes[node_id] = folded
    source = self.operands[filters][0]
    self.operands[node_id] = [self.operands[node_id][0], source]
    self.users[source].append(node_id)
    self.users[filters].remove(node_id)

  def _keep_reachable(self, nodes, operands, root):
    reached, todo = set(), [root]
    while todo:
      node_id = todo.pop()
      if node_id not in reached:
        reached.add(node_id)
        todo.extend(operands[node_id])
    self.nodes = {i: n for i, n in nodes.items() if i in reached}
    self.operands = {i: operands[i] for i in self.nodes}
    self.users = {i: [] for i in self.nodes}
    for node_id, node_operands in self.operands.items():
      for operand in dict.fromkeys(node_operands):
        self.users[operand].append(node_id)
    is_tuple = self.nodes[root].opcode == 'tuple'
    self.outputs = set(self.operands[root]) if is_tuple else {root}

  def layout(self, dims) -> list[int]:
    """minor_to_major of every tensor of these dimensions in the program."""
    return choose_layout(tuple(dims), self._seed)


def _repeats(node, operand_shapes) -> bool:
  """Whether an instruction's result is its operand, unchanged."""
  if node.opcode not in ('reshape', 'convert', 'copy', 'transpose',
                         'broadcast'):
    return False
  shape, source = node.shape, operand_shapes[0]
  return (list(source.dimensions) == list(shape.dimensions)
          and source.element_type == shape.element_type
          and list(node.dimensions) == sorted(node.dimensions))


def _folded(node):
  folded = hlo_pb2.HloInstructionProto()
  folded.id, folded.opcode = node.id, 'constant'
  folded.name = f'constant.{node.id}'
  folded.shape.CopyFrom(node.shape)
  return folded


def _renamed(node, opcode):
  renamed = hlo_pb2.HloInstructionProto()
  renamed.CopyFrom(node)
  renamed.opcode, renamed.name = opcode, f'{opcode}.{node.id}'
  return renamed


def _dot_as_convolution(node, operand_shapes):
  """The same product as a convolution, as TPU kernels have it.

  Batch dimensions become spatial ones: a window as wide as the batch, over a
  base dilated by the batch, meets each pair of matrices once.
  """
  left, right = operand_shapes
  dims = node.dot_dimension_numbers
  left_free = [d for d in range(len(left.dimensions))
               if d not in dims.lhs_batch_dimensions
               and d not in dims.lhs_contracting_dimensions]
  right_free = [d for d in range(len(right.dimensions))
                if d not in dims.rhs_batch_dimensions
                and d not in dims.rhs_contracting_dimensions]
  if (len(dims.lhs_contracting_dimensions) != 1 or len(left_free) != 1
      or len(right_free) != 1):
    return node  # A product of vectors: no matrix unit is used.
  product = _renamed(node, 'convolution')
  product.ClearField('dot_dimension_numbers')
  numbers = product.convolution_dimension_numbers
  numbers.input_batch_dimension = left_free[0]
  numbers.input_feature_dimension = dims.lhs_contracting_dimensions[0]
  numbers.kernel_input_feature_dimension = dims.rhs_contracting_dimensions[0]
  numbers.kernel_output_feature_dimension = right_free[0]
  batch_rank = len(dims.lhs_batch_dimensions)
  numbers.output_batch_dimension = batch_rank
  numbers.output_feature_dimension = batch_rank + 1
  numbers.input_spatial_dimensions.extend(dims.lhs_batch_dimensions)
  numbers.kernel_spatial_dimensions.extend(dims.rhs_batch_dimensions)
  numbers.output_spatial_dimensions.extend(range(batch_rank))
  for dim in dims.lhs_batch_dimensions:
    batch = left.dimensions[dim]
    product.window.dimensions.add(
        size=batch, stride=max(1, batch - 1), window_dilation=1,
        base_dilation=batch)
  product.feature_group_count = product.batch_group_count = 1
  return product


def choose_layout(dims: tuple, seed: int) -> list[int]:
  """A TPU-like physical order, minor_to_major, for a tensor of these dims.

  Args:
    dims: logical sizes, most major first as HLO writes them.
    seed: of the program: equal dims get equal layouts within it.

  The two minor axes are padded to 128 and 8, so that an order that wastes
  least is taken; ties, and one case in eight, fall to the seed.
  """
  rank = len(dims)
  default = list(range(rank - 1, -1, -1))
  if rank < 2:
    return default
  chance = random.Random(zlib.crc32(repr((dims, seed)).encode()))
  is_filter = rank >= 4 and max(dims[:rank - 2]) <= 11
  pairs = [(rank - 1, rank - 2), (rank - 2, rank - 1)]
  if rank >= 3 and not is_filter:
    pairs += [(rank - 1, 0), (0, rank - 1)]
  if chance.random() < 0.125:
    minor, second = chance.choice(pairs)
  else:
    minor, second = min(
        pairs, key=lambda pair: (_padded(dims, pair), chance.random()))
  return [minor, second] + [d for d in default if d not in (minor, second)]


def _padded(dims, pair) -> float:
  """Elements stored over elements needed; rounded so that near ties tie."""
  lanes, rows = dims[pair[0]], dims[pair[1]]
  waste = (math.ceil(lanes / 128) * 128 / lanes) * (
      math.ceil(rows / 8) * 8 / rows)
  return round(waste, 1)
