"""Legal tiles: by hand, and what real files list."""

import gzip
import json

import numpy as np
import pytest

from support.feature_tiles import loops_of
from support.tiny_hlo import add, convolution, elementwise, product
from tpu_graphs_ext.analytic import candidates, explain
from tpu_graphs_ext.analytic.tile_counts import Extent, Loops, Stream
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.hlo import protos, tpu_compiler, tuning
from tpu_graphs_ext.hlo.tiles import Axis, TileGrid

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.
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


def test_a_reshape_has_one_tile_though_it_does_not_fit():
  loops = loops_of(elementwise([2 ** 14, 2 ** 14], opcode='reshape'))
  assert candidates.candidates(loops).tiles.tolist() == [[2 ** 11, 2 ** 7]]


def test_an_update_in_place_loops_over_what_it_writes():
  """f32 [2, 32, 512] into [35, 32, 512]: 2, 32 / 8 and 512 / 128 units."""
  module = elementwise([35, 32, 512])
  entry = module.computations[0]
  add(entry, 12, 'parameter', [2, 32, 512], parameter_number=1)
  add(entry, 13, 'parameter', [], parameter_number=2)
  add(entry, 14, 'dynamic-update-slice', [35, 32, 512],
      operands=[11, 12, 13, 13, 13])
  entry.root_id = 14
  assert candidates.choices_of(loops_of(module)) == [
      [2, 1], [4, 2, 1], [4, 2, 1]]


def test_a_stream_with_one_block_needs_one(monkeypatch):
  """f32 [24, 256] in 3 x 2 layout tiles, read and written."""
  loops = loops_of(elementwise([24, 256]))
  needed = candidates.needed_bytes(loops, np.array([[3, 2], [3, 1], [1, 1]]))
  assert needed.tolist() == [2 * 6 * LAYOUT_TILE, 4 * 3 * LAYOUT_TILE,
                             4 * LAYOUT_TILE]
  monkeypatch.setattr(
      candidates, 'MEMORY_BYTES', 4 * LAYOUT_TILE / candidates.TOLERANCE)
  legal = candidates.candidates(loops)
  assert legal.tiles.tolist() == [[1, 1]]
  assert legal.fitting == 1 and legal.looked_at == 3 * 2


def test_sums_are_kept_in_a_result_that_is_wide_enough():
  """f32 [64, 256] x [256, 512], output tile 8 x 128.

  The image's tile is 8 x 256, the filter's 256 x 128, each again in 2 bytes an
  element as the matrix unit takes it.
  """
  loops = loops_of(product(64, 256, 512))
  one = np.array([[1, 1, 32]])
  # The image stays for 4 tiles of columns, but comes again: 2 blocks of it.
  blocks = 1.5 * (2 * 2 + 2 * 32) + 2 * 1
  assert candidates.needed_bytes(loops, one).tolist() == [blocks * LAYOUT_TILE]
  narrow = loops._replace(streams=tuple(
      s._replace(element_bytes=2) if s.kind == 'output' else s
      for s in loops.streams), matrix=loops.matrix._replace(sum_bytes=4.0))
  assert candidates.needed_bytes(narrow, one).tolist() == [
      (blocks - 2 + 1 + 1) * LAYOUT_TILE]


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
  assert (tiles[0] == [axis.units for axis in loops.grid.axes]).all()
  some, again = (candidates.candidates(loops, most=9) for _ in range(2))
  np.testing.assert_array_equal(some.tiles, again.tiles)
  assert len(some.tiles) == 9 and some.fitting > 9
  # Of too many combinations, only a part is looked at.
  monkeypatch.setattr(candidates, 'MOST_COMBINATIONS', 4000)
  monkeypatch.setattr(candidates, '_AT_ONCE', 1000)
  axes = (Axis(1000, 1),) * 3
  extents = tuple(Extent(1000, 1, number) for number in range(3))
  loops = Loops(TileGrid(axes, 3), (Stream('output', extents, 1.0),), 1.0)
  legal = candidates.candidates(loops)
  bounds = candidates.choices_of(loops)[0]
  assert legal.combinations == len(bounds) ** 3 > 200_000
  assert 3000 < legal.looked_at <= 4000
  # From all over: the first loop's bounds fall to one of its last choices.
  assert legal.tiles[-1, 0] in bounds[-len(bounds) // 10:]


def test_the_tiles_of_real_files_are_listed(shared_data):
  """All of them; the rules were read off these files."""
  kernels = tuning.read_tile_kernels(str(shared_data / 'op_tuning_data.pb'))
  kernels += [Kernel.load(str(file)) for file in sorted(
      (shared_data / 'real_more').glob('*/*.npz'))]
  for kernel in kernels:
    explainer = explain.Explainer(kernel)
    if not explainer.loops.grid.bounded:
      continue
    legal = candidates.candidates(explainer.loops)
    more = legal.with_extra(explainer.tiles(kernel.config_feat))
    assert len(more.tiles) == len(legal.tiles), kernel.tile_id


def compiled_kernels(folder, name):
  """(module, its default tile, all its tiles), of a compiled program."""
  listed = json.loads(gzip.decompress(
      (folder / f'{name}_candidates.json.gz').read_bytes()))
  whole = protos.as_module((folder / f'{name}.pb').read_bytes())
  for kernel in tpu_compiler.kernels_of(whole).kernels:
    module = kernel.module
    if module.name in listed:
      found = listed[module.name]
      yield module, found['default'], [
          tile[:2] for tile in found['tiles'] if tile[2] < MOST_CYCLES]


@pytest.mark.parametrize('name', ['transformer', 'resnet'])
def test_the_tiles_that_the_compiler_weighs_are_listed(name, shared_data):
  """Nearly all of them, little else, and its choice always.

  Of kernels without a product it also weighs tiles that do not fit.
  """
  shares = {True: [], False: []}
  for module, default, weighed in compiled_kernels(
      shared_data / 'compiled_v3', name):
    loops = loops_of(module)
    if len(default[1]) != len(loops.grid.kernel_axes):
      continue  # A pooling's window has bounds too, which are not known.
    legal = candidates.candidates(loops)
    theirs, (chosen,) = (
        loops.grid.tiles(*(np.array(bounds).reshape(len(tiles), -1)
                           for bounds in zip(*tiles)))
        for tiles in (weighed, [default]))
    assert (legal.tiles == chosen).all(1).any(), module.name
    more = len(legal.with_extra(theirs).tiles) - len(legal.tiles)
    common = len(np.unique(theirs, axis=0)) - more
    shares[loops.matrix is not None].append(
        (common / (common + more), common / len(legal.tiles)))
  for of_kind in shares.values():
    recall, precision = np.mean(of_kind, axis=0)
    assert len(of_kind) > 15 and recall >= 0.99 and precision >= 0.95
