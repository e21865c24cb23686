"""What must hold of the arrays of a file of the layout task.

Like `rules`, whose functions it takes where they are the same: one small
function a rule, which yields a message for what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpu_graphs_ext.data import rules, schema
from tpu_graphs_ext.data.rules import Arrays

FIELDS = {field.name: field for field in schema.LAYOUT_FIELDS}
# Of one array: the largest of the published files has 1.3 GB.
MAX_BYTES = 1 << 32
FEATURES, IDS = 'node_config_feat', 'node_config_ids'
RUNTIME, SPLITS = 'config_runtime', 'node_splits'
_LAYOUTS = tuple(schema.LAYOUT_CONFIG_GROUPS.items())
_BITS = np.array([0] + [1 << i for i in range(schema.MAX_DIMS)], np.uint8)


def unequal_counts(arrays: Arrays) -> Iterator[tuple[str, str]]:
  """Yields (field, message); the first array with an axis sets its size."""
  first = {}
  for name, array in arrays.items():
    for place, axis in enumerate(FIELDS[name].axes):
      if isinstance(axis, int) or axis in ('edges', 'splits'):
        continue
      leader, size = first.setdefault(axis, (name, array.shape[place]))
      if array.shape[place] != size:
        yield name, (f'has {array.shape[place]} {axis} (axis {place}), but '
                     f'{leader} has {size}; both must be equal')


def nothing_to_rank(arrays: Arrays) -> Iterator[str]:
  """There are two configurations, and a node that they are for."""
  configs, nodes = arrays[FEATURES].shape[:2]
  if configs < 2:
    yield f'has {configs} configurations; it takes 2 or more to rank'
  if not nodes:
    yield 'has no configurable node; a program to rank has at least one'


def ids_out_of_range(arrays: Arrays) -> Iterator[str]:
  """Every configurable node is a node of the program."""
  ids, nodes = arrays[IDS], len(arrays['node_feat'])
  yield from rules.bad_rows(ids, (ids < 0) | (ids >= nodes),
                            f'a node must be in 0 to {nodes - 1}')


def repeated_ids(arrays: Arrays) -> Iterator[str]:
  """No node is configured twice."""
  ids = arrays[IDS]
  first = np.zeros(len(ids), bool)
  first[np.unique(ids, return_index=True)[1]] = True
  yield from rules.bad_rows(ids, ~first, 'an earlier row is the same node')


def no_permutations(arrays: Arrays) -> Iterator[str]:
  """Every layout lists different dimensions, and then -1 to its end."""
  features = arrays[FEATURES]
  for group, columns in _LAYOUTS:
    first, number = None, 0
    # A configuration at a time: files have up to a gigabyte of them.
    for config, layouts in enumerate(features[..., columns]):
      bad = is_no_layout(layouts)
      if first is None and bad.any():
        first = no_permutation(group, config, layouts, bad)
      number += bad.sum()
    if first:
      yield f'{first} ({number} do not)'


def no_permutation(group: str, config: int, layouts: np.ndarray,
                   bad: np.ndarray) -> str:
  """What is wrong with the first bad one of a configuration's layouts."""
  node = int(np.argmax(bad))
  return (f'configuration {config} gives configurable node {node} the '
          f'{group} {layouts[node].tolist()}; a layout lists different '
          f'dimensions of 0 to {schema.MAX_DIMS - 1}, and then '
          f'{schema.LAYOUT_PADDING} to its end')


def is_no_layout(layouts: np.ndarray) -> np.ndarray:
  """[nodes, 6] -> bool [nodes]: it does not list dimensions, then -1."""
  with np.errstate(invalid='ignore'):  # NaN, which is equal to no number.
    numbers = layouts.astype(np.int8)
  bad = (numbers != layouts) | (numbers < schema.LAYOUT_PADDING) | (
      numbers >= schema.MAX_DIMS)
  given = numbers >= 0
  bad[:, 1:] |= given[:, 1:] & ~given[:, :-1]
  # A bit for each dimension; where one comes twice, the sum has a carry.
  bits = _BITS[np.where(bad, 0, numbers + 1)]
  return bad.any(-1) | (
      bits.sum(-1, dtype=np.uint8) != np.bitwise_or.reduce(bits, -1))


def splits_out_of_order(arrays: Arrays) -> Iterator[str]:
  """The bounds of computations run from 0 to the number of nodes."""
  splits, nodes = arrays[SPLITS][0], len(arrays['node_feat'])
  if (len(splits) < 2 or splits[0] != 0 or splits[-1] != nodes
      or (np.diff(splits) <= 0).any()):
    yield (f'is {splits.tolist()}; node numbers must rise from 0 to the '
           f'number of nodes, {nodes}')


# The field to blame, the fields needed, the rule.
RULES = (
    ('node_feat', ('node_feat',), rules.no_nodes),
    ('node_feat', ('node_feat',), rules.not_finite('node_feat')),
    ('node_opcode', ('node_opcode',), rules.unknown_opcodes),
    ('edge_index', ('edge_index', 'node_feat'), rules.edges_out_of_range),
    ('edge_index', ('edge_index',), rules.edges_against_order),
    (FEATURES, (FEATURES,), nothing_to_rank),
    (FEATURES, (FEATURES,), no_permutations),
    (IDS, (IDS, 'node_feat'), ids_out_of_range),
    (IDS, (IDS,), repeated_ids),
    (SPLITS, (SPLITS, 'node_feat'), splits_out_of_order),
)
LABEL_RULES = ((RUNTIME, (RUNTIME,), rules.not_positive(RUNTIME)),)


def is_withheld(arrays: Arrays) -> bool:
  """True where all runtimes are 0: a hidden label."""
  return RUNTIME in arrays and not arrays[RUNTIME].any()
