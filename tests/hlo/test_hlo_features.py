"""HLO modules to arrays: one worked out by hand, one against the C++."""

import numpy as np
import pytest

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, protos


def instruction(computation, number, opcode, dims=(), operands=(), calls=(),
                element_type='F32', **fields):
  """Adds an instruction whose layout is row-major."""
  added = computation.instructions.add(
      id=number, name=f'{opcode}.{number}', opcode=opcode,
      operand_ids=operands, called_computation_ids=calls, **fields)
  added.shape.element_type = protos.PrimitiveType.Value(element_type)
  added.shape.dimensions.extend(dims)
  added.shape.layout.minor_to_major.extend(reversed(range(len(dims))))
  return added


def fused_square():
  """entry: fusion(p) calls square: multiply(q, q)."""
  module = protos.HloModuleProto(name='fused_square')
  square = module.computations.add(id=70, name='square', root_id=12)
  instruction(square, 11, 'parameter', (3, 5))
  instruction(square, 12, 'multiply', (3, 5), operands=(11, 11))
  entry = module.computations.add(id=71, name='entry', root_id=22)
  instruction(entry, 21, 'parameter', (3, 5))
  instruction(entry, 22, 'fusion', (3, 5), operands=(21,), calls=(70,))
  module.entry_computation_id = 71
  return module


def columns(row, group):
  return row[schema.NODE_GROUPS[group]].tolist()


def test_graph_of_two_computations():
  arrays = features.module_arrays(fused_square())
  names = [schema.OPCODE_NAMES[n] for n in arrays.node_opcode]
  assert names == ['parameter', 'multiply', 'parameter', 'fusion']
  # multiply takes its operand once; fusion takes its operand (node 2) and
  # the root of the computation that it calls (node 1).
  assert arrays.edge_index.tolist() == [[1, 0], [3, 1], [3, 2]]
  # One root a computation.
  assert arrays.node_feat[:, schema.NODE_COLUMN['is_root']].tolist() == [
      0, 1, 0, 1]
  assert arrays.node_splits.tolist() == [[0, 4]]


def test_types_and_shapes_follow_the_schema():
  arrays = features.module_arrays(fused_square())
  assert arrays.node_feat.dtype == np.float32
  assert arrays.node_feat.shape == (4, 140)
  assert arrays.node_opcode.dtype == np.uint8
  assert arrays.edge_index.dtype == np.int64
  assert arrays.node_splits.dtype == np.int64


def test_shape_columns():
  row = features.module_arrays(fused_square()).node_feat[0]
  # 3 and 5: sum 8, product 15; row-major layout has dimension 1 first.
  assert columns(row, 'shape_dimensions') == [3, 5, 0, 0, 0, 0, 8, 15]
  assert columns(row, 'layout_minor_to_major') == [1, 0, 0, 0, 0, 0]
  one_hot = columns(row, 'shape_element_type')
  assert schema.ELEMENT_TYPES[one_hot.index(1)] == 'F32'
  assert sum(one_hot) == 1


def test_columns_of_nothing_have_sum_0_and_product_1():
  row = features.module_arrays(fused_square()).node_feat[0]
  nothing = [0] * 6 + [0, 1]
  assert columns(row, 'window_size') == nothing
  assert columns(row, 'window_base_dilation') == nothing
  assert columns(row, 'window_window_reversal') == [0] * 8
  assert columns(row, 'slice_dims_start') == [0, 0, 0, 1]
  assert columns(row, 'dynamic_slice_sizes') == [0, 0, 0, 1]
  assert columns(row, 'padding_config_edge_padding_low') == [0, 0, 0, 1]


def single(opcode='copy', **fields):
  module = protos.HloModuleProto(name='single')
  entry = module.computations.add(id=1, name='entry', root_id=2)
  return module, instruction(entry, 2, opcode, **fields)


def row_of(module):
  return features.module_arrays(module).node_feat[0]


def test_window_columns():
  module, conv = single('convolution')
  conv.window.dimensions.add(size=3, stride=2, padding_low=-1, padding_high=4,
                             window_dilation=1, base_dilation=5,
                             window_reversal=True)
  conv.window.dimensions.add(size=7, stride=1, padding_low=2, padding_high=0,
                             window_dilation=1, base_dilation=1)
  row = row_of(module)
  assert columns(row, 'window_size') == [3, 7, 0, 0, 0, 0, 10, 21]
  assert columns(row, 'window_stride') == [2, 1, 0, 0, 0, 0, 3, 2]
  assert columns(row, 'window_padding_low') == [-1, 2, 0, 0, 0, 0, 1, -2]
  assert columns(row, 'window_padding_high') == [4, 0, 0, 0, 0, 0, 4, 0]
  assert columns(row, 'window_base_dilation') == [5, 1, 0, 0, 0, 0, 6, 5]
  # One dimension reversed, one not.
  assert columns(row, 'window_window_reversal') == [1, 0, 0, 0, 0, 0, 1, 1]


