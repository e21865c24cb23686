"""Legal tiles: by hand, and what real files list."""

import gzip
import json

import numpy as np
import pytest

from support.feature_tiles import kernel_of_nodes, loops_of
from support.tiny_hlo import add, convolution, elementwise, pooling, product
from tpu_graphs_ext.analytic import (
  blocks,
  candidates,
  explain,
  geometry,
  products,
)
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import protos, stored, tpu_compiler, tuning

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.
NEW = ('v5e', 'v5p', 'v6e', 'v7x')  # Whose lists by the compiler were at hand.
MOST_CYCLES = 10 ** 12  # The compiler says of more that a tile cannot be.


def choices(module, tpu='v3'):
  """The bounds of each loop of a module."""
  return candidates.choices_of(loops_of(module, MACHINES[tpu]))


def test_bounds_of_a_product():
  """f32 [1024, 512] x [512, 384]: rows of 8 of the filter are lanes elsewhere.

  Rows: 128 of 8, in lanes nowhere: plain bounds and those rounded up to 16.
  Columns: 384 / 128. Summands: 64 rows of 8 of the filter, lanes of the image.
  """
  rows, columns, summed = choices(product(1024, 512, 384))
  assert rows == [128, 64, 48, 43, 32, 26, 22, 19, 16, 15, 13, 12, 11, 10, 9,
                  8, 7, 6, 5, 4, 3, 2, 1]
  assert columns == [3, 2, 1]
  assert summed == [64, 32, 16]
  # Other kernels have plain bounds.
  assert choices(elementwise([1024, 384])) == [
      [128, 64, 43, 32, 26, 22, 19, 16, 15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4,
       3, 2, 1], [3, 2, 1]]


def test_a_reshape_has_tiles():
  """f32 [1000] as [1, 1000]: 8 layout tiles of [2, 128]."""
  assert choices(elementwise([1, 1000], opcode='reshape')) == [
      [1], [8, 4, 3, 2, 1]]


def test_dimensions_that_a_reshaped_copy_splits_are_cut_as_one():
  """bf16 [160, 256], copied as [2, 80, 256]: 80 are 10 layout tiles."""
  module = elementwise([160, 256], None, 'BF16', 'copy')
  entry = module.computations[0]
  add(entry, 12, 'bitcast', [2, 80, 256], operands=[11], element_type='BF16')
  add(entry, 13, 'tanh', [2, 80, 256], operands=[12], element_type='BF16')
  entry.root_id = 13
  loops = loops_of(in_tall_tiles(module, {'parameter.10'}, 16))
  assert candidates.choices_of(loops) == [[2, 1], [10, 4, 2], [2, 1]]
  # 4 x 8 rows of 80 are no equal part, and 16 rows of each half do not adjoin.
  assert candidates.candidates(loops).tiles.tolist() == [
      [2, 10, 2], [2, 10, 1], [1, 10, 2], [1, 10, 1], [1, 2, 2], [1, 2, 1]]
  entry.instructions[1].opcode = 'negate'  # Reshapes what it computes.
  assert len(candidates.candidates(loops_of(module)).tiles) == 2 * 6 * 2


@pytest.mark.parametrize('sizes, merged, runs', [
    ((2, 1, 1024, 512, 1, 1), (2048, 512), [[0, 2]]),
    ((2, 3, 4), (2, 12), [[1, 2]]), ((2, 3, 4), (24,), [[0, 1, 2]]),
    ((6, 2, 4, 5), (12, 20), [[0, 1], [2, 3]]), ((2, 3), (2, 3), []),
    ((2048,), (16, 128), []), ((4, 6), (3, 8), [])])
def test_dimensions_that_are_one_of_another_tensor(sizes, merged, runs):
  assert geometry._runs(sizes, merged) == runs


def test_windows_are_cut_and_images_in_rows_are_not():
  """Windows of [5, 3] of images [9, 10, 256, 30], features in rows of 8."""
  assert choices(pooling([9, 10, 256, 30], (5, 3, 1, 1))) == [
      [9, 5, 3, 2, 1], [10, 5, 4, 3, 2, 1], [32, 16], [1],
      [5, 3, 2, 1], [3, 2, 1]]


