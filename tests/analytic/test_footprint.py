"""On-chip memory of tiles: by hand, and what was measured on a real TPU."""

import dataclasses
import functools
import math

import numpy as np
import pytest

from support.tiny_hlo import convolution, elementwise, product
from tpu_graphs_ext.analytic import hlo_loops, tpu
from tpu_graphs_ext.hlo import protos, tiles

LAYOUT_TILE = 8 * 128 * 4  # Bytes, of float32.


def occupied(module, output_bounds, kernel_bounds=((),)):
  loops = hlo_loops.kernel_loops(module)
  return tpu.occupied_bytes(loops, loops.grid.tiles(
      output_bounds, np.array(kernel_bounds))).tolist()


# --- By hand -----------------------------------------------------------------


def test_two_blocks_of_a_stream_that_changes_must_fit():
  copy = elementwise([24, 256], opcode='copy')
  # Two streams: of a block of 6 layout tiles there is no next one, of 3 and of
  # 2 there is.
  bounds = [[3, 2], [3, 1], [1, 2]]
  assert occupied(copy, bounds) == [
      2 * 6 * LAYOUT_TILE, 4 * 3 * LAYOUT_TILE, 4 * 2 * LAYOUT_TILE]
  loops = hlo_loops.kernel_loops(copy)
  tight = dataclasses.replace(tpu.TPU_V3_LIKE, memory_bytes=11 * LAYOUT_TILE)
  assert tpu.fits(loops, np.array(bounds), tight).tolist() == [
      False, False, True]


@pytest.mark.parametrize('element_type, output, sums', [
    ('F32', 2, 0), ('BF16', 1, 2)])
def test_a_product_keeps_operands_and_sums_too(element_type, output, sums):
  """f32 [64, 256] x [256, 512].

  A filter tile [16, 1] holds 128 of 256 summands, so an output tile [2, 1] of
  16 rows reads 16 x 128 of the image: 2 layout tiles. Filter 128 x 128 (16).
  Two blocks of each, and both operands once more. Sums of 16 x 128 have room in
  a result of float32.
  """
  module = product(64, 256, 512)
  module.computations[0].instructions[2].shape.element_type = (
      protos.PrimitiveType.Value(element_type))
  assert occupied(module, [[2, 1]], [[16, 1]]) == [
      (2 * (2 + 16 + output) + 2 + 16 + sums) * LAYOUT_TILE]


def test_what_does_not_change_has_one_block():
  """All rows of the same product: the filter's next block is its first."""
  assert occupied(product(64, 256, 512), [[2, 4]], [[32, 4]]) == [
      (2 * (2 * 2 + 2 * 4) + 32 * 4 + 2 * 2 + 32 * 4) * LAYOUT_TILE]


def test_a_convolution():
  """Output tile [2, 4, 1, 1], filter tile [3, 1, 16, 1] of bf16; stride 2.

  Output: 2 * 4 = 8 layout tiles.
  Filter: 3 * 1 * 16 layout tiles of half the bytes.
  Image: 2 outputs at stride 2 and the window's other 2 rows are 5 rows, 4
  outputs of one tap 7 columns; batch 8 and 128 features.
  Bias: a layout tile, though it has 128 elements. Operands again in float32.
  """
  assert occupied(convolution(), [[2, 4, 1, 1]], [[3, 1, 16, 1]]) == [
      (2 * (8 + 3 * 16 / 2 + 5 * 7 + 1) + 3 * 16 + 5 * 7) * LAYOUT_TILE]


# --- Real kernels ------------------------------------------------------------


@pytest.fixture(scope='module')
def real_kernels(shared_data):
  """Name -> (loops, tiles) of the 12 with bounds, failed runs included."""
  data = protos.TuningData.FromString(
      (shared_data / 'op_tuning_data.pb').read_bytes())
  found = {}
  for entry in data.modules:
    loops = hlo_loops.kernel_loops(entry.module)
    configs = [run.op_config.tile_size_config for run in entry.runs]
    if loops.grid.bounded:
      found[entry.module.name] = loops, loops.grid.tiles(
          np.array([list(config.output_bounds) for config in configs]),
          np.array([list(config.kernel_bounds) for config in configs]))
  assert len(found) == 12
  return found


def test_all_measured_tiles_fit(real_kernels):
  """One would not, if what never changes had a second block.

  f32 [26, 26, 32, 192] in tiles [9, 26, 4, 2], with an operand [26, 32, 192]
  that every tile reads whole: 9 * 26 * 4 * 2 = 1872 and 26 * 4 * 2 = 208
  layout tiles, and one of 192 sums. Two blocks of each were 16.3 of 16 MiB, but
  neither the operand nor the sums change.
  """
  largest = {}
  for name, (loops, measured) in real_kernels.items():
    assert tpu.fits(loops, measured, tpu.TPU_V3_LIKE).all()
    largest[name] = round(
        tpu.occupied_bytes(loops, measured).max() / 2**20, 2)
  assert sum(len(measured) for _, measured in real_kernels.values()) == 747
  assert largest == {
      'fusion.232': 15.44, 'fusion.191': 15.57, 'fusion.261': 13.03,
      'fusion.209': 13.5, 'fusion.205': 12.29, 'fusion.245': 2.44,
      'copy.24': 1.02, 'copy.25': 2.06, 'fusion.181': 0.12,
      'fusion.207': 0.16, 'fusion.206': 0.13, 'fusion.250': 0.05}


def test_a_tenth_of_what_fits_was_measured(real_kernels):
  """The tuner took a tenth of its candidates, rounded up, and the default.

  So the number of runs says how many candidates fit on the real machine. It
  is that of this estimate in all twelve kernels, of which five have some that
  do not fit.
  """
  fitting, off = {}, {}
  for name, (loops, measured) in real_kernels.items():
    candidates = tiles.candidate_tiles(
        loops.grid,
        functools.partial(tpu.fits, loops, constants=tpu.TPU_V3_LIKE))
    combinations = math.prod(len(choice) for choice in loops.grid.choices())
    fitting[name] = len(candidates), combinations
    off[name] = math.ceil(len(candidates) / 10) + 1 - len(measured)
  assert {name: counts for name, counts in fitting.items()
          if counts[0] < counts[1]} == {
              'fusion.232': (595, 600), 'fusion.191': (5794, 5832),
              'fusion.261': (142, 165), 'fusion.209': (150, 165),
              'fusion.205': (150, 165)}
  assert not any(off.values())
