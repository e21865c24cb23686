"""What tiles need of on-chip memory: by hand, and by the compiler's log."""

import dataclasses
import json

import numpy as np
import pytest

from support.feature_tiles import kernel_of_module, kernel_of_nodes, loops_of
from support.tiny_hlo import add, elementwise, pooling, product, with_softmax
from tpu_graphs_ext.analytic import candidates, geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.hlo import protos

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.


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


def of_a_cache(element_type):
  """bf16 [4, 16, 8, 256] x a cache [4, 256, 16, 128]: 4 x 16 products, of
  [8, 256] and [256, 128], of which 16 are the cache's rows; it is copied."""
  module = protos.HloModuleProto(name='cache', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=13)
  add(entry, 10, 'parameter', (4, 16, 8, 256), element_type='BF16')
  add(entry, 11, 'parameter', (4, 256, 16, 128), element_type=element_type,
      parameter_number=1)
  add(entry, 12, 'copy', (4, 256, 16, 128), (3, 1, 2, 0), [11],
      element_type=element_type)
  add(entry, 13, 'convolution', (4, 16, 8, 128), element_type='BF16',
      operands=[10, 12], window={'dimensions': [
          {'size': size, 'stride': size - 1, 'base_dilation': size,
           'window_dilation': 1} for size in (4, 16)]},
      convolution_dimension_numbers={
          'input_spatial_dimensions': [0, 1], 'input_batch_dimension': 2,
          'input_feature_dimension': 3, 'kernel_spatial_dimensions': [0, 2],
          'kernel_input_feature_dimension': 1,
          'kernel_output_feature_dimension': 3,
          'output_spatial_dimensions': [0, 1], 'output_batch_dimension': 2,
          'output_feature_dimension': 3})
  return module


@pytest.mark.parametrize('heads, blocks', [
    (1, 1), (2, 2), (6, 2), (8, 1), (16, 2)])
@pytest.mark.parametrize('tpu, element_type, size, copied', [
    ('v6e', 'BF16', 2, 2), ('v6e', 'S8', 1, 4), ('v7x', 'S8', 1, 4),
    ('v7x', 'F8E4M3FN', 1, 2)])
def test_each_product_of_a_cache_has_a_copy_of_its_own(
    tpu, element_type, size, copied, heads, blocks):
  """By the log of libtpu 0.0.50.1, of decoding with a cache of keys, values.

  `heads` of 16 are rows of the cache in main memory: those of 2 layout tiles,
  unless one tile has them, and in the copy they are not.
  """
  module = of_a_cache(element_type)
  needed = needs(module, ([1, heads, 1, 1], [1, heads, 32, 1]), tpu)
  image = heads * 8 * 256 * 2 * (2.25 if tpu == 'v7x' else 3)
  result = heads * 8 * 128 * (2 * 2 + 4)
  summands = 256 * heads * 128
  cache = 2 * size * blocks * 256 * 8 * 128 + copied * summands
  # Elements of 1 byte are 4 on the way to bfloat16, in two blocks.
  widest = 8 * summands * (element_type == 'S8')
  assert 1024 * needed == max(image + result + cache, widest)


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