def test_whole_elements_of_an_image_with_zeros():
  """Every second of 30 rows of the result reads an element of the image."""
  loops, = geometry.loops_of([kernel_of_nodes([
      ('parameter', (15, 8, 128), []), ('parameter', (3, 128, 256), []),
      ('convolution', (30, 8, 256), [0, 1], {
          'convolution_dim_numbers': (1, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2),
          'window_size': (3,), 'window_stride': (1,),
          'window_base_dilation': (2,)})], [()])])
  assert candidates.choices_of(loops) == [
      [30, 16, 10, 8, 6, 4, 2], [1], [2, 1], [3, 2], [16]]
  loops.machine = MACHINES['v6e']  # Its compiler also tries parts of them.
  assert candidates.choices_of(loops)[::3] == [
      [30, 16, 15, 10, 8, 6, 5, 4, 3, 2, 1], [3, 2, 1]]


def test_an_update_in_place_loops_over_what_it_writes():
  """f32 [2, 32, 512] into [35, 32, 512], stored as 32, 35, 512: 32, a layout
  tile of 2 of 8 rows, and 512 / 128."""
  module = elementwise([35, 32, 512], [2, 0, 1])
  entry = module.computations[0]
  assert loops_of(module).written.tolist() == [32, 35, 512]
  add(entry, 12, 'parameter', [2, 32, 512], [2, 0, 1], parameter_number=1)
  add(entry, 13, 'parameter', [], parameter_number=2)
  add(entry, 14, 'dynamic-update-slice', [35, 32, 512], [2, 0, 1],
      operands=[11, 12, 13, 13, 13])
  entry.root_id = 14
  loops = loops_of(module)
  assert loops.written.tolist() == [32, 2, 512]
  assert candidates.choices_of(loops)[1:] == [[1], [4, 2, 1]]


def in_tall_tiles(module, names, rows):
  """The module, with layout tiles of so many rows of these instructions."""
  for computation in module.computations:
    for node in computation.instructions:
      if node.name in names:
        node.shape.layout.tiles.add(dimensions=(rows, 128))
  return module


def test_tall_bfloat16_may_be_cut_in_an_operand_with_float32():
  """A row [64] in float32, as of a mean, makes all of the operand float32."""
  for element_type, bounds in (('F32', [8, 4, 3, 2, 1]), ('BF16', [8, 4, 2])):
    module = product(64, 512, 384, element_type='BF16')
    entry = module.computations[0]
    add(entry, 13, 'parameter', [64], element_type=element_type,
        parameter_number=2)
    add(entry, 14, 'fusion', [64, 512], operands=[10, 13], element_type='BF16')
    entry.instructions[2].operand_ids[:] = [14, 11]
    image, right, root, *rest = entry.instructions
    del entry.instructions[:]
    entry.instructions.extend([image, *rest, right, root])
    assert choices(in_tall_tiles(module, {'parameter.10'}, 16))[0] == bounds


def test_a_tensors_sizes_of_one_do_not_matter():
  """[1, 64, 512] is read as [64, 512]."""
  module = product(64, 512, 384, element_type='BF16')
  shape = module.computations[0].instructions[0].shape
  loops = loops_of(module)
  for sizes, layout in (([1, 64, 512], [2, 1, 0]), ([64, 1, 512], [2, 0, 1])):
    for field, values in ((shape.dimensions, sizes),
                          (shape.layout.minor_to_major, layout)):
      del field[:]
      field.extend(values)
    loops.note(stored.tensors_of(in_tall_tiles(
        module, {'parameter.10'}, 16)))
    assert loops.rows.tolist() == [16, 8, 8]


@pytest.mark.parametrize('element_type, bits, size, copied', [
    ('F8E4M3FN', 0, 1, 0.25), ('S4', 4, 0.5, 4), ('S8', 0, 1, 4)])
