"""Hand-made HLO modules of one kernel each."""

import json

from tpu_graphs_ext.hlo import lowering, protos


def lowered(function, *specs):
  """The HLO module of a TensorFlow function."""
  return protos.as_module(lowering.lower(function, specs))


def written(path, message) -> str:
  """The path of a file with this message."""
  path.write_bytes(message.SerializeToString())
  return str(path)


def add(computation, number, opcode, dims, layout=None, operands=(),
        element_type='F32', **fields):
  """Adds an instruction; `layout` is most minor first, row-major if None."""
  node = computation.instructions.add(
      id=number, name=f'{opcode}.{number}', opcode=opcode,
      operand_ids=operands, **fields)
  node.shape.element_type = protos.PrimitiveType.Value(element_type)
  node.shape.dimensions.extend(dims)
  layout = range(len(dims))[::-1] if layout is None else layout
  node.shape.layout.minor_to_major.extend(layout)
  return node


def elementwise(dims, layout=None, element_type='F32', opcode='tanh'):
  """entry: tanh(parameter)."""
  module = protos.HloModuleProto(name='elementwise', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=11)
  add(entry, 10, 'parameter', dims, layout, element_type=element_type)
  add(entry, 11, opcode, dims, layout, [10], element_type).name = 'elementwise'
  return module


def pooling(dims, window, layout=None, element_type='F32'):
  """entry: windows of the parameter reduced, one for each element of it."""
  module = elementwise(dims, layout, element_type, 'reduce-window')
  for size in window:
    module.computations[0].instructions[1].window.dimensions.add(
        size=size, stride=1, window_dilation=1, base_dilation=1)
  return module


def tiled(dims, bounds, cycles):
  """`elementwise` as optimised: with the compiler's tile and estimate."""
  module = elementwise(dims)
  module.computations[0].instructions[1].backend_config = json.dumps({
      'window_config': {
          'output_window_bounds': list(map(str, bounds)),
          'estimated_cycles': str(cycles), 'iteration_bounds': ['1', '1'],
          'buffering_level': '2'},
      'used_scoped_memory_configs': [], 'flag_configs': []}).encode()
  return module


def convolution():
  """entry: fusion calls convert(convolution(x, w) + bias).

  x f32 [32, 10, 10, 256], w bf16 [3, 3, 256, 384], stride 2 and no padding,
  so the output is [32, 4, 4, 384]: (10 - 3) / 2 + 1 = 4.
  """
  module = protos.HloModuleProto(name='conv', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=15)
  entry = module.computations.add(id=2, root_id=23)
  for computation, first in ((body, 10), (entry, 20)):
    add(computation, first, 'parameter', [384], parameter_number=0)
    add(computation, first + 1, 'parameter', [32, 10, 10, 256], [3, 0, 2, 1],
        parameter_number=1)
    add(computation, first + 2, 'parameter', [3, 3, 256, 384],
        element_type='BF16', parameter_number=2)
  add(body, 13, 'convolution', [32, 4, 4, 384], [3, 0, 2, 1], [11, 12],
      window={'dimensions': 2 * [{'size': 3, 'stride': 2, 'window_dilation': 1,
                                  'base_dilation': 1}]},
      convolution_dimension_numbers={
          'input_feature_dimension': 3, 'input_spatial_dimensions': [1, 2],
          'kernel_input_feature_dimension': 2,
          'kernel_output_feature_dimension': 3,
          'kernel_spatial_dimensions': [0, 1], 'output_feature_dimension': 3,
          'output_spatial_dimensions': [1, 2]})
  add(body, 14, 'broadcast', [32, 4, 4, 384], [3, 0, 2, 1], [10])
  add(body, 15, 'add', [32, 4, 4, 384], [3, 0, 2, 1], [13, 14])
  add(entry, 23, 'fusion', [32, 4, 4, 384], [3, 0, 2, 1], [20, 21, 22],
      called_computation_ids=[1])
  return module


def product(rows, contracted, columns, layout=None, element_type='F32'):
  """entry: [rows, contracted] x [contracted, columns], as a convolution."""
  module = protos.HloModuleProto(name='product', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=12)
  add(entry, 10, 'parameter', [rows, contracted], element_type=element_type)
  add(entry, 11, 'parameter', [contracted, columns], parameter_number=1,
      element_type=element_type)
  add(entry, 12, 'convolution', [rows, columns], layout, [10, 11], element_type,
      convolution_dimension_numbers={
          'input_feature_dimension': 1, 'kernel_output_feature_dimension': 1,
          'output_feature_dimension': 1})
  return module


def with_softmax(module, window=1023):
  """A product [256, 512] less what windows of its columns have."""
  entry = module.computations[0]
  layout = entry.instructions[2].shape.layout.minor_to_major
  add(entry, 13, 'reduce-window', [256, 512], layout, [12, 12],
      window={'dimensions': [{'size': size} for size in (1, window)]})
  add(entry, 14, 'subtract', [256, 512], layout, [12, 13])
  entry.root_id = 14
  return module


def matmul(x=(512, 256), w=(256, 1024), out=(512, 1024),
           types=('BF16', 'BF16', 'BF16'), swapped=False, **numbers):
  """entry: dot(parameter 0, parameter 1), or the other way round."""
  module = protos.HloModuleProto(name='product', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=12)
  for number, dims in enumerate((x, w)):
    add(entry, 10 + number, 'parameter', dims, element_type=types[number],
        parameter_number=number)
  add(entry, 12, 'dot', out, element_type=types[2],
      operands=[11, 10] if swapped else [10, 11], dot_dimension_numbers={
          'lhs_contracting_dimensions': [1],
          'rhs_contracting_dimensions': [0], **numbers})
  return module
