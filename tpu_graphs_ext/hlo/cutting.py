"""Cuts the HLO graph of a whole program into kernels, as a TPU compiler would.

The graph (`graph.py`) is fused by the plain rules by which the real
kernels look cut: at most one convolution a kernel, the elementwise chain
behind it joined on (output fusion), the elementwise producers of its operands
nested (input fusion), reductions only as roots, everything cheap copied into
its consumers. Every kernel is a valid `HloModuleProto`: called computations
first, the entry computation last.
"""

from __future__ import annotations

import dataclasses
import math
import random

from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_graphs_ext.hlo.graph import OPAQUE, Graph, num_elements

# Windowed operations: the last instruction of their kernel.
_WINDOWED = frozenset({'reduce-window', 'select-and-scatter'})
# Never worth a kernel or a buffer of their own.
_CHEAP = frozenset({'constant', 'broadcast', 'iota', 'bitcast'})
# Move data without arithmetic: no continuation of a convolution's chain.
_MOVERS = frozenset({
    'broadcast', 'bitcast', 'reshape', 'transpose', 'slice', 'pad', 'reverse',
    'concatenate', 'dynamic-slice', 'iota', 'constant', 'rng', 'copy',
})
# A kernel's output, or its reduced operand, has at least so many elements.
_MIN_KERNEL_ELEMENTS = 512
_MAX_RANK = 6


@dataclasses.dataclass(frozen=True)
class CutLimits:
  """How eagerly one program is fused.

  Attributes:
    max_fused: instructions that a fused computation may reach.
    share_probability: chance that a result with several consumers is
      written to memory once, instead of computed again in each of them.
    join_probability: chance that a reduction joins the kernel of the
      convolution whose output it reads, or of its sibling reduction.
    copies: data-movement kernels (copy, reshape) added to the program.
  """
  max_fused: int = 48
  share_probability: float = 0.4
  join_probability: float = 0.6
  copies: int = 2


def cut_kernels(module, limits: CutLimits, seed: int) -> list:
  """The kernels of a program.

  Args:
    module: `HloModuleProto` before fusion, e.g. of `hlo.compile`.
    limits: how eagerly to fuse.
    seed: of the choices that a compiler's cost model would make.

  Returns:
    One `HloModuleProto` a kernel, in the program's order.
  """
  graph = Graph(module, seed)
  chooser = random.Random(seed)
  plan = _Plan(graph, limits, chooser)
  kernels = [
      _KernelWriter(graph, roots, plan.stored).module()
      for roots in plan.kernel_roots()
  ]
  kernels += [
      _mover_kernel(graph, node, chooser)
      for node in _moved_tensors(graph, plan, limits, chooser)
  ]
  return kernels


# --- Which instructions are written to memory --------------------------------