def test_products_of_types_that_features_do_not_have(
    element_type, bits, size, copied):
  """[64, 512] x [512, 256]."""
  module = product(64, 512, 256, element_type=element_type)
  for node in module.computations[0].instructions:
    node.shape.layout.element_size_in_bits = bits
  loops = loops_of(in_tall_tiles(module, {'parameter.10'}, 32),
                   MACHINES['v7x'])
  assert loops.element_bytes.tolist() == [size] * 3
  assert candidates.choices_of(loops)[0] == [8, 4]
  # One block, and a quarter of one for the matrix unit, which has no whole
  # numbers: two copies in bfloat16. 8 x 4 and 64 x 2 layout tiles; the result,
  # in one step.
  held, _ = candidates.memory(loops)
  whole = loops.whole[np.newaxis]
  needed = 1024 * ((size + copied) * (8 * 4 + 64 * 2)
                   + size * 8 * 2 + 4 * 8 * 2)
  assert held.counts(whole)['footprint_bytes'] == needed
  shown, = explain.explain(loops, whole)
  assert shown.footprint_bytes == needed != loops.counts(
      whole)['footprint_bytes']


def test_layout_tiles_of_16_or_32_rows_are_not_cut():
  """bf16 [64, 512] x [512, 384]: 8 of 8 rows, 3 of 128 columns, 64 summands."""
  def made(element_type='BF16'):
    return product(64, 512, 384, element_type=element_type)

  left, right, result = (node.name for node in made().computations[
      -1].instructions)
  plain = [8, 4, 3, 2, 1], [3, 2, 1], [64, 32, 16]
  assert choices(made()) == [*plain]
  for name in left, result:  # Rows of both.
    assert choices(in_tall_tiles(made(), {name}, 16)) == [
        [8, 4, 2], *plain[1:]]
  # The right one's rows are whole lanes of the left one.
  assert choices(in_tall_tiles(made(), {right}, 16)) == [*plain]
  assert choices(in_tall_tiles(made('S8'), {left}, 32))[0] == [8, 4]
  # Tensors of 8 rows, which any of 4 bytes has.
  assert choices(in_tall_tiles(made('F32'), {left}, 8))[0] == plain[0]
  # Without a product what is read as it is may be cut, unless it is copied.
  for name, opcode, rows in (
      ('elementwise', 'tanh', [8, 4, 2]), ('parameter.10', 'tanh', plain[0]),
      ('parameter.10', 'copy', [8, 4, 2])):
    module = elementwise([64, 256], None, 'BF16', opcode)
    if opcode == 'copy':
      entry = module.computations[0]
      add(entry, 12, 'tanh', [64, 256], operands=[11], element_type='BF16')
      entry.root_id = 12
    assert choices(in_tall_tiles(module, {name}, 16)) == [rows, [2, 1]]


def test_rows_of_an_image_have_no_blocks_of_256():
  """[4096, 64] x [64, 384], and the gradient that reads it as [64, 4096].

  A third of 512 layout tiles is 171: 192 of 256 rows at a time.
  """
  module = product(4096, 64, 384)
  rows = choices(module, 'v7x')[0]
  assert rows == choices(module, 'v6e')[0] and 192 not in rows
  entry = module.computations[0]
  image = entry.instructions[0].shape
  image.dimensions[:] = [64, 4096]
  numbers = entry.instructions[2].convolution_dimension_numbers
  numbers.input_batch_dimension, numbers.input_feature_dimension = 1, 0
  rows = choices(module, 'v7x')[0]
  assert rows == choices(module, 'v6e')[0] and 176 in rows


def test_blocks_of_a_v7x_also_have_256_columns():
  for tpu in MACHINES:
    assert choices(product(64, 512, 640, element_type='BF16'), tpu)[1] == (
        [5, 4, 3, 2, 1] if tpu == 'v7x' else [5, 3, 2, 1])


@pytest.mark.parametrize(('window', 'listed'), [
    ((1, 1, 5), [[9, 5, 3, 2, 1], [6, 5, 4, 3, 2, 1], [3]]),
    ((1, 5, 1), [[9, 5, 3, 2, 1], [6], [3, 2, 1]])])
def test_windows_in_rows_or_columns_are_not_cut(window, listed):
  """Sums of 5 columns or rows of [9, 48, 384], as of a running maximum."""
  assert choices(pooling([9, 48, 384], window))[:3] == listed


def test_an_operand_that_is_a_slice_has_whole_lanes_too():
  """[32, 512] x [32, 2048] over 32; the first is one of 35 in lanes of 512."""
  module = protos.HloModuleProto(name='slice', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=13)
  add(entry, 10, 'parameter', [35, 32, 512])
  add(entry, 11, 'parameter', [32, 2048], parameter_number=1)
  add(entry, 12, 'fusion', [32, 512], operands=[10])
  root = add(entry, 13, 'convolution', [512, 2048], operands=[12, 11])
  numbers = root.convolution_dimension_numbers
  numbers.input_batch_dimension = numbers.output_feature_dimension = 1
  numbers.kernel_output_feature_dimension = 1
  assert choices(module)[0] == [64, 32, 16]


