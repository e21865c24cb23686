"""HLO modules to arrays, by hand; `test_hlo_tuning` has published ones."""

import numpy as np
import pytest

from support import tiny_hlo
from support.tiny_hlo import add
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, protos


def row_of(module):
  return features.module_arrays(module).node_feat[0]


def fused_square():
  """entry: fusion(p) calls square: multiply(q, q)."""
  module = protos.HloModuleProto(name='fused_square')
  square = module.computations.add(id=70, name='square', root_id=12)
  add(square, 11, 'parameter', (3, 5))
  add(square, 12, 'multiply', (3, 5), operands=(11, 11))
  entry = module.computations.add(id=71, name='entry', root_id=22)
  add(entry, 21, 'parameter', (3, 5))
  add(entry, 22, 'fusion', (3, 5), operands=(21,), called_computation_ids=[70])
  module.entry_computation_id = 71
  return module


def columns(row, group):
  return row[schema.NODE_GROUPS[group]].tolist()


def single(opcode='copy', dims=(), **fields):
  module = protos.HloModuleProto(name='single')
  entry = module.computations.add(id=1, name='entry', root_id=2)
  add(entry, 2, opcode, dims, **fields)
  return module


def test_graph_of_two_computations():
  arrays = features.module_arrays(fused_square().SerializeToString())
  assert [schema.OPCODE_NAMES[n] for n in arrays.node_opcode] == [
      'parameter', 'multiply', 'parameter', 'fusion']
  # multiply takes its operand once; fusion takes its operand (node 2) and
  # the root of the computation that it calls (node 1).
  assert arrays.edge_index.tolist() == [[1, 0], [3, 1], [3, 2]]
  # Each computation has a root.
  assert arrays.node_feat[:, schema.NODE_COLUMN['is_root']].tolist() == [
      0, 1, 0, 1]
  assert arrays.node_splits.tolist() == [[0, 4]]
  # The body of a loop has 2 of the 4 nodes.
  module = fused_square()
  module.computations[0].name = 'while_body.3'
  assert features.module_arrays(module).node_splits.tolist() == [[0, 2, 4]]


def test_shape_columns_and_those_of_nothing():
  row = row_of(fused_square())
  # 3 and 5: sum 8, product 15; row-major layout has dimension 1 first.
  assert columns(row, 'shape_dimensions') == [3, 5, 0, 0, 0, 0, 8, 15]
  assert columns(row, 'layout_minor_to_major') == [1, 0, 0, 0, 0, 0]
  one_hot = columns(row, 'shape_element_type')
  assert schema.ELEMENT_TYPES[one_hot.index(1)] == 'F32' and sum(one_hot) == 1
  # Nothing has the sum 0 and the product 1.
  assert columns(row, 'window_size') == [0] * 6 + [0, 1]
  assert columns(row, 'window_window_reversal') == [0] * 8
  for group in ('slice_dims_start', 'dynamic_slice_sizes',
                'padding_config_edge_padding_low'):
    assert columns(row, group) == [0, 0, 0, 1]
  # In 64 bits 2**62 + 2**62 is negative, and of 2**124 nothing is left.
  module = single('made-up', dims=(2**62, 2**62), element_type='F8E5M2')
  assert columns(row_of(module), 'shape_dimensions')[-2:] == [-2.0**63, 0]
  # Element types that are not listed, and an opcode.
  one_hot = columns(row_of(module), 'shape_element_type')
  assert schema.ELEMENT_TYPES[one_hot.index(1)] == 'S8' and sum(one_hot) == 1
  module.computations[0].instructions[0].shape.element_type = 99
  assert not any(columns(row_of(module), 'shape_element_type'))
  assert features.module_arrays(module).node_opcode == [schema.UNKNOWN_OPCODE]


def test_what_stays_on_chip_is_marked():
  """In a column that is always 0 in the data set; `S(1)` in HLO text."""
  module = tiny_hlo.elementwise([64, 128])
  parameter, root = module.computations[0].instructions
  parameter.shape.layout.memory_space = 1
  root.shape.layout.memory_space = 5  # The host's memory.
  column = features.module_arrays(module).node_feat[
      :, schema.NODE_COLUMN['element_size_in_bits']]
  np.testing.assert_array_equal(column, [1, 0])


