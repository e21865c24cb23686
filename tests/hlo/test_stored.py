"""Tensors of compiled kernels: layout tiles, readers, memory, by hand."""

import pytest

from support.tiny_hlo import add, elementwise
from tpu_graphs_ext.hlo import protos, stored


def test_how_tensors_are_stored():
  module = elementwise([1, 40, 256], [1, 2, 0])
  parameter = module.computations[0].instructions[0]
  tile = parameter.shape.layout.tiles.add()
  plain = (256, 40), 4, 4, 8, 0, False, 'F32', (256, 40)
  for sizes in [], [1024], [8, 128]:  # Without sizes: damaged.
    tile.dimensions[:] = sizes
    assert stored.tensors_of(module) == [
        (False, *plain), (True, *plain)]
  tile.dimensions[:] = 32, 128  # The columns are the more major dimension.
  parameter.shape.element_type = 20  # f8e4m3fn, which features list as s8.
  assert stored.tensors_of(module) == [
      (False, (256, 40), 1, 1, 32, 0, False, 'F8E4M3FN', (256, 40)),
      (True, *plain)]
  parameter.shape.element_type = 21  # s4, two in a byte.
  parameter.shape.layout.element_size_in_bits = 4
  assert stored.tensors_of(module)[0].element_bytes == 0.5


def with_copy(rows):
  """[40, 256] in tiles of so many rows; a fusion copies it to those of 8, and
  two operations, of which one reads it twice, and a third read the copy."""
  module = protos.HloModuleProto(name='copied', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=11)
  add(body, 10, 'parameter', [40, 256], element_type='BF16')
  add(body, 11, 'copy', [40, 256], operands=[10], element_type='BF16')
  entry = module.computations.add(id=2, root_id=28)
  parameter = add(entry, 20, 'parameter', [40, 256], element_type='BF16')
  parameter.shape.layout.tiles.add(dimensions=(rows, 128))
  add(entry, 21, 'fusion', [40, 256], operands=[20], element_type='BF16',
      called_computation_ids=[1])
  add(entry, 22, 'bitcast', [40, 256], operands=[21], element_type='BF16')
  add(entry, 23, 'multiply', [40, 256], operands=[22, 22], element_type='BF16')
  add(entry, 24, 'add', [40, 256], operands=[22, 23], element_type='BF16')
  add(entry, 25, 'parameter', [256, 128], element_type='BF16',
      parameter_number=1)
  add(entry, 26, 'convolution', [40, 128], operands=[21, 25],
      element_type='BF16')
  add(entry, 28, 'tuple', [], operands=[24, 26])
  return module


def test_who_reads_a_tensor():
  for rows, copies in (8, 0), (16, 3):
    tensors = stored.tensors_of(with_copy(rows))
    assert [tensor.layout_copies for tensor in tensors] == [copies] + 7 * [0]
    # A copy in other layout tiles costs a product nothing, another does.
    operands = [place for place, tensor in enumerate(tensors)
                if tensor.is_operand]
    assert operands == ([0, 1, 5] if rows == 16 else [1, 5])


def test_sizes_of_a_copy_that_is_reshaped():
  def reshaped():
    return [tensor.copied_as for tensor in stored.tensors_of(module)
            if tensor.copied_as != tensor.sizes]

  module = with_copy(16)
  assert reshaped() == []
  shape = module.computations[1].instructions[2].shape
  shape.dimensions[:] = [5, 8, 256]
  shape.layout.minor_to_major[:] = [2, 1, 0]
  assert reshaped() == [(5, 8, 256)]
  module.computations[0].instructions[1].opcode = 'tanh'  # No copy.
  assert reshaped() == []


def test_copies_of_each_other_are_read_once():
  module = elementwise([8, 128], opcode='copy')
  entry = module.computations[0]
  add(entry, 12, 'copy', [8, 128], operands=[11])
  entry.instructions[1].operand_ids.append(12)  # Damaged.
  assert not any(
      tensor.is_operand for tensor in stored.tensors_of(module))


@pytest.mark.parametrize('config, size', [
    ('{"scoped_memory_configs": [{"memory_space": "1", "size": "8388609"}]}',
     8388609),
    ('{"scoped_memory_configs": [{"memory_space": "5", "size": "16"},'
     '{"memory_space": "1", "size": "32"}]}', 32),
    ('{"scoped_memory_configs": []}', 0), ('{}', 0), ('', 0),
    ('{"scoped_memory_configs": [{"memory_space": "1"}]}', 0),
    ('{"scoped_memory_configs": [{"memory_space": "1", "size": "-4"}]}', 0),
    ('{"scoped_memory_configs": 7}', 0), ('[', 0), ('[]', 0)])
def test_memory_that_the_compiler_gave_a_kernel(config, size):
  module = elementwise([8, 128])
  module.computations[0].instructions[1].backend_config = config.encode()
  assert stored.limit_bytes(module) == size
