"""Kinds of kernels, told by opcodes."""

import numpy as np

from tpu_graphs_ext.data import kernel_kinds, schema

EXAMPLES = {
    'parameter parameter convolution': 'convolution',
    'parameter parameter dot tanh reduce': 'convolution',
    'parameter parameter parameter add multiply reduce': 'reduction',
    'parameter constant reduce-window': 'reduction',
    'parameter copy': 'copy',
    'parameter constant pad slice concatenate tuple': 'copy',
    'parameter broadcast convert': 'element-wise',
    'parameter parameter compare select transpose': 'element-wise',
    'parameter sort': 'other',
    # The sum that joins what is scattered is not element-wise work.
    'parameter parameter add parameter parameter parameter scatter': 'other',
    'parameter all-reduce': 'other'}


def kind_of(*opcodes: int) -> str:
  return kernel_kinds.kind_of(np.array(opcodes, np.uint8))


def test_kinds():
  for names, kind in EXAMPLES.items():
    opcodes = [schema.OPCODES[name] for name in names.split()]
    assert kind_of(*opcodes) == kind_of(*opcodes[::-1]) == kind, names
  for unknown in (schema.UNKNOWN_OPCODE, 255):
    assert kind_of(schema.OPCODES['parameter'], unknown) == 'other'


def test_every_kind_is_listed_and_no_opcode_has_two():
  assert {kind_of(number) for number in schema.OPCODE_NAMES} == set(
      kernel_kinds.KINDS)
  tables = [kernel_kinds._PRODUCTS, kernel_kinds._REDUCTIONS,
            kernel_kinds._MOVES, kernel_kinds._ELEMENT_WISE]
  assert sum(table.astype(int) for table in tables).max() == 1