def test_window_and_convolution_columns():
  row = row_of(single(
      'convolution', feature_group_count=4, batch_group_count=1,
      window={'dimensions': [
          {'size': 3, 'stride': 2, 'padding_low': -1, 'padding_high': 4,
           'window_dilation': 1, 'base_dilation': 5, 'window_reversal': True},
          {'size': 7, 'stride': 1, 'padding_low': 2, 'window_dilation': 1,
           'base_dilation': 1}]},
      convolution_dimension_numbers={
          'input_batch_dimension': 3, 'input_feature_dimension': 2,
          'input_spatial_dimensions': [0, 1],
          'kernel_input_feature_dimension': 2,
          'kernel_output_feature_dimension': 3,
          'kernel_spatial_dimensions': [1, 0],
          'output_batch_dimension': 1, 'output_feature_dimension': 4}))
  for group, expected in {
      'window_size': [3, 7, 0, 0, 0, 0, 10, 21],
      'window_stride': [2, 1, 0, 0, 0, 0, 3, 2],
      'window_padding_low': [-1, 2, 0, 0, 0, 0, 1, -2],
      'window_padding_high': [4, 0, 0, 0, 0, 0, 4, 0],
      'window_base_dilation': [5, 1, 0, 0, 0, 0, 6, 5],
      # One dimension reversed, one not.
      'window_window_reversal': [1, 0, 0, 0, 0, 0, 1, 1],
      'convolution_dim_numbers': [3, 2, 0, 1, 0, 0, 2, 3, 1, 0, 0, 0, 1, 4],
      'feature_group_count': [4], 'batch_group_count': [1]}.items():
    assert columns(row, group) == expected, group


def test_slice_and_padding_columns_keep_two_dimensions_but_total_all():
  row = row_of(single(
      'pad', dynamic_slice_sizes=[2, 3, 5], slice_dimensions=[
          {'start': start, 'stride': stride, 'limit': limit}
          for start, stride, limit in ((1, 1, 10), (2, 2, 20), (3, 4, 30))],
      padding_config={'dimensions': [
          {'edge_padding_low': 1, 'edge_padding_high': -2}]}))
  for group, expected in {
      'slice_dims_start': [1, 2, 6, 6], 'slice_dims_stride': [1, 2, 7, 8],
      'slice_dims_limit': [10, 20, 60, 6000],
      'dynamic_slice_sizes': [2, 3, 10, 30],
      'padding_config_edge_padding_low': [1, 0, 1, 1],
      'padding_config_edge_padding_high': [-2, 0, -2, -2]}.items():
    assert columns(row, group) == expected, group


def test_damaged_modules():
  for damage, rule in (
      (lambda entry: entry[1].operand_ids.append(99),
       r"'fusion.22' takes its input from 99, which is"),
      (lambda entry: entry[1].called_computation_ids.append(8),
       r"'fusion.22' takes its input from None"),
      (lambda entry: setattr(entry[0], 'id', 11), 'found 4 with 3 ids')):
    module = fused_square()
    damage(module.computations[1].instructions)
    with pytest.raises(UserError, match=rule):
      features.module_arrays(module)
  with pytest.raises(UserError, match="'empty': must have instr"):
    features.module_arrays(protos.HloModuleProto(name='empty'))
  with pytest.raises(UserError, match='not an HLO module'):
    features.module_arrays(b'\xff\xff\xff')


def test_config_features():
  rows = features.config_features([4, 1], [[16, 32], [5, 7]])
  assert rows.dtype == np.float32
  assert rows.tolist() == [
      [4, 1, 0, 0, 0, 0, 5, 4, *output, 0, 0, 0, 0, 0, 0, 0, 0]  # No product.
      for output in ([16, 32, 0, 0, 0, 0, 48, 512],
                     [5, 7, 0, 0, 0, 0, 12, 35])]
  # Totals count bounds without a column: 1 + ... + 7 = 28; 7! = 5040.
  row = features.config_features([], [1, 2, 3, 4, 5, 6, 7])
  assert row[schema.CONFIG_GROUPS['output_bounds']].tolist() == [
      1, 2, 3, 4, 5, 6, 28, 5040]
