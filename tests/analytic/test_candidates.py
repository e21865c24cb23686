"""Legal tiles: by hand, and what real files list."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from support.feature_tiles import kernel_of_module, kernel_of_nodes, loops_of
from support.tiny_hlo import (
  add,
  convolution,
  elementwise,
  pooling,
  product,
  with_softmax,
)
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


def test_bounds_of_a_product():
  """f32 [1024, 512] x [512, 384]: rows of 8 of the filter are lanes elsewhere.

  Rows: 128 of 8, in lanes nowhere: plain bounds and those rounded up to 16.
  Columns: 384 / 128. Summands: 64 rows of 8 of the filter, lanes of the image.
  """
  rows, columns, summed = candidates.choices_of(
      loops_of(product(1024, 512, 384)))
  assert rows == [128, 64, 48, 43, 32, 26, 22, 19, 16, 15, 13, 12, 11, 10, 9,
                  8, 7, 6, 5, 4, 3, 2, 1]
  assert columns == [3, 2, 1]
  assert summed == [64, 32, 16]
  # Other kernels have plain bounds.
  assert candidates.choices_of(loops_of(elementwise([1024, 384]))) == [
      [128, 64, 43, 32, 26, 22, 19, 16, 15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4,
       3, 2, 1], [3, 2, 1]]


def test_a_reshape_has_tiles():
  """f32 [1000] as [1, 1000]: 8 layout tiles of [2, 128]."""
  assert candidates.choices_of(loops_of(elementwise(
      [1, 1000], opcode='reshape'))) == [[1], [8, 4, 3, 2, 1]]


def test_windows_are_cut_and_images_in_rows_are_not():
  """Windows of [5, 3] of images [9, 10, 256, 30], features in rows of 8."""
  assert candidates.choices_of(loops_of(
      pooling([9, 10, 256, 30], (5, 3, 1, 1)))) == [
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
    assert candidates.choices_of(loops_of(
        in_tall_tiles(module, {'parameter.10'}, 16)))[0] == bounds


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


@pytest.mark.parametrize('element_type, bits, size', [
    ('F8E4M3FN', 0, 1), ('S4', 4, 0.5)])
def test_products_of_types_that_features_do_not_have(element_type, bits, size):
  """[64, 512] x [512, 256]."""
  module = product(64, 512, 256, element_type=element_type)
  for node in module.computations[0].instructions:
    node.shape.layout.element_size_in_bits = bits
  loops = loops_of(in_tall_tiles(module, {'parameter.10'}, 32),
                   MACHINES['v7x'])
  assert loops.element_bytes.tolist() == [size] * 3
  assert candidates.choices_of(loops)[0] == [8, 4]
  # One block, and a quarter of one for the matrix unit: 8 x 4 and 64 x 2
  # layout tiles; the result, in one step.
  held, _ = candidates.memory(loops)
  whole = loops.whole[np.newaxis]
  needed = 1024 * (size * (1.25 * (8 * 4 + 64 * 2) + 8 * 2) + 4 * 8 * 2)
  assert held.counts(whole)['footprint_bytes'] == needed
  shown, = explain.Explainer(loops).explain(whole)
  assert shown.footprint_bytes == needed != loops.counts(
      whole)['footprint_bytes']


def test_layout_tiles_of_16_or_32_rows_are_not_cut():
  """bf16 [64, 512] x [512, 384]: 8 of 8 rows, 3 of 128 columns, 64 summands."""
  def made(element_type='BF16'):
    return product(64, 512, 384, element_type=element_type)

  left, right, result = (node.name for node in made().computations[
      -1].instructions)
  plain = [8, 4, 3, 2, 1], [3, 2, 1], [64, 32, 16]
  assert candidates.choices_of(loops_of(made())) == [*plain]
  for name in left, result:  # Rows of both.
    assert candidates.choices_of(loops_of(in_tall_tiles(
        made(), {name}, 16))) == [[8, 4, 2], *plain[1:]]
  # The right one's rows are whole lanes of the left one.
  assert candidates.choices_of(loops_of(in_tall_tiles(
      made(), {right}, 16))) == [*plain]
  assert candidates.choices_of(loops_of(in_tall_tiles(
      made('S8'), {left}, 32)))[0] == [8, 4]
  # Tensors of 8 rows, which any of 4 bytes has.
  assert candidates.choices_of(loops_of(in_tall_tiles(
      made('F32'), {left}, 8)))[0] == plain[0]
  # Without a product what is read as it is may be cut, unless it is copied.
  for name, opcode, rows in (
      ('elementwise', 'tanh', [8, 4, 2]), ('parameter.10', 'tanh', plain[0]),
      ('parameter.10', 'copy', [8, 4, 2])):
    module = elementwise([64, 256], None, 'BF16', opcode)
    if opcode == 'copy':
      entry = module.computations[0]
      add(entry, 12, 'tanh', [64, 256], operands=[11], element_type='BF16')
      entry.root_id = 12
    assert candidates.choices_of(loops_of(in_tall_tiles(
        module, {name}, 16))) == [rows, [2, 1]]


def test_rows_of_an_image_have_no_blocks_of_256():
  """[4096, 64] x [64, 384], and the gradient that reads it as [64, 4096].

  A third of 512 layout tiles is 171: 192 of 256 rows at a time.
  """
  def rows(tpu):
    return candidates.choices_of(loops_of(module, MACHINES[tpu]))[0]

  module = product(4096, 64, 384)
  assert rows('v7x') == rows('v6e') and 192 not in rows('v7x')
  entry = module.computations[0]
  image = entry.instructions[0].shape
  image.dimensions[:] = [64, 4096]
  numbers = entry.instructions[2].convolution_dimension_numbers
  numbers.input_batch_dimension, numbers.input_feature_dimension = 1, 0
  assert rows('v7x') == rows('v6e') and 176 in rows('v7x')


def test_blocks_of_a_v7x_also_have_256_columns():
  for tpu, machine in MACHINES.items():
    assert candidates.choices_of(loops_of(
        product(64, 512, 640, element_type='BF16'), machine))[1] == (
            [5, 4, 3, 2, 1] if tpu == 'v7x' else [5, 3, 2, 1])


@pytest.mark.parametrize(('window', 'listed'), [
    ((1, 1, 5), [[9, 5, 3, 2, 1], [6, 5, 4, 3, 2, 1], [3]]),
    ((1, 5, 1), [[9, 5, 3, 2, 1], [6], [3, 2, 1]])])
def test_windows_in_rows_or_columns_are_not_cut(window, listed):
  """Sums of 5 columns or rows of [9, 48, 384], as of a running maximum."""
  assert candidates.choices_of(
      loops_of(pooling([9, 48, 384], window)))[:3] == listed


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
  assert candidates.choices_of(loops_of(module))[0] == [64, 32, 16]


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
  assert {tpu for tpu, machine in MACHINES.items() if candidates.choices_of(
      loops_of(module, machine))[-2] != [12]} == cut_by


def test_tiles_of_a_results_columns_are_equally_large():
  """Sums of 1360 rows of 8 x 170, as a vector: 11 x 128 elements."""
  module = elementwise([1360, 512], opcode='reduce')
  root = module.computations[0].instructions[1]
  root.dimensions.append(1)
  root.shape.dimensions.pop()
  root.shape.layout.minor_to_major.pop(0)
  for tpu, listed in (('v3', [170, 96, 64, 48, 32, 16]), ('v6e', [170, 16])):
    assert candidates.choices_of(loops_of(module, MACHINES[tpu]))[0] == listed
  # A product's may be of two sizes: sums of its 1024 rows beside itself.
  module = product(1024, 512, 384)
  entry = module.computations[0]
  add(entry, 13, 'parameter', [], parameter_number=2)
  add(entry, 14, 'reduce', [1024], operands=[12, 13]).dimensions.append(1)
  add(entry, 15, 'tuple', [], operands=[12, 14])
  entry.root_id = 15
  assert candidates.choices_of(
      loops_of(module, MACHINES['v6e']))[0] == [128, 64, 48, 32, 16]


def with_memory(tpu, limit_bytes):
  """A machine that has so much for blocks of kernels that are no product."""
  machine = MACHINES[tpu]
  fills = [fill / machine.fills[2] for fill in machine.fills]
  return dataclasses.replace(machine, vmem_limit_bytes=limit_bytes, fills=fills)


def test_a_tile_must_fit():
  """f32 [24, 256] in 3 x 2 layout tiles, read and written, two of each."""
  for tpu in MACHINES:
    legal = candidates.candidates(loops_of(
        elementwise([24, 256]), with_memory(tpu, 8 * LAYOUT_TILE)))
    assert legal.tiles.tolist() == [[2, 1], [1, 2], [1, 1]]
    assert legal.fitting == 3 and legal.looked_at == 3 * 2


def test_only_old_machines_copy_a_products_operands():
  """f32 [8, 128] x [128, 128]: 1, 16 and 1 layout tiles, in one step."""
  for tpu in MACHINES:
    needed = loops_of(product(8, 128, 128), MACHINES[tpu]).counts(
        np.array([[1, 1, 16]]))['footprint_bytes']
    tiles = 18 + (1 + 16) * (tpu in ('v2', 'v3'))
    assert needed.tolist() == [tiles * LAYOUT_TILE]


def test_a_v6e_has_twice_the_memory_of_a_v5e():
  """f32 [8192, 1024]: a tile [rows, 8] takes 2 x 2 x 32 KiB a row of 8."""
  for tpu, most in (('v5e', 128), ('v5p', 128), ('v6e', 256), ('v7x', 256)):
    legal = candidates.candidates(loops_of(
        elementwise([8192, 1024]), MACHINES[tpu])).tiles
    assert legal[legal[:, 1] == 8, 0].max() == most


def test_what_windows_read_is_copied(monkeypatch):
  """bf16 [9, 8, 8, 128] by windows [3, 1, 1, 1]; a tile [1, 8, 1, 1].

  Windows of 1 read 8 layout tiles of 2 KiB, and write 8: two of each, and those
  that are read once more in 4 KiB.
  """
  module = pooling([9, 8, 8, 128], (3, 1, 1, 1), element_type='BF16')
  monkeypatch.setattr(
      candidates, 'choices_of', lambda unused: [[1], [8], [1], [1], [1], [1]])
  for tpu, tiles, space in (
      ('v3', 2 + 2 + 2, 0), ('v6e', 2 + 2 + 2 + 2, 0),  # Sums in float32 too.
      ('v6e', 2 + 2 + 2, 1)):  # No blocks of what is on the chip.
    module.computations[0].instructions[0].shape.layout.memory_space = space
    for spare, listed in ((0, 1), (-1, 0)):
      machine = with_memory(tpu, 8 * tiles * 2048 + spare)
      legal = candidates.candidates(loops_of(module, machine))
      assert len(legal.tiles) == listed


def needs(module, tile, tpu='v6e', most=False):
  """KiB that a tile needs, by output and kernel bounds."""
  loops = loops_of(module, MACHINES[tpu])
  held, most_bytes = candidates.memory(loops)
  tile = loops.tiles([tile[0]], np.array([tile[1]]))
  needed = held.counts(tile)['footprint_bytes'][0] / 1024
  return (needed, most_bytes) if most else needed


def test_what_a_product_holds():
  """[64, 256] x [256, 512] in tiles [16, 128] over 128 summands.

  Layout tiles of 8 x 128: the image 2, the filter 16, the result 2, all read
  twice. In float32 they have 4 KiB, and operands a copy in bfloat16.
  """
  tile = [2, 1], [16, 1]
  module = product(64, 256, 512)
  _, right, result = module.computations[0].instructions
  blocks, copies = 2 * 4 * (2 + 16 + 2), 2 * (2 + 16)
  assert needs(module, tile) == blocks + copies
  assert needs(module, tile, most=True)[1] == 31.5 * 2 ** 20
  right.shape.layout.memory_space = 1
  assert needs(module, tile) == blocks + copies - 2 * 4 * 16
  result.shape.layout.memory_space = 1  # Results have blocks all the same.
  assert needs(module, tile) == blocks + copies - 2 * 4 * 16
  # A v3 copies in float32, and what is on its chip was not looked at. Its
  # compiler fills less than was timed.
  assert needs(module, tile, 'v3', most=True) == (
      blocks + 4 * (2 + 16), 15.5 * 2 ** 20)
  of_file, = geometry.loops_of([kernel_of_module(module)])
  assert candidates.memory(of_file)[1] == 1.04 * 2 ** 24
  # bfloat16: 2 KiB, operands in another order, and sums in float32.
  assert needs(product(64, 256, 512, element_type='BF16'), tile) == (
      2 * 2 * (2 + 16 + 2) + 2 * (2 + 16) + 4 * 2)


@pytest.mark.parametrize('tpu, element_type, space, tile, mebibytes', [
    ('v6e', 'BF16', 1, ([128, 11], [256, 11]), 31.5),
    ('v6e', 'F32', 0, ([80, 8], [208, 8]), 31.41),
    ('v5e', 'BF16', 1, ([176, 6], [128, 6]), 15.5),
    ('v5e', 'F32', 0, ([128, 8], [48, 8]), 15.5),
    ('v7x', 'BF16', 0, ([96, 6], [512, 6]), 31.5),
    ('v7x', 'F32', 0, ([96, 6], [256, 6]), 31.5)])
def test_a_plain_product_needs_what_the_compiler_says(
    tpu, element_type, space, tile, mebibytes):
  """[4096, 8192] x [8192, 4096]; by the log of libtpu 0.0.50.1."""
  module = product(4096, 8192, 4096, element_type=element_type)
  module.computations[0].instructions[0].shape.layout.memory_space = space
  assert needs(module, tile, tpu) / 1024 == pytest.approx(mebibytes, abs=0.01)


@pytest.mark.parametrize('side, element_type, bits, tile, mebibytes', [
    (1, 'S8', 0, ([256, 5], [352, 5]), 31.31),
    (1, 'S4', 4, ([171, 16], [80, 16]), 29.3),
    (0, 'S8', 0, ([128, 8], [128, 8]), 14.0)])
def test_bytes_are_multiplied_as_bfloat16(
    side, element_type, bits, tile, mebibytes):
  """bf16 [4096, 8192] x [8192, 4096] but for one operand, the other on chip."""
  module = product(4096, 8192, 4096, element_type='BF16')
  operands = module.computations[0].instructions[:2]
  operands[1 - side].shape.layout.memory_space = 1
  operands[side].shape.element_type = protos.PrimitiveType.Value(element_type)
  operands[side].shape.layout.element_size_in_bits = bits
  assert needs(module, tile) / 1024 == pytest.approx(mebibytes, abs=0.02)


def test_operands_that_are_turned_or_computed():
  """As above; a filter [512, 256] has its summands in lanes."""
  tile = [2, 1], [1, 2]
  for element_type, size in ('F32', 4), ('BF16', 2):
    module = product(64, 256, 512, element_type=element_type)
    _, right, root = module.computations[0].instructions
    right.shape.dimensions[:] = [512, 256]
    numbers = root.convolution_dimension_numbers
    numbers.kernel_input_feature_dimension = 1
    numbers.kernel_output_feature_dimension = 0
    # The image's 2 x 2 layout tiles, the filter's 16 x 2, each copied twice,
    # the result's 2, of which there is one block more in float32.
    blocks = size * (2 * 2 * 2 + 2 * 16 * 2 + 2 * 2)
    assert needs(module, tile) == (
        blocks + 2 * (4 + 2 * 32) + 4 * 2 * (size == 2))
  # Where an operand is computed, the estimate is low for some.
  module = product(64, 256, 512, element_type='BF16')
  assert needs(module, ([2, 1], [16, 1]), 'v7x', most=True)[1] == 31.5 * 2 ** 20
  entry = module.computations[0]
  add(entry, 13, 'parameter', [256, 512], element_type='BF16',
      parameter_number=2)
  add(entry, 14, 'add', [256, 512], operands=[11, 13], element_type='BF16')
  entry.instructions[2].operand_ids[1] = 14
  assert needs(module, ([2, 1], [16, 1]), 'v7x', most=True)[1] == (
      0.95 * 32 * 2 ** 20)


def test_each_reader_of_a_copy_has_a_block():
  """bf16 [64, 256] in layout tiles of 16 rows, of which two copies are read."""
  module = product(64, 256, 512, element_type='BF16')
  loops = loops_of(module, MACHINES['v7x'])
  tile = loops.whole[np.newaxis] // [[2, 1, 1]]
  counts = []
  for copies in 0, 1, 2, 4:
    loops.layout_copies[0] = copies
    held, _ = candidates.memory(loops)
    counts.append(held.counts(tile)['footprint_bytes'][0])
  block = 2 * 32 * 256
  assert np.diff(counts).tolist() == [0, 2 * block, 4 * block]
  loops.on_chip[0] = True  # Then it has none.
  for copies in 1, 4:
    loops.layout_copies[0] = copies
    assert candidates.memory(loops)[0].counts(tile)[
        'footprint_bytes'] == counts[0] - 2 * block


def test_a_v7x_multiplies_what_is_stored_but_a_copy_of_what_is_computed():
  for opcode, copies in ('bitcast', [0.25, 0.25, 0]), ('tanh', [1, 0.25, 0]):
    module = product(64, 256, 512, element_type='BF16')
    entry = module.computations[0]
    add(entry, 13, opcode, [64, 256], operands=[10], element_type='BF16')
    entry.instructions[2].operand_ids[0] = 13
    image, right, root, other = entry.instructions
    del entry.instructions[:]
    entry.instructions.extend([image, other, right, root])
    held, most = candidates.memory(loops_of(module, MACHINES['v7x']))
    assert held.nest.streams.copies[:, 0].tolist() == copies
    assert most == 31.5 * 2 ** 20


def test_less_memory_if_the_compiler_says_so():
  module = elementwise([8192, 1024])
  module.computations[0].instructions[1].backend_config = json.dumps({
      'scoped_memory_configs': [{'memory_space': '1', 'size': str(2 ** 24)}]
  }).encode()
  # Of 16 MiB, 32, and less than it says.
  for machine in (MACHINES['v5p'], MACHINES['v7x'], dataclasses.replace(
      MACHINES['v7x'], vmem_limit_bytes=2 ** 23)):
    legal = candidates.candidates(loops_of(module, machine)).tiles
    assert legal[legal[:, 1] == 8, 0].max() == min(
        128, machine.vmem_limit_bytes >> 17)


def batched(image_turned, filter_turned, summands):
  """bf16 products of 4 matrices [128, summands] and [summands, 384], as a
  window that sees one of them at a time."""
  module = protos.HloModuleProto(name='batched', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=12)
  add(entry, 10, 'parameter', (4, summands, 128) if image_turned else (
      4, 128, summands), element_type='BF16')
  add(entry, 11, 'parameter', (4, 384, summands) if filter_turned else (
      4, summands, 384), element_type='BF16', parameter_number=1)
  add(entry, 12, 'convolution', (4, 128, 384), element_type='BF16',
      operands=[10, 11], window={'dimensions': [{
          'size': 4, 'stride': 3, 'base_dilation': 4, 'window_dilation': 1}]},
      convolution_dimension_numbers={
          'input_spatial_dimensions': [0],
          'input_batch_dimension': 1 + image_turned,
          'input_feature_dimension': 2 - image_turned,
          'kernel_spatial_dimensions': [0],
          'kernel_input_feature_dimension': 1 + filter_turned,
          'kernel_output_feature_dimension': 2 - filter_turned,
          'output_spatial_dimensions': [0],
          'output_batch_dimension': 1, 'output_feature_dimension': 2})
  return module


@pytest.mark.parametrize('turned, summands, copies', [
    ((False, False), 192, (1, 1)), ((True, False), 256, (2, 1)),
    ((False, True), 256, (1, 2)),
    # One that is turned shows the other what pads the summands to 256.
    ((True, False), 192, (2, 2)), ((False, True), 192, (2, 2))])
def test_operands_of_a_batch_are_copied_when_turned(turned, summands, copies):
  """By the log of libtpu 0.0.50.1, of attention and of experts."""
  for tpu, plain in ('v6e', 1), ('v5p', 1), ('v7x', 0.25):
    loops = loops_of(batched(*turned, summands), MACHINES[tpu])
    held, _ = candidates.memory(loops)
    assert held.nest.streams.copies[:2, 0].tolist() == [
        copy if copy > 1 else plain for copy in copies]


def computed_in_float32(module):
  """The module, with an image that is the sum of two tensors in float32."""
  entry = module.computations[0]
  image, *others = entry.instructions
  add(entry, 20, 'parameter', image.shape.dimensions, parameter_number=2)
  image.shape.element_type = protos.PrimitiveType.Value('F32')
  total = add(entry, 21, 'add', image.shape.dimensions, operands=[10, 20])
  kept = [image, entry.instructions[-2], total, *others]
  del entry.instructions[:]
  entry.instructions.extend(kept)
  entry.instructions[-1].operand_ids[0] = 21
  return module


@pytest.mark.parametrize('is_batch, copies', [(True, 2), (False, 1)])
def test_an_image_computed_in_float32_beside_a_turned_filter(is_batch, copies):
  if is_batch:
    module = batched(False, True, 256)
  else:  # [64, 256] x [512, 256].
    module = product(64, 256, 512, element_type='BF16')
    _, right, root = module.computations[0].instructions
    right.shape.dimensions[:] = [512, 256]
    numbers = root.convolution_dimension_numbers
    numbers.kernel_input_feature_dimension = 1
    numbers.kernel_output_feature_dimension = 0
  loops = loops_of(computed_in_float32(module), MACHINES['v6e'])
  held, _ = candidates.memory(loops)
  image = (loops.nest.streams.kind == 0) & (loops.nest.streams.copies[:, 0] > 0)
  assert held.nest.streams.copies[image, 0].tolist() == [copies / 2]


def test_an_image_without_a_batch_is_not_turned():
  """f32 [256, 64] read as [64, 256], as of a dense layer's gradient."""
  module = product(64, 256, 512)
  image, _, root = module.computations[0].instructions
  image.shape.dimensions[:] = [256, 64]
  numbers = root.convolution_dimension_numbers
  numbers.input_batch_dimension, numbers.input_feature_dimension = 1, 0
  held, _ = candidates.memory(loops_of(module, MACHINES['v6e']))
  assert held.nest.streams.copies[:, 0].tolist() == [0.5, 0.5, 0]


