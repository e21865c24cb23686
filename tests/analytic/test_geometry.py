"""Loops and tile bounds as NumPy arrays, and what tiles do: by hand."""

import numpy as np
import pytest

from support import tiny_hlo
from support.feature_tiles import kernel_of_module, kernel_of_nodes, loops_of
from support.tiny_hlo import add, convolution, elementwise, pooling, product
from tpu_graphs_ext.analytic import candidates, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import protos

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.


def counts_of(module, output_bounds, kernel_bounds=((),)):
  loops = loops_of(module)
  return loops.counts(loops.tiles(output_bounds, np.array(kernel_bounds)))


# --- Loops and bounds --------------------------------------------------------


def test_units():
  for dims, layout_of, element_type, units in (
      # Most major first: dim 1 in rows of 8, dim 0 in lanes of 128.
      ([4096, 1000], [0, 1], 'F32', (125, 32)),
      ([32, 26, 26, 192], [3, 0, 2, 1], 'F32', (26, 26, 4, 2)),
      ([32, 4096], [1, 0], 'PRED', (4, 32)),  # Rows of 8 for small types too.
      ([4097], [0], 'F32', (5,)),  # Rank 1: 1024 elements.
      ([32, 6400], None, 'BF16', (4, 50)),
      ([3, 5], [], 'F32', (1, 1))):  # No layout.
    loops = loops_of(elementwise(dims, layout_of, element_type))
    assert loops.largest() == (units, ())
  assert loops_of(elementwise([])).largest() == ((), ())
  assert loops_of(elementwise([32, 6400], opcode='reshape')).largest() == (
      (4, 50), ())


def test_a_reductions_operand_and_the_largest_part_of_a_tuple_are_tiled():
  reduces, several = elementwise([32, 1000]), elementwise([32, 1000])
  add(reduces.computations[0], 12, 'reduce', [32], operands=[11, 11])
  add(several.computations[0], 12, 'copy', [16], operands=[10])
  add(several.computations[0], 13, 'tuple', [], operands=[12, 11])
  for module, root in ((reduces, 12), (several, 13)):
    module.computations[0].root_id = root
    assert loops_of(module).largest()[0] == (4, 8)


def test_bounds_of_a_convolution():
  loops = loops_of(convolution())
  # Output: 4, 4, 32 / 8, 384 / 128.  Kernel: 3, 3, 256 / 8, 384 / 128.
  assert loops.largest() == ((4, 4, 4, 3), (3, 3, 32, 3))
  # The last dimension of both are the output features: one loop.
  assert loops.whole.tolist() == [4, 4, 4, 3, 3, 3, 32]
  assert loops.kernel_axes == [(6, 1), (7, 1), (8, 8), (3, 128)]
  assert loops.product == (32 * 16, 384, 9 * 256)  # 3 x 3 taps.
  kernel, output = [[3, 1, 16, 2], [1, 3, 32, 3]], [[2, 4, 1, 2], [4, 1, 4, 3]]
  tiles = loops.tiles(output, np.array(kernel))
  assert tiles.tolist() == [[2, 4, 1, 2, 3, 1, 16], [4, 1, 4, 3, 1, 3, 32]]
  assert loops.output_bounds(tiles).tolist() == output
  assert loops.kernel_bounds(tiles).tolist() == kernel
  # Rows of 8, lanes of 128, though 32 images are 4 rows.
  assert [sizes.tolist() for sizes in loops.elements(tiles[:1])] == [
      [[2, 4, 8, 256]], [[3, 1, 128, 256]]]
  rows = kernel_of_module(convolution(), output, kernel).config_feat
  np.testing.assert_array_equal(loops.tiles_of(rows), tiles)
  assert loops.tiles_of(rows[:1, :3] * 0).tolist() == [loops.whole.tolist()]
  loops = loops_of(elementwise([8, 256]))  # Of one row nothing is cut.
  rows = kernel_of_module(elementwise([8, 256]), [[3, 1], [1, 0]]).config_feat
  assert loops.tiles_of(rows).tolist() == [[1, 1], [1, 2]]


