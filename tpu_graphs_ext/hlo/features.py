"""HLO module -> node features, opcodes and edges, as the C++ encoder does it.

Nodes are the instructions of all computations in stored order, callees first.
An instruction consumes its operands and the roots of the computations that it
calls. All features are whole numbers, rounded to float32 at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Union

import numpy as np

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import protos, tiles

# Computations whose names contain one of these start a new entry of
# `node_splits`; the others are bodies of fusions and reductions.
_MAIN_COMPUTATION = ('cluster', 'while', 'cond')
# The columns of an element type, by XLA's number.
_TYPE_COLUMNS = {
    number: [int(listed == tiles.listed_type(name))
             for listed in schema.ELEMENT_TYPES]
    for number, name in protos.TYPE_NAMES.items()}
_NO_TYPE = [0] * len(schema.ELEMENT_TYPES)
_MAX_RANK = 128  # Multiplying the sizes of many more takes minutes.


class ModuleArrays(NamedTuple):
  """An HLO module as arrays; see `schema.py` for the columns."""
  node_feat: np.ndarray  # float32 [nodes, 140]
  node_opcode: np.ndarray  # uint8 [nodes]
  edge_index: np.ndarray  # int64 [edges, 2], rows (consumer, producer), sorted
  # int64 [1, splits], node numbers that bound the main computations; the last
  # is the number of nodes.
  node_splits: np.ndarray


def module_arrays(module: Union[protos.HloModuleProto, bytes]) -> ModuleArrays:
  """Featurizes a message or its serialized bytes; UserError if damaged."""
  module = protos.as_module(module)
  where = f'HLO module {module.name[:100]!r}'
  ids = [node.id for node in protos.nodes(module)]
  numbers = {number: i for i, number in enumerate(ids)}
  if not ids or len(numbers) < len(ids):
    raise UserError(f'{where}: must have instructions, and each an id of its '
                    f'own; found {len(ids)} with {len(numbers)} ids')
  roots = {c.id: c.root_id for c in module.computations}
  opcodes, rows, edges, splits = [], [], set(), [0]
  for computation in module.computations:
    for node in computation.instructions:
      opcodes.append(schema.OPCODES.get(node.opcode, schema.UNKNOWN_OPCODE))
      try:
        rows.append(_row(node, node.id == computation.root_id))
        edges.update(_edges(node, numbers, roots))
      except ValueError as error:
        raise UserError(f'{where}: instruction {node.name[:100]!r} {error}; '
                        'the module is incomplete or damaged') from error
    if any(part in computation.name for part in _MAIN_COMPUTATION):
      splits.append(len(rows))
  if splits[-1] < len(rows):
    splits.append(len(rows))
  return ModuleArrays(
      node_feat=np.array(rows, np.int64).astype(np.float32),
      node_opcode=np.array(opcodes, np.uint8),
      edge_index=np.array(sorted(edges), np.int64).reshape(-1, 2),
      node_splits=np.array([splits], np.int64))


def _edges(node, numbers: dict, roots: dict) -> list:
  """Pairs (consumer, producer) of one instruction, in node numbers."""
  producers = [*node.operand_ids, *map(roots.get, node.called_computation_ids)]
  for producer in producers:
    if producer not in numbers or producer == node.id:
      raise ValueError(
          f'takes its input from {producer}, which is itself or is missing')
  return [(numbers[node.id], numbers[producer]) for producer in producers]


def _int64(value: int) -> int:
  """Wraps around at 64 bits, as the encoder's arithmetic does."""
  return (value + 2**63) % 2**64 - 2**63


def _first(values: Sequence[int], width: int) -> list:
  """The first `width` values, padded with 0."""
  if len(values) > _MAX_RANK:
    raise ValueError(
        f'has {len(values):,} dimensions; at most {_MAX_RANK} are read')
  kept = list(values[:width])
  return kept + [0] * (width - len(kept))


def _with_totals(values: Sequence[int], width: int) -> list:
  """The first `width` values, then sum and product over all of them."""
  return [*_first(values, width), _int64(sum(values)),
          _int64(math.prod(values))]


def _each_with_totals(dims: Sequence, width: int, *names: str) -> list:
  """The same for several fields of messages."""
  if not dims:  # As nearly always: sum 0, product 1.
    return ([0] * (width + 1) + [1]) * len(names)
  return [value for name in names
          for value in _with_totals([getattr(d, name) for d in dims], width)]


def _row(node, is_root: bool) -> list:
  """The columns of NODE_FEATURES for one instruction, as whole numbers."""
  shape, numbers = node.shape, node.convolution_dimension_numbers
  dims, spatial, slices = (
      schema.MAX_DIMS, schema.MAX_SPATIAL_DIMS, schema.MAX_SLICE_DIMS)
  reversal = [int(dim.window_reversal) for dim in node.window.dimensions]
  return [
      int(is_root),
      # `element_size_in_bits`: 0 in the data set, for XLA dropped it.
      int(shape.layout.memory_space == protos.ON_CHIP),
      *_TYPE_COLUMNS.get(shape.element_type, _NO_TYPE),
      *_with_totals(shape.dimensions, dims),
      len(shape.tuple_shapes),
      node.parameter_number,
      *_first(node.dimensions, dims),
      *_each_with_totals(
          node.window.dimensions, dims, 'size', 'stride', 'padding_low',
          'padding_high', 'window_dilation', 'base_dilation'),
      *_first(reversal, dims), sum(reversal), len(reversal) - sum(reversal),
      numbers.input_batch_dimension, numbers.input_feature_dimension,
      *_first(numbers.input_spatial_dimensions, spatial),
      numbers.kernel_input_feature_dimension,
      numbers.kernel_output_feature_dimension,
      *_first(numbers.kernel_spatial_dimensions, spatial),
      numbers.output_batch_dimension, numbers.output_feature_dimension,
      node.feature_group_count,
      node.batch_group_count,
      *_each_with_totals(node.slice_dimensions, slices,
                         'start', 'stride', 'limit'),
      *_with_totals(node.dynamic_slice_sizes, slices),
      *_each_with_totals(node.padding_config.dimensions, slices,
                         'edge_padding_low', 'edge_padding_high'),
      int(node.is_stable),
      *_first(shape.layout.minor_to_major, dims),
  ]


def config_features(kernel_bounds: Sequence[int], output_bounds: Sequence[int],
                    input_bounds: Sequence[int] = ()) -> np.ndarray:
  """Tile bounds [..., dims] as `schema.CONFIG_FEATURES`: float32 [..., 24].

  Each group has the first six bounds, most major first, then sum and product of
  all; without bounds all of it is 0, including the product.
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
