"""Which nodes of a program have layouts to choose, and which layouts.

As in the published layout files. A layout may name only the innermost
dimensions; the others are row-major:

  * A convolution or product chooses, for its output and both operands, which of
    two dimensions is the innermost: a convolution's features or batch (in its
    filter: features in or out), a product's contracted or kept dimension. A
    product without batch may also leave both operands to the compiler.
  * A reshape chooses the order of the groups of dimensions that it keeps
    together, so that no element moves, or leaves it to the compiler.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.data import schema

CONFIGURABLE = ('convolution', 'dot', 'reshape')
_MAX_ORDERS = 6  # Of a reshape's groups, as in real files.
_MAX_GROUPS = 14  # With more, groups of nodes of different sizes are merged.
_TOO_FEW_GROUPS = 2  # Merging must leave more groups than this.
NO_LAYOUT = ()


class Layouts(NamedTuple):
  """A layout of each tensor of a node: dimensions, most minor first."""
  output: tuple
  input: tuple
  kernel: tuple


class NodeChoice(NamedTuple):
  """A configurable node."""
  node: int  # Its number in `features.module_arrays`.
  instruction_id: int
  name: str  # The instruction's.
  options: tuple  # Of `Layouts`, the row-major ones first.
  group: int  # Nodes with the same number get the same option.


def layout_choices(module) -> list[NodeChoice]:
  """The configurable nodes of the entry computation, which comes last."""
  entry = module.computations[-1]
  first = sum(len(c.instructions) for c in module.computations[:-1])
  shapes = {n.id: tuple(n.shape.dimensions) for n in entry.instructions}
  chosen = []
  for number, node in enumerate(entry.instructions, first):
    if node.opcode in CONFIGURABLE:
      sizes = tuple(shapes[i] for i in (node.id, *node.operand_ids))
      if options := _options(node, sizes):
        chosen.append((number, node, options, sizes))
  kinds = [(node.opcode, options, sizes) for _, node, options, sizes in chosen]
  if len(set(kinds)) > _MAX_GROUPS:
    fewer = [kind[:2] for kind in kinds]
    kinds = fewer if len(set(fewer)) > _TOO_FEW_GROUPS else kinds
  groups = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
  return [NodeChoice(number, node.id, node.name, options, groups[kind])
          for (number, node, options, _), kind in zip(chosen, kinds)]


def _options(node, dims: Sequence[Sequence[int]]) -> tuple:
  """A node's `Layouts`, from the sizes of its result and its operands."""
  if max(map(len, dims)) > schema.MAX_DIMS:
    return ()
  if node.opcode == 'convolution':
    numbers = node.convolution_dimension_numbers
    return _orders(
        [numbers.output_feature_dimension, numbers.output_batch_dimension],
        [numbers.input_feature_dimension, numbers.input_batch_dimension],
        [numbers.kernel_output_feature_dimension,
         numbers.kernel_input_feature_dimension])
  if node.opcode == 'dot':
    return _of_dot(node.dot_dimension_numbers, *map(len, dims[1:]))
  return _of_reshape(dims[1], dims[0])


def completed(layout: Sequence[int], rank: int) -> tuple:
  """A whole order, minor to major: the dimensions named, then row-major."""
  return (*layout, *(d for d in range(rank)[::-1] if d not in layout))


def _orders(*tensors: Sequence[int]) -> tuple:
  """Both orders of each tensor's one or two dimensions."""
  orders = ({tuple(pair): 0, tuple(pair[::-1]): 0} for pair in tensors)
  return tuple(itertools.starmap(Layouts, itertools.product(*orders)))


def _of_dot(numbers, left_rank: int, right_rank: int) -> tuple:
  batch = len(numbers.lhs_batch_dimensions)
  left, right = (
      [d for d in range(rank) if d not in (*batched, *contracted)]
      for rank, batched, contracted in (
          (left_rank, numbers.lhs_batch_dimensions,
           numbers.lhs_contracting_dimensions),
          (right_rank, numbers.rhs_batch_dimensions,
           numbers.rhs_contracting_dimensions)))
  # The output has the batch, then what is left of both operands.
  output = [batch + len(left) + len(right) - 1] if right else []
  output += [batch + len(left) - 1] if left else []
  options = _orders(
      output, [*numbers.lhs_contracting_dimensions[-1:], *left[-1:]],
      [*right[-1:], *numbers.rhs_contracting_dimensions[-1:]])
  if not batch:
    options = *options, Layouts(options[0].output, NO_LAYOUT, NO_LAYOUT)
  return options


def _of_reshape(source: Sequence[int], target: Sequence[int]) -> tuple:
  options = []
  for order in itertools.islice(itertools.permutations(
      reshape_groups(source, target)[::-1]), _MAX_ORDERS):
    before, after = (
        completed([d for group in order for d in group[side][::-1]], len(dims))
        for side, dims in enumerate((source, target)))
    options.append(Layouts(after, before, NO_LAYOUT))
  return tuple(dict.fromkeys([*options, Layouts(*3 * [NO_LAYOUT])]))


def reshape_groups(source: Sequence[int], target: Sequence[int]) -> list:
  """Dimensions that a reshape keeps together: pairs (of input, of output).

  [1024, 768] -> [8, 128, 768] has ([0], [0, 1]) and ([1], [2]). Dimensions of
  size 1 belong to none.
  """
  sides = source, target
  # A group ends where the sizes so far have the same product on both sides.
  ends = set.intersection(*(
      set(itertools.accumulate(sizes, operator.mul)) for sizes in sides))
  split = []
  for sizes in sides:
    parts, product = [[]], 1
    for d, size in enumerate(sizes):
      product *= size
      if size != 1 and product:
        parts[-1].append(d)
        if product in ends:
          parts.append([])
    split.append(parts[:-1])
  return list(zip(*split))


def option_features(choice: NodeChoice) -> np.ndarray:
  """float32 [options, 18]: a node's options, as in `node_config_feat`."""
  features = np.full((len(choice.options), len(schema.LAYOUT_CONFIG_FEATURES)),
                     schema.LAYOUT_PADDING, np.float32)
  for row, option in zip(features, choice.options):
    for columns, dims in zip(schema.LAYOUT_CONFIG_GROUPS.values(), option):
      row[columns][:len(dims)] = dims
  return features
