"""What tensors are cut like, counted by hand: rules seen in real kernels."""

import numpy as np
import pytest

from support import feature_tiles

kernel_of = feature_tiles.kernel_of_nodes
READ = 'parameter'


def counts_of(*args, **kwargs):
  return feature_tiles.counts_of(kernel_of(*args, **kwargs), 'layout tiles')


@pytest.mark.parametrize('rows, held', [
    (1, 2), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16)])
def test_layout_tiles_of_few_rows(rows, held):
  """f32 [3, rows, 200], in and out: 3 x `held` x 256 elements each."""
  counts = counts_of([(READ, (3, rows, 200), []),
                      ('copy', (3, rows, 200), [0])], [(0, 0, 0)])
  assert counts['moved_bytes'] == [2 * 4 * 3 * held * 256]
  assert counts['tile_elements'] == [3 * held * 256]


def test_a_flat_operand_has_no_padding():
  """f32 [6144] is 6 layout tiles; as [8, 8, 3, 32] it is 64 x 4 x 128."""
  flat, whole = 6 * 1024, 64 * 4 * 128
  for nodes, moved in (
      ([(READ, (6144,), []), ('reshape', (8, 8, 3, 32), [0])], flat + whole),
      ([(READ, (8, 8, 3, 32), []), ('reshape', (6144,), [0])], flat + whole)):
    counts = counts_of(nodes, [()])
    assert counts['moved_bytes'] == counts['block_bytes'] == [4 * moved]


def test_a_flat_operand_of_a_product_has_no_padding():
  """[16, 3, 100] for [48, 100]: 16 x 4 x 128 elements, cut like 48 x 128."""
  counts = counts_of(
      [(READ, (16, 3, 100), []), ('add', (48, 100), [0]),
       (READ, (100, 128), []), ('dot', (48, 128), [1, 2])],
      [(6, 1), (3, 1)], [(13, 1)])
  image, filters, out = 16 * 4 * 128, 104 * 128, 48 * 128
  np.testing.assert_array_equal(
      counts['block_bytes'],
      [4 * (image + filters + out), 4 * (image / 2 + filters + out / 2)])


def test_a_mask_follows_the_filter_that_it_is_broadcast_into():
  """f32 [4, 16, 256] x ([4, 256, 512] * mask [256, 512]).

  Whole; with half of the features, and of the summands; a batch at a time, for
  which the mask is the same. No other tensor comes twice in any of them.
  """
  counts = counts_of(
      [(READ, (4, 16, 256), []), (READ, (4, 256, 512), []),
       (READ, (256, 512), []), ('multiply', (4, 256, 512), [1, 2]),
       ('dot', (4, 16, 512), [0, 3])],
      [(4, 2, 4), (4, 2, 2), (4, 2, 4), (1, 2, 4)],
      [(4, 32, 4), (4, 32, 2), (4, 16, 4), (1, 32, 4)])
  image, filters, mask, out = (
      4 * 4 * 16 * 256, 4 * 4 * 256 * 512, 4 * 256 * 512, 4 * 4 * 16 * 512)
  np.testing.assert_array_equal(counts['block_bytes'], [
      image + filters + mask + out,
      image + (filters + mask + out) / 2,
      (image + filters + mask) / 2 + out,
      (image + filters + out) / 4 + mask])
  np.testing.assert_array_equal(
      counts['moved_bytes'], [image + filters + mask + out] * 4)


def test_a_vector_in_one_layout_tile_stays():
  """f32 [512] is one block for all features of the filter [256, 512]."""
  counts = counts_of(
      [(READ, (64, 256), []), (READ, (256, 512), []), (READ, (512,), []),
       ('multiply', (256, 512), [1, 2]), ('dot', (64, 512), [0, 3])],
      [(8, 1)], [(32, 1)])
  np.testing.assert_array_equal(counts['moved_bytes'], [
      4 * (64 * 256 + 256 * 512 + 1024 + 64 * 512)])


@pytest.mark.parametrize('image, held', [
    # [32, 128] * [128]; the vector has 1024 in memory.
    ([(READ, (128,), []), (READ, (32, 128), []),
      ('multiply', (32, 128), [0, 1])], 1024 + 2 * 32 * 128),
    # The sum of ten, which are not the operand either.
    ([(READ, (10, 32, 128), []),
      ('reduce', (32, 128), [0], {'dimensions': (0,)})], 10 * 32 * 128)])
def test_a_products_operands_are_held_twice_but_not_what_they_are_made_of(
    image, held):
  """f32 [32, 128] x [128, 128]."""
  last = len(image)
  counts = counts_of(
      [*image, (READ, (128, 128), []), ('dot', (32, 128), [last - 1, last])],
      [(4, 1)], [(16, 1)])
  assert counts['footprint_bytes'] == 4 * (held + 2 * 128 * 128 + 32 * 128)


# --- Groups ------------------------------------------------------------------