def test_units_of_the_filter_may_differ():
  """f32 [64, 256] x [256, 512], the product stored columns first."""
  loops = loops_of(product(64, 256, 512, [0, 1]))
  # 512 / 8 rows of 64 / 128 lanes; the filter has 512 / 128 lanes.
  assert loops.largest() == ((64, 1), (32, 4))
  # 40 rows of 8 are 320 columns: 2.5 units of the filter, so 3.
  tiles = loops.tiles([[40, 1]], np.array([[16, 3]]))
  assert loops.kernel_bounds(tiles).tolist() == [[16, 3]]


@pytest.mark.parametrize('image, size, stride, dilation, output, expected', [
    # Batches of a product, of 8: taps, stride, zeros between elements and 1.
    (8, 8, 7, 8, 8, True),
    (8, 8, 8, 7, 8, True),  # Reversed, with 7 of padding on both sides.
    (1, 8, 1, 1, 8, True),  # Each output has the one element, another tap.
    (8, 1, 1, 1, 8, False),  # No window.
    (8, 3, 1, 1, 8, False),
    (4, 2, 2, 1, 2, False),  # Patches of 2, though 1 is 2 - 1.
    (28, 3, 1, 2, 56, False),
    (56, 56, 56, 1, 1, False)])  # A filter's gradient sums over all.
def test_windows_that_stand_for_a_batch(image, size, stride, dilation, output,
                                        expected):
  """[image, 16, 128] x [size, 128, 256]: then the filter has no loop there."""
  loops, = geometry.loops_of([kernel_of_nodes([
      ('parameter', (image, 16, 128), []), ('parameter', (size, 128, 256), []),
      ('convolution', (output, 16, 256), [0, 1], {
          'convolution_dim_numbers': (1, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2),
          'window_size': (size,), 'window_stride': (stride,),
          'window_base_dilation': (dilation,)})], [()])])
  assert (6 not in loops.axes) == expected
  assert loops.kernel_axes[0] == ((0 if expected else 6), 1)


def test_windows_that_are_reduced_have_bounds():
  """Of [100, 8, 8, 160] with images in lanes or features in lanes.

  Along layout tiles they are never cut. In their own layout features are lanes.
  """
  loops = loops_of(pooling([100, 8, 8, 160], [1, 3, 3, 1], [0, 3, 2, 1]))
  assert loops.largest() == ((8, 8, 20, 1), (3, 3, 1, 2))
  tiles = loops.tiles([[4, 4, 16, 1]], np.array([[3, 1, 1, 1]]))
  assert loops.kernel_bounds(tiles).tolist() == [[3, 1, 1, 1]]
  assert tiles.tolist() == [[4, 4, 16, 1, 3, 1]]
  assert loops.tiles_of(kernel_of_module(elementwise([1]), [[4, 4, 16, 1]], [
      [3, 1, 1, 1]]).config_feat).tolist() == tiles.tolist()
  loops = loops_of(pooling([32, 8, 8, 256], [1, 2, 2, 1], [3, 0, 2, 1]))
  assert loops.largest() == ((8, 8, 4, 2), (2, 2, 1, 1))
  # A running sum over the lanes.
  loops = loops_of(pooling([33, 16, 500], [1, 1, 999]))
  assert loops.largest() == ((33, 2, 4), (1, 1, 1))


@pytest.mark.parametrize('layout, window, is_turned, output, kernel', [
    ([0, 1], 1023, False, [64, 2], [1, 4]),
    ([0, 1], 1022, False, [64, 2], [8, 4]),
    ([0, 1], 1, False, [64, 2], [8, 4]),
    ([0, 1], 1023, True, [64, 2], [1, 4]),
    ([1, 0], 1023, False, [32, 4], [1, 2])])
