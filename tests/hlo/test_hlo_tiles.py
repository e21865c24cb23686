"""Tile grids, candidates and config columns, by hand and on real kernels."""

import numpy as np
import pytest

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, protos, tiles


def add(computation, number, opcode, dims, layout=None, operands=(),
        element_type='F32', **fields):
  """Adds an instruction; `layout` is most minor first, row-major if None."""
  node = computation.instructions.add(
      id=number, name=f'{opcode}.{number}', opcode=opcode,
      operand_ids=operands, **fields)
  node.shape.element_type = protos.PrimitiveType.Value(element_type)
  node.shape.dimensions.extend(dims)
  layout = range(len(dims))[::-1] if layout is None else layout
  node.shape.layout.minor_to_major.extend(layout)
  return node


def elementwise(dims, layout=None, element_type='F32', opcode='tanh'):
  """entry: tanh(parameter)."""
  module = protos.HloModuleProto(name='elementwise', entry_computation_id=1)
  entry = module.computations.add(id=1, root_id=11)
  add(entry, 10, 'parameter', dims, layout, element_type=element_type)
  add(entry, 11, opcode, dims, layout, [10], element_type)
  return module


def convolution():
  """entry: fusion calls convert(convolution(x, w) + bias).

  x f32 [32, 10, 10, 256], w bf16 [3, 3, 256, 384], stride 2 and no padding,
  so the output is [32, 4, 4, 384]: (10 - 3) / 2 + 1 = 4.
  """
  module = protos.HloModuleProto(name='conv', entry_computation_id=2)
  body = module.computations.add(id=1, root_id=15)
  add(body, 10, 'parameter', [384], parameter_number=0)
  add(body, 11, 'parameter', [32, 10, 10, 256], [3, 0, 2, 1],
      parameter_number=1)
  add(body, 12, 'parameter', [3, 3, 256, 384], element_type='BF16',
      parameter_number=2)
  product = add(body, 13, 'convolution', [32, 4, 4, 384], [3, 0, 2, 1],
                [11, 12])
  for _ in range(2):
    product.window.dimensions.add(size=3, stride=2, window_dilation=1,
                                  base_dilation=1)
  numbers = product.convolution_dimension_numbers
  numbers.input_batch_dimension, numbers.input_feature_dimension = 0, 3
  numbers.input_spatial_dimensions.extend([1, 2])
  numbers.kernel_input_feature_dimension = 2
  numbers.kernel_output_feature_dimension = 3
  numbers.kernel_spatial_dimensions.extend([0, 1])
  numbers.output_batch_dimension, numbers.output_feature_dimension = 0, 3
  numbers.output_spatial_dimensions.extend([1, 2])
  add(body, 14, 'broadcast', [32, 4, 4, 384], [3, 0, 2, 1], [10])
  add(body, 15, 'add', [32, 4, 4, 384], [3, 0, 2, 1], [13, 14])
  entry = module.computations.add(id=2, root_id=23)
  add(entry, 20, 'parameter', [384])
  add(entry, 21, 'parameter', [32, 10, 10, 256], [3, 0, 2, 1])
  add(entry, 22, 'parameter', [3, 3, 256, 384], element_type='BF16')
  add(entry, 23, 'fusion', [32, 4, 4, 384], [3, 0, 2, 1], [20, 21, 22],
      called_computation_ids=[1])
  return module


# ---------------------------------------------------------------- grid


@pytest.mark.parametrize('dims, layout, element_type, units', [
    # Most major first: dim 1 in rows of 8, dim 0 in lanes of 128.
    ([4096, 1000], [0, 1], 'F32', (125, 32)),
    ([4096, 1000], [1, 0], 'F32', (512, 8)),  # 1000 / 128 = 7.8
    ([32, 26, 26, 192], [3, 0, 2, 1], 'F32', (26, 26, 4, 2)),
    ([32, 4096], [1, 0], 'PRED', (4, 32)),  # Rows of 8 for small types too.
    ([32, 4096], [1, 0], 'BF16', (4, 32)),
    ([4097], [0], 'F32', (5,)),  # Rank 1: 1024 elements.
    ([3, 5], [1, 0], 'F32', (1, 1)),
    ([3, 5], [], 'F32', (1, 1)),  # No layout.
])
def test_units(dims, layout, element_type, units):
  grid = tiles.tile_grid(elementwise(dims, layout, element_type))
  assert grid.output_units == units
  assert grid.kernel_units == ()


def test_reshape_and_scalar_have_no_bounds():
  for module in (elementwise([32, 6400], opcode='reshape'), elementwise([])):
    grid = tiles.tile_grid(module)
    assert grid.output is None
    assert tiles.candidate_tiles(grid).shape == (1, 0)


