"""FLOPs and bytes of kernels, by hand."""

import json

from support.tiny_hlo import add, convolution, elementwise, product
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
  for number, bits, size in (28, 0, 1), (33, 0, 1), (32, 4, .5), (26, 2, .25):
    module = product(64, 256, 512)
    for node in module.computations[0].instructions:
      node.shape.element_type = number
      node.shape.layout.element_size_in_bits = bits
    assert costs.cost_of(module).bytes == cost.bytes / 4 * size
  # Each of 32 x 4 x 4 x 384 results: 3 x 3 taps of 256 features, one addition.
  assert costs.cost_of(convolution()).flops == (
      32 * 4 * 4 * 384 * (2 * 9 * 256 + 1))


def test_taps_beside_the_image_are_not_counted():
  """As the compiler writes 8 products: 8 taps, of which one meets the image."""
  module = product(64, 256, 512)
  root = module.computations[0].instructions[-1]
  for node, place in ((module.computations[0].instructions[0], 2), (root, 2)):
    node.shape.dimensions.insert(place, 8)
  numbers = root.convolution_dimension_numbers
  numbers.input_spatial_dimensions.append(2)
  numbers.output_spatial_dimensions.append(2)
  root.window.dimensions.add(size=8, stride=7, padding_low=7, padding_high=7,
                             base_dilation=8, window_dilation=1)
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


def sliced(write):
  """entry: a fusion that reads one row of 48, or also writes it in place."""
  module = protos.HloModuleProto(name='sliced', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=14)
  add(body, 10, 'parameter', [48, 256])
  add(body, 11, 'parameter', [], parameter_number=1)
  add(body, 12, 'dynamic-slice', [1, 256], operands=[10, 11, 11])
  add(body, 13, 'tanh', [1, 256], operands=[12])
  if write:
    add(body, 14, 'dynamic-update-slice', [48, 256],
        operands=[10, 13, 11, 11])
  else:
    add(body, 14, 'bitcast', [256], operands=[13])
  entry = module.computations.add(id=2, root_id=22)
  add(entry, 20, 'parameter', [48, 256])
  add(entry, 21, 'parameter', [], parameter_number=1)
  add(entry, 22, 'fusion', [48, 256] if write else [256], operands=[20, 21],
      called_computation_ids=[1])
  return module


def test_slices_count_for_what_they_read_and_write():
  # A row of 1,024 bytes each way, and the index.
  assert costs.cost_of(sliced(False)).bytes == 2 * 1024 + 4
  assert costs.cost_of(sliced(True)).bytes == 2 * 1024 + 4
  # One that hands its operand on, as those of one bitcast, reads all of it.
  module = sliced(False)
  body = module.computations[0]
  body.root_id = body.instructions[0].id
  assert costs.cost_of(module).bytes == 48 * 1024 + 4 + 1024


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