def test_windows_over_a_whole_product_leave_the_filter_one_bound(
    layout, window, is_turned, output, kernel):
  """f32 [256, 64] x [64, 512], columns in rows or lanes, and their softmax.

  The bound is of the lanes of what is in rows: all columns, or 256 rows.
  """
  module = tiny_hlo.with_softmax(product(256, 64, 512, layout), window)
  if is_turned:  # The filter is [512, 64].
    _, right, root, *_ = module.computations[0].instructions
    right.shape.dimensions[:] = [512, 64]
    numbers = root.convolution_dimension_numbers
    numbers.kernel_input_feature_dimension = 1
    numbers.kernel_output_feature_dimension = 0
  loops = loops_of(module)
  choices = candidates.choices_of(loops)
  assert loops.product == (256, 512, 64)
  if window == 1023:  # Else it does not see all from each place.
    assert choices == ([[64], [2, 1], [1]] if layout == [0, 1] else
                       [[*range(32, 0, -1)], [4], [1]])
  tiles = np.array([[bounds[0] for bounds in choices]])
  assert loops.output_bounds(tiles).tolist() == [output]
  assert loops.kernel_bounds(tiles).tolist() == [kernel]
  assert loops.tiles([output], np.array([kernel])).tolist() == tiles.tolist()


@pytest.mark.parametrize('operand, window, is_whole', [
    (0, 511, True), (1, 511, True), (0, 509, False)])
def test_windows_over_an_operand_keep_it_whole(operand, window, is_whole):
  """f32 [64, 256] x [256, 512], of which one is a softmax over the 256."""
  module = product(64, 256, 512)
  entry = module.computations[0]
  left, right, root = entry.instructions
  sizes = [(1, window), (window, 1)][operand]
  softmax = add(entry, 13, 'reduce-window',
                (left, right)[operand].shape.dimensions, None,
                [10 + operand] * 2,
                window={'dimensions': [{'size': size} for size in sizes]})
  root.operand_ids[operand] = 13
  ordered = [left, right, root]
  ordered.insert(operand + 1, softmax)
  del entry.instructions[:]
  entry.instructions.extend(ordered)
  rows, columns, summed = candidates.choices_of(loops_of(module))
  assert len(rows) > 1 < len(columns)
  assert (summed == [32]) == is_whole


def test_a_reduction_of_a_reshaped_product_is_paired_by_sizes():
  """f32 [4, 256, 16]; read as [4, 16, 256] and summed to [16]."""
  module = tiny_hlo.matmul(
      (4, 256, 32), (4, 32, 16), (4, 256, 16), ['F32'] * 3,
      lhs_batch_dimensions=[0], rhs_batch_dimensions=[0],
      lhs_contracting_dimensions=[2], rhs_contracting_dimensions=[1])
  entry = module.computations[0]
  add(entry, 13, 'bitcast', [4, 16, 256], operands=[12])
  add(entry, 14, 'reduce', [16], operands=[13, 13], dimensions=[0, 2])
  add(entry, 15, 'tuple', [], operands=[12, 14])
  entry.root_id = 15
  streams = loops_of(module).nest.streams
  result, = np.flatnonzero(streams.size.prod(1) == 16)
  assert np.flatnonzero(streams.follows[result]).tolist() == [2]
  assert streams.per_element[result, 0, 2] == 1 / 1024  # Rank 1.
  assert streams.surplus[result, 0] < 0.001  # It is not read at once.


def test_of_several_products_the_last_is_tiled():
  """f32 [64, 256] x [256, 1024] x [1024, 128]: the first makes an operand."""
  module = product(64, 256, 1024)
  entry = module.computations[0]
  add(entry, 13, 'parameter', [1024, 128], parameter_number=2)
  root = add(entry, 14, 'convolution', [64, 128], None, [12, 13])
  root.convolution_dimension_numbers.CopyFrom(
      entry.instructions[2].convolution_dimension_numbers)
  entry.root_id = 14
  loops = loops_of(module)
  assert loops.size.tolist() == [64, 128, 1024]
  assert loops.unit.tolist() == [8, 128, 8]
  assert loops.products == 2 and loops.product is None


