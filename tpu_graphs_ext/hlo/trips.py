"""How many trips a loop makes, where its counter says so.

Every `fori_loop` and `scan` compiles to a counter that starts at a constant,
goes up or down by one in the body, and is compared with a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

_HOLDS = {'LT': 1, 'LE': 1, 'GT': -1, 'GE': -1}  # Which way it counts.


def trip_count(loop: Any, nodes: Mapping[int, Any],
               computations: Mapping[int, Any]) -> Optional[int]:
  """Trips of a `while` instruction; None where they are not constant.

  Args:
    loop: the instruction.
    nodes: id -> instruction, of the computation that has the loop.
    computations: id -> computation, of the module.

  Raises:
    LookupError: the module refers to what it does not have.
  """
  called = [computations[i] for i in loop.called_computation_ids]
  roots = [_nodes(c)[c.root_id] for c in called]
  if len(called) != 2 or {root.opcode for root in roots} != {
      'compare', 'tuple'}:
    return None
  place = [root.opcode for root in roots].index('compare')
  compare, condition = roots[place], _nodes(called[place])
  counter, limit = (condition[i] for i in compare.operand_ids)
  result, body = roots[1 - place], _nodes(called[1 - place])
  end = _constant(limit, condition)
  if counter.opcode != 'get-tuple-element' or end is None:
    return None
  index = counter.tuple_index
  step = _step(body[result.operand_ids[index]], index, body)
  initial = nodes[loop.operand_ids[0]]
  if initial.opcode != 'tuple' or not step:
    return None
  start = _constant(nodes[initial.operand_ids[index]], nodes)
  direction = _HOLDS.get(compare.comparison_direction, 0)
  if start is None or direction * step <= 0:
    return None
  ended = compare.comparison_direction in ('LE', 'GE')
  return max(0, math.ceil((end - start + direction * ended) / step))


def _nodes(computation) -> dict:
  return {node.id: node for node in computation.instructions}


def _constant(node, nodes) -> Optional[int]:
  """The value of a whole number, or of a copy of one."""
  while node.opcode == 'copy':
    node = nodes[node.operand_ids[0]]
  if node.opcode != 'constant':
    return None
  literal = node.literal
  for values in (literal.s32s, literal.s64s, literal.u32s, literal.u64s):
    if len(values) == 1:
      return values[0]
  return None


def _step(node, index: int, nodes) -> Optional[int]:
  """What the body adds to its counter."""
  if node.opcode not in ('add', 'subtract'):
    return None
  operands = [nodes[i] for i in node.operand_ids]
  counters = [n for n in operands if n.opcode == 'get-tuple-element'
              and n.tuple_index == index]
  steps = [value for n in operands if (value := _constant(n, nodes))
           is not None]
  if len(counters) != 1 or len(steps) != 1:
    return None
  return -steps[0] if node.opcode == 'subtract' else steps[0]
