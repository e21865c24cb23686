"""A program's HLO as the layout collection has it: whole, and before fusion.

XLA hands out the program before any optimisation. Here it loses
what every compiler removes before it assigns layouts (see `graph`), and what it
computes twice. All tensors have the row-major layout, and reductions keep
their computations, which come first; the entry computation is the last.
"""

from __future__ import annotations

from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.hlo.graph import OPAQUE, Graph

# Fields that say nothing of what an instruction does.
_LABELS = ('id', 'name', 'metadata', 'operand_ids', 'called_computation_ids',
           'literal', 'sharding', 'frontend_attributes', 'backend_config')
_NEVER_THE_SAME = OPAQUE | {'rng'}


def whole_program(module, name: str = ''):
  """The `HloModuleProto` of a program, simplified.

  Args:
    module: `HloModuleProto` before fusion, e.g. of `hlo.compile`.
    name: of the result; not given: the module's.
  """
  return _Writer(module, name or module.name).module


class _Writer:
  """Writes the simplified program into `module`."""

  def __init__(self, source, name: str):
    graph = Graph(source)
    self._graph = graph
    self._literals = _literals(source)
    self._next_id = 0
    self._called = {}  # id of a computation of the program -> id here.
    self.module = hlo_pb2.HloModuleProto(name=name)
    entry = hlo_pb2.HloComputationProto()
    self._write_entry(entry)
    entry.id = self._new_id()
    entry.name = f'cluster.{entry.id}'
    self.module.computations.add().CopyFrom(entry)
    self.module.entry_computation_name = entry.name
    self.module.entry_computation_id = entry.id

  def _new_id(self) -> int:
    self._next_id += 1
    return self._next_id

  def _write_entry(self, entry):
    """Every instruction once; those that compute the same become one."""
    new_ids, known = {}, {}
    for node_id, node in self._graph.nodes.items():
      called = [self._computation(i) for i in node.called_computation_ids]
      operands = [new_ids[i] for i in self._graph.operands[node_id]]
      written = _bare(node)
      key = (written.SerializeToString(deterministic=True), *operands,
             self._literals.get(node_id, node_id)
             if node.opcode == 'constant' else None)
      if key in known and not called and node.opcode not in _NEVER_THE_SAME:
        new_ids[node_id] = known[key]
        continue
      written.id = known[key] = new_ids[node_id] = self._new_id()
      written.name = f'{node.opcode}.{written.id}'
      written.operand_ids.extend(operands)
      written.called_computation_ids.extend(called)
      entry.instructions.add().CopyFrom(written)
    entry.root_id = entry.instructions[-1].id

  def _computation(self, computation_id) -> int:
    """Copies a computation that is called, and those that it calls, once."""
    if computation_id not in self._called:
      source = self._graph.regions[computation_id]
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


def _set_row_major(shape):
  for part in shape.tuple_shapes:
    _set_row_major(part)
  if not shape.tuple_shapes:
    shape.ClearField('layout')
    shape.layout.minor_to_major.extend(range(len(shape.dimensions))[::-1])


def _literals(module) -> dict:
  """id -> value of each constant of the entry computation, as bytes."""
  entry = next(c for c in module.computations
               if c.id == module.entry_computation_id)
  return {node.id: node.literal.SerializeToString(deterministic=True)
          for node in entry.instructions if node.opcode == 'constant'}
