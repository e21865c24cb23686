"""Kinds of kernels, told by opcodes."""

import numpy as np
import pytest

from tpu_graphs_ext.data import kernel_kinds, schema


@pytest.mark.parametrize('names, kind', [
    ('parameter parameter convolution', 'convolution'),
    ('parameter parameter dot tanh reduce', 'convolution'),
    ('parameter parameter parameter add multiply reduce', 'reduction'),
    ('parameter constant reduce-window', 'reduction'),
    ('parameter copy', 'copy'),
    ('parameter reshape', 'copy'),
    ('parameter constant pad slice concatenate tuple', 'copy'),
    ('parameter broadcast convert', 'element-wise'),
    ('parameter parameter compare select transpose', 'element-wise'),
    ('parameter sort', 'other'),
    # The sum that joins what is scattered is no element-wise work.
    ('parameter parameter add parameter parameter parameter scatter', 'other'),
    ('parameter all-reduce', 'other')])
def test_kinds(names, kind):
  opcodes = np.array([schema.OPCODES[name] for name in names.split()],
                     np.uint8)
  assert kernel_kinds.kind_of(opcodes) == kind
  assert kernel_kinds.kind_of(opcodes[::-1]) == kind


def test_unknown_opcodes_are_no_known_kind():
  parameter = schema.OPCODES['parameter']
  for unknown in (schema.UNKNOWN_OPCODE, 255):
    assert kernel_kinds.kind_of(np.array([parameter, unknown], np.uint8)) == 'other'


def test_every_kind_is_listed_and_no_opcode_is_of_two():
  found = {kernel_kinds.kind_of(np.array([number], np.uint8))
           for number in schema.OPCODE_NAMES}
  assert found == set(kernel_kinds.KINDS)
  tables = [kernel_kinds._PRODUCTS, kernel_kinds._REDUCTIONS, kernel_kinds._MOVES,
            kernel_kinds._ELEMENT_WISE]
  assert sum(table.astype(int) for table in tables).max() == 1