def convolution(image, filters, out, numbers, **groups):
  """Nodes of a convolution; `numbers` as the features have them."""
  window = [filters[d] for d in numbers[8:10]]
  return [(READ, image, []), (READ, filters, []), ('convolution', out, [0, 1], {
      'convolution_dim_numbers': numbers, 'window_size': window,
      'window_stride': [1, 1], 'window_base_dilation': [1, 1],
      **{name: [number] for name, number in groups.items()}})]


def test_wide_groups_take_all_their_blocks_of_weights():
  """f32 [8, 4, 4, 512] in two groups x [1, 1, 256, 256]: 2 x 2 blocks.

  128 rows meet them; 4 features a group would share a block.
  """
  numbers = (0, 3, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 0, 3)
  counts = counts_of(
      convolution((8, 4, 4, 512), (1, 1, 256, 256), (8, 4, 4, 256), numbers,
                  feature_group_count=2),
      [(8, 4, 1, 2), (8, 4, 1, 1)], [(1, 1, 32, 2), (1, 1, 32, 1)])
  np.testing.assert_array_equal(counts['matrix_rows'], [4 * 128, 4 * 128])
  # The image is cut as its groups are.
  image, filters, out = 4 * 128 * 512, 4 * 256 * 256, 4 * 128 * 256
  np.testing.assert_array_equal(counts['block_bytes'], [
      image + filters + out, (image + filters + out) / 2])


def pooling(size, base_dilation=1):
  """Windows of 3 x 3, at a stride of 2, of f32 [size, size, 8, 128]."""
  return [(READ, (size, size, 8, 128), []),
          ('reduce-window', (8, 8, 8, 128), [0], {
              'window_size': (3, 3, 1, 1), 'window_stride': (2, 2, 1, 1),
              'window_window_dilation': (1, 1, 1, 1),
              'window_base_dilation': 2 * (base_dilation,) + (1, 1)})]


def test_windows_that_are_reduced_are_loops():
  """Of f32 [17, 17, 8, 128].

  Bounds of the filter are those of the window, which has physical dimensions.
  """
  counts = counts_of(
      pooling(17), [(8, 8, 1, 1), (2, 4, 1, 1), (2, 4, 1, 1)],
      [(3, 3, 1, 1), (3, 3, 1, 1), (1, 3, 1, 1)])
  np.testing.assert_array_equal(counts['output_tiles'], [1, 8, 8])
  np.testing.assert_array_equal(counts['kernel_tiles'], [1, 1, 3])
  # 2 x 4 of the result are made of 5 x 9, or of each row of taps 3 x 9.
  tile = 4 * 8 * 128
  np.testing.assert_array_equal(counts['block_bytes'], [
      tile * (17 * 17 + 64), tile * (45 + 8), tile * (27 + 8)])


def test_windows_over_elements_with_zeros_in_between():
  """A zero between each two of f32 [9, 9]: 4 results of 3 taps at a stride of 2
  take (4 - 1) * 2 + 3 = 9 places, which hold 5 elements."""
  counts = counts_of(
      pooling(9, base_dilation=2), [(8, 8, 1, 1), (4, 8, 1, 1)],
      [(3, 3, 1, 1)])
  tile = 4 * 8 * 128
  np.testing.assert_array_equal(counts['block_bytes'], [
      tile * (9 * 9 + 64), tile * (5 * 9 + 32)])


@pytest.mark.parametrize('zeros, taps, results, held', [
    (2, 3, 17, 5),  # 8 results take 10 places, every second of which is held.
    (3, 2, 24, 3)])  # 9 places; a third has no exact float32.
def test_a_filter_over_elements_with_zeros_in_between(
    zeros, taps, results, held):
  """8 of the results of 9 elements, `zeros` places apart."""
  nodes = convolution(
      (1, 9, 8, 128), (taps, 1, 128, 128), (1, results, 8, 128),
      (0, 3, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 0, 3))
  nodes[-1][-1]['window_base_dilation'] = [zeros, 1]
  counts = counts_of(
      nodes, [(1, results, 1, 1), (1, 8, 1, 1)], [(taps, 1, 16, 1)])
  row = 4 * 8 * 128
  np.testing.assert_array_equal(counts['block_bytes'], [
      row * (9 + 16 * taps + results), row * (held + 16 * taps + 8)])


def test_a_result_follows_what_its_reduction_keeps():
  """The sums over the second of two equal sizes: 8 of 16 need 8 x 16 rows."""
  counts = counts_of(
      [(READ, (16, 16, 128), []),
       ('reduce', (16, 128), [0], {'dimensions': (1,)})],
      [(16, 2, 1), (8, 2, 1)])
  row = 4 * 128
  np.testing.assert_array_equal(counts['block_bytes'], [
      row * (256 + 16), row * (128 + 8)])


def test_a_slice_moves_only_what_it_takes():
  """8 of 64 rows of 128; beside another reader all of them."""
  sliced = [(READ, (64, 128), []), ('slice', (8, 128), [0])]
  assert counts_of(sliced, [(0, 0)])['moved_bytes'] == [2 * 4 * 8 * 128]
  both = [*sliced, ('slice', (8, 128), [0]), ('add', (8, 128), [1, 2])]
  assert counts_of(both, [(0, 0)])['moved_bytes'] == [4 * (64 + 8) * 128]
