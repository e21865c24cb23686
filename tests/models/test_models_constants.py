"""What models.py repeats of the package, because it imports nothing of it."""

import dataclasses

from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import feature_loops, hlo_loops, tpu
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import layout

models = load_models.models_module()


def test_columns_and_opcodes_are_those_of_the_files():
  columns = {
      'is_root': 'is_root',
      'element_type': 'shape_element_type_is_invalid_type',
      'shape': 'shape_dimensions_0', 'parameter_number': 'parameter_number',
      'dimensions': 'dimensions_0', 'window': 'window_size_0',
      'stride': 'window_stride_0',
      'window_dilation': 'window_window_dilation_0',
      'base_dilation': 'window_base_dilation_0',
      'convolution': 'convolution_dim_numbers_input_batch_dim',
      'feature_groups': 'feature_group_count',
      'batch_groups': 'batch_group_count',
      'minor_to_major': 'layout_minor_to_major_0'}
  assert {name: schema.NODE_COLUMN[column]
          for name, column in columns.items()} == {
              name: first for name, (first, _) in models._NODE_COLUMNS.items()}
  assert models._BOUNDS == tuple(
      schema.CONFIG_COLUMN[f'{of}_bounds_0'] for of in ('output', 'kernel'))
  assert tuple(models._TABLE_WIDTHS.values()) == (
      len(schema.NODE_FEATURES), len(schema.CONFIG_FEATURES))
  assert (models._DIMS, models._SPATIAL) == (
      schema.MAX_DIMS, schema.MAX_SPATIAL_DIMS)
  numbers = schema.OPCODES
  assert (models._CONVOLUTION, models._DOT, models._FUSION, models._PARAMETER,
          models._REDUCE, models._TUPLE) == tuple(numbers[name] for name in (
              'convolution', 'dot', 'fusion', 'parameter', 'reduce', 'tuple'))
  assert models._BOUNDS_PRODUCT == schema.CONFIG_COLUMN['output_bounds_product']
  assert models._SHAPE_PRODUCT == schema.NODE_COLUMN['shape_dimensions_product']


def test_vector_costs_are_the_exact_ones_in_three_steps():
  """models.py counts an opcode as 0, 1 or `_SLOW_COST` vector instructions.

  Nothing below half an instruction, slow from four on:

  | opcode | exact | models.py |
  | --- | --- | --- |
  | broadcast, iota | 0.25 | 0 |
  | slice, copy | 0.5 | 1 |
  | pad, concatenate | 1.5 | 1 |
  | rsqrt (4), divide and sqrt (5), ... power (18) | 4 to 18 | 8 |
  | reverse, the exception | 4 | 1 |
  """
  exact = {name: hlo_loops.VECTOR_COST.get(name, 1) for name in schema.OPCODES}
  ours = {}
  for name, number in schema.OPCODES.items():
    assert not (number in models._FREE_OPCODES
                and number in models._SLOW_OPCODES)
    ours[name] = (0 if number in models._FREE_OPCODES else
                  models._SLOW_COST if number in models._SLOW_OPCODES else 1)
    follows = 0 if exact[name] < 0.5 else 8 if exact[name] >= 4 else 1
    assert ours[name] == (1 if name == 'reverse' else follows), name
  assert {name: (exact[name], ours[name]) for name in schema.OPCODES
          if exact[name] != ours[name] and ours[name] != 8} == {
              'broadcast': (0.25, 0), 'iota': (0.25, 0), 'slice': (0.5, 1),
              'copy': (0.5, 1), 'pad': (1.5, 1), 'concatenate': (1.5, 1),
              'reverse': (4, 1)}
  assert set(hlo_loops.VECTOR_COST) <= set(schema.OPCODES)
  # The tests' own geometry counts as models.py does.
  assert ours == {name: feature_loops.coarse_cost(name)
                  for name in schema.OPCODES}


def test_elements_have_as_many_bytes():
  assert models._ELEMENT_BYTES == tuple(
      layout.element_bytes(name) for name in schema.ELEMENT_TYPES)


def test_the_machine_is_that_of_the_analytic_model():
  preset = models._PRESETS['tpu_v3']._asdict()
  assert preset.pop('lanes') == preset.pop('matrix_side') == layout.LANES
  assert preset.pop('sublanes') == layout.SUBLANES
  constants = dataclasses.asdict(tpu.TPU_V3_LIKE)
  assert preset == {name: constants.pop(name) for name in preset}
  assert set(constants) == {'memory_bytes'}  # Which tiles are legal.


def test_without_layout_tiles_an_element_costs_its_share_of_one():
  whole, single = models._PRESETS['tpu_v3'], models._PRESETS[None]
  assert (single.lanes, single.sublanes, single.matrix_side,
          single.matrix_min_rows) == (1, 1, 1, 1)
  assert single == whole._replace(
      lanes=1, sublanes=1, matrix_side=1, matrix_min_rows=1,
      matrix_row_ns=whole.matrix_row_ns / layout.LANES**2,
      vector_ns=whole.vector_ns / layout.RANK_1_UNIT)
