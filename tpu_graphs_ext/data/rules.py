"""What must hold of the arrays in a file of either task.

One small function a rule. Each takes the arrays of a file under their stored
names and yields a message for each fault; `TILE` and `LAYOUT` say which arrays
a rule needs, so that one bad array does not hide the faults of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tpu_graphs_ext.data import npz, schema

Arrays = Mapping[str, np.ndarray]
# The field to blame, the fields needed, the rule.
Rule = tuple[str, tuple[str, ...], Callable[[Arrays], Iterator[str]]]

RUNTIME, NORMALIZER = 'config_runtime', 'config_runtime_normalizers'
LAYOUTS, IDS, SPLITS = 'node_config_feat', 'node_config_ids', 'node_splits'
_BITS = np.array([0] + [1 << i for i in range(schema.MAX_DIMS)], np.uint8)


# ------------------------------------------------------------- one array


def wrong_dtype(array: np.ndarray, field: schema.Field) -> Iterator[str]:
  """The dtype is exactly the schema's."""
  if array.dtype != field.dtype:
    yield f'has dtype {array.dtype}; it must be {field.dtype}'


def wrong_shape(array: np.ndarray, field: schema.Field) -> Iterator[str]:
  """The number of dimensions and the fixed sizes are the schema's."""
  fits = array.ndim == len(field.axes) and all(
      size == axis for size, axis in zip(array.shape, field.axes)
      if isinstance(axis, int))
  if not fits:
    comma = ',' if len(field.axes) == 1 else ''  # As NumPy writes a shape.
    yield (f'has shape {array.shape}; it must be '
           f'({", ".join(map(str, field.axes))}{comma})')


def no_rows(name: str, what: str) -> Callable[[Arrays], Iterator[str]]:
  """The rule that an array has a row."""
  def rule(arrays: Arrays) -> Iterator[str]:
    if not len(arrays[name]):
      yield f'has no rows; a kernel has at least one {what}'
  return rule


def not_finite(name: str) -> Callable[[Arrays], Iterator[str]]:
  """The rule that an array of features has no NaN or infinity."""
  def rule(arrays: Arrays) -> Iterator[str]:
    bad = ~np.isfinite(arrays[name])
    if bad.any():
      row, column = np.argwhere(bad)[0]
      yield (f'row {row} column {column} is {arrays[name][row, column]}; '
             f'values must be finite ({bad.sum()} are not)')
  return rule


def not_positive(name: str) -> Callable[[Arrays], Iterator[str]]:
  """The rule that every time in an array is above zero."""
  def rule(arrays: Arrays) -> Iterator[str]:
    times = arrays[name]
    yield from _bad_rows(times, times <= 0, 'times in ns must be positive')
  return rule


def bad_runtimes(arrays: Arrays) -> Iterator[str]:
  """Every runtime is above zero, or all are 0: a hidden label."""
  if arrays[RUNTIME].any():
    yield from not_positive(RUNTIME)(arrays)


def _bad_rows(rows: np.ndarray, bad: np.ndarray, rule: str) -> Iterator[str]:
  """One message for all rows that break a rule; it shows the first."""
  if bad.any():
    first = int(np.argmax(bad))
    yield (f'row {first} is {rows[first].tolist()}; {rule} '
           f'({bad.sum()} of {len(rows)} rows break this)')


# ----------------------------------------------------------------- graphs


def edges_out_of_range(arrays: Arrays) -> Iterator[str]:
  """Both ends of every edge are nodes of the graph."""
  edges, nodes = arrays['edge_index'], len(arrays['node_feat'])
  yield from _bad_rows(edges, ((edges < 0) | (edges >= nodes)).any(axis=1),
                       f'both nodes must be in 0 to {nodes - 1}')


def _edges_against_order(arrays: Arrays) -> Iterator[str]:
  edges = arrays['edge_index']
  yield from _bad_rows(
      edges, edges[:, 0] <= edges[:, 1],
      'rows are (consumer, producer), and a producer comes before its consumer')


