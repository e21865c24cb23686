"""Reads the arrays of a file of either task and checks them by its rules.

One small function a rule: it takes the arrays that it needs and yields a
message for each fault of the first. A rule whose arrays are bad is left out, so
that one bad array does not hide the faults of the others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tpu_graphs_ext.data import npz, schema
from tpu_graphs_ext.errors import UserError

Arrays = Mapping[str, np.ndarray]
# The names of its arrays, of which the first is to blame, and the check.
Rule = tuple[tuple[str, ...], Callable[..., Iterator[str]]]

RUNTIME, NORMALIZER = 'config_runtime', 'config_runtime_normalizers'
LAYOUTS, IDS, SPLITS = 'node_config_feat', 'node_config_ids', 'node_splits'
# Stored name -> attribute of a `Kernel` or `Program`, which has the unit.
_ATTRIBUTES = {RUNTIME: 'runtime_ns', NORMALIZER: 'normalizer_ns'}
_ROWS_AT_ONCE = 1 << 16  # Of layouts, of which files have up to a gigabyte.
_BITS = np.array([0] + [1 << i for i in range(schema.MAX_DIMS)], np.uint8)


# ----------------------------------------------------------- dtype and shape


def _wrong_dtype(array: np.ndarray, field: schema.Field,
                 strict: bool) -> Iterator[str]:
  # Narrower integers may be read, but no bool, and only float32 features: sums
  # over int8 would overflow.
  if array.dtype != field.dtype and (
      strict or array.dtype.kind not in (np.dtype(field.dtype).kind, 'u')
      or not np.can_cast(array.dtype, field.dtype, 'safe')):
    yield f'has dtype {array.dtype}; it must be {field.dtype}'


def _wrong_shape(array: np.ndarray, field: schema.Field,
                 strict: bool) -> Iterator[str]:
  any_width = not strict and field.name in ('node_feat', 'config_feat')
  fits = array.ndim == len(field.axes) and all(
      size == axis or any_width for size, axis in zip(array.shape, field.axes)
      if isinstance(axis, int))
  if not fits:
    comma = ',' if len(field.axes) == 1 else ''  # As NumPy writes a shape.
    yield (f'has shape {array.shape}; it must be '
           f'({", ".join(map(str, field.axes))}{comma})')


# --------------------------------------------------------------------- values


def _bad_rows(rows: np.ndarray, bad: np.ndarray, rule: str) -> Iterator[str]:
  """One message for all rows that break a rule; it shows the first."""
  if bad.any():
    first = int(np.argmax(bad))
    yield (f'row {first} is {rows[first].tolist()}; {rule} '
           f'({bad.sum()} of {len(rows)} rows break this)')


def _no_rows(name: str, what: str) -> Rule:
  def rule(array: np.ndarray) -> Iterator[str]:
    if not len(array):
      yield f'has no rows; a kernel has at least one {what}'
  return (name,), rule


def _not_finite(table: np.ndarray) -> Iterator[str]:
  bad = ~np.isfinite(table)
  if bad.any():
    row, column = np.argwhere(bad)[0]
    yield (f'row {row} column {column} is {table[row, column]}; values must be '
           f'finite ({bad.sum()} are not)')


def _not_positive(times: np.ndarray) -> Iterator[str]:
  yield from _bad_rows(times, times <= 0, 'times in ns must be positive')


def _partly_hidden(runtime: np.ndarray) -> Iterator[str]:
  """Every runtime is above zero, or all are 0: a hidden label."""
  if runtime.any():
    yield from _not_positive(runtime)


def _edges_out_of_range(edges: np.ndarray, table: np.ndarray) -> Iterator[str]:
  yield from _bad_rows(edges, ((edges < 0) | (edges >= len(table))).any(axis=1),
                       f'both nodes must be in 0 to {len(table) - 1}')


def _edges_against_order(edges: np.ndarray) -> Iterator[str]:
  yield from _bad_rows(
      edges, edges[:, 0] <= edges[:, 1],
      'rows are (consumer, producer), and a producer comes before its consumer')


def _unknown_opcodes(opcodes: np.ndarray) -> Iterator[str]:
  known = np.isin(opcodes, list(schema.OPCODE_NAMES))
  yield from _bad_rows(opcodes, ~known, 'it is not in the table of opcodes '
                       f'(1 to {schema.NUM_OPCODES - 1})')


def _one_config(configs: np.ndarray) -> Iterator[str]:
  if len(configs) == 1:  # Another rule reports none at all.
    yield 'has 1 configuration; it takes 2 or more to rank'


def _nothing_to_rank(layouts: np.ndarray) -> Iterator[str]:
  configs, nodes = layouts.shape[:2]
  if configs < 2:
    yield (f'has {configs} configuration{"s" * (configs != 1)}; it takes 2 or '
           'more to rank')
  if not nodes:
    yield 'has no configurable node; a program to rank has at least one'


def _ids_out_of_range(ids: np.ndarray, table: np.ndarray) -> Iterator[str]:
  yield from _bad_rows(ids, (ids < 0) | (ids >= len(table)),
                       f'a node must be in 0 to {len(table) - 1}')


def _repeated_ids(ids: np.ndarray) -> Iterator[str]:
  first = np.zeros(len(ids), bool)
  first[np.unique(ids, return_index=True)[1]] = True
  yield from _bad_rows(ids, ~first, 'an earlier row is the same node')


def not_permutations(layouts: np.ndarray, first: int = 0) -> Iterator[str]:
  """A layout lists different dimensions, then -1.

  `first` is the number of the first configuration, in a part of a file.
  """
  at_once = max(1, _ROWS_AT_ONCE // max(1, layouts.shape[1]))
  for group, columns in schema.LAYOUT_CONFIG_GROUPS.items():
    shown, number = '', 0
    for start in range(0, len(layouts), at_once):
      block = layouts[start:start + at_once, :, columns]
      bad = _is_no_layout(
          block.reshape(-1, block.shape[-1])).reshape(block.shape[:2])
      if not shown and bad.any():
        config, node = np.argwhere(bad)[0]
        shown = (f'configuration {first + start + config} gives configurable '
                 f'node {node} the {group} {block[config, node].tolist()}; a '
                 'layout lists different dimensions of 0 to '
                 f'{schema.MAX_DIMS - 1}, and then {schema.LAYOUT_PADDING} to '
                 'its end')
      number += bad.sum()
    if shown:
      yield f'{shown} ({number} do not)'


def _is_no_layout(layouts: np.ndarray) -> np.ndarray:
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


def _splits_out_of_order(rows: np.ndarray, table: np.ndarray) -> Iterator[str]:
  splits, nodes = rows[0], len(table)
  if (len(splits) < 2 or splits[0] != 0 or splits[-1] != nodes
      or (np.diff(splits) <= 0).any()):
    yield (f'is {splits.tolist()}; node numbers must rise from 0 to the '
           f'number of nodes, {nodes}')


# ---------------------------------------------------------------------- tasks


@dataclasses.dataclass(frozen=True)
class TaskRules:
  """The rules for files of one task.

  Attributes:
    task: 'tile' or 'layout'.
    fields: name as stored -> its `schema.Field`.
    features: the array that only files of this task have.
    max_bytes: largest size of one array.
    read_rules: without these, reading a file would give nonsense.
    check_rules: what `check-data` checks besides.
    any_width: files with other numbers of feature columns may be read.
  """
  task: str
  fields: Mapping[str, schema.Field]
  features: str
  max_bytes: int
  read_rules: tuple[Rule, ...]
  check_rules: tuple[Rule, ...]
  any_width: bool

  @functools.cached_property
  def arrays(self) -> dict[str, schema.Field]:
    """Attribute of a `Kernel` or `Program` -> the field that it holds."""
    return {_ATTRIBUTES.get(name, name): field
            for name, field in self.fields.items()
            if name not in (LAYOUTS, SPLITS)}

  def read(self, path: str) -> dict[str, np.ndarray]:
    """The fields of `arrays` in a file, under their stored names.

    Raises:
      UserError: the file is missing, damaged, pickled, of the other task or
        lacks an array.
    """
    names = [field.name for field in self.arrays.values()]
    try:
      arrays, faults = npz.read_arrays(path, names, self.max_bytes)
    except npz.DamagedError as error:
      raise UserError(f'{path}: cannot be read as a {self.task} file ({error})'
                      f'; {self._advice()}') from error
    if faults and (other := belongs_to_other_task(path, self.task)):
      raise UserError(f'{path}: {other}')
    for name, message in faults.items():
      raise self.bad(path, name, message)
    return arrays

  def require(self, arrays: Arrays, where: str) -> None:
    """Raises UserError for the first fault that reading cannot do with."""
    for name, message in self.faults(arrays):
      raise self.bad(where, name, message)

  def bad(self, where: str, name: str, message: str) -> UserError:
    """The error for one array."""
    return UserError(f'{where}: {name} {message}; {self._advice()}')

  def _advice(self) -> str:
    flag = '' if self.task == 'tile' else f' --task {self.task}'
    return (f'copy the file again, or run `tpu-graphs-ext check-data{flag}` on '
            'its folder to see every fault')

  def faults(self, arrays: Arrays, rules: tuple[Rule, ...] = (),
             strict: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (field, message) for all that is wrong with the arrays of a file.

    Args:
      arrays: some or all arrays of the file.
      rules: on values. None given: those that reading needs.
      strict: whether dtypes and widths must be those of the published files.
    """
    sound, strict = {}, strict or not self.any_width
    for name, array in arrays.items():
      yield from ((name, message) for message in _wrong_dtype(
          array, self.fields[name], strict))
      shape_faults = list(_wrong_shape(array, self.fields[name], strict))
      yield from ((name, message) for message in shape_faults)
      if not shape_faults and array.dtype.kind in 'iuf':
        sound[name] = array
    yield from self._unequal_counts(sound)
    for names, rule in rules or (*self.read_rules, _READ_RUNTIMES):
      if sound.keys() >= set(names):
        yield from ((names[0], message)
                    for message in rule(*(sound[name] for name in names)))

  def all_faults(self, arrays: Arrays,
                 labelled: bool) -> Iterator[tuple[str, str]]:
    """The same by every rule; `labelled`: whether runtimes must be known."""
    labels = (_POSITIVE_RUNTIMES,) if labelled else ()
    return self.faults(
        arrays, (*self.read_rules, *self.check_rules, *labels), strict=True)

  def _unequal_counts(self, arrays: Arrays) -> Iterator[tuple[str, str]]:
    """The first array with an axis sets its size."""
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


