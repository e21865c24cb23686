"""FLOPs and bytes of kernels, by hand."""

import itertools
import json

import pytest

from support.tiny_hlo import add, convolution, elementwise, matmul, product
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import costs, protos


def test_an_elementwise_kernel():
  # 8,192 results; f32 read and written.
  cost = costs.cost_of(elementwise([32, 256]))
  assert cost == (8192, 2 * 4 * 8192, 2 * 4 * 8192, 0)
  assert costs.cost_of(elementwise([32, 256], opcode='copy')).flops == 0


def test_products_and_convolutions():
  cost = costs.cost_of(product(64, 256, 512))
  assert cost.flops == 2 * 64 * 256 * 512
  assert cost.bytes == 4 * (64 * 256 + 256 * 512 + 64 * 512)
  for element_type, size in ('F8E5M2', 1), ('F8E4M3FN', 1), ('F16', 2):
    assert costs.cost_of(product(64, 256, 512, element_type=element_type)
                         ).bytes == cost.bytes / 4 * size
  # Types that TensorFlow 2.15 has no names for, and several values in a byte.
  for number, bits, size in ((28, 0, 1), (33, 0, 1), (32, 4, .5), (26, 2, .25),
                             (21, 0, 1), (32, 0, 1), (5, 0, 8), (10, 0, 2)):
    module = product(64, 256, 512)
    for node in module.computations[0].instructions:
      node.shape.element_type = number
      node.shape.layout.element_size_in_bits = bits
    assert costs.cost_of(module).bytes == cost.bytes / 4 * size
  # Each of 32 x 4 x 4 x 384 results: 3 x 3 taps of 256 features, one addition.
  assert costs.cost_of(convolution()).flops == (
      32 * 4 * 4 * 384 * (2 * 9 * 256 + 1))


@pytest.mark.parametrize('stride, base, window, padding', [*itertools.product(
    (1, 2, 3), (1, 2, 4, 2**62), (1, 3), (-1, 0, 5))])
def test_taps_beside_the_image_are_not_counted(stride, base, window, padding):
  """5 elements, 7 outputs, 4 taps."""
  module = product(1, 1, 1)
  image, _, root = module.computations[0].instructions
  image.shape.dimensions.append(5)
  root.shape.dimensions.append(7)
  numbers = root.convolution_dimension_numbers
  numbers.input_spatial_dimensions.append(2)
  numbers.output_spatial_dimensions.append(2)
  root.window.dimensions.add(size=4, stride=stride, base_dilation=base,
                             window_dilation=window, padding_low=padding)
  places = [output * stride + tap * window - padding
            for output in range(7) for tap in range(4)]
  assert costs.cost_of(module).flops == 2 * sum(
      place in range(0, 4 * base + 1, base) for place in places)


def test_a_window_of_too_many_taps():
  module = product(64, 256, 512)
  root = module.computations[0].instructions[-1]
  root.window.dimensions.add(size=2**62)
  root.convolution_dimension_numbers.input_spatial_dimensions.append(0)
  root.convolution_dimension_numbers.output_spatial_dimensions.append(0)
  with pytest.raises(UserError, match='has 4,611,686,018,427,387,904 taps; at'):
    costs.cost_of(module)


def test_a_dot():
  module = matmul((8, 64, 256), (8, 256, 512), (8, 64, 512),
                  lhs_contracting_dimensions=[2],
                  rhs_contracting_dimensions=[1])
  assert costs.cost_of(module).flops == 8 * 2 * 64 * 256 * 512


def test_reductions():
  module = elementwise([32, 256], opcode='reduce')
  del module.computations[0].instructions[1].shape.dimensions[1:]
  assert costs.cost_of(module).flops == 32 * 255
  root = module.computations[0].instructions[1]  # A value and its place.
  sums = root.shape.SerializeToString()
  root.shape.Clear()
  for _ in range(2):
    root.shape.tuple_shapes.add().MergeFromString(sums)
  cost = costs.cost_of(module)
  assert (cost.flops, cost.bytes) == (32 * 255, 4 * (32 * 256 + 2 * 32))
  # Windows of 3; then of 511, which see a whole row, so 32 sums are broadcast.
  for size, windows, taps in (3, 8192, 3), (510, 8192, 256), (511, 32, 256):
    module = elementwise([32, 256], opcode='reduce-window')
    for along in 1, size:
      module.computations[0].instructions[1].window.dimensions.add(size=along)
    assert costs.cost_of(module).flops == windows * (taps - 1)
  # Each of 16 x 64 gradients: 2 x 4 - 1 comparisons, one addition.
  module = elementwise([32, 256], opcode='select-and-scatter')
  add(module.computations[0], 12, 'parameter', [16, 64], parameter_number=1)
  root = module.computations[0].instructions[1]
  root.operand_ids.append(12)
  for size in 2, 4:
    root.window.dimensions.add(size=size)
  assert costs.cost_of(module).flops == 16 * 64 * 8