def test_kernels_of_a_batch_are_as_alone():
  modules = [elementwise([24, 256]), convolution(), product(64, 256, 512)]
  batch = geometry.loops_of([kernel_of_module(module) for module in modules])
  for loops, module in zip(batch, modules):
    alone = loops_of(module)
    tiles = np.stack([alone.whole, np.ones_like(alone.whole)])
    assert loops.largest() == alone.largest()
    for name, values in alone.counts(tiles).items():
      np.testing.assert_array_equal(loops.counts(tiles)[name], values, name)


# --- Counts ------------------------------------------------------------------


def test_a_copy():
  """f32 [24, 256]: 3 x 2 layout tiles of 8 x 128, 4096 bytes each."""
  counts = counts_of(elementwise([24, 256], opcode='sqrt'),
                     [[3, 2], [2, 2], [1, 1]])
  expected = {
      'output_tiles': [1, 2, 6], 'kernel_tiles': [1] * 3, 'steps': [1, 2, 6],
      'streams': [2] * 3,
      # 6, 4 and 1 layout tiles in and out.
      'block_bytes': [49152, 32768, 8192],
      # A bound of 2 out of 3 moves 2 * 4 tiles instead of 6.
      'moved_bytes': [49152, 65536, 49152],
      # Of a single tile there is no next one.
      'footprint_bytes': [49152, 65536, 16384],
      # Whole rows are one piece; a tile of one layout tile is one as well.
      'pieces': [2, 4, 12], 'matrix_rows': [0] * 3,
      'vector_registers': [6, 8, 6],  # One a layout tile.
      'tile_elements': [6144, 4096, 1024], 'padding': [1] * 3,
      'rounding': [1, 4 / 3, 1], 'waits': [1, 2, 6],
      # An operation alone moves 128 layout tiles at full speed.
      'crowding': [0, 4 / 128, 1 / 128], 'is_alone': [1] * 3,
      'all_tiles': [6, 8, 6], 'idle': [1] * 3, 'partials': [0] * 3}
  assert set(counts) == set(expected)
  for name, values in expected.items():
    np.testing.assert_allclose(counts[name], values, 1e-6, err_msg=name)


@pytest.mark.parametrize('axis, partials', [
    # Tiles of [24, 4000], [16, 2048] and [8, 128] of 3 x 32 layout tiles. Along
    # rows they leave 4096, 2048 and 128 elements, 1024 in a layout tile, of 1,
    # 2 and 3 cuts: 1 * 4, 4 steps of 2 * 2, 96 of 3 * 1.
    (0, [4, 16, 288]),
    # Along columns 24, 16 and 8 elements, of 1, 2 and 32 cuts.
    (1, [1, 8, 3072])])
def test_an_argmax_compares_the_partial_results_of_all_cuts(axis, partials):
  """Two tensors are reduced at once, so the node has no shape."""
  module = elementwise([24, 4000])
  entry = module.computations[0]
  for number, opcode, dims in ((12, 'iota', [24, 4000]), (13, 'constant', []),
                               (14, 'constant', []), (15, 'constant', [])):
    add(entry, number, opcode, dims)
  root = add(entry, 16, 'reduce', [], operands=[11, 12, 13, 14, 15])
  root.dimensions.append(axis)
  entry.root_id = 16
  tiles = [[3, 32], [2, 16], [1, 1]]
  assert counts_of(module, tiles)['partials'].tolist() == partials
  # A sum to one number reads a tensor, a first value and a computation.
  del root.operand_ids[3:]
  assert not counts_of(module, tiles)['partials'].any()


def on_chip(module, *ids):
  """The module with these instructions' tensors kept in on-chip memory."""
  for node in protos.nodes(module):
    if node.id in ids:
      node.shape.layout.memory_space = protos.ON_CHIP
  return module


