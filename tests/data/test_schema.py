"""Names, positions and numbers that the stored files fix."""

from tpu_graphs_ext.data import schema


def test_columns_are_where_the_data_set_documents_them():
  documented = {
      'is_root': 0, 'shape_element_type_is_invalid_type': 2,
      'shape_element_type_is_bf16': 15, 'shape_dimensions_0': 21,
      'shape_dimensions_product': 28, 'parameter_number': 30,
      'window_window_reversal_true_count': 91,
      'convolution_dim_numbers_kernel_spatial_dims_3': 104,
      'layout_minor_to_major_5': 139}
  assert {name: schema.NODE_COLUMN[name] for name in documented} == documented
  assert schema.CONFIG_FEATURES.index('output_bounds_0') == 8
  assert schema.CONFIG_FEATURES.index('input_bounds_product') == 23
  assert schema.LAYOUT_CONFIG_GROUPS['kernel_layout'].start == 12
  for names, width in ((schema.NODE_FEATURES, 140),
                       (schema.CONFIG_FEATURES, 24),
                       (schema.LAYOUT_CONFIG_FEATURES, 18)):
    assert len(names) == len(set(names)) == width


def test_opcodes():
  documented = {'abs': 1, 'convolution': 26, 'parameter': 63, 'tan': 120,
                # Two names that XLA has dropped keep their numbers.
                'trace': 97, 'tuple-select': 101}
  assert {name: schema.OPCODES[name] for name in documented} == documented
  assert schema.UNKNOWN_OPCODE not in schema.OPCODE_NAMES
  assert schema.NUM_OPCODES == 121
