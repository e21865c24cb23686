"""What models.py repeats of the package, because it imports nothing of it."""

import dataclasses

from tpu_graphs_ext import load_models
from tpu_graphs_ext.analytic import geometry
from tpu_graphs_ext.analytic.machines import MACHINES
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import tiles

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
          models._REDUCE, models._REDUCE_WINDOW, models._SLICE,
          models._DYNAMIC_SLICE, models._DYNAMIC_UPDATE_SLICE,
          models._TRANSPOSE, models._TUPLE) == tuple(numbers[name] for name in (
              'convolution', 'dot', 'fusion', 'parameter', 'reduce',
              'reduce-window', 'slice', 'dynamic-slice',
              'dynamic-update-slice', 'transpose', 'tuple'))
  assert [models._KINDS[kind] for kind in (
      geometry.INPUT, geometry.OUTPUT)] == ['input', 'output']


def test_opcodes_without_vector_instructions():
  names = {number: name for name, number in schema.OPCODES.items()}
  assert {names[n] for n in models._FREE_OPCODES} == {
      'parameter', 'constant', 'bitcast', 'tuple', 'fusion', 'iota', 'dot',
      'get-tuple-element', 'convolution', 'reshape', 'broadcast'}


def test_elements_have_as_many_bytes():
  assert models._ELEMENT_BYTES == tuple(
      tiles.element_bytes(name) for name in schema.ELEMENT_TYPES)


def test_the_machine_is_the_one_of_the_analytic_model():
  preset = models._MACHINES[0]._asdict()
  assert not preset.pop('in_elements')
  assert preset.pop('lanes') == preset.pop('matrix_side') == tiles.LANES
  assert preset.pop('sublanes') == tiles.SUBLANES
  assert preset.pop('cores') == 1
  assert preset == dataclasses.asdict(MACHINES['v3'].constants)
