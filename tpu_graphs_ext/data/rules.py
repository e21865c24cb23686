"""What must hold of the arrays of a kernel file.

One small function a rule. Each takes the arrays of a file under their stored
names and yields a message for what it finds; `RULES` says which arrays a rule
needs, so that one bad array does not hide the faults of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tpu_graphs_ext.data import schema

Arrays = Mapping[str, np.ndarray]

FIELDS = {field.name: field for field in schema.TILE_FIELDS}
MAX_BYTES = None  # Of one array: what `npz` allows.
RUNTIME, NORMALIZER = 'config_runtime', 'config_runtime_normalizers'


def wrong_dtype(array: np.ndarray, field: schema.Field) -> Iterator[str]:
  """The dtype is exactly that of the schema."""
  if array.dtype != field.dtype:
    yield f'has dtype {array.dtype}; it must be {field.dtype}'


def wrong_shape(array: np.ndarray, field: schema.Field) -> Iterator[str]:
  """The number of dimensions and the fixed sizes are those of the schema."""
  fits = array.ndim == len(field.axes) and all(
      size == axis for size, axis in zip(array.shape, field.axes)
      if isinstance(axis, int))
  if not fits:
    yield f'has shape {array.shape}; it must be {_shape_text(field)}'


def unequal_counts(arrays: Arrays) -> Iterator[tuple[str, str]]:
  """Yields (field, message); the first array with an axis sets its size."""
  first = {}
  for name, array in arrays.items():
    axis = FIELDS[name].axes[0]
    leader = first.setdefault(axis, name)
    if len(array) != len(arrays[leader]):
      yield name, (f'has {len(array)} rows, but {leader} has '
                   f'{len(arrays[leader])}; both must equal the number of '
                   f'{axis}')


def no_nodes(arrays: Arrays) -> Iterator[str]:
  """There is a node."""
  if not len(arrays['node_feat']):
    yield 'has no rows; a kernel has at least one node'


def no_configs(arrays: Arrays) -> Iterator[str]:
  """There is a configuration."""
  if not len(arrays['config_feat']):
    yield 'has no rows; a kernel has at least one configuration'


def too_few_configs(arrays: Arrays) -> Iterator[str]:
  """There are two configurations to compare."""
  number = len(arrays['config_feat'])
  if number == 1:  # None at all is another rule's.
    yield f'has {number} configurations; it takes 2 or more to rank'


def edges_out_of_range(arrays: Arrays) -> Iterator[str]:
  """Both ends of every edge are nodes of the kernel."""
  edges, nodes = arrays['edge_index'], len(arrays['node_feat'])
  yield from bad_rows(edges, ((edges < 0) | (edges >= nodes)).any(axis=1),
                       f'both nodes must be in 0 to {nodes - 1}')


def edges_against_order(arrays: Arrays) -> Iterator[str]:
  """Every producer comes before its consumer."""
  edges = arrays['edge_index']
  yield from bad_rows(
      edges, edges[:, 0] <= edges[:, 1],
      'rows are (consumer, producer), and a producer comes before its consumer')


def unknown_opcodes(arrays: Arrays) -> Iterator[str]:
  """Every opcode is in the table."""
  opcodes = arrays['node_opcode']
  known = np.isin(opcodes, list(schema.OPCODE_NAMES))
  yield from bad_rows(opcodes, ~known, 'it is not in the table of opcodes '
                       f'(1 to {schema.NUM_OPCODES - 1})')


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
  """The rule that every time of an array is above zero."""
  def rule(arrays: Arrays) -> Iterator[str]:
    times = arrays[name]
    yield from bad_rows(times, times <= 0, 'times in ns must be positive')
  return rule


def bad_runtimes(arrays: Arrays) -> Iterator[str]:
  """Every runtime is above zero, or all are 0: a hidden label."""
  if arrays[RUNTIME].any():
    yield from not_positive(RUNTIME)(arrays)


# The rules without which reading would give nonsense: the field to blame, the
# fields needed, the rule.
READ_RULES = (
    ('node_feat', ('node_feat',), no_nodes),
    ('config_feat', ('config_feat',), no_configs),
    ('edge_index', ('edge_index', 'node_feat'), edges_out_of_range),
    ('node_feat', ('node_feat',), not_finite('node_feat')),
    ('config_feat', ('config_feat',), not_finite('config_feat')),
    (NORMALIZER, (NORMALIZER,), not_positive(NORMALIZER)),
    # Of a whole kernel: needs all its rows.
    (RUNTIME, (RUNTIME, 'config_feat'), bad_runtimes),
)
# The rest, and those of a file whose label is not withheld.
RULES = READ_RULES[:-1] + (  # The last is among LABEL_RULES.
    ('node_opcode', ('node_opcode',), unknown_opcodes),
    ('edge_index', ('edge_index',), edges_against_order),
    ('config_feat', ('config_feat',), too_few_configs),
)
LABEL_RULES = (
    (RUNTIME, (RUNTIME,), not_positive(RUNTIME)),
)


def is_withheld(arrays: Arrays) -> bool:
  """True where all runtimes are 0 and all normalizers 1: a hidden label."""
  return (RUNTIME in arrays and NORMALIZER in arrays
          and not arrays[RUNTIME].any() and (arrays[NORMALIZER] == 1).all())


def bad_rows(rows: np.ndarray, bad: np.ndarray, rule: str) -> Iterator[str]:
  """One message for all rows that break a rule; it shows the first."""
  if bad.any():
    first = int(np.argmax(bad))
    yield (f'row {first} is {rows[first].tolist()}; {rule} '
           f'({bad.sum()} of {len(rows)} rows break this)')


def _shape_text(field: schema.Field) -> str:
  comma = ',' if len(field.axes) == 1 else ''  # As NumPy writes a shape.
  return f'({", ".join(map(str, field.axes))}{comma})'