def test_reduce_is_tiled_over_its_operand():
  module = elementwise([32, 1000])
  entry = module.computations[0]
  add(entry, 12, 'reduce', [32], operands=[11, 11])
  entry.root_id = 12
  assert tiles.tile_grid(module).output_units == (4, 8)


def test_largest_part_of_a_tuple_is_tiled():
  module = elementwise([32, 1000])
  entry = module.computations[0]
  add(entry, 12, 'copy', [16], operands=[10])
  add(entry, 13, 'tuple', [], operands=[12, 11])
  entry.root_id = 13
  assert tiles.tile_grid(module).output_units == (4, 8)


def test_convolution_grids_and_roles():
  grid = tiles.tile_grid(convolution())
  # Output: 4, 4, 32 / 8, 384 / 128.  Kernel: 3, 3, 256 / 8, 384 / 128.
  assert grid.output_units == (4, 4, 4, 3)
  assert grid.kernel_units == (3, 3, 32, 3)
  assert [(s.role, s.element_bytes, s.written) for s in grid.streams] == [
      ('other', 4, False), ('input', 4, False), ('kernel', 2, False),
      ('other', 4, True)]


def test_dot_counts_as_a_convolution():
  module = elementwise([64, 256])
  entry = module.computations[0]
  add(entry, 12, 'parameter', [256, 512], parameter_number=1)
  dot = add(entry, 13, 'dot', [64, 512], operands=[11, 12])
  dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
  dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
  entry.root_id = 13
  grid = tiles.tile_grid(module)
  assert grid.output_units == (8, 4)
  assert grid.kernel_units == (32, 4)
  # A kernel tile [16, 1] holds 128 of 256 summands, so an output tile [2, 1]
  # of 16 rows reads 16 x 128 inputs (2048 elements); kernel 128 x 128
  # (16384), output 16 x 128 (2048). Twice 4 B each, and 4 B sums:
  # 8 * (2048 + 16384 + 2048) + 4 * 2048 = 172032.
  assert grid.footprint_bytes(np.array([[16, 1, 2, 1]])) == [172032]


def test_footprint_of_a_convolution():
  grid = tiles.tile_grid(convolution())
  # Bounds: kernel [3, 1, 16, 1], output [2, 4, 1, 3].
  # Output tile 2 * 4 * 8 * 384 = 24576 elements: 8 B in flight, 4 B of sums.
  # Kernel tile 3 * 1 * 128 * 128 = 49152 elements of 2 B: 4 B in flight.
  # Input: rows (2 - 1) * 2 + 3 = 5, columns (4 - 1) * 2 + 1 = 7, batch 8,
  # features 128: 35840 elements, 8 B in flight.
  # Bias: 384 elements, held as one layout tile of 1024, 8 B in flight.
  expected = 24576 * 12 + 49152 * 4 + 35840 * 8 + 1024 * 8
  got = grid.footprint_bytes(np.array([[3, 1, 16, 1, 2, 4, 1, 3]]))
  assert got == [expected]


def test_serialized_bytes_are_accepted():
  grid = tiles.tile_grid(convolution().SerializeToString())
  assert grid.output_units == (4, 4, 4, 3)


@pytest.mark.parametrize('damage', [
    lambda module: setattr(module, 'entry_computation_id', 77),
    lambda module: setattr(module.computations[1], 'root_id', 77),
    lambda module: module.computations[1].instructions[3]
    .called_computation_ids.append(77),
    lambda module: module.computations[0].instructions[3]
    .operand_ids.pop(),
])
def test_damaged_module(damage):
  module = convolution()
  damage(module)
  with pytest.raises(UserError, match="'conv' has no tile grid"):
    tiles.tile_grid(module)


def test_fusion_that_calls_itself_ends():
  module = elementwise([32, 1000], opcode='fusion')
  module.computations[0].instructions[1].called_computation_ids.append(1)
  assert tiles.tile_grid(module).output_units == (4, 8)


# ---------------------------------------------------------- candidates


def test_bound_candidates():
  assert tiles.bound_candidates(26) == [26, 13, 9, 7, 6, 5, 4, 3, 2, 1]
  assert tiles.bound_candidates(1) == [1]
  # 125 / n = 125, 62.5, 41.7, 31.3, ... in multiples of 16.
  assert tiles.bound_candidates(125, 16) == [125, 64, 48, 32, 16]
  assert tiles.bound_candidates(24, 16) == [24, 16]
  assert tiles.bound_candidates(4, 16) == [4, 2, 1]  # Less than one step.


