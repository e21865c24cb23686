"""Reads the arrays of a file of either task and checks them by its rules.

A rule whose arrays have a wrong shape is left out, so that one bad array does
not hide the faults of the others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tpu_graphs_ext.data import npz, schema
from tpu_graphs_ext.errors import UserError

Arrays = Mapping[str, np.ndarray]

RUNTIME, NORMALIZER = 'config_runtime', 'config_runtime_normalizers'
LAYOUTS, IDS, SPLITS = 'node_config_feat', 'node_config_ids', 'node_splits'
# Stored name -> attribute of a `Kernel` or `Program`, which has the unit.
_ATTRIBUTES = {RUNTIME: 'runtime_ns', NORMALIZER: 'normalizer_ns'}
_VALUES_AT_ONCE = 1 << 20  # Of layouts there may be a gigabyte.
_MOST_LETTERS = 200  # Of a row that is shown.
_MOST_NS = np.iinfo(np.int64).max


class Rule(NamedTuple):
  """A rule for the values of the first of some arrays."""
  fields: tuple[str, ...]  # Stored names of the arrays.
  broken: Callable[..., np.ndarray]  # Gives a mask over the first one.
  text: str  # In which `{last}` is the last row of the last array.

  def faults(self, *arrays: np.ndarray, first: int = 0) -> Iterator[str]:
    """A message if some values break it; `first` is the number of row 0."""
    broken = self.broken(*arrays)
    if broken.any():
      place = tuple(np.argwhere(broken)[0].tolist())
      value = str(
          arrays[0].reshape(*broken.shape, -1)[place].squeeze().tolist())
      if len(value) > _MOST_LETTERS:
        value = value[:_MOST_LETTERS] + ' ...'
      row = ', '.join(map(str, (first + place[0], *place[1:])))
      rule = self.text.format(last=len(arrays[-1]) - 1)
      yield (f'row {row} is {value}; {rule} ({broken.sum()} of '
             f'{broken.size} break this)')


def _with_totals(groups: Mapping[str, slice],
                 names: Iterable[str]) -> np.ndarray:
  """int [groups, 8]: columns of the dimensions, their sum and their product."""
  return np.array([range(groups[name].start, groups[name].stop)
                   for name in names])


_NODE_TOTALS = _with_totals(schema.NODE_GROUPS, (
    'shape_dimensions', 'window_size', 'window_stride', 'window_padding_low',
    'window_padding_high', 'window_window_dilation', 'window_base_dilation'))
_BOUNDS = _with_totals(schema.CONFIG_GROUPS, schema.CONFIG_GROUPS)
_OUTPUT = [*schema.CONFIG_GROUPS].index('output_bounds')


def _wrong_totals(dims: np.ndarray, total: np.ndarray,
                  product: np.ndarray) -> np.ndarray:
  """bool [rows, groups], of float [rows, groups, 6] and [rows, groups]."""
  with np.errstate(all='ignore'):
    right = np.isclose(dims.sum(-1), total, rtol=1e-5) & (np.isclose(np.where(
        dims == 0, 1, dims).prod(-1, dtype=np.float64), product, rtol=1e-5) | (
            product == 0))
  return ~right & (dims[..., -1] == 0)  # Else it may have more dimensions.


def _wrong_nodes(nodes: np.ndarray) -> np.ndarray:
  """bool [nodes]: columns contradict each other, as where they are shifted."""
  groups = nodes[:, _NODE_TOTALS]
  types = nodes[:, schema.NODE_GROUPS['shape_element_type']]
  return _wrong_totals(groups[..., :-2], groups[..., -2], groups[..., -1]).any(
      -1) | ((types != 0) & (types != 1)).any(-1) | (types.sum(-1) > 1)


def _wrong_bounds(configs: np.ndarray) -> np.ndarray:
  """bool [configs]: the same of bounds, which are positive, then 0."""
  groups = configs[:, _BOUNDS]
  dims, product = groups[..., :-2], groups[..., -1]
  is_there = (dims != 0).any(-1)
  wrong = _wrong_totals(dims, groups[..., -2], product) | (
      (product != 0) != is_there) | (dims < 0).any(-1) | (
          (dims[..., 1:] != 0) & (dims[..., :-1] == 0)).any(-1)
  return wrong.any(-1) | (is_there.any(-1) & ~is_there[:, _OUTPUT])


def _of_width(width: int, broken: Callable) -> Callable:
  """The same for an array with all columns, some rows at a time."""
  def of_all(array: np.ndarray) -> np.ndarray:
    if array.shape[-1] != width:
      return np.zeros(len(array), bool)
    rows = max(1, _VALUES_AT_ONCE // max(1, array[:1].size))
    return np.concatenate([broken(array[start:start + rows])
                           for start in range(0, max(1, len(array)), rows)])

  return of_all


def _no_such_row(numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
  bad = (numbers < 0) | (numbers >= len(table))
  return bad.any(axis=1) if bad.ndim > 1 else bad


def _repeated(ids: np.ndarray) -> np.ndarray:
  repeated = np.ones(len(ids), bool)
  repeated[np.unique(ids, return_index=True)[1]] = False
  return repeated


def _no_layout(layouts: np.ndarray) -> np.ndarray:
  """bool [configs, nodes, 3]: does not list different dimensions, then -1."""
  groups = layouts.reshape(*layouts.shape[:2], 3, schema.MAX_DIMS)
  with np.errstate(invalid='ignore'):  # NaN, which equals no number.
    numbers = groups.astype(np.int8)
  wrong = (numbers != groups) | (numbers < schema.LAYOUT_PADDING) | (
      numbers >= schema.MAX_DIMS)
  present = numbers >= 0
  wrong[..., 1:] |= present[..., 1:] & ~present[..., :-1]
  ordered = np.sort(numbers, axis=-1)
  wrong[..., 1:] |= (ordered[..., 1:] == ordered[..., :-1]) & (
      ordered[..., 1:] >= 0)
  return wrong.any(-1)


NO_LAYOUT = Rule((LAYOUTS,), _of_width(
    len(schema.LAYOUT_CONFIG_FEATURES), _no_layout), (
    'each layout (configuration, configurable node; output, input or kernel) '
    f'lists different dimensions of 0 to {schema.MAX_DIMS - 1}, and then '
    f'{schema.LAYOUT_PADDING} to its end'))
_IN_NS = 'times in ns must be positive'
_LABELLED = Rule((RUNTIME,), lambda times: times <= 0, _IN_NS)
_LABELLED_OR_NOT = _LABELLED._replace(  # All may be 0: a withheld label.
    broken=lambda times: (times <= 0) & times.any())
# Of the columns in a row; reading warns of them.
COLUMNS = (
    Rule(('node_feat',), _of_width(len(schema.NODE_FEATURES), _wrong_nodes),
         'sums and products must be those of the dimensions, and one element '
         'type at most 1, the others 0; are columns missing or shifted?'),
    Rule(('config_feat',), _of_width(
        len(schema.CONFIG_FEATURES), _wrong_bounds),
         'bounds must be positive, then 0, with their sum and product, some of '
         'them of the output; are columns missing or shifted?'))
# Without these, reading a file would give nonsense.
_READ = (
    *(Rule((name,), lambda table: ~np.isfinite(table), 'values must be finite')
      for name in ('node_feat', 'config_feat')),
    Rule(('edge_index', 'node_feat'), _no_such_row,
         'both nodes must be in 0 to {last}'),
    Rule((NORMALIZER,), lambda times: times <= 0, _IN_NS),
    Rule((IDS, 'node_feat'), _no_such_row, 'a node must be in 0 to {last}'),
    Rule((IDS,), _repeated, 'an earlier row is the same node'))
_CHECKED = (
    Rule(('node_opcode',),
         lambda opcodes: ~np.isin(
             opcodes, [schema.UNKNOWN_OPCODE, *schema.OPCODE_NAMES]),
         f'it must be {schema.UNKNOWN_OPCODE} (unknown) or in the table of '
         f'opcodes (1 to {schema.NUM_OPCODES - 1})'),
    *COLUMNS,
    Rule((NORMALIZER,), lambda times: times // 2 > times.min(initial=_MOST_NS),
         'the default tile of one kernel cannot take twice as long on another '
         'machine'),
    Rule(('edge_index',), lambda edges: edges[:, 0] <= edges[:, 1],
         'rows are (consumer, producer), and a producer comes before its '
         'consumer'),
    NO_LAYOUT)


@dataclasses.dataclass(frozen=True)
class TaskRules:
  """The rules for files of one task."""
  task: str  # Its name.
  problems: str  # What its files hold.
  fields: Mapping[str, schema.Field]  # By name as stored.
  features: str  # The array that only files of this task have.
  max_bytes: int  # Of all arrays of a file.
  least: Mapping[str, int]  # Axis -> its least size.
  fixed_widths: bool = False  # Whether files must have all feature columns.

  @functools.cached_property
  def arrays(self) -> dict[str, schema.Field]:
    """Attribute of a `Kernel` or `Program` -> the field that it holds."""
    return {_ATTRIBUTES.get(name, name): field
            for name, field in self.fields.items()
            if name not in (LAYOUTS, SPLITS)}

  def read(self, path: str) -> dict[str, np.ndarray]:
    """The fields of `arrays` in a file, by stored name, or a UserError."""
    try:
      arrays, faults = npz.read_arrays(
          path, [field.name for field in self.arrays.values()], self.max_bytes)
    except npz.DamagedError as error:
      raise self.bad(
          path, f'cannot be read as a {self.task} file ({error})') from error
    if faults and (other := self.other_task(path)):
      raise UserError(f'{path}: {other}')
    for name, message in faults.items():
      raise self.bad(path, f'{name} {message}')
    return arrays

  def require(self, arrays: Arrays, where: str) -> None:
    """Raises UserError for the first fault that reading cannot do with."""
    for name, message in self.faults(arrays):
      raise self.bad(where, f'{name} {message}')

  def bad(self, where: str, message: str) -> UserError:
    """The error for one file, or for arrays that come from no .npz file."""
    return UserError(f'{where}: {message}; ' + (
        'copy the file again, or run `tpu-graphs-ext check-data --task '
        f'{self.task}` on its folder to see every fault'
        if where.endswith('.npz') else 'docs/data.md describes the arrays'))

  def faults(self, arrays: Arrays, strict: bool = False,
             labelled: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (field, message) for each broken rule of some arrays of a file.

    `strict`: all rules, not only those that reading needs; `labelled`: runtimes
    must be known.
    """
    sound = {}
    for name, array in arrays.items():
      field = self.fields[name]
      shape_fault = _wrong_shape(array, field, strict or self.fixed_widths)
      for message in filter(None, (
          _wrong_dtype(array, field, strict), shape_fault)):
        yield name, message
      if not shape_fault and array.dtype.kind in 'iuf':
        sound[name] = array
    yield from self._wrong_sizes(sound, strict)
    for rule in (*_READ, *(_CHECKED if strict else ()),
                 _LABELLED if labelled else _LABELLED_OR_NOT):
      if sound.keys() >= set(rule.fields):
        yield from ((rule.fields[0], message) for message in rule.faults(
            *(sound[name] for name in rule.fields)))

  def other_task(self, path: str) -> str:
    """Says that an .npz file belongs to another task; '' where it does not."""
    try:
      names = npz.array_names(path)
    except npz.DamagedError:
      return ''
    for other in OF_TASK.values():
      if self.features not in names and other.features in names:
        return (f'is a file of the {other.task} task: it has {other.features} '
                f'and no {self.features}; give files of the {self.task} task, '
                f'of npz/{self.task}/ in the published data')
    return ''

  def _wrong_sizes(self, arrays: Arrays,
                   strict: bool) -> Iterator[tuple[str, str]]:
    """The first array with an axis sets its size."""
    first, least = {}, {**self.least, **({'configs': 2} if strict else {})}
    for name, array in arrays.items():
      for place, axis in enumerate(self.fields[name].axes):
        if isinstance(axis, int):
          continue
        size = array.shape[place]
        if axis not in first and size < least.get(axis, 0):
          yield name, f'has {size} {axis}; it must have at least {least[axis]}'
        leader, expected = first.setdefault(axis, (name, size))
        if size != expected:
          yield name, (f'has {size} {axis} (axis {place}), but {leader} has '
                       f'{expected}; both must be equal')