def test_a_softmax_needs_the_sums_beside_its_result():
  """f32 [256, 64] x [64, 512], columns in rows; a result of 512 x 256."""
  modules = [product(256, 64, 512, [0, 1]) for _ in range(2)]
  with_softmax(modules[1])
  plain, softmax = (candidates.memory(loops)[0].counts(
      loops.whole[np.newaxis])['footprint_bytes'] for loops in (
          loops_of(module, MACHINES['v6e']) for module in modules))
  assert softmax - plain == 4 * 512 * 256


def test_sums_over_lanes_are_kept_in_each_of_them():
  """bf16 [64, 256] x [256, 512], and sums of its rows; tiles of 32 rows."""
  for dimensions, sizes, sums in (([0], [512], 0), ([1], [64], 1),
                                  ([0, 1], [], 0)):
    module = product(64, 256, 512, element_type='BF16')
    entry = module.computations[0]
    add(entry, 13, 'parameter', [], parameter_number=2)
    add(entry, 14, 'reduce', sizes, operands=[12, 13], dimensions=dimensions)
    add(entry, 15, 'tuple', [], operands=[12, 14])
    entry.root_id = 15
    loops = loops_of(module, MACHINES['v6e'])
    held, _ = candidates.memory(loops)
    assert held.lane_sums == sums and not loops.lane_sums
    tile = np.array([[4, 2, 32]])
    kept = held.counts(tile)['footprint_bytes']
    held.lane_sums = 0
    kept -= held.counts(tile)['footprint_bytes']
    assert kept == sums * 32 * 128 * 4