_POSITIVE_RUNTIMES: Rule = (RUNTIME,), _not_positive
_READ_RUNTIMES: Rule = (RUNTIME,), _partly_hidden
_GRAPH_READ = (
    _no_rows('node_feat', 'node'), (('node_feat',), _not_finite),
    (('edge_index', 'node_feat'), _edges_out_of_range))
_GRAPH_CHECK = ((('node_opcode',), _unknown_opcodes),
                (('edge_index',), _edges_against_order))

TILE = TaskRules(
    task='tile',
    fields={field.name: field for field in schema.TILE_FIELDS},
    features='config_feat', max_bytes=npz.MAX_BYTES, any_width=True,
    read_rules=(
        *_GRAPH_READ, _no_rows('config_feat', 'configuration'),
        (('config_feat',), _not_finite), ((NORMALIZER,), _not_positive)),
    check_rules=(*_GRAPH_CHECK, (('config_feat',), _one_config)))
LAYOUT = TaskRules(
    task='layout',
    fields={field.name: field for field in schema.LAYOUT_FIELDS},
    # The largest of the published arrays has 1.3 GB.
    features=LAYOUTS, max_bytes=1 << 32, any_width=False,
    read_rules=(
        *_GRAPH_READ, ((LAYOUTS,), _nothing_to_rank),
        ((IDS, 'node_feat'), _ids_out_of_range), ((IDS,), _repeated_ids)),
    check_rules=(
        *_GRAPH_CHECK, ((LAYOUTS,), not_permutations),
        ((SPLITS, 'node_feat'), _splits_out_of_order)))
TASKS = {rules.task: rules for rules in (TILE, LAYOUT)}


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
