"""The kernels of a program: of an optimised one its fusions, as they are.

Besides fusions these are the instructions that a compiler left alone and that
have tiles of their own. What runs otherwise (custom calls, loops as such,
transfers between chips) is counted, not made.
"""

from __future__ import annotations

import collections
import copy
import dataclasses

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos
from tpu_graphs_ext.hlo.trips import trip_count

# Run by other means than a loop over tiles.
_OPAQUE = frozenset({
    'cholesky', 'custom-call', 'dynamic-update-slice', 'fft', 'gather', 'map',
    'reverse-sequence', 'rng-bit-generator', 'scatter', 'sort',
    'triangular-solve'})
# Their computations run as the entry does.
_CONTROL = frozenset({'while', 'conditional', 'call'})
# No work, or a name for some.
_FREE = frozenset({'parameter', 'constant', 'bitcast', 'tuple', 'after-all',
                   'get-tuple-element', 'partition-id', 'replica-id',
                   'add-dependency', 'domain', 'opt-barrier', 'copy-done'})
_TRANSFERS = ('all-', 'async-', 'collective-', 'send', 'recv', 'infeed',
              'outfeed', 'reduce-scatter', 'copy-start', 'rng-get')


@dataclasses.dataclass(frozen=True)
class Kernels:
  """Kernels of a program.

  Attributes:
    modules: `HloModuleProto` of each, in the program's order, named like the
      instruction that it is.
    passed_over: opcode -> how many that are no kernels with tiles.
    runs: how often each module runs when the program runs once.
    open_loops: loops without a known trip count, counted as one trip.
  """
  modules: list
  passed_over: dict[str, int]
  runs: list[int]
  open_loops: int


def kernels_of(module: protos.HloModuleProto) -> Kernels:
  """Takes an optimised program apart.

  A module that is a single kernel is given back as it is.

  Raises:
    UserError: the module refers to what it does not have.
  """
  computations = {c.id: c for c in module.computations}
  found, passed_over = [], collections.Counter()
  try:
    runs, open_loops = _runs(module, computations)
    for number, times in runs.items():
      computation = computations[number]
      nodes = {node.id: node for node in computation.instructions}
      for node in computation.instructions:
        if node.opcode in _FREE or node.opcode in _CONTROL:
          continue
        if node.opcode in _OPAQUE or node.opcode.startswith(_TRANSFERS):
          passed_over[node.opcode] += 1
          continue
        found.append((node, nodes, times))
    if len(found) == 1 and _is_alone(module, computations, found[0][0]):
      return Kernels([module], dict(passed_over), [found[0][2]], open_loops)
    modules = [_kernel(node, nodes, module, computations)
               for node, nodes, _ in found]
  except LookupError as error:
    raise UserError(
        f'HLO module {module.name!r} refers to {error}, which it does not '
        'have; it is incomplete or damaged') from error
  return Kernels(modules, dict(passed_over), [times for _, _, times in found],
                 open_loops)


def _runs(module, computations) -> tuple[dict[int, int], int]:
  """How often the entry, loop bodies and branches run; loops left open.

  A branch counts as if it were always taken.
  """
  runs, open_loops = collections.Counter(), 0
  waiting = [(module.entry_computation_id, 1, ())]
  while waiting:
    number, times, within = waiting.pop(0)
    if number in within:
      raise LookupError(f'a loop that contains itself, {number}')
    runs[number] += times
    nodes = {node.id: node for node in computations[number].instructions}
    for node in nodes.values():
      if node.opcode not in _CONTROL:
        continue
      trips = (trip_count(node, nodes, computations)
               if node.opcode == 'while' else 1)
      open_loops += trips is None
      again = times * (1 if trips is None else trips)
      waiting += [(called, again, (*within, number))
                  for called in node.called_computation_ids]
  return dict(runs), open_loops


def _is_alone(module, computations, node) -> bool:
  entry = computations[module.entry_computation_id]
  return node.id == entry.root_id and all(
      other.id == node.id or other.opcode in ('parameter', 'constant')
      for other in entry.instructions)