@pytest.mark.parametrize(('dims', 'cut_by'), [
    ([16, 96, 512], {'v2', 'v3'}),
    ([96, 512], {'v2', 'v3', 'v5e', 'v6e', 'v7x'})])
def test_whose_short_results_are_cut(dims, cut_by):
  """Sums over 512 columns of 96 rows: columns of a matrix, or a vector."""
  module = elementwise(dims, opcode='reduce')
  root = module.computations[0].instructions[1]
  root.dimensions.append(len(dims) - 1)
  for field in root.shape.dimensions, root.shape.layout.minor_to_major:
    del field[:]
  root.shape.dimensions.extend(dims[:-1])
  root.shape.layout.minor_to_major.extend(range(len(dims) - 1)[::-1])
  assert {tpu for tpu in MACHINES if choices(module, tpu)[-2] != [12]} == cut_by


def test_tiles_of_a_results_columns_are_equally_large():
  """Sums of 1360 rows of 8 x 170, as a vector: 11 x 128 elements."""
  module = elementwise([1360, 512], opcode='reduce')
  root = module.computations[0].instructions[1]
  root.dimensions.append(1)
  root.shape.dimensions.pop()
  root.shape.layout.minor_to_major.pop(0)
  for tpu, listed in (('v3', [170, 96, 64, 48, 32, 16]), ('v6e', [170, 16])):
    assert choices(module, tpu)[0] == listed
  # A product's may be of two sizes: sums of its 1024 rows beside itself.
  module = product(1024, 512, 384)
  entry = module.computations[0]
  add(entry, 13, 'parameter', [], parameter_number=2)
  add(entry, 14, 'reduce', [1024], operands=[12, 13]).dimensions.append(1)
  add(entry, 15, 'tuple', [], operands=[12, 14])
  entry.root_id = 15
  assert choices(module, 'v6e')[0] == [128, 64, 48, 32, 16]


@pytest.mark.parametrize('tpu', NEW)
def test_times_of_a_large_product_are_those_of_its_blocks(tpu):
  """bf16 [4096, 8192] x [8192, 4096]: at least its FLOPs over the peak."""
  machine, sizes = MACHINES[tpu], (4096, 8192, 4096)
  loops = loops_of(product(*sizes, element_type='BF16'), machine)
  tiles = candidates.candidates(loops, 2000).tiles
  tile_ns = explain.terms(loops, tiles).time.min()
  plain = products.Product(1, *sizes, 2, 2, 2)
  block_ns = blocks.times_ns(plain, blocks.usual_blocks(
      plain, machine, machine.vmem_limit_bytes), machine).min()
  peak_ns = 2 * 4096 * 8192 * 4096 / machine.flops_per_ns
  most = 1.53 if tpu == 'v6e' else 1.4  # Larger tiles do not fit a v6e.
  assert peak_ns < tile_ns < most * peak_ns
  assert 0.7 < tile_ns / block_ns < 1.3


def test_tiles_of_a_file_that_the_rules_do_not_list_come_last():
  legal = candidates.candidates(loops_of(elementwise([1024, 384])))
  more = legal.with_extra(np.array([[100, 3], [1, 1], [100, 3], [14, 2]]))
  assert more.tiles[len(legal.tiles) - 1:].tolist() == [
      [1, 1], [14, 2], [100, 3]]
  scalar = candidates.candidates(loops_of(elementwise([])))
  assert scalar.with_extra(np.zeros((1, 0), int)).tiles.shape == (1, 0)


