"""The HLO graph of a whole program, simplified.

XLA hands out the graph of a program before any optimisation. Here it loses
what every compiler removes first: identities, reshapes of reshapes, shape
arithmetic on constants, dead code.
"""

from __future__ import annotations

import math

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
    regions: id of a called computation -> `HloComputationProto`.
  """

  def __init__(self, module):
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

  def _keep_reachable(self, nodes, operands, root):
    reached, todo = set(), [root]
    while todo:
      node_id = todo.pop()
      if node_id not in reached:
        reached.add(node_id)
        todo.extend(operands[node_id])
    self.nodes = {i: n for i, n in nodes.items() if i in reached}
    self.operands = {i: operands[i] for i in self.nodes}


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
