"""What operators compute and move, by hand."""

from support.tiny_traces import kernel, launch, op
from tpu_graphs_ext.traces import kineto, sizes


def sizes_of(call, name='k', **work):
  """Sizes of a kernel that an operator launches."""
  one, = kineto.trace_of('t', {'traceEvents': [
      call, launch(1, call['ts'] + 1), kernel(1, 100, 4, name, **work)]}).work
  return sizes.sizes_of(one)


def test_operators_by_hand():
  for name, dims, moved, multiply_adds in (
      ('mm', [[16, 8], [8, 4]], 4 * (128 + 32 + 64), 512),
      ('aten::addmm', [[4], [16, 8], [8, 4], [], []], 4 * 224, 512),
      ('aten::linear', [[4, 4, 8], [4, 8], [4]], 4 * 224, 512),
      ('aten::baddbmm', [[3, 16, 4], [3, 16, 8], [3, 8, 4], []], 3 * 4 * 224,
       3 * 512),
      # Others read their inputs and write as much as the largest one.
      ('aten::relu', [[10, 3]], 2 * 120, None),
      ('aten::add_', [[10, 3], [3], []], 120 + 12 + 120, None)):
    found = sizes_of(op(name, 0, 10, dims))
    assert found.pop('multiply_adds', None) == multiply_adds
    assert found == {'bytes': moved}


def test_lists_of_tensors_copies_and_threads():
  # In newer traces lists have shapes.
  kinds = ['TensorList', 'Scalar']
  assert sizes_of(op('aten::cat', 0, 9, [[[2, 3], [2, 5]], []], kinds)) == {
      'bytes': 2 * 4 * 16}
  # Read: both lists; written: one.
  assert sizes_of(op('aten::_foreach_add_', 0, 9, [[[8], [2]], [[8], [2]], []],
                     ['TensorList', *kinds])) == {'bytes': 3 * 40}
  copy = op('aten::copy_', 0, 9, [[4], [4]])
  assert sizes_of(copy, 'Memcpy HtoD', category='gpu_memcpy', bytes=64) == {
      'bytes': 64}
  assert sizes_of(copy, grid=[2, 3, 1], block=[32, 1, 1]) == {
      'bytes': 48, 'threads': 192}


def test_sizes_that_a_trace_does_not_tell():
  for name, dims, types in (
      ('aten::mm', None, None), ('aten::mm', [[2, 3], [4, 5]], None),
      ('aten::mm', [[2, 3]], None), ('aten::mm', [[2], [2]], None),
      ('aten::mm', [[2, 3], [3, 4]], ['float']),
      ('aten::mm', [[2, -3], [3, 4]], None),
      ('aten::_embedding_bag', [[9, 4], [6], [0]], ['float', 'long', 'long']),
      ('aten::embedding', [[9], [6]], ['float', 'long']),
      ('fbgemm::unheard_of', [[9]], None)):
    assert sizes_of(op(name, 0, 9, dims, types)) == {}, (name, dims)


def test_bags_of_one_table():
  """A bag takes its indices, a row for the result and its rows, in sectors."""
  types = ['float', 'long int', 'long int', 'Scalar']
  bag = op('aten::_embedding_bag', 0, 9, [[50, 8], [8], [4], []], types)
  # 4 bags of 2 rows of 8 floats and 2 indices of 8 bytes.
  assert sizes_of(bag) == {'bytes': 4 * (32 + 32 + 2 * 32)}
  each = op('aten::embedding', 0, 9, [[50, 8], [2, 4]], types[:2])
  assert sizes_of(each) == {'bytes': 8 * (32 + 32 + 32)}
  # The formula is not that of sorting the indices.
  assert sizes_of(each, 'cub::DeviceRadixSort') == {}
  # Offsets and two sectors of indices, the gradient, rows read and written.
  assert sizes_of(op('aten::_embedding_bag_dense_backward', 0, 9,
                     [[4, 8], [8], [8], []], types)) == {
      'bytes': 4 * (64 + 32 + (2 * 2 + 1) * 32)}
