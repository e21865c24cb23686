"""HLO module -> node features, opcodes and edges, as the C++ encoder does it.

Nodes are the instructions of all computations in stored order, callees first.
An instruction consumes its operands and the roots of the computations that it
calls. All features are whole numbers, rounded to float32 at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Union

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos

# Computations whose names contain one of these start a new entry of
# `node_splits`; the others are bodies of fusions and reductions.
_MAIN_COMPUTATION = ('cluster', 'while', 'cond')


class ModuleArrays(NamedTuple):
  """An HLO module as arrays; see `schema.py` for the columns."""
  node_feat: np.ndarray  # float32 [nodes, 140]
  node_opcode: np.ndarray  # uint8 [nodes]
  edge_index: np.ndarray  # int64 [edges, 2], rows (consumer, producer), sorted
  # int64 [1, splits], node numbers that bound the main computations; the last
  # is the number of nodes.
  node_splits: np.ndarray


def module_arrays(module: Union[protos.HloModuleProto, bytes]) -> ModuleArrays:
  """Featurizes a module, given as a message or as serialized bytes.

  Raises:
    UserError: not an HLO module, or one without instructions, or one that
      refers to instructions or computations that it does not have.
  """
  module = protos.as_module(module)
  numbers = _node_numbers(module)
  roots = {c.id: c.root_id for c in module.computations}
  opcodes, rows, edges, splits = [], [], [], [0]
  for computation in module.computations:
    for instruction in computation.instructions:
      opcodes.append(schema.OPCODES.get(instruction.opcode,
                                        schema.UNKNOWN_OPCODE))
      rows.append(_row(instruction, instruction.id == computation.root_id))
      edges += _edges(module, instruction, numbers, roots)
    if any(part in computation.name for part in _MAIN_COMPUTATION):
      splits.append(len(rows))
  if splits[-1] < len(rows):
    splits.append(len(rows))
  return ModuleArrays(
      node_feat=np.array(rows, np.int64).astype(np.float32),
      node_opcode=np.array(opcodes, np.uint8),
      edge_index=np.array(sorted(set(edges)), np.int64).reshape(-1, 2),
      node_splits=np.array([splits], np.int64))


def _node_numbers(module) -> dict:
  """Instruction id -> node number."""
  numbers = {}
  for instruction in protos.nodes(module):
    if instruction.id in numbers:
      raise UserError(
          f'HLO module {module.name!r}: two instructions have the id '
          f'{instruction.id}; ids must be unique in a module')
    numbers[instruction.id] = len(numbers)
  if not numbers:
    raise UserError(f'HLO module {module.name!r} has no instructions; it '
                    'must have at least one')
  return numbers


def _edges(module, instruction, numbers: dict, roots: dict) -> list:
  """Pairs (consumer, producer) of one instruction, in node numbers."""
  consumer = numbers[instruction.id]
  producers = []
  for kind, ids in (('operand', instruction.operand_ids),
                    ('called computation',
                     instruction.called_computation_ids)):
    for given in ids:
      producer = given if kind == 'operand' else roots.get(given)
      if producer not in numbers or producer == instruction.id:
        raise UserError(
            f'HLO module {module.name!r}: {kind} {given} of '
            f'{instruction.name!r} is not another one of the module, which '
            'is incomplete or damaged')
      producers.append(numbers[producer])
  return [(consumer, producer) for producer in producers]


def _int64(value: int) -> int:
  """Wraps around at 64 bits, as the encoder's arithmetic does."""
  return (value + 2**63) % 2**64 - 2**63


def _first(values: Sequence[int], width: int) -> list:
  """The first `width` values, padded with 0."""
  kept = list(values[:width])
  return kept + [0] * (width - len(kept))


def _with_totals(values: Sequence[int], width: int = schema.MAX_DIMS) -> list:
  """The first `width` values, then sum and product over all of them."""
  return [*_first(values, width), _int64(sum(values)),
          _int64(math.prod(values))]


def _slots(values: Sequence[int]) -> list:
  return _with_totals(values, schema.MAX_SLICE_DIMS)


@functools.cache
def _element_type(number: int) -> tuple:
  """One-hot over ELEMENT_TYPES; all 0 for a type that is not listed."""
  listed = [protos.PrimitiveType.Value(name) for name in schema.ELEMENT_TYPES]
  return tuple(int(number == entry) for entry in listed)


