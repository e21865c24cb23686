"""Programs with loops, like those that the compiler leaves."""

from __future__ import annotations

from support.tiny_hlo import add
from tpu_graphs_ext.hlo import protos

TUPLE = protos.PrimitiveType.Value('TUPLE')


def whole(computation, number, opcode, operands=(), **fields):
  """A whole number; a constant if `opcode` is one."""
  if isinstance(opcode, int):
    node = add(computation, number, 'constant', [], element_type='S32')
    (node.literal.s32s if opcode < 2**31 else node.literal.u32s).append(opcode)
  else:
    add(computation, number, opcode, [], operands=operands,
        element_type='S32', **fields)


def state(computation, number, opcode, operands=(), **fields):
  """A tuple of two whole numbers."""
  node = add(computation, number, opcode, [], operands=operands, **fields)
  node.shape.element_type = TUPLE
  for _ in range(2):
    node.shape.tuple_shapes.add(element_type=protos.PrimitiveType.Value('S32'))


def counting(start, end, direction='LT', step=1, opcode='add', inner=None):
  """entry: a loop of `state`, a counter and what it is compared with.

  With `inner`, (start, direction), the body has a loop until the same end.
  """
  module = protos.HloModuleProto(name='program', entry_computation_id=9)

  def loop(base, first, direction, within):
    body = module.computations.add(id=base, name=f'body.{base}',
                                   root_id=base + 9)
    state(body, base + 1, 'parameter')
    for place in range(2):
      whole(body, base + 2 + place, 'get-tuple-element', [base + 1],
            tuple_index=place)
    whole(body, base + 4, 'copy', [base + 2])
    whole(body, base + 5, step)
    whole(body, base + 6, opcode, [base + 5, base + 4])
    if within:
      whole(body, base + 11, inner[0])
      state(body, base + 7, 'tuple', [base + 11, base + 3])
      state(body, base + 8, 'while', [base + 7],
            called_computation_ids=loop(1000, *inner, False))
    state(body, base + 9, 'tuple', [base + 6, base + 3])
    condition = module.computations.add(id=base + 10, root_id=base + 25,
                                        name=f'condition.{base}')
    state(condition, base + 21, 'parameter')
    for place in range(2):
      whole(condition, base + 22 + place, 'get-tuple-element', [base + 21],
            tuple_index=place)
    add(condition, base + 24, 'compare', [], element_type='PRED',
        operands=[base + 22, base + 23], comparison_direction=direction)
    add(condition, base + 25, 'copy', [], operands=[base + 24],
        element_type='PRED')
    return base, base + 10

  called = loop(100, start, direction, inner is not None)
  entry = module.computations.add(id=9, name='entry', root_id=95)
  whole(entry, 91, start)
  whole(entry, 92, end)
  whole(entry, 93, 'copy', [91])
  state(entry, 94, 'tuple', [93, 92])
  state(entry, 95, 'while', [94], called_computation_ids=called)
  return module