@pytest.mark.parametrize('opcode, element_type, kept, moved, waits, most', [
    # In two steps, each of 4 layout tiles in and out.
    ('tanh', 'F32', (), 2, 1, 128), ('tanh', 'F32', (10,), 1, 1, 128),
    ('tanh', 'F32', (10, 11), 0, 1, 128), ('copy', 'F32', (11,), 1, 1, 1024),
    # Copies within on-chip memory move too; of four bytes they do not wait.
    ('copy', 'BF16', (10, 11), 2, 1, 128),
    ('copy', 'F32', (10, 11), 2, 0, 128)])
def test_tensors_on_chip_do_not_move(
    opcode, element_type, kept, moved, waits, most):
  counts = counts_of(on_chip(elementwise(
      [64, 128], element_type=element_type, opcode=opcode), *kept), [[4, 1]])
  block = 4 * 8 * 128 * (2 if element_type == 'BF16' else 4)
  assert counts['streams'] == counts['steps'] == 2
  assert counts['block_bytes'] == moved * block
  assert counts['moved_bytes'] == 2 * moved * block
  assert counts['pieces'] == 2 * moved
  assert counts['waits'] == 2 * waits and counts['crowding'] == 4 / most
  assert counts['footprint_bytes'] == 2 * 2 * block  # Wherever they are.


@pytest.mark.parametrize('inputs, most, is_alone', [
    (12, 1024, 0), (13, 128, 1)])
def test_a_fusion_of_more_than_twelve_inputs_slows_down_early(
    inputs, most, is_alone):
  """A sum of rows that are broadcast, in two steps of 4 layout tiles."""
  module = protos.HloModuleProto(name='wide', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=80)
  entry = module.computations.add(id=2, root_id=81)
  for number in range(inputs):
    for computation, first in ((body, 10), (entry, 40)):
      add(computation, first + number, 'parameter', [128],
          parameter_number=number)
  add(body, 80, 'map', [64, 128], operands=range(10, 10 + inputs))
  add(entry, 81, 'fusion', [64, 128], operands=range(40, 40 + inputs),
      called_computation_ids=[1])
  counts = counts_of(module, [[4, 1]])
  assert counts['streams'] == inputs + 1
  assert counts['crowding'] == 4 / most and counts['is_alone'] == is_alone


def test_a_size_in_bits_keeps_no_tensor_on_chip():
  """XLA wrote the 4 of int4 into the column that here is 1 on chip."""
  kernel = kernel_of_module(elementwise([64, 128]))
  for bits, is_on_chip in ((1, True), (4, False)):
    kernel.node_feat[:, schema.NODE_GROUPS['element_size_in_bits']] = bits
    loops, = geometry.loops_of([kernel])
    assert loops.on_chip.tolist() == [is_on_chip] * 2


@pytest.mark.parametrize('kept, waits', [
    # [256, 512] x [512, 256], cut into 4 x 1 by 2 tiles: both operands change
    # with each of the 8 steps, the output is written with every second one.
    ((), 20), ((10,), 12), ((10, 11), 4), ((10, 11, 12), 0)])
def test_a_product_waits_for_what_it_fetches_and_writes(kept, waits):
  counts = counts_of(on_chip(product(256, 512, 256), *kept), [[8, 2]],
                     [[32, 2]])
  assert counts['steps'] == 8 and counts['waits'] == waits


def test_two_cores_share_steps():
  """Of 3 and 5 steps the last one leaves a core idle; 2 are one for each."""
  loops = loops_of(elementwise([120, 128]), MACHINES['v5p'])
  counts = loops.counts(np.array([[15, 1], [8, 1], [5, 1], [3, 1]]))
  np.testing.assert_allclose(counts['idle'], [2, 1, 4 / 3, 6 / 5])
  np.testing.assert_allclose(counts['crowding'], [0, 0, 5 / 128, 3 / 128])