class _Plan:
  """Chooses the stored results; what lies between them is fused.

  Attributes:
    stored: ids of results that are kernels' outputs or program inputs.
  """

  def __init__(self, graph: Graph, limits: CutLimits, chooser):
    self._graph, self._limits, self._chooser = graph, limits, chooser
    self.stored = set()
    self._closure = {}  # id -> ids that a kernel ending there would hold.
    for node_id, node in graph.nodes.items():
      self._visit(node_id, node)
    self.stored |= {i for i in graph.outputs
                    if graph.nodes[i].opcode not in _CHEAP}

  def _visit(self, node_id, node):
    if node.opcode in OPAQUE:
      self._store_operands(node_id)
      self.stored.add(node_id)
      self._closure[node_id] = {node_id}
      return
    self._part_heavies(node_id, node)
    self._part_large(node_id)
    self._closure[node_id] = self._reach(node_id)
    if node.opcode == 'reduce' or node.opcode in _WINDOWED:
      self.stored.add(node_id)
    elif (node.opcode not in _CHEAP and len(self._graph.users[node_id]) > 1
          and len(self._closure[node_id]) > 3
          and self._chooser.random() < self._limits.share_probability):
      self.stored.add(node_id)

  def _reach(self, node_id):
    reach = {node_id}
    for operand in self._graph.operands[node_id]:
      if operand not in self.stored:
        reach |= self._closure[operand]
    return reach

  def _store_operands(self, node_id):
    for operand in self._graph.operands[node_id]:
      if self._graph.nodes[operand].opcode not in _CHEAP:
        self.stored.add(operand)

  def _part_heavies(self, node_id, node):
    """Leaves at most one convolution in the kernel, and only as a chain."""
    graph = self._graph
    kept = None
    for operand in dict.fromkeys(graph.operands[node_id]):
      if operand in self.stored:
        continue
      heavy = any(graph.nodes[i].opcode == 'convolution'
                  for i in self._closure[operand])
      if not heavy:
        continue
      continues = (
          kept is None and node.opcode not in _MOVERS
          and node.opcode not in ('convolution', 'reduce')
          and node.opcode not in _WINDOWED
          and len(graph.users[operand]) == 1
          and list(node.shape.dimensions)
          == list(graph.nodes[operand].shape.dimensions))
      if continues:
        kept = operand
      else:
        self.stored.add(operand)

  def _part_large(self, node_id):
    """Stores the largest operands until the kernel keeps to its limit."""
    graph = self._graph
    while len(self._reach(node_id)) > self._limits.max_fused:
      open_operands = [
          i for i in graph.operands[node_id]
          if i not in self.stored and graph.nodes[i].opcode not in _CHEAP]
      if not open_operands:
        return
      self.stored.add(max(
          open_operands, key=lambda i: (len(self._closure[i]), i)))

  def kernel_roots(self) -> list[list[int]]:
    """The outputs of each kernel: mostly one, several where kernels join."""
    graph = self._graph
    roots = [i for i in graph.nodes
             if i in self.stored and self._is_kernel(graph.nodes[i], i)]
    group_of = {i: [i] for i in roots}
    convolution_of = {}
    for node_id in roots:
      node = graph.nodes[node_id]
      body = kernel_body(graph, [node_id], self.stored)
      if any(graph.nodes[i].opcode == 'convolution' for i in body):
        convolution_of[node_id] = len(body)
      if node.opcode == 'reduce':
        self._join(node_id, body, group_of, convolution_of)
    seen, groups = set(), []
    for node_id in roots:
      group = group_of[node_id]
      if id(group) not in seen:
        seen.add(id(group))
        groups.append(group)
    return groups

  def _join(self, node_id, body, group_of, convolution_of):
    """Joins a reduction to the kernel that makes or also reduces its input."""
    graph = self._graph
    if self._chooser.random() >= self._limits.join_probability:
      return
    inputs = {i for b in body for i in graph.operands[b] if i in self.stored}
    source = graph.operands[node_id][0]
    dims = list(graph.nodes[source].shape.dimensions)
    for other in inputs & set(convolution_of):
      # Everything else that the reduction reads must exist already.
      same = dims == list(graph.nodes[other].shape.dimensions)
      if same and inputs <= {other} | _inputs_of(graph, other, self.stored):
        group_of[other].append(node_id)
        group_of[node_id] = group_of[other]
        return
    for other, group in group_of.items():
      if other == node_id:
        return
      if (graph.nodes[other].opcode == 'reduce' and other not in convolution_of
          and len(group) < 4 and group is not group_of[node_id]
          and list(graph.nodes[other].dimensions)
          == list(graph.nodes[node_id].dimensions)
          and dims == list(
              graph.nodes[graph.operands[other][0]].shape.dimensions)
          and inputs and inputs <= _inputs_of(graph, other, self.stored)
          and graph.nodes[group[0]].opcode == 'reduce'):
        group.append(node_id)
        group_of[node_id] = group
        return

  def _is_kernel(self, node, node_id):
    graph = self._graph
    if node.opcode in OPAQUE or node.opcode in _CHEAP:
      return False
    body = kernel_body(graph, [node_id], self.stored)
    shapes = [graph.nodes[i].shape for i in body]
    sizes = [num_elements(node.shape)]
    if node.opcode in ('reduce', 'reduce-window'):
      sizes = [num_elements(graph.nodes[graph.operands[node_id][0]].shape)]
      if len(graph.operands[node_id]) != 2:
        return False
    return (max(sizes) >= _MIN_KERNEL_ELEMENTS
            and max(len(s.dimensions) for s in shapes) <= _MAX_RANK
            and not any(s.tuple_shapes for s in shapes)
            and not any(graph.nodes[i].opcode == 'dot' for i in body))


def kernel_body(graph, roots, stored) -> list[int]:
  """Ids of the instructions fused into the kernel of these outputs."""
  body, todo = set(), list(roots)
  while todo:
    node_id = todo.pop()
    if node_id in body:
      continue
    body.add(node_id)
    todo.extend(i for i in graph.operands[node_id] if i not in stored)
  return sorted(body, key=graph.position.__getitem__)