def _unknown_opcodes(arrays: Arrays) -> Iterator[str]:
  opcodes = arrays['node_opcode']
  known = np.isin(opcodes, list(schema.OPCODE_NAMES))
  yield from _bad_rows(opcodes, ~known, 'it is not in the table of opcodes '
                       f'(1 to {schema.NUM_OPCODES - 1})')


# ------------------------------------------------------------------ tiles


def _one_config(arrays: Arrays) -> Iterator[str]:
  if len(arrays['config_feat']) == 1:  # Another rule reports none at all.
    yield 'has 1 configurations; it takes 2 or more to rank'


# ---------------------------------------------------------------- layouts


def nothing_to_rank(arrays: Arrays) -> Iterator[str]:
  """There are two configurations, and a node that they configure."""
  configs, nodes = arrays[LAYOUTS].shape[:2]
  if configs < 2:
    yield f'has {configs} configurations; it takes 2 or more to rank'
  if not nodes:
    yield 'has no configurable node; a program to rank has at least one'


def ids_out_of_range(arrays: Arrays) -> Iterator[str]:
  """Every configurable node is a node of the program."""
  ids, nodes = arrays[IDS], len(arrays['node_feat'])
  yield from _bad_rows(ids, (ids < 0) | (ids >= nodes),
                       f'a node must be in 0 to {nodes - 1}')


def repeated_ids(arrays: Arrays) -> Iterator[str]:
  """No node is configured twice."""
  ids = arrays[IDS]
  first = np.zeros(len(ids), bool)
  first[np.unique(ids, return_index=True)[1]] = True
  yield from _bad_rows(ids, ~first, 'an earlier row is the same node')


def _not_permutations(arrays: Arrays) -> Iterator[str]:
  for group, columns in schema.LAYOUT_CONFIG_GROUPS.items():
    first, number = None, 0
    # A configuration at a time: files have up to a gigabyte of them.
    for config, layouts in enumerate(arrays[LAYOUTS][..., columns]):
      bad = is_no_layout(layouts)
      if first is None and bad.any():
        first = no_permutation(group, config, layouts, bad)
      number += bad.sum()
    if first:
      yield f'{first} ({number} do not)'


def no_permutation(group: str, config: int, layouts: np.ndarray,
                   bad: np.ndarray) -> str:
  """Describes the first bad layout of a configuration."""
  node = int(np.argmax(bad))
  return (f'configuration {config} gives configurable node {node} the '
          f'{group} {layouts[node].tolist()}; a layout lists different '
          f'dimensions of 0 to {schema.MAX_DIMS - 1}, and then '
          f'{schema.LAYOUT_PADDING} to its end')


def is_no_layout(layouts: np.ndarray) -> np.ndarray:
  """[nodes, 6] -> bool [nodes]: does not list dimensions, then -1."""
  with np.errstate(invalid='ignore'):  # NaN, which equals no number.
    numbers = layouts.astype(np.int8)
  bad = (numbers != layouts) | (numbers < schema.LAYOUT_PADDING) | (
      numbers >= schema.MAX_DIMS)
  given = numbers >= 0
  bad[:, 1:] |= given[:, 1:] & ~given[:, :-1]
  # A bit for each dimension; where one comes twice, the sum has a carry.
  bits = _BITS[np.where(bad, 0, numbers + 1)]
  return bad.any(-1) | (
      bits.sum(-1, dtype=np.uint8) != np.bitwise_or.reduce(bits, -1))


def _splits_out_of_order(arrays: Arrays) -> Iterator[str]:
  splits, nodes = arrays[SPLITS][0], len(arrays['node_feat'])
  if (len(splits) < 2 or splits[0] != 0 or splits[-1] != nodes
      or (np.diff(splits) <= 0).any()):
    yield (f'is {splits.tolist()}; node numbers must rise from 0 to the '
           f'number of nodes, {nodes}')


# -------------------------------------------------------------- both tasks