def test_few_summands_in_rows_are_16_for_the_matrix_unit():
  """bf16 [128, 3, 128] over 3 rows, which are 4: 1 KiB each, and 4 of copy."""
  loops, = geometry.loops_of([kernel_of_nodes([
      ('parameter', (9, 3, 128), []), ('parameter', (1, 3, 256), []),
      ('convolution', (9, 128, 256), [0, 1], {
          'convolution_dim_numbers': (2, 1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2),
          'window_size': (1,), 'window_stride': (1,)})], [()])],
                             MACHINES['v6e'])
  loops.note([])
  held, _ = candidates.memory(loops)
  copies = held.nest.streams.copies[:, 0] * loops.element_bytes
  assert copies.tolist() == [8, 8, 0]  # Bytes an element, of the result none.



@pytest.mark.parametrize('tpu', NEW)
def test_times_of_a_large_product_are_those_of_its_blocks(tpu):
  """bf16 [4096, 8192] x [8192, 4096]: at least its FLOPs over the peak."""
  machine, sizes = MACHINES[tpu], (4096, 8192, 4096)
  loops = loops_of(product(*sizes, element_type='BF16'), machine)
  tiles = candidates.candidates(loops, 2000).tiles
  tile_ns = explain.Explainer(loops).terms(tiles).time.min()
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
    explainer = explain.Explainer(*geometry.loops_of([kernel]))
    legal = candidates.candidates(explainer.loops)
    listed += len(np.unique(kernel.config_feat, axis=0))
    more = legal.with_extra(explainer.tiles(kernel.config_feat))
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
