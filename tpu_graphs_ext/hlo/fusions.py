"""Splits an optimised program into its kernels: its fusions, as they are.

Other instructions that run as a loop over tiles are kernels too. Everything
else (custom calls, loops, transfers between chips) is only counted.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos

# They do not run as a loop over tiles.
_WITHOUT_TILES = frozenset({
    'cholesky', 'custom-call', 'dynamic-update-slice', 'fft', 'gather', 'map',
    'reverse-sequence', 'rng-bit-generator', 'scatter', 'sort',
    'triangular-solve'})
# Their computations run like the entry.
_CONTROL = frozenset({'while', 'conditional', 'call'})
# They do no work.
_FREE = frozenset({'parameter', 'constant', 'bitcast', 'tuple', 'after-all',
                   'get-tuple-element', 'partition-id', 'replica-id',
                   'add-dependency', 'domain', 'opt-barrier', 'copy-done'})
_TRANSFERS = ('all-', 'async-', 'collective-', 'send', 'recv', 'infeed',
              'outfeed', 'reduce-scatter', 'copy-start', 'rng-get')


class Kernels(NamedTuple):
  """Kernels of a program."""
  modules: list  # An `HloModuleProto` each, named like its instruction.
  passed_over: dict[str, int]  # Opcode -> instructions that are not kernels.
  runs: list[int]  # Of each module when the program runs once.
  open_loops: int  # With an unknown trip count, counted as one trip.


def kernels_of(module: protos.HloModuleProto) -> Kernels:
  """Splits an optimised program.

  A module that is a single kernel is returned unchanged.

  Raises:
    UserError: the module refers to a computation or instruction that it does
      not have.
  """
  try:
    return _split(module)
  except (LookupError, StopIteration) as error:
    raise UserError(
        f'HLO module {module.name!r} refers to {error}, which it does not '
        'have; it is incomplete or damaged') from error


def _split(module) -> Kernels:
  computations = {c.id: c for c in module.computations}
  found, passed_over = [], collections.Counter()
  runs, open_loops = _runs(module, computations)
  for number, times in runs.items():
    nodes = _nodes(computations[number])
    for node in nodes.values():
      if node.opcode in _FREE or node.opcode in _CONTROL:
        continue
      if node.opcode in _WITHOUT_TILES or node.opcode.startswith(_TRANSFERS):
        passed_over[node.opcode] += 1
        continue
      found.append((node, nodes, times))
  if len(found) == 1 and _is_whole_program(module, computations, found[0][0]):
    modules = [module]
  else:
    modules = [_kernel(node, nodes, module, computations)
               for node, nodes, _ in found]
  return Kernels(modules, dict(passed_over), [times for _, _, times in found],
                 open_loops)


def _nodes(computation) -> dict:
  return {node.id: node for node in computation.instructions}


def _runs(module, computations) -> tuple[dict[int, int], int]:
  """How often the entry, loop bodies and branches run; number of open loops.

  Branches count as always taken.
  """
  runs, open_loops = collections.Counter(), 0
  waiting = [(module.entry_computation_id, 1, ())]
  while waiting:
    number, times, within = waiting.pop(0)
    if number in within:
      raise LookupError(f'a loop that contains itself, {number}')
    runs[number] += times
    nodes = _nodes(computations[number])
    for node in nodes.values():
      if node.opcode not in _CONTROL:
        continue
      trips = (_trip_count(node, nodes, computations)
               if node.opcode == 'while' else 1)
      open_loops += trips is None
      again = times * (1 if trips is None else trips)
      waiting += [(called, again, (*within, number))
                  for called in node.called_computation_ids]
  return dict(runs), open_loops


def _is_whole_program(module, computations, node) -> bool:
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
  largest = max([node.id, *computations,
                 *(inner.id for inner in protos.nodes(kernel))])
  # The whole entry gets new ids, the root too: XLA wants ids whose lower 32
  # bits differ within a computation.
  entry = kernel.computations.add(
      id=largest + 1, name=node.name,
      root_id=largest + 2 + len(set(node.operand_ids)))
  new_ids, parameters = {}, 0
  for number, operand in enumerate(dict.fromkeys(node.operand_ids)):
    source = nodes[operand]
    scalar = source.opcode == 'constant' and not source.shape.dimensions
    new_ids[operand] = largest + 2 + number
    argument = entry.instructions.add(
        id=new_ids[operand], name=source.name,
        opcode='constant' if scalar else 'parameter')
    argument.shape.CopyFrom(source.shape)
    if not scalar:
      argument.parameter_number = parameters
      parameters += 1
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
  """Ids of all computations that an instruction calls, directly or not."""
  found, waiting = set(), list(node.called_computation_ids)
  while waiting:
    number = waiting.pop()
    if number not in found:
      found.add(number)
      for inner in computations[number].instructions:
        waiting.extend(inner.called_computation_ids)
  return found


# --- Trip counts --------------------------------------------------------------


def _trip_count(loop: Any, nodes: Mapping[int, Any],
                computations: Mapping[int, Any]) -> Optional[int]:
  """Trips of a `while` instruction; None if they are unknown.

  `fori_loop` and `scan` compile to a counter that starts at a constant, grows
  by a constant, and must be less than a constant.
  """
  called = [computations[i] for i in loop.called_computation_ids]
  roots = {root.opcode: (root, _nodes(c)) for c in called
           for root in [_nodes(c)[c.root_id]]}
  initial = nodes[loop.operand_ids[0]]
  if set(roots) != {'compare', 'tuple'} or initial.opcode != 'tuple':
    return None
  (compare, condition), (result, body) = roots['compare'], roots['tuple']
  counter, limit = (condition[i] for i in compare.operand_ids)
  if (counter.opcode != 'get-tuple-element'
      or compare.comparison_direction != 'LT'):
    return None
  index = counter.tuple_index
  start = _constant(nodes[initial.operand_ids[index]], nodes)
  end = _constant(limit, condition)
  step = _step(body[result.operand_ids[index]], index, body)
  if start is None or end is None or step is None or step < 1:
    return None
  return max(0, -(-(end - start) // step))


def _step(node, index: int, nodes) -> Optional[int]:
  """What the body adds to its counter."""
  if node.opcode != 'add':
    return None
  operands = [nodes[i] for i in node.operand_ids]
  steps = [_constant(n, nodes) for n in operands
           if n.opcode != 'get-tuple-element' or n.tuple_index != index]
  return steps[0] if len(steps) == 1 else None


def _constant(node, nodes) -> Optional[int]:
  """The value of a constant whole number, or of a copy of one."""
  if node.opcode == 'copy':
    node = nodes[node.operand_ids[0]]
  if node.opcode == 'constant':
    literal = node.literal
    for values in (literal.s32s, literal.s64s, literal.u32s, literal.u64s):
      if len(values) == 1:
        return values[0]
  return None