@dataclasses.dataclass(frozen=True)
class TaskRules:
  """What must hold of the files of one task.

  Attributes:
    fields: name as stored -> its `schema.Field`.
    features: the array that only files of this task have.
    max_bytes: largest size of one array.
    read_rules: without these, reading a file would give nonsense.
    check_rules: what `check-data` checks besides.
    label_rules: the same where the label is not withheld.
  """
  fields: Mapping[str, schema.Field]
  features: str
  max_bytes: int
  read_rules: tuple[Rule, ...]
  check_rules: tuple[Rule, ...]
  label_rules: tuple[Rule, ...]

  def unequal_counts(self, arrays: Arrays) -> Iterator[tuple[str, str]]:
    """Yields (field, message); the first array with an axis sets its size."""
    first = {}
    for name, array in arrays.items():
      for place, axis in enumerate(self.fields[name].axes):
        if isinstance(axis, int):
          continue
        leader, size = first.setdefault(axis, (name, array.shape[place]))
        if array.shape[place] != size:
          yield name, (f'has {array.shape[place]} {axis} (axis {place}), but '
                       f'{leader} has {size}; both must be equal')

  def is_withheld(self, arrays: Arrays) -> bool:
    """Whether all runtimes are 0 and all normalizers 1: a hidden label."""
    return (RUNTIME in arrays and not arrays[RUNTIME].any() and (
        NORMALIZER not in self.fields or (
            NORMALIZER in arrays and bool((arrays[NORMALIZER] == 1).all()))))


_GRAPH = (('node_opcode', ('node_opcode',), _unknown_opcodes),
          ('edge_index', ('edge_index',), _edges_against_order))
_EDGES = ('edge_index', ('edge_index', 'node_feat'), edges_out_of_range)
_NODES = (('node_feat', ('node_feat',), no_rows('node_feat', 'node')),
          ('node_feat', ('node_feat',), not_finite('node_feat')))
_LABELS = (RUNTIME, (RUNTIME,), not_positive(RUNTIME))

TILE = TaskRules(
    fields={field.name: field for field in schema.TILE_FIELDS},
    features='config_feat', max_bytes=npz.MAX_BYTES,
    read_rules=(
        *_NODES, _EDGES,
        ('config_feat', ('config_feat',),
         no_rows('config_feat', 'configuration')),
        ('config_feat', ('config_feat',), not_finite('config_feat')),
        (NORMALIZER, (NORMALIZER,), not_positive(NORMALIZER))),
    check_rules=(
        *_GRAPH, ('config_feat', ('config_feat',), _one_config)),
    label_rules=(_LABELS,))
LAYOUT = TaskRules(
    fields={field.name: field for field in schema.LAYOUT_FIELDS},
    # The largest of the published arrays has 1.3 GB.
    features=LAYOUTS, max_bytes=1 << 32,
    read_rules=(
        *_NODES, _EDGES, (LAYOUTS, (LAYOUTS,), nothing_to_rank),
        (IDS, (IDS, 'node_feat'), ids_out_of_range),
        (IDS, (IDS,), repeated_ids)),
    check_rules=(
        *_GRAPH, (LAYOUTS, (LAYOUTS,), _not_permutations),
        (SPLITS, (SPLITS, 'node_feat'), _splits_out_of_order)),
    label_rules=(_LABELS,))
TASKS = {'tile': TILE, 'layout': LAYOUT}
# Also checked on reading, of all rows of a file at once.
READ_RUNTIMES: Rule = (RUNTIME, (RUNTIME,), bad_runtimes)


def belongs_to_other_task(path: str, task: str) -> str:
  """Says that an .npz file belongs to the other task; '' where it does not."""
  try:
    names = npz.array_names(path)
  except npz.DamagedError:
    return ''
  own = TASKS[task].features
  other, = TASKS.keys() - {task}
  if own in names or TASKS[other].features not in names:
    return ''
  return (f'is a file of the {other} task: it has {TASKS[other].features} and '
          f'no {own}; give files of the {task} task, of npz/{task}/ in the '
          'published data')