def _window(instruction) -> list:
  dims, row = instruction.window.dimensions, []
  for name in ('size', 'stride', 'padding_low', 'padding_high',
               'window_dilation', 'base_dilation'):
    row += _with_totals([getattr(d, name) for d in dims])
  reversal = [int(d.window_reversal) for d in dims]
  backward = sum(reversal)
  return [*row, *_first(reversal, schema.MAX_DIMS), backward,
          len(reversal) - backward]


def _convolution(instruction) -> list:
  dims = instruction.convolution_dimension_numbers
  spatial = schema.MAX_SPATIAL_DIMS
  return [
      dims.input_batch_dimension, dims.input_feature_dimension,
      *_first(dims.input_spatial_dimensions, spatial),
      dims.kernel_input_feature_dimension,
      dims.kernel_output_feature_dimension,
      *_first(dims.kernel_spatial_dimensions, spatial),
      dims.output_batch_dimension, dims.output_feature_dimension]


def _slice(instruction) -> list:
  return [value for name in ('start', 'stride', 'limit') for value in _slots(
      [getattr(d, name) for d in instruction.slice_dimensions])]


def _padding(instruction) -> list:
  return [value for name in ('edge_padding_low', 'edge_padding_high')
          for value in _slots([getattr(d, name) for d in
                               instruction.padding_config.dimensions])]


# Most instructions have none of these, so their columns are made once.
_BLANK = protos.HloInstructionProto()
_NO_WINDOW = _window(_BLANK)
_NO_CONVOLUTION = _convolution(_BLANK)
_NO_SLICE = _slice(_BLANK)
_NO_SIZES = _slots([])
_NO_PADDING = _padding(_BLANK)


def _row(instruction, is_root: bool) -> list:
  """The columns of NODE_FEATURES for one instruction, as whole numbers."""
  has = instruction.HasField
  shape = instruction.shape
  sizes = instruction.dynamic_slice_sizes
  return [
      int(is_root),
      0,  # element_size_in_bits: XLA dropped it.
      *_element_type(shape.element_type),
      *_with_totals(shape.dimensions),
      len(shape.tuple_shapes),
      instruction.parameter_number,
      *_first(instruction.dimensions, schema.MAX_DIMS),
      *(_window(instruction) if has('window') else _NO_WINDOW),
      *(_convolution(instruction) if has('convolution_dimension_numbers')
        else _NO_CONVOLUTION),
      instruction.feature_group_count,
      instruction.batch_group_count,
      *(_slice(instruction) if instruction.slice_dimensions else _NO_SLICE),
      *(_slots(sizes) if sizes else _NO_SIZES),
      *(_padding(instruction) if has('padding_config') else _NO_PADDING),
      int(instruction.is_stable),
      *_first(shape.layout.minor_to_major, schema.MAX_DIMS),
  ]


def config_features(kernel_bounds: Sequence[int], output_bounds: Sequence[int],
                    input_bounds: Sequence[int] = ()) -> np.ndarray:
  """Tile bounds as the columns of `schema.CONFIG_FEATURES`.

  Each group has the first six bounds, then sum and product of all; without
  bounds all of it is 0, including the product.

  Args:
    kernel_bounds, output_bounds, input_bounds: layout tiles, most major
      first; whole numbers [dims], or [..., dims] for many configurations, with
      the same leading axes or none.

  Returns:
    float32 [..., 24].
  """
  groups = [np.asarray(bounds, np.int64)
            for bounds in (kernel_bounds, output_bounds, input_bounds)]
  leading = np.broadcast_shapes(*(bounds.shape[:-1] for bounds in groups))
  features = np.zeros((*leading, len(schema.CONFIG_FEATURES)), np.float32)
  for bounds, columns in zip(groups, schema.CONFIG_GROUPS.values()):
    if not bounds.shape[-1]:
      continue
    kept = bounds[..., :schema.MAX_DIMS]
    group = features[..., columns]  # A view.
    group[..., :kept.shape[-1]] = kept
    group[..., -2] = bounds.sum(axis=-1)
    group[..., -1] = bounds.prod(axis=-1)
  return features
