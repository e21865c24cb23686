"""What operators compute and move, by hand."""

import math

import pytest

from support.tiny_traces import kernel, launch, op, traced
from tpu_graphs_ext.traces import sizes


def sizes_of(call, name='k', **work):
  """Sizes of a kernel that an operator launches."""
  launched, = traced(
      call, launch(1, call['ts'] + 1), kernel(1, 100, 4, name, **work)).work
  return sizes.sizes_of(launched)


def test_operators_by_hand():
  for name, dims, moved, multiply_adds in (
      ('mm', [[16, 8], [8, 4]], 4 * (128 + 32 + 64), 512),
      ('aten::addmm', [[4], [16, 8], [8, 4], [], []], 4 * 224, 512),
      ('aten::baddbmm', [[3, 16, 4], [3, 16, 8], [3, 8, 4], []], 3 * 4 * 224,
       3 * 512),
      # Others read their inputs and write as much as the largest one.
      ('aten::relu', [[10, 3]], 2 * 120, None),
      ('aten::add_', [[10, 3], [3], []], 120 + 12 + 120, None),
      # The last one's 4 rows of 12 bytes are read, changed and written.
      ('aten::index_add_', [[10, 3], [], [4], [4, 3], []], 3 * 4 * 12, 4)):
    counts = sizes_of(op(name, 0, 10, dims))
    assert counts.pop('multiply_adds', None) == multiply_adds
    assert counts == {'bytes': moved}


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


def test_optimizers_have_the_size_of_their_grid():
  """A launch takes a part of the list: 65,536 values for each block."""
  call = op('aten::_foreach_add_', 0, 9, [[[8], [2]]], ['TensorList'])
  assert sizes_of(call, 'multi_tensor_apply_kernel', grid=[320, 1, 1],
                  block=[512, 1, 1]) == {'threads': 320 * 512}


def test_convolutions_by_hand():
  kinds = ['float', 'float', *['ScalarList'] * 3]
  forward = op('aten::cudnn_convolution', 0, 9,
               [[2, 3, 9, 9], [4, 3, 3, 3], [], [], []], kinds,
               Concrete_Inputs=['', '', '[1, 1]', '[2, 2]', '[1, 1]'])
  # 9 pixels and one of padding at each end, every second one: 5.
  assert sizes_of(forward) == {
      'multiply_adds': 2 * 4 * 25 * 27,
      'bytes': 4 * (2 * 3 * 81 + 4 * 27 + 2 * 4 * 25)}
  backward = op('aten::convolution_backward', 0, 9,
                [[2, 4, 5, 5], [2, 3, 9, 9], [4, 3, 3, 3]], ['float'] * 3)
  assert sizes_of(backward) == sizes_of(forward)
  # A change of layout has only its threads.
  assert sizes_of(backward, 'nchwToNhwcKernel', grid=[2, 1, 1],
                  block=[8, 1, 1]) == {'threads': 16}


def test_kernels_of_recurrent_layers_have_the_size_of_their_grid():
  """Their shapes do not tell which of many products a kernel computes."""
  call = op('aten::_cudnn_rnn', 0, 9, [[64, 128, 256], [2, 64, 1024]])
  assert sizes_of(call, 'sgemm_128x64', grid=[8, 2, 1], block=[128, 1, 1]) == {
      'threads': 2048}


def test_sorts():
  indices = ['float', 'long int', 'long int']
  bag = op('aten::_embedding_bag_dense_backward', 0, 9, [[4, 8], [100], [100]],
           indices)
  assert sizes_of(bag, 'DeviceRadixSortOnesweep') == {'bytes': 3200}
  assert sizes_of(op('aten::sort', 0, 9, [[50, 2]]), 'cub::RadixSort') == {
      'bytes': 3200}


def test_sizes_that_a_trace_does_not_tell():
  for name, dims, types in (
      ('aten::mm', None, None), ('aten::mm', [[2, 3], [4, 5]], None),
      ('aten::mm', [[2, 3]], None), ('aten::mm', [[2], [2]], None),
      ('aten::mm', [[2, 3], [3, 4]], ['float']),
      ('aten::mm', [[2, -3], [3, 4]], None),
      ('aten::add', [[-4, -5], [1]], None),
      ('aten::_embedding_bag', [[9, 4], [6], [0]], ['float', 'long', 'long']),
      ('aten::embedding', [[9], [6]], ['float', 'long']),
      ('fbgemm::unheard_of', [[9]], None)):
    assert sizes_of(op(name, 0, 9, dims, types)) == {}, (name, dims)


def test_bags_of_one_table():
  """A bag takes its indices, a row for the result and its rows."""
  types = ['float', 'long int', 'long int', 'Scalar']
  bag = op('aten::_embedding_bag', 0, 9, [[50, 8], [8], [4], []], types)
  # 4 bags of 2 indices of 8 bytes, and of 50 rows those that 8 draws meet.
  rows = 32 * 50 * (1 - math.exp(-8 / 50))
  moved = {'multiply_adds': 8, 'bytes': 4 * (16 + 32) + rows}
  # Warps read 32 values at a time, though a row has 8.
  assert sizes_of(bag, grid=[1024, 1, 1], block=[32, 8, 1]) == pytest.approx(
      {**moved, 'multiply_adds': 8 * 32, 'threads': 4 * 32})
  each = op('aten::embedding', 0, 9, [[50, 40], [2, 4]], types[:2])
  assert sizes_of(each) == pytest.approx({
      'multiply_adds': 8 * 64, 'bytes': 8 * (8 + 160) + 5 * rows,
      'threads': 8 * 64})
  # The number of rows of the gradient is the argument after five tensors.
  step = op('aten::_embedding_bag_dense_backward', 0, 9,
            [[4, 8], [8], [8], [4], [0], []], [*types[:3], *types[1:]],
            Concrete_Inputs=['', '', '', '', '', '50'])
  assert sizes_of(step) == pytest.approx(moved)
  step = op('aten::embedding_dense_backward', 0, 9, [[2, 4, 40], [2, 4], []],
            types[:2] + ['Scalar'], Concrete_Inputs=['', '', '50'])
  assert sizes_of(step) == pytest.approx({
      'multiply_adds': 8, 'bytes': 8 * (8 + 160) + 5 * rows})