def test_operands_are_read_again_for_every_tile_of_the_other():
  """f32 [16, 256] x [256, 512] -> [16, 512]; units 2, 4 and 32.

  Moved layout tiles: image 2 x 2, filter 32 x 4, result 2 x 4.
  """
  counts = counts_of(
      product(16, 256, 512), [[2, 4], [1, 4], [2, 2], [1, 2], [1, 2]],
      [[32, 4], [32, 4], [32, 2], [32, 2], [16, 2]])
  assert (counts['moved_bytes'] / LAYOUT_TILE).tolist() == [
      4 + 128 + 8,  # Everything at once.
      4 + 128 + 8,  # Two tiles of rows, but one block holds all weights.
      4 + 128 + 8,  # Two tiles of columns.
      4 + 256 + 8,  # All weights again for each of two tiles of rows.
      8 + 256 + 8]  # Then halves of the rows for each tile of columns too.
  # 16 rows pass 2 x 4 blocks of 128 x 128 weights, however they are cut.
  assert counts['matrix_rows'].tolist() == [2 * 4 * 16] * 5
  assert counts['crowding'].max() < 1e-9  # Of products any number is small.
  # Contraction in two: one more step on each of 2 x 4 layout tiles.
  assert counts['vector_registers'].tolist() == [0, 0, 0, 0, 8]


def test_padding_and_rounding_are_the_results():
  """32 layout tiles of 250 summands, cut into 24 and 8; all of [16, 512]."""
  counts = counts_of(product(16, 250, 512), [[2, 4]], [[24, 4]])
  assert counts['kernel_tiles'] == 2
  assert counts['padding'] == counts['rounding'] == 1


@pytest.mark.parametrize('window_dilation, rows', [(1, [9, 7]), (2, [10, 7])])
def test_a_window_widens_the_block_of_the_image(window_dilation, rows):
  """4 rows at a stride of 2 and 3 taps: (4 - 1) * 2 + 3 = 9, of one tap 7; of
  taps that are 2 apart 11, but there are only 10."""
  module = convolution()
  for dimension in module.computations[0].instructions[3].window.dimensions:
    dimension.window_dilation = window_dilation
  counts = counts_of(module, [[4, 1, 4, 3]] * 2, [[3, 1, 32, 3], [1, 1, 32, 3]])
  # Image: rows x 1 tap x 4 x 2; filter: taps x 32 x 3 of bf16; bias; result.
  assert (counts['block_bytes'] / LAYOUT_TILE).tolist() == [
      rows[0] * 8 + 3 * 32 * 3 / 2 + 1 + 4 * 4 * 3,
      rows[1] * 8 + 32 * 3 / 2 + 1 + 4 * 4 * 3]


def test_a_product_keeps_operands_and_sums_too():
  """f32 [64, 256] x [256, 512].

  A filter tile [16, 1] holds 128 of 256 summands, so an output tile [2, 1] of
  16 rows reads 16 x 128 of the image: 2 layout tiles. Filter 128 x 128 (16).
  Two blocks of each, and both operands once more. Sums of 16 x 128 have room in
  a result of float32.
  """
  for element_type, output, sums in (('F32', 2, 0), ('BF16', 1, 2)):
    module = product(64, 256, 512)
    module.computations[0].instructions[2].shape.element_type = (
        protos.PrimitiveType.Value(element_type))
    loops = loops_of(module)
    tile = loops.tiles([[2, 1]], np.array([[16, 1]]))
    assert loops.counts(tile)['footprint_bytes'] / LAYOUT_TILE == [
        2 * (2 + 16 + output) + 2 + 16 + sums]


def test_blocks_on_chip():
  """Two of what changes, one of what does not.

  Output tile [2, 4, 1, 1], filter tile [3, 1, 16, 1] of bf16; stride 2.
  Output: 2 * 4 = 8 layout tiles. Filter: 3 * 1 * 16 of half the bytes. Image: 2
  outputs at stride 2 and the window's other 2 rows are 5 rows, 4 outputs of one
  tap 7 columns; batch 8 and 128 features. Bias: a layout tile, though it has
  128 elements. Operands again in float32.
  """
  counts = counts_of(convolution(), [[2, 4, 1, 1]], [[3, 1, 16, 1]])
  assert counts['footprint_bytes'] / LAYOUT_TILE == [
      2 * (8 + 3 * 16 / 2 + 5 * 7 + 1) + 3 * 16 + 5 * 7]