def _kernel(node, nodes, module, computations) -> protos.HloModuleProto:
  """A module whose entry has parameters and this instruction."""
  kernel = protos.HloModuleProto(name=node.name)
  called = _called(node, computations)
  for computation in module.computations:  # In stored order, callees first.
    if computation.id in called:
      kernel.computations.add().CopyFrom(computation)
  largest = max([node.id, *computations, *(
      inner.id for c in kernel.computations for inner in c.instructions)])
  # New ids for all of the entry, the root too: XLA asks for ids whose lower 32
  # bits differ within a computation.
  entry = kernel.computations.add(
      id=largest + 1, name=node.name,
      root_id=largest + 2 + len(set(node.operand_ids)))
  new_ids = {}
  for number, operand in enumerate(dict.fromkeys(node.operand_ids)):
    source = nodes[operand]
    scalar = source.opcode == 'constant' and not source.shape.dimensions
    new_ids[operand] = largest + 2 + number
    argument = entry.instructions.add(
        id=new_ids[operand], name=source.name,
        opcode='constant' if scalar else 'parameter')
    argument.shape.CopyFrom(source.shape)
    if not scalar:
      argument.parameter_number = sum(
          other.opcode == 'parameter' for other in entry.instructions) - 1
    elif source.HasField('literal'):
      argument.literal.CopyFrom(source.literal)
  root = entry.instructions.add()
  root.CopyFrom(node)
  root.id = entry.root_id
  root.operand_ids[:] = [new_ids[i] for i in node.operand_ids]
  kernel.entry_computation_id = entry.id
  kernel.entry_computation_name = entry.name
  return kernel


def _called(node, computations) -> set:
  """Ids of all computations that an instruction calls, and those in turn."""
  found, waiting = set(), list(node.called_computation_ids)
  while waiting:
    number = waiting.pop()
    if number not in found:
      found.add(number)
      for inner in computations[number].instructions:
        waiting.extend(inner.called_computation_ids)
  return found


# --------------------------------------------------------------- calls


def inlined(module: protos.HloModuleProto) -> protos.HloModuleProto:
  """The program with the bodies of its calls in their place.

  JAX writes a call for each jitted function within a function.

  Raises:
    UserError: the module refers to what it does not have, or calls itself.
  """
  computations = {c.id: c for c in module.computations}
  whole = protos.HloModuleProto()
  whole.CopyFrom(module)
  try:
    entry = next(c for c in whole.computations
                 if c.id == module.entry_computation_id)
    writer = _Inliner(module, computations)
    root = writer.add(computations[entry.id], {}, ())
  except (LookupError, StopIteration) as error:
    raise UserError(
        f'HLO module {module.name!r} refers to {error}, which it does not '
        'have; it is incomplete or damaged') from error
  del entry.instructions[:]
  entry.instructions.extend(writer.nodes)
  entry.root_id = root
  return whole


class _Inliner:
  """Writes instructions one after another, calls as what they call."""

  def __init__(self, module, computations):
    self.nodes, self._by_id = [], {}
    self._name, self._computations = module.name, computations
    self._next = 1 + max([0, *computations, *(
        node.id for c in module.computations for node in c.instructions)])

  def add(self, computation, arguments: dict, within: tuple) -> int:
    """Adds a computation's instructions; returns the id of its result.

    Args:
      computation: the entry, or what a call calls.
      arguments: parameter number -> id of what is passed; none for the entry.
      within: ids of the computations that are being added.
    """
    if computation.id in within:
      raise UserError(f'HLO module {self._name!r}: {computation.name!r} calls '
                      'itself; the module is damaged')
    renamed = {}
    for node in computation.instructions:
      operands = [renamed[i] for i in node.operand_ids]
      if within and node.opcode == 'parameter':
        renamed[node.id] = arguments[node.parameter_number]
      elif node.opcode == 'call':
        body = self._computations[node.called_computation_ids[0]]
        renamed[node.id] = self.add(
            body, dict(enumerate(operands)), (*within, computation.id))
      elif node.opcode == 'get-tuple-element' and (
          self._by_id[operands[0]].opcode == 'tuple'):
        renamed[node.id] = self._by_id[operands[0]].operand_ids[
            node.tuple_index]
      else:
        renamed[node.id] = self._write(node, operands, bool(within))
    return renamed[computation.root_id]

  def _write(self, node, operands, is_inner) -> int:
    written = copy.deepcopy(node)
    if is_inner:
      written.id, self._next = self._next, self._next + 1
    written.operand_ids[:] = operands
    self.nodes.append(written)
    self._by_id[written.id] = written
    return written.id