def _wrong_dtype(array: np.ndarray, field: schema.Field, strict: bool) -> str:
  # Narrower integers or floats may be read, but no bool, and no integers where
  # features are floats.
  kinds = 'f' if np.dtype(field.dtype).kind == 'f' else 'iu'
  if array.dtype != field.dtype and (
      strict or array.dtype.kind not in kinds
      or not np.can_cast(array.dtype, field.dtype, 'safe')):
    return f'has dtype {array.dtype}; it must be {field.dtype}'
  return ''


def _wrong_shape(array: np.ndarray, field: schema.Field, strict: bool) -> str:
  # Other numbers of feature columns may be read.
  any_width = not strict and field.name in ('node_feat', 'config_feat')
  if array.ndim == len(field.axes) and all(
      size == axis or any_width for size, axis in zip(array.shape, field.axes)
      if isinstance(axis, int)):
    return ''
  axes = ', '.join(map(str, field.axes))
  return f'has shape {array.shape}; it must be ({axes})'


TILE = TaskRules(
    'tile', 'kernels', {field.name: field for field in schema.TILE_FIELDS},
    features='config_feat', max_bytes=npz.MAX_BYTES,
    least={'nodes': 1, 'configs': 1})
LAYOUT = TaskRules(
    'layout', 'programs', {field.name: field for field in schema.LAYOUT_FIELDS},
    # The largest of the published arrays has 1.3 GB.
    features=LAYOUTS, max_bytes=1 << 32, fixed_widths=True,
    least={'nodes': 1, 'configs': 2, 'configurable nodes': 1})
OF_TASK = {rules.task: rules for rules in (TILE, LAYOUT)}
