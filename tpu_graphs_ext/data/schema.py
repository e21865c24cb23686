"""Every stored field, every feature column and every opcode, in one place.

The other modules take names, positions and widths from here and write no
column number of their own. The arrays are those of the TpuGraphs collections:
https://github.com/google-research-datasets/tpu_graphs
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

SPLITS = ('train', 'valid', 'test')
# Kernels of the published tile:xla collection.
PUBLISHED_KERNELS = {'train': 5709, 'valid': 676, 'test': 844}
# The file by which `tpu-graphs-ext sample-data` marks its data root.
SAMPLE_DATA_MARK = 'sample_data.json'
DEFAULT_TPU = 'v3'  # What the data set was timed on.


class Field(NamedTuple):
  """One array of an .npz file; docs/data.md says what is in it."""
  name: str  # Key in the file.
  dtype: str  # NumPy's name of the type as stored.
  # An entry an axis: a name for a size that differs between files (equal names
  # are equal sizes within a file), a number for a fixed one.
  axes: tuple


def _numbered(name: str, count: int, *totals: str) -> list[str]:
  """name_0 .. name_<count - 1>, then name_<total> for each total."""
  return [f'{name}_{suffix}' for suffix in (*range(count), *totals)]


MAX_DIMS = 6  # Dimensions that have a column of their own, in most groups.
MAX_SPATIAL_DIMS = 4  # The same for the spatial dimensions of a convolution.
MAX_SLICE_DIMS = 2  # The same for slice, dynamic slice and padding.

# XLA's names of the element types, in the order of the one-hot columns, which
# is not the order of XLA's own numbers. Other types leave all columns at 0.
ELEMENT_TYPES = (
    'PRIMITIVE_TYPE_INVALID', 'PRED', 'S8', 'S16', 'S32', 'S64', 'U8', 'U16',
    'U32', 'U64', 'F16', 'F32', 'F64', 'BF16', 'C64', 'C128', 'TUPLE',
    'OPAQUE_TYPE', 'TOKEN')

# Group -> the names of its columns. The order of the groups is the file's.
_NODE_GROUPS = {
    'is_root': ['is_root'],
    'element_size_in_bits': ['element_size_in_bits'],
    'shape_element_type': [
        'shape_element_type_is_'
        + name.lower().replace('primitive_type_invalid', 'invalid_type')
        for name in ELEMENT_TYPES],
    'shape_dimensions': _numbered('shape_dimensions', MAX_DIMS, 'sum',
                                  'product'),
    'shape_tuple_shapes_size': ['shape_tuple_shapes_size'],
    'parameter_number': ['parameter_number'],
    'dimensions': _numbered('dimensions', MAX_DIMS),
    **{f'window_{part}': _numbered(f'window_{part}', MAX_DIMS, *totals)
       for part, totals in {
           'size': ('sum', 'product'),
           'stride': ('sum', 'product'),
           'padding_low': ('sum', 'product'),
           'padding_high': ('sum', 'product'),
           'window_dilation': ('sum', 'product'),
           'base_dilation': ('sum', 'product'),
           'window_reversal': ('true_count', 'false_count'),
       }.items()},
    'convolution_dim_numbers': [f'convolution_dim_numbers_{name}' for name in (
        'input_batch_dim', 'input_feature_dim',
        *_numbered('input_spatial_dims', MAX_SPATIAL_DIMS),
        'kernel_input_feature_dim', 'kernel_output_feature_dim',
        *_numbered('kernel_spatial_dims', MAX_SPATIAL_DIMS),
        'output_batch_dim', 'output_feature_dim')],
    'feature_group_count': ['feature_group_count'],
    'batch_group_count': ['batch_group_count'],
    **{name: _numbered(name, MAX_SLICE_DIMS, 'sum', 'product')
       for name in (
           'slice_dims_start', 'slice_dims_stride', 'slice_dims_limit',
           'dynamic_slice_sizes', 'padding_config_edge_padding_low',
           'padding_config_edge_padding_high')},
    'is_stable': ['is_stable'],
    'layout_minor_to_major': _numbered('layout_minor_to_major', MAX_DIMS),
}

_CONFIG_GROUPS = {
    name: _numbered(name, MAX_DIMS, 'sum', 'product')
    for name in ('kernel_bounds', 'output_bounds', 'input_bounds')}
_LAYOUT_CONFIG_GROUPS = {
    name: _numbered(name, MAX_DIMS)
    for name in ('output_layout', 'input_layout', 'kernel_layout')}


def _slices(groups: dict[str, list[str]]) -> dict[str, slice]:
  """Group -> slice of its columns."""
  ends = itertools.accumulate(map(len, groups.values()))
  return {group: slice(end - len(groups[group]), end)
          for group, end in zip(groups, ends)}


def _columns(groups: dict[str, list[str]]) -> tuple[str, ...]:
  return tuple(itertools.chain.from_iterable(groups.values()))


# Columns of `node_feat`. `_<i>` is dimension i, 0 where there is none; `_sum`
# and `_product` are over all dimensions, also those without a column. Over
# no dimensions the sum is 0 and the product 1.
NODE_FEATURES = _columns(_NODE_GROUPS)
NODE_COLUMN = {name: i for i, name in enumerate(NODE_FEATURES)}
NODE_GROUPS = _slices(_NODE_GROUPS)

# Columns of `config_feat`: tile sizes, most major physical dimension first, in
# layout tiles (see hlo/tiles.py). Over no dimensions the product is 0.
CONFIG_FEATURES = _columns(_CONFIG_GROUPS)
CONFIG_GROUPS = _slices(_CONFIG_GROUPS)

# Columns of `node_config_feat`: dimension numbers, most minor first; -1 where
# there is none. A layout of -1 only leaves the choice to the compiler.
LAYOUT_CONFIG_FEATURES = _columns(_LAYOUT_CONFIG_GROUPS)
LAYOUT_CONFIG_GROUPS = _slices(_LAYOUT_CONFIG_GROUPS)
LAYOUT_PADDING = -1

_GRAPH_FIELDS = (
    Field('node_feat', 'float32', ('nodes', len(NODE_FEATURES))),
    Field('node_opcode', 'uint8', ('nodes',)),
    # Rows (consumer, producer); operands come before their consumers.
    Field('edge_index', 'int64', ('edges', 2)),
)

TILE_FIELDS = _GRAPH_FIELDS + (
    Field('config_feat', 'float32', ('configs', len(CONFIG_FEATURES))),
    Field('config_runtime', 'int64', ('configs',)),  # ns; 0: withheld.
    # ns, of the default tile on the same machine; 1: withheld.
    Field('config_runtime_normalizers', 'int64', ('configs',)),
)

LAYOUT_FIELDS = _GRAPH_FIELDS + (
    Field('node_config_feat', 'float32', (
        'configs', 'configurable nodes', len(LAYOUT_CONFIG_FEATURES))),
    Field('node_config_ids', 'int64', ('configurable nodes',)),
    Field('config_runtime', 'int64', ('configs',)),
    # Node numbers that bound the main computations, from 0 to all nodes.
    Field('node_splits', 'int64', (1, 'splits')),
)

# In order of the stored number, from 1; 0 is an opcode that is not listed.
# The numbers are fixed by the published files: append, never insert.
_OPCODES_IN_ORDER = '''
abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad
batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast
call ceil cholesky clamp collective-permute count-leading-zeros compare
complex concatenate conditional constant convert convolution copy copy-done
copy-start cosine custom-call divide domain dot dynamic-slice
dynamic-update-slice exponential exponential-minus-one fft floor fusion gather
get-dimension-size set-dimension-size get-tuple-element imag infeed iota
is-finite log log-plus-one and not or xor map maximum minimum multiply negate
outfeed pad parameter partition-id popcnt power real recv recv-done reduce
reduce-precision reduce-window remainder replica-id reshape reverse rng
rng-get-and-update-state rng-bit-generator round-nearest-afz rsqrt scatter
select select-and-scatter send send-done shift-left shift-right-arithmetic
shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose
triangular-solve tuple tuple-select while cbrt all-gather
collective-permute-start collective-permute-done logistic dynamic-reshape
all-reduce-start all-reduce-done reduce-scatter all-gather-start
all-gather-done opt-barrier async-start async-update async-done
round-nearest-even stochastic-convert tan
'''.split()

UNKNOWN_OPCODE = 0
OPCODES = {name: number for number, name in enumerate(_OPCODES_IN_ORDER, 1)}
OPCODE_NAMES = {number: name for name, number in OPCODES.items()}
NUM_OPCODES = len(OPCODES) + 1  # With 0: every stored number is below this.
