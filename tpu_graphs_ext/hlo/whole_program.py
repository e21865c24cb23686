"""A program's HLO as the layout collection has it: whole, and before fusion.

XLA hands out the program before any optimisation. Here it loses what every
compiler removes before it assigns layouts (identities, reshapes of reshapes,
shape arithmetic on constants, dead code) and instructions that compute the same
value twice. All tensors get the row-major layout. Called computations, such as
those of reductions, come first; the entry computation is the last.
"""

from __future__ import annotations

import math

from tensorflow.compiler.xla.service import hlo_pb2

# Never folded into constants.
_OPAQUE = frozenset({
    'parameter', 'gather', 'scatter', 'sort', 'while', 'conditional', 'call',
    'custom-call', 'rng-bit-generator', 'get-tuple-element', 'tuple',
    'cholesky', 'triangular-solve', 'fft', 'infeed', 'after-all', 'map',
    'dynamic-update-slice', 'reverse-sequence', 'rng'})
# Shape arithmetic of gradients: results of at most this many elements that
# depend on constants alone are constants.
_MAX_FOLDED_ELEMENTS = 64
# Fields that say nothing about what an instruction does.
_LABELS = ('id', 'name', 'metadata', 'operand_ids', 'called_computation_ids',
           'literal', 'sharding', 'frontend_attributes', 'backend_config')


def whole_program(module, name: str = ''):
  """Simplifies a program.

  Args:
    module: `HloModuleProto` before fusion, as `lowering.lower` writes it.
    name: of the result; by default the module's.

  Returns:
    `HloModuleProto`.
  """
  return _Writer(module, name or module.name).module


def _simplified(entry) -> tuple[dict, dict]:
  """(id -> instruction, id -> operand ids) that the root needs."""
  alias = {}  # Instructions that repeat their operand -> that operand.
  nodes, operands, constant = {}, {}, {}
  for node in entry.instructions:
    sources = [alias.get(i, i) for i in node.operand_ids]
    if node.opcode == 'reshape' and nodes[sources[0]].opcode == 'reshape':
      sources = operands[sources[0]]  # One reshape does the work of two.
    if _repeats(node, [nodes[i].shape for i in sources]):
      alias[node.id] = sources[0]
      continue
    constant[node.id] = node.opcode == 'constant' or (
        bool(sources) and all(constant[i] for i in sources)
        and node.opcode not in _OPAQUE
        and math.prod(node.shape.dimensions) <= _MAX_FOLDED_ELEMENTS)
    if constant[node.id]:
      node, sources = _folded(node), []
    nodes[node.id], operands[node.id] = node, sources
  reached, waiting = set(), [alias.get(entry.root_id, entry.root_id)]
  while waiting:
    number = waiting.pop()
    if number not in reached:
      reached.add(number)
      waiting.extend(operands[number])
  return ({i: node for i, node in nodes.items() if i in reached},
          {i: operands[i] for i in nodes if i in reached})


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
  folded = hlo_pb2.HloInstructionProto(
      id=node.id, opcode='constant', name=f'constant.{node.id}')
  folded.shape.CopyFrom(node.shape)
  return folded


class _Writer:
  """Writes the simplified program into `module`."""

  def __init__(self, source, name: str):
    self._computations = {c.id: c for c in source.computations}
    source_entry = self._computations[source.entry_computation_id]
    self._literals = {
        node.id: node.literal.SerializeToString(deterministic=True)
        for node in source_entry.instructions if node.opcode == 'constant'}
    self._next_id = 0
    self._called = {}  # id of a computation of the program -> id here.
    self.module = hlo_pb2.HloModuleProto(name=name)
    entry = hlo_pb2.HloComputationProto()
    self._write_entry(entry, *_simplified(source_entry))
    entry.id = self._new_id()
    entry.name = f'cluster.{entry.id}'
    self.module.computations.add().CopyFrom(entry)
    self.module.entry_computation_name = entry.name
    self.module.entry_computation_id = entry.id

  def _new_id(self) -> int:
    self._next_id += 1
    return self._next_id

  def _write_entry(self, entry, nodes: dict, operand_ids: dict) -> None:
    """Writes every instruction, and those that compute the same only once."""
    new_ids, known = {}, {}
    for node_id, node in nodes.items():
      called = [self._computation(i) for i in node.called_computation_ids]
      operands = [new_ids[i] for i in operand_ids[node_id]]
      written = _bare(node)
      key = (written.SerializeToString(deterministic=True), *operands,
             self._literals.get(node_id, node_id)
             if node.opcode == 'constant' else None)
      if key in known and not called and node.opcode not in _OPAQUE:
        new_ids[node_id] = known[key]
        continue
      written.id = known[key] = new_ids[node_id] = self._new_id()
      written.name = f'{node.opcode}.{written.id}'
      written.operand_ids.extend(operands)
      written.called_computation_ids.extend(called)
      entry.instructions.add().CopyFrom(written)
    entry.root_id = entry.instructions[-1].id

  def _computation(self, computation_id) -> int:
    """Copies a called computation, and those that it calls, once."""
    if computation_id not in self._called:
      source = self._computations[computation_id]
      copy, new_ids = hlo_pb2.HloComputationProto(), {}
      for node in source.instructions:
        called = [self._computation(i) for i in node.called_computation_ids]
        written = _bare(node)
        written.id = new_ids[node.id] = self._new_id()
        written.name = f'{node.opcode}.{written.id}'
        written.operand_ids.extend(new_ids[i] for i in node.operand_ids)
        written.called_computation_ids.extend(called)
        copy.instructions.add().CopyFrom(written)
      copy.root_id = new_ids[source.root_id]
      copy.id = self._called[computation_id] = self._new_id()
      copy.name = f'region.{copy.id}'
      self.module.computations.add().CopyFrom(copy)
    return self._called[computation_id]


def _bare(node):
  """An instruction without names and ids, in the row-major layout."""
  bare = hlo_pb2.HloInstructionProto()
  bare.CopyFrom(node)
  for field in _LABELS:
    bare.ClearField(field)
  _set_row_major(bare.shape)
  return bare


def _set_row_major(shape) -> None:
  for part in shape.tuple_shapes:
    _set_row_major(part)
  if not shape.tuple_shapes:
    shape.ClearField('layout')
    shape.layout.minor_to_major.extend(range(len(shape.dimensions))[::-1])