def test_samples_are_even_and_always_the_same(monkeypatch):
  loops = loops_of(convolution())
  tiles = candidates.candidates(loops).tiles
  assert len(np.unique(tiles, axis=0)) == len(tiles) > 100
  assert (tiles[0] == loops.whole).all()
  some, again = (candidates.candidates(loops, most=9) for _ in range(2))
  np.testing.assert_array_equal(some.tiles, again.tiles)
  assert len(some.tiles) == 9 and some.fitting > 9
  # Of too many combinations, only a part is looked at.
  monkeypatch.setattr(candidates, 'MOST_COMBINATIONS', 4000)
  monkeypatch.setattr(candidates, '_AT_ONCE', 1000)
  loops = loops_of(elementwise([1000, 1000, 1000, 8, 128], element_type='S8'))
  legal = candidates.candidates(loops)
  bounds = candidates.choices_of(loops)[0]
  assert legal.combinations == len(bounds) ** 3 > 200_000
  assert 3000 < legal.looked_at <= 4000
  # From all over: the first loop's bounds fall to one of its last choices.
  assert legal.tiles[-1, 0] in bounds[-len(bounds) // 10:]


def test_more_combinations_than_numbers_have_bits(monkeypatch):
  """1,999 bounds for each of six dimensions are 2 ** 65."""
  monkeypatch.setattr(candidates, 'MOST_COMBINATIONS', 4000)
  monkeypatch.setattr(candidates, '_AT_ONCE', 1000)
  loops = loops_of(elementwise([10 ** 6] * 4 + [8 * 10 ** 6, 128 * 10 ** 6]))
  legal = candidates.candidates(loops)
  assert legal.combinations == 1999 ** 6 > 2 ** 63
  assert 3900 < legal.looked_at <= 4000
  choices = [[*range(1999, 0, -1)]] * 6
  for part, numbers in enumerate(candidates._numbers(1999 ** 6)):
    bounds = candidates._tiles_of(numbers, choices)[:, 0]  # A quarter of all.
    assert bounds.max() <= 1999 - 499 * part
    assert bounds.min() >= 1999 - 501 * (part + 1)
    assert len(set(bounds.tolist())) > 300


def test_the_tiles_of_real_files_are_listed(shared_data):
  """All of them; the rules were read off these files."""
  kernels = tuning.read_tile_kernels(str(shared_data / 'op_tuning_data.pb'))
  kernels += [Kernel.load(str(file)) for file in sorted(
      (shared_data / 'real_more').glob('*/*.npz'))]
  listed = 0
  for kernel in kernels:
    if not kernel.config_feat.any():
      continue  # A reshape that was not tiled.
    loops, = geometry.loops_of([kernel])
    legal = candidates.candidates(loops)
    listed += len(np.unique(kernel.config_feat, axis=0))
    more = legal.with_extra(loops.tiles_of(kernel.config_feat))
    assert len(more.tiles) == len(legal.tiles), kernel.tile_id
  assert listed == 5820


def compiled_kernels(folder, name):
  """(module, its default tile, all its tiles), of a compiled program."""
  listed = json.loads(gzip.decompress(
      (folder / f'{name}_candidates.json.gz').read_bytes()))
  whole = protos.as_module((folder / f'{name}.pb').read_bytes())
  for kernel in tpu_compiler.kernels_of(whole).kernels:
    module = kernel.module
    if module.name in listed:
      weighed = listed[module.name]
      yield module, weighed['default'], [
          tile[:2] for tile in weighed['tiles'] if tile[2] < MOST_CYCLES]


@pytest.mark.parametrize('name', ['transformer', 'resnet'])
def test_the_tiles_that_the_compiler_weighs_are_listed(name, shared_data):
  """Nearly all of them, little else, and its choice always.

  Of kernels without a product it also weighs tiles that do not fit.
  """
  shares = {True: [], False: []}
  for module, default, weighed in compiled_kernels(
      shared_data / 'compiled_v3', name):
    loops = loops_of(module)
    assert len(default[1]) == len(loops.kernel_axes)
    if loops.products > 1:
      continue  # Not ranked.
    legal = candidates.candidates(loops)
    theirs, (chosen,) = (
        loops.tiles(*(np.array(bounds).reshape(len(tiles), -1)
                           for bounds in zip(*tiles)))
        for tiles in (weighed, [default]))
    assert (legal.tiles == chosen).all(1).any(), module.name
    more = len(legal.with_extra(theirs).tiles) - len(legal.tiles)
    common = len(np.unique(theirs, axis=0)) - more
    shares[loops.is_product].append(
        (common / (common + more), common / len(legal.tiles)))
  for of_kind in shares.values():
    recall, precision = np.mean(of_kind, axis=0)
    assert len(of_kind) > 15 and recall >= 0.992 and precision >= 0.96
