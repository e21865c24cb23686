"""How often each computation of an optimised program runs.

XLA's loops count in whole numbers. These are followed through everything that
forwards them, as linear functions of the state that a loop carries: {0: 1,
None: 3} is the state's element 0, plus 3. A value is such a function, which
always has None, a list of values for a tuple, or None if it is unknown.
"""

from __future__ import annotations

import graphlib
from typing import NamedTuple, Optional, Union

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos

# Their computations run like the entry.
CONTROL = frozenset({'while', 'conditional', 'call'})
_FORWARDS = frozenset({'bitcast', 'convert', 'copy', 'domain', 'opt-barrier',
                       'reshape', 'reduce-precision'})
_WHOLE = frozenset(map(protos.PrimitiveType.Value, (
    'PRED', 'S8', 'S16', 'S32', 'S64', 'U8', 'U16', 'U32', 'U64')))
_TUPLE = protos.PrimitiveType.Value('TUPLE')
_MOST_RUNS = 1 << 53  # Float64 counts no further.
_MOST = 1 << 64  # Of a whole number; XLA's wrap around.
_MOST_NESTED = 3  # Fusions in fusions that are looked into.
_MOST_FUSED = 1 << 18  # Instructions in fusions that are followed, in all.
_MOST_STEPS = 8  # From a condition's root to a comparison.
Value = Union[dict, list, None]


class Runs(NamedTuple):
  """Of one computation, each time the program runs."""
  times: int
  is_open: bool  # In a loop of an unknown number of trips, which counts once.


def runs_of(module: protos.HloModuleProto) -> tuple[dict[int, Runs], int]:
  """(id of each computation that runs -> its runs, number of open loops).

  Those of fusions, reductions and the like are not listed. Raises LookupError
  if an instruction refers to what is not there, or a computation calls itself.
  """
  computations = protos.by_id(module.computations)
  order = _callers_first(module.entry_computation_id, computations)
  times, is_open, arguments = dict.fromkeys(order, 0), set(), {}
  times[order[0]], open_loops, left = 1, 0, [_MOST_FUSED]
  for number in order:
    values = _Values(computations, number, arguments.get(number, []), left)
    for node in values.nodes.values():
      if node.opcode not in CONTROL:
        continue
      trips, passed = _call(node, values)
      open_loops += trips is None
      for called, argument in zip(node.called_computation_ids, passed):
        times[called] += times[number] * (1 if trips is None else trips)
        if times[called] > _MOST_RUNS:
          raise UserError(
              f'HLO module {module.name!r}: computation {called} would run '
              f'more than {_MOST_RUNS:,} times, which no program does')
        if trips is None or number in is_open:
          is_open.add(called)
        arguments[called] = _agreed(arguments.get(called, argument), argument)
  return {number: Runs(times[number], number in is_open)
          for number in order}, open_loops


def _callers_first(entry: int, computations: dict) -> list[int]:
  """Ids of what the entry calls, each after all that call it."""
  callers, waiting = {entry: set()}, [entry]
  while waiting:
    number = waiting.pop()
    for node in computations[number].instructions:
      for called in node.called_computation_ids:
        if node.opcode in CONTROL:
          if called not in callers:
            callers[called] = set()
            waiting.append(called)
          callers[called].add(number)
  try:
    return list(graphlib.TopologicalSorter(callers).static_order())
  except graphlib.CycleError as error:
    raise LookupError(f'a loop that contains itself, {error.args[1][0]}'
                      ) from error


def _agreed(first: Value, second: Value) -> Value:
  """What two callers pass, where it is the same."""
  if isinstance(first, list) and isinstance(second, list):
    return list(map(_agreed, first, second))
  return first if first == second else None