def test_slice_columns_keep_two_dimensions_but_total_all():
  module, piece = single('slice')
  for start, stride, limit in ((1, 1, 10), (2, 2, 20), (3, 4, 30)):
    piece.slice_dimensions.add(start=start, stride=stride, limit=limit)
  row = row_of(module)
  assert columns(row, 'slice_dims_start') == [1, 2, 6, 6]
  assert columns(row, 'slice_dims_stride') == [1, 2, 7, 8]
  assert columns(row, 'slice_dims_limit') == [10, 20, 60, 6000]


def test_convolution_columns():
  module, conv = single('convolution', feature_group_count=4,
                        batch_group_count=1)
  dims = conv.convolution_dimension_numbers
  dims.input_batch_dimension, dims.input_feature_dimension = 3, 2
  dims.input_spatial_dimensions.extend([0, 1])
  dims.kernel_input_feature_dimension = 2
  dims.kernel_output_feature_dimension = 3
  dims.kernel_spatial_dimensions.extend([1, 0])
  dims.output_batch_dimension, dims.output_feature_dimension = 1, 4
  row = row_of(module)
  assert columns(row, 'convolution_dim_numbers') == [
      3, 2, 0, 1, 0, 0, 2, 3, 1, 0, 0, 0, 1, 4]
  assert columns(row, 'feature_group_count') == [4]
  assert columns(row, 'batch_group_count') == [1]


def test_padding_and_dynamic_slice_columns():
  module, pad = single('pad', dynamic_slice_sizes=[2, 3, 5])
  pad.padding_config.dimensions.add(edge_padding_low=1, edge_padding_high=-2)
  row = row_of(module)
  assert columns(row, 'padding_config_edge_padding_low') == [1, 0, 1, 1]
  assert columns(row, 'padding_config_edge_padding_high') == [-2, 0, -2, -2]
  assert columns(row, 'dynamic_slice_sizes') == [2, 3, 10, 30]


def test_unlisted_opcode_and_element_type_are_zero():
  module, _ = single('made-up', element_type='F8E5M2')
  arrays = features.module_arrays(module)
  assert arrays.node_opcode.tolist() == [schema.UNKNOWN_OPCODE]
  assert not any(columns(arrays.node_feat[0], 'shape_element_type'))


def test_products_wrap_at_64_bits():
  # 2**40 * 2**40 = 2**80, of which the low 64 bits are 0; the sum is 2**41.
  module, _ = single(dims=(2**40, 2**40))
  assert columns(row_of(module), 'shape_dimensions')[-2:] == [2.0**41, 0]


def test_main_computations_bound_the_splits():
  module = fused_square()
  module.computations[0].name = 'while_body.3'
  # The loop's body has 2 of the 4 nodes.
  assert features.module_arrays(module).node_splits.tolist() == [[0, 2, 4]]


def test_serialized_bytes_give_the_same_arrays():
  module = fused_square()
  expected = features.module_arrays(module)
  got = features.module_arrays(module.SerializeToString())
  np.testing.assert_array_equal(got.node_feat, expected.node_feat)
  np.testing.assert_array_equal(got.edge_index, expected.edge_index)


def test_matches_the_published_arrays_bit_for_bit(shared_data):
  path = shared_data / 'module_tuning_data_layout.pb'
  data = protos.ModuleTuningData.FromString(path.read_bytes())
  arrays = features.module_arrays(data.module)
  with np.load(shared_data / 'published_npz' /
               'layout__xla__default__valid__unet_3d.4x4.bf16.npz') as stored:
    for name in ('node_feat', 'node_opcode', 'edge_index', 'node_splits'):
      got = getattr(arrays, name)
      assert got.dtype == stored[name].dtype
      assert got.shape == stored[name].shape
      assert got.tobytes() == stored[name].tobytes()


# -------------------------------------------------------------- faults


def test_module_without_instructions():
  with pytest.raises(UserError, match="'empty' has no instructions"):
    features.module_arrays(protos.HloModuleProto(name='empty'))


def test_bytes_that_are_no_module():
  with pytest.raises(UserError, match='not an HLO module'):
    features.module_arrays(b'\xff\xff\xff')


def test_operand_that_is_missing():
  module = fused_square()
  module.computations[1].instructions[1].operand_ids[0] = 99
  with pytest.raises(UserError, match=r"operand 99 of 'fusion.22' is not"):
    features.module_arrays(module)


def test_called_computation_that_is_missing():
  module = fused_square()
  module.computations[1].instructions[1].called_computation_ids[0] = 8
  with pytest.raises(UserError, match=r"called computation 8 of 'fusion.22"):
    features.module_arrays(module)


def test_doubled_instruction_id():
  module = fused_square()
  module.computations[1].instructions[0].id = 11
  with pytest.raises(UserError, match='two instructions have the id 11'):
    features.module_arrays(module)