def _inputs_of(graph, node_id, stored) -> set:
  body = kernel_body(graph, [node_id], stored)
  return {i for b in body for i in graph.operands[b] if i in stored}


# --- Writing one kernel ------------------------------------------------------


class _KernelWriter:
  """Builds the module of one kernel from its outputs.

  A kernel of one instruction is an entry computation; any other is an entry
  computation whose root is a fusion, with nested fusions for the producers of
  a convolution's operands.
  """

  def __init__(self, graph: Graph, roots: list[int], stored: set):
    self._graph, self._roots = graph, roots
    self._stored = stored - set(roots)
    self._next_id = 0
    self._module = hlo_pb2.HloModuleProto()
    self._regions = {}  # id of a region of the program -> id here.

  def module(self):
    """The `HloModuleProto`, named like its root."""
    graph, roots = self._graph, self._roots
    if len(roots) == 1 and self._single(roots[0]):
      entry = hlo_pb2.HloComputationProto()
      entry.root_id = self._emit(entry, roots[0], {}, self._stored)
    else:
      body, inputs = self._fused_computation(roots, self._stored, 'fused')
      entry = hlo_pb2.HloComputationProto()
      operands = [self._parameter(entry, graph.nodes[i].shape, number)
                  for number, i in enumerate(inputs)]
      entry.root_id = self._fusion(entry, body, operands, self._kind())
    entry.id = self._new_id()
    self._module.computations.add().CopyFrom(entry)
    self._module.name = entry.name = entry.instructions[-1].name
    self._module.entry_computation_name = entry.name
    self._module.entry_computation_id = entry.id
    return self._module

  def _single(self, root) -> bool:
    return all(i in self._stored for i in self._graph.operands[root])

  def _kind(self) -> str:
    body = kernel_body(self._graph, self._roots, self._stored)
    heavy = any(
        self._graph.nodes[i].opcode == 'convolution' for i in body)
    return 'kOutput' if heavy else 'kLoop'

  def _new_id(self) -> int:
    self._next_id += 1
    return self._next_id

  def _fused_computation(self, roots, stored, name):
    """Adds a computation; returns it and the ids that it takes as inputs."""
    computation = hlo_pb2.HloComputationProto()
    inputs, done = {}, {}
    for root in roots:
      self._emit(computation, root, done, stored, inputs)
    if len(roots) > 1:
      node = computation.instructions.add()
      node.id, node.opcode = self._new_id(), 'tuple'
      node.name = f'tuple.{node.id}'
      node.operand_ids.extend(done[i] for i in roots)
      node.shape.element_type = xla_data_pb2.TUPLE
      for root in roots:
        self._fill_shape(
            node.shape.tuple_shapes.add(), self._graph.nodes[root].shape)
    computation.root_id = computation.instructions[-1].id
    computation.id = self._new_id()
    computation.name = f'{name}_computation.{computation.id}'
    self._module.computations.add().CopyFrom(computation)
    return computation, list(inputs)

  def _fusion(self, computation, body, operands, kind) -> int:
    node = computation.instructions.add()
    node.id, node.opcode = self._new_id(), 'fusion'
    node.name = f'fusion.{node.id}'
    node.fusion_kind = kind
    node.shape.CopyFrom(body.instructions[-1].shape)
    node.operand_ids.extend(operands)
    node.called_computation_ids.append(body.id)
    return node.id

  def _parameter(self, computation, shape, number) -> int:
    node = computation.instructions.add()
    node.id, node.opcode = self._new_id(), 'parameter'
    node.name = f'parameter.{node.id}'
    node.parameter_number = number
    self._fill_shape(node.shape, shape)
    return node.id

  def _fill_shape(self, target, shape):
    target.element_type = shape.element_type
    target.dimensions.extend(shape.dimensions)
    target.is_dynamic_dimension.extend([False] * len(shape.dimensions))
    target.layout.minor_to_major.extend(self._graph.layout(shape.dimensions))

  def _emit(self, computation, node_id, done, stored, inputs=None) -> int:
    """Adds an instruction behind its operands; returns its new id.

    Args:
      computation: what to add to.
      node_id: the program's id.
      done: program's id -> new id, within this computation.
      stored: ids to take as parameters.
      inputs: program's ids of the parameters so far, in order.
    """
    if node_id in done:
      return done[node_id]
    inputs = {} if inputs is None else inputs
    graph, source = self._graph, self._graph.nodes[node_id]
    if node_id in stored:
      done[node_id] = self._parameter(computation, source.shape, len(inputs))
      inputs[node_id] = None
      return done[node_id]
    operands = []
    for operand in graph.operands[node_id]:
      if source.opcode == 'convolution' and operand not in stored:
        operands.append(
            self._nested_fusion(computation, operand, done, stored, inputs))
      else:
        operands.append(
            self._emit(computation, operand, done, stored, inputs))
    called = [self._region(i) for i in source.called_computation_ids]
    node = computation.instructions.add()
    node.CopyFrom(source)
    for field in ('metadata', 'operand_ids', 'called_computation_ids',
                  'literal', 'sharding', 'frontend_attributes', 'shape'):
      node.ClearField(field)
    node.id = self._new_id()
    node.name = f'{node.opcode}.{node.id}'
    self._fill_shape(node.shape, source.shape)
    node.operand_ids.extend(operands)
    node.called_computation_ids.extend(called)
    done[node_id] = node.id
    return node.id

  def _nested_fusion(self, computation, operand, done, stored, inputs) -> int:
    """The producers of a convolution's operand, as a fusion of their own."""
    # Other instructions of the kernel may read the same producers: those get
    # their own copy, as in XLA.
    body, body_inputs = self._fused_computation([operand], stored, 'nested')
    outer = [self._emit(computation, i, done, stored, inputs)
             for i in body_inputs]
    return self._fusion(computation, body, outer, 'kLoop')

  def _region(self, region_id) -> int:
    """Copies a reduction's computation into this module once."""
    if region_id not in self._regions:
      source = self._graph.regions[region_id]
      region = hlo_pb2.HloComputationProto()
      new_ids = {}
      for node in source.instructions:
        copy = region.instructions.add()
        copy.CopyFrom(node)
        copy.ClearField('metadata')
        copy.ClearField('operand_ids')
        copy.id = new_ids[node.id] = self._new_id()
        copy.operand_ids.extend(new_ids[i] for i in node.operand_ids)
      region.root_id = new_ids[source.root_id]
      region.id = self._new_id()
      region.name = f'region.{region.id}'
      self._module.computations.add().CopyFrom(region)
      self._regions[region_id] = region.id
    return self._regions[region_id]