def fused(shapes, *nodes):
  """entry: a fusion of parameters, then of nodes, all numbered from 0.

  Node: (opcode, sizes, operands, ids of called computations). 6 copies, as a
  v7x's compiler writes that it reads other layout tiles; 7 has two operations.
  """
  module = protos.HloModuleProto(name='fused', entry_computation_id=9)
  copied, reducer = (module.computations.add(id=number, root_id=92)
                     for number in (6, 7))
  add(copied, 91, 'parameter', shapes[0])
  add(copied, 92, 'copy', shapes[0], operands=[91])
  for number in 91, 92:
    add(reducer, number, 'add', [])
  body = module.computations.add(id=8, root_id=len(shapes) + len(nodes) - 1)
  entry = module.computations.add(id=9, root_id=99)
  for place, dims in enumerate(shapes):
    for computation in body, entry:
      add(computation, place, 'parameter', dims, parameter_number=place)
  for number, (opcode, dims, operands, *called) in enumerate(
      nodes, len(shapes)):
    add(body, number, opcode, dims, operands=operands,
        called_computation_ids=called)
  add(entry, 99, 'fusion', dims, operands=range(len(shapes)),
      called_computation_ids=[8])
  return costs.cost_of(module)


def test_slices_count_for_what_they_read_and_write():
  def rows(*nodes):
    """Of 1,024 bytes, read and written, beside an index of 4."""
    return fused([[48, 256], []], *nodes).bytes // 1024

  copied, made = ('fusion', [48, 256], [0], 6), ('broadcast', [48, 256], [1])
  read = ('dynamic-slice', [1, 256], [2, 1, 1])
  update = ('dynamic-update-slice', [48, 256], [2, 3, 1, 1])
  tanh = ('tanh', [1, 256], [1])
  assert rows(copied, read, ('bitcast', [256], [3])) == 2
  assert rows(copied, read, update) == 2
  assert rows(copied, read, update, (*update[:2], [4, 3, 1, 1])) == 3
  # All of what it hands on is read, all of what it makes itself written.
  assert rows(copied, ('bitcast', [48, 256], [2])) == 2 * 48
  assert rows(made, ('bitcast', [1, 256], [0]), update) == 2 * 48
  assert rows(('custom-call', [48, 256], []), tanh, update) == 1  # Unfilled.
  assert rows(copied, read, update, tanh, ('tuple', [], [4, 5])) == 3


def test_reducers_count_for_each_element():
  # Four rows are read from both tensors, added in two operations, written.
  assert fused([[500, 256], [4], [4, 256]], (
      'scatter', [500, 256], [0, 1, 2], 7))[:2] == (2 * 1024, 3 * 4096 + 16)
  assert fused([[32, 256]], ('reduce', [32], [0], 7)).flops == 2 * 32 * 255


def nested(levels, called_by_first=()):
  """Fusions that call the level before twice; the first slices a row twice."""
  module = protos.HloModuleProto(name='m', entry_computation_id=levels - 1)
  for level in range(levels):
    computation = module.computations.add(id=level, root_id=3)
    calls = [level - 1] if level else called_by_first
    add(computation, 1, 'parameter', [32, 256])
    for number in 2, 3:
      add(computation, number, 'fusion' if calls else 'slice', [1, 256],
          operands=[1], called_computation_ids=calls)
  return module


def test_work_is_bounded_by_the_size_of_the_module():
  for levels in 4, 53:  # Its root alone is the kernel.
    cost = costs.cost_of(nested(levels))
    assert cost.bytes == 1024 * (2 ** (levels - 1) + 1)
  for levels in 54, 1500:
    with pytest.raises(UserError, match="'m': its operations or bytes exceed"):
      costs.cost_of(nested(levels))
  with pytest.raises(UserError, match='does not precede it'):
    costs.cost_of(nested(2, called_by_first=[0]))


def test_tensors_on_chip():
  module = elementwise([32, 256])
  parameter, root = module.computations[0].instructions
  parameter.shape.layout.memory_space = 1
  root.backend_config = json.dumps({'used_scoped_memory_configs': [
      {'memory_space': '1', 'offset': '0', 'size': '1000'},
      {'memory_space': '5', 'offset': '0', 'size': '7'}]}).encode()
  cost = costs.cost_of(module)
  assert (cost.bytes, cost.hbm_bytes, cost.on_chip_bytes) == (
      65536, 32768, 32768 + 1000)
  root.backend_config = b'[' * 99_999  # Damaged.
  assert costs.cost_of(module).on_chip_bytes == 32768