def test_bound_candidates_are_all_of_the_formula():
  for units in range(1, 300):
    every = {-(-units // n) for n in range(1, units + 1)}
    assert set(tiles.bound_candidates(units)) == every


def test_candidates_are_the_product_largest_first():
  grid = tiles.tile_grid(elementwise([16, 384]))  # Units (2, 3).
  assert tiles.candidate_tiles(grid).tolist() == [
      [2, 3], [2, 2], [2, 1], [1, 3], [1, 2], [1, 1]]


def test_candidates_fit_memory():
  grid = tiles.tile_grid(elementwise([16, 384]))
  # In and out, both twice, 4 B: 16 B * 1024 an output unit; 4 units = 64 KiB.
  got = tiles.candidate_tiles(grid, memory_bytes=4 * 16 * 1024)
  assert got.tolist() == [[2, 2], [2, 1], [1, 3], [1, 2], [1, 1]]
  assert tiles.candidate_tiles(grid, memory_bytes=100).shape == (0, 2)


def test_limit_draws_without_doubles_and_by_seed():
  grid = tiles.tile_grid(elementwise([256, 64, 4096]))
  first = tiles.candidate_tiles(grid, limit=50, seed=1)
  assert len(np.unique(first, axis=0)) == 50
  np.testing.assert_array_equal(
      first, tiles.candidate_tiles(grid, limit=50, seed=1))
  other = tiles.candidate_tiles(grid, limit=50, seed=2)
  assert not np.array_equal(first, other)


def test_very_many_combinations_are_sampled():
  # 400 units have 39 candidates, 1024 have 63: 39^3 * 63 = 3.7 million.
  grid = tiles.tile_grid(elementwise([400, 400, 3200, 131072]))
  got = tiles.candidate_tiles(grid, memory_bytes=2**62)
  assert len(np.unique(got, axis=0)) == len(got)
  assert 0.9 * tiles.MAX_LISTED < len(got) <= tiles.MAX_LISTED


# ------------------------------------------------------------ features


def test_config_features_of_one():
  row = features.config_features([4, 1], [16, 32])
  assert row.dtype == np.float32
  assert row.tolist() == [
      4, 1, 0, 0, 0, 0, 5, 4,
      16, 32, 0, 0, 0, 0, 48, 512,
      0, 0, 0, 0, 0, 0, 0, 0]  # No bounds: the product is 0, not 1.


def test_config_features_of_many():
  rows = features.config_features(np.zeros((2, 0)), [[2, 3], [5, 7]])
  assert rows.shape == (2, 24)
  output = rows[:, schema.CONFIG_GROUPS['output_bounds']]
  assert output.tolist() == [[2, 3, 0, 0, 0, 0, 5, 6],
                             [5, 7, 0, 0, 0, 0, 12, 35]]
  assert not rows[:, schema.CONFIG_GROUPS['kernel_bounds']].any()


def test_totals_count_bounds_without_a_column():
  row = features.config_features([], [1, 2, 3, 4, 5, 6, 7])
  # 1 + ... + 7 = 28; 7! = 5040.
  assert row[schema.CONFIG_GROUPS['output_bounds']].tolist() == [
      1, 2, 3, 4, 5, 6, 28, 5040]


# -------------------------------------------------------- real kernels


@pytest.fixture(scope='module')
def real_kernels(shared_data):
  data = protos.TuningData.FromString(
      (shared_data / 'op_tuning_data.pb').read_bytes())
  return {entry.module.name: entry for entry in data.modules}


def bounds_of(entry):
  configs = [run.op_config.tile_size_config for run in entry.runs]
  return np.array([[*c.kernel_bounds, *c.output_bounds] for c in configs],
                  np.int64)


def test_every_measured_tile_is_a_candidate(real_kernels):
  assert len(real_kernels) == 15
  for name, entry in real_kernels.items():
    grid = tiles.tile_grid(entry.module)
    choices = [tiles.bound_candidates(units, step)
               for tensor in (grid.kernel, grid.output) if tensor
               for units, step in zip(tensor.units, tensor.step)]
    measured = bounds_of(entry)
    assert measured.shape[1] == len(choices), name
    for column, choice in zip(measured.T, choices):
      assert set(column) <= set(choice), name


def test_every_measured_tile_fits_memory(real_kernels):
  for name, entry in real_kernels.items():
    footprint = tiles.tile_grid(entry.module).footprint_bytes(bounds_of(entry))
    assert footprint.max() <= tiles.ON_CHIP_BYTES, name


def test_grids_of_real_kernels(real_kernels):
  expected = {
      'fusion.232': ((), (26, 26, 4, 2)),
      'fusion.191': ((3, 3, 24, 3), (12, 12, 4, 3)),
      'fusion.261': ((4, 8), (125, 32)),
      'copy.24': ((), (32, 5, 1, 2)),
      'copy.25': ((), (5, 5, 4, 2)),
      'fusion.250': ((), (4,)),
      'reshape.37': ((), ()),
  }
  for name, units in expected.items():
    grid = tiles.tile_grid(real_kernels[name].module)
    assert (grid.kernel_units, grid.output_units) == units