# --- Kernels that only move data ---------------------------------------------


def _moved_tensors(graph, plan, limits, chooser) -> list[int]:
  """Stored tensors that the compiler would copy or reshape."""
  tensors = [i for i, node in graph.nodes.items()
             if i in plan.stored and len(node.shape.dimensions) >= 2
             and node.opcode not in ('tuple', 'while')
             and num_elements(node.shape) >= 4096]
  return chooser.sample(tensors, min(limits.copies, len(tensors)))


def _mover_kernel(graph, node_id, chooser):
  """A copy to another layout, or a reshape to one dimension less."""
  shape = graph.nodes[node_id].shape
  dims = list(shape.dimensions)
  module = hlo_pb2.HloModuleProto()
  entry = module.computations.add(id=3)
  source = entry.instructions.add(id=1, opcode='parameter', name='parameter.0')
  moved = entry.instructions.add(id=2, operand_ids=[1])
  for node in (source, moved):
    node.shape.element_type = shape.element_type
  source.shape.dimensions.extend(dims)
  source.shape.layout.minor_to_major.extend(graph.layout(dims))
  if chooser.random() < 0.6:
    moved.opcode = 'copy'
    layout = list(source.shape.layout.minor_to_major)
    layout = [layout[-1], *layout[:-1]] if len(dims) == 2 else [
        layout[0], *layout[2:], layout[1]]
  else:
    moved.opcode = 'reshape'
    dims = [dims[0], math.prod(dims[1:])] if len(dims) > 2 else [
        math.prod(dims)]
    layout = graph.layout(dims)
  moved.shape.dimensions.extend(dims)
  moved.shape.layout.minor_to_major.extend(layout)
  for node in (source, moved):
    node.shape.is_dynamic_dimension.extend(
        [False] * len(node.shape.dimensions))
  moved.name = f'{moved.opcode}.1'
  entry.root_id = 2
  module.name = entry.name = module.entry_computation_name = moved.name
  module.entry_computation_id = 3
  return module
