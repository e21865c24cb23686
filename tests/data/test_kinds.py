"""Kinds of kernels, told by opcodes."""

import numpy as np
import pytest

from tpu_graphs_ext.data import kinds, schema


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
  assert kinds.kind_of(opcodes) == kind
  assert kinds.kind_of(opcodes[::-1]) == kind


def test_unknown_opcodes_are_no_known_kind():
  parameter = schema.OPCODES['parameter']
  for unknown in (schema.UNKNOWN_OPCODE, 255):
    assert kinds.kind_of(np.array([parameter, unknown], np.uint8)) == 'other'


def test_every_kind_is_listed_and_no_opcode_is_of_two():
  found = {kinds.kind_of(np.array([number], np.uint8))
           for number in schema.OPCODE_NAMES}
  assert found == set(kinds.KINDS)
  tables = [kinds._PRODUCTS, kinds._REDUCTIONS, kinds._MOVES,
            kinds._ELEMENT_WISE]
  assert sum(table.astype(int) for table in tables).max() == 1