class _Values:
  """The values of one computation's instructions."""

  def __init__(self, computations: dict, number: int, arguments: Value,
               left: list[int], nested: int = 0):
    self.computations = computations
    self.left = left  # Of `_MOST_FUSED`; all share it.
    computation = computations[number]
    self.nodes = protos.by_id(computation.instructions)
    self.root = self.nodes[computation.root_id]
    self._arguments = dict(enumerate(arguments or []))
    self._nested = nested
    self.of: dict[int, Value] = {}  # By the instruction's id.
    for node in self.nodes.values():  # In order: users after what they use.
      self.of[node.id] = self._value(node)

  def operands(self, node) -> list[Value]:
    return [self.of[number] for number in node.operand_ids]

  def called(self, node) -> Optional[_Values]:
    """Those of the computation that a fusion or a call runs."""
    number = node.called_computation_ids[0]
    self.left[0] -= len(self.computations[number].instructions)
    if self._nested == _MOST_NESTED or self.left[0] < 0:
      return None
    return _Values(self.computations, number, self.operands(node), self.left,
                   self._nested + 1)

  def _value(self, node) -> Value:
    kind = node.shape.element_type
    is_number = kind in _WHOLE and all(
        size == 1 for size in node.shape.dimensions)
    if not is_number and kind != _TUPLE:
      return None
    if node.opcode == 'parameter':
      return self._arguments.get(node.parameter_number)
    if node.opcode == 'constant':
      numbers = [number for kind in ('s32s', 's64s', 'u32s', 'u64s')
                 for number in getattr(node.literal, kind)]
      return {None: numbers[0]} if len(numbers) == 1 else None
    if node.opcode in ('tuple', 'copy-start'):
      # Tuples in tuples in tuples may stand for any number of values.
      return [None if isinstance(value, list) and any(
          isinstance(inner, list) for inner in value) else value
              for value in self.operands(node)]
    if node.opcode in ('get-tuple-element', 'copy-done'):
      whole = self.of[node.operand_ids[0]]
      return (whole[node.tuple_index] if isinstance(whole, list)
              and node.tuple_index < len(whole) else None)
    if node.opcode in _FORWARDS:
      return self.of[node.operand_ids[0]]
    if node.opcode in ('fusion', 'call'):
      inner = self.called(node)
      return inner and inner.of[inner.root.id]
    if node.opcode in ('add', 'subtract', 'multiply'):
      return self.combined(node.opcode, node)
    return None

  def combined(self, opcode: str, node) -> Value:
    """What the opcode makes of an instruction's first two operands."""
    first, second = (self.of[node.operand_ids[side]] for side in (0, 1))
    if not (isinstance(first, dict) and isinstance(second, dict)):
      return None
    if opcode == 'multiply':
      factor, other = sorted((first, second), key=len)
      if len(factor) > 1:  # It is not constant either.
        return None
      terms = {key: number * factor[None] for key, number in other.items()}
    else:
      sign = -1 if opcode == 'subtract' else 1
      terms = {key: first.get(key, 0) + sign * second.get(key, 0)
               for key in {**first, **second}}
    if max(map(abs, terms.values())) > _MOST:
      return None
    return {key: number for key, number in terms.items()
            if number or key is None}


def _call(node, values: _Values) -> tuple[Optional[int], list]:
  """(runs of what an instruction calls, each one's arguments)."""
  operands = values.operands(node)
  if node.opcode == 'call':
    return 1, [operands]
  if node.opcode == 'conditional':  # Each branch counts, though one is taken.
    return 1, [[argument] for argument in operands[1:]]
  initial = operands[0] if operands else None
  state = [{index: 1, None: 0} for index in range(len(node.shape.tuple_shapes))]
  if not isinstance(initial, list):
    initial = [None] * len(state)
  body, condition, *_ = [*(
      _Values(values.computations, called, [state], values.left)
      for called in node.called_computation_ids), None, None]
  after = body and body.of[body.root.id]
  steps = [_step(index, value) for index, value in enumerate(
      after if isinstance(after, list) else [])]
  steps += [None] * (len(state) - len(steps))
  trips = condition and _trips(condition.root, condition, initial, steps)
  kept = [value if step == 0 else None for value, step in zip(initial, steps)]
  return trips, [[kept]] * len(node.called_computation_ids)


def _step(index: int, after: Value) -> Optional[int]:
  """By how much a trip changes an element of the state, if always as much."""
  if not isinstance(after, dict) or {**after, None: 0} != {index: 1, None: 0}:
    return None
  return (after[None] + 2**31) % 2**32 - 2**31  # -1 may be unsigned.


def _trips(node, values: _Values, initial: list, steps: list,
           depth: int = 0) -> Optional[int]:
  """How often a condition holds, one trip after the other."""
  if depth == _MOST_STEPS:
    return None
  if node.opcode in ('fusion', 'call'):
    inner = values.called(node)
    return inner and _trips(inner.root, inner, initial, steps, depth + 1)
  if node.opcode in _FORWARDS or node.opcode == 'and':  # All must hold.
    every = [_trips(values.nodes[operand], values, initial, steps, depth + 1)
             for operand in node.operand_ids]
    return None if None in every else min(every, default=None)
  if node.opcode != 'compare':
    return None
  difference = values.combined('subtract', node)
  if difference is None:
    return None
  start, step = difference[None], 0
  for index, factor in difference.items():
    if index is None:
      continue
    if not isinstance(initial[index], dict) or steps[index] is None:
      return None
    start += factor * initial[index][None]
    step += factor * steps[index]
  return _times_true(node.comparison_direction, start, step)


def _times_true(direction: str, start: int, step: int) -> Optional[int]:
  """For how many n from 0 on `start + n step` compares so with 0, in a row."""
  if direction in ('GT', 'GE'):
    return _times_true(direction.replace('G', 'L'), -start, -step)
  if direction == 'LE':
    return _times_true('LT', start - 1, step)
  if direction == 'LT':
    if start >= 0:
      return 0
    return -(start // step) if step > 0 else None
  if direction == 'NE':
    if start == 0:
      return 0
    return (-start // step if step and start % step == 0
            and -start // step > 0 else None)
  return None if start == 0 and step == 0 else int(start == 0)  # 'EQ'
