"""Every fault of every kernel file, in one report.

One small function a rule. Each takes the arrays of a file under their stored
names and yields a message for what it finds; `RULES` says which arrays a rule
needs, so that one bad array does not hide the faults of the others.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tqdm

from tpu_graphs_ext import kernel as kernel_lib
from tpu_graphs_ext import schema
from tpu_graphs_ext.errors import UserError

Arrays = Mapping[str, np.ndarray]

FIELDS = {field.name: field for field in schema.TILE_FIELDS}
RUNTIME, NORMALIZER = 'config_runtime', 'config_runtime_normalizers'
# The split whose labels may be withheld.
HIDDEN_SPLIT = 'test'
QUANTILES = (0, 5, 25, 50, 75, 95, 100)
# Fault lines in the text of a report; the rest is only counted.
MAX_LINES = 200


@dataclasses.dataclass(frozen=True)
class Fault:
  """One broken rule in one file.

  Attributes:
    file: path of the file (or folder).
    field: name of the array as stored; empty if it is the whole file.
    message: the rule and the value found.
  """
  file: str
  field: str
  message: str

  def __str__(self) -> str:
    return ': '.join(part for part in (self.file, self.field, self.message)
                     if part)


# ------------------------------------------------------- one rule a function


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


def too_few_configs(arrays: Arrays) -> Iterator[str]:
  """There are two configurations to compare."""
  number = len(arrays['config_feat'])
  if number < 2:
    yield f'has {number} configurations; it takes 2 or more to rank'


def edges_out_of_range(arrays: Arrays) -> Iterator[str]:
  """Both ends of every edge are nodes of the kernel."""
  edges, nodes = arrays['edge_index'], len(arrays['node_feat'])
  yield from _bad_rows(edges, ((edges < 0) | (edges >= nodes)).any(axis=1),
                       f'both nodes must be in 0 to {nodes - 1}')


def edges_against_order(arrays: Arrays) -> Iterator[str]:
  """Every producer comes before its consumer."""
  edges = arrays['edge_index']
  yield from _bad_rows(
      edges, edges[:, 0] <= edges[:, 1],
      'rows are (consumer, producer), and a producer comes before its consumer')


def unknown_opcodes(arrays: Arrays) -> Iterator[str]:
  """Every opcode is in the table."""
  opcodes = arrays['node_opcode']
  known = np.isin(opcodes, list(schema.OPCODE_NAMES))
  yield from _bad_rows(opcodes, ~known, 'it is not in the table of opcodes '
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
    yield from _bad_rows(times, times <= 0, 'times in ns must be positive')
  return rule


# The rules without which reading would give nonsense: the field to blame, the
# fields needed, the rule.
READ_RULES = (
    ('edge_index', ('edge_index', 'node_feat'), edges_out_of_range),
    ('node_feat', ('node_feat',), not_finite('node_feat')),
    ('config_feat', ('config_feat',), not_finite('config_feat')),
    (NORMALIZER, (NORMALIZER,), not_positive(NORMALIZER)),
)
# The rest, and those of a file whose label is not withheld.
RULES = READ_RULES + (
    ('node_feat', ('node_feat',), no_nodes),
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


def _bad_rows(rows: np.ndarray, bad: np.ndarray, rule: str) -> Iterator[str]:
  """One message for all rows that break a rule; it shows the first."""
  if bad.any():
    first = int(np.argmax(bad))
    yield (f'row {first} is {rows[first].tolist()}; {rule} '
           f'({bad.sum()} of {len(rows)} rows break this)')


def _shape_text(field: schema.Field) -> str:
  comma = ',' if len(field.axes) == 1 else ''  # As NumPy writes a shape.
  return f'({", ".join(map(str, field.axes))}{comma})'


# --------------------------------------------------------------- one file


def load_arrays(path: str) -> tuple[dict[str, np.ndarray], list[Fault]]:
  """The arrays that can be read, and a fault for each that cannot."""
  faults, arrays = [], {}
  try:
    stored = np.load(path, allow_pickle=False)
    keys = set(stored.files)
  except kernel_lib.READ_ERRORS as error:
    return {}, [Fault(path, '', f'cannot be read as .npz ({error}); it may be '
                      'cut short or pickled')]
  with stored:
    for name in FIELDS:
      if name not in keys:
        faults.append(Fault(path, name, 'is missing; the file has '
                            f'{", ".join(sorted(keys)) or "nothing"}'))
        continue
      try:
        arrays[name] = stored[name]
      except kernel_lib.READ_ERRORS as error:
        faults.append(Fault(path, name, f'cannot be read ({error}); it may be '
                            'damaged or pickled'))
  return arrays, faults


def check_arrays(path: str, arrays: Arrays,
                 labelled: bool = True) -> list[Fault]:
  """Every fault of the arrays of one file; see `check_kernel_file`."""
  faults, sound = [], {}
  for name, array in arrays.items():
    field = FIELDS[name]
    shape_faults = list(wrong_shape(array, field))
    faults += [Fault(path, name, message)
               for message in (*wrong_dtype(array, field), *shape_faults)]
    if not shape_faults and array.dtype.kind in 'iuf':
      sound[name] = array
  faults += [Fault(path, name, message)
             for name, message in unequal_counts(sound)]
  rules = RULES + LABEL_RULES if labelled else RULES
  for field_name, needed, rule in rules:
    if sound.keys() >= set(needed):
      faults += [Fault(path, field_name, message) for message in rule(sound)]
  if not labelled and {RUNTIME, NORMALIZER} <= sound.keys() and not is_withheld(
      sound):
    faults.append(Fault(path, RUNTIME, 'is not all 0 with normalizers of 1, '
                        'as a withheld label is'))
  return faults


def check_kernel_file(path: str, labelled: bool = True) -> list[Fault]:
  """Every fault of one .npz file; empty if there is none.

  Args:
    path: the file.
    labelled: True wants positive runtimes and normalizers; False wants the
      runtimes to be withheld: all 0, with normalizers of 1.
  """
  arrays, faults = load_arrays(path)
  return faults + check_arrays(path, arrays, labelled)


# -------------------------------------------------------------- many files


@dataclasses.dataclass
class Report:
  """What `check_data` found.

  Attributes:
    counts: split -> what ('kernels', 'nodes', 'edges', 'configs',
      'without label') -> number.
    quantiles: split -> size ('nodes', 'edges', 'configs' of a kernel) -> its
      value at each of `QUANTILES` per cent of the kernels.
    faults: broken rules.
    notes: what is allowed but worth knowing.
  """
  counts: dict[str, dict[str, int]]
  quantiles: dict[str, dict[str, list[float]]]
  faults: list[Fault]
  notes: list[str]

  @property
  def ok(self) -> bool:
    """True if there is no fault."""
    return not self.faults

  def text(self) -> str:
    """The report for a person."""
    lines = []
    for split, counts in self.counts.items():
      lines.append(f'{split}: ' + ', '.join(
          f'{number:,} {what}' for what, number in counts.items()))
      lines.append('  of a kernel  ' + ''.join(
          f'{percent:>8} %' for percent in QUANTILES))
      lines += [f'  {size:<13}' + ''.join(
          f'{value:>10,.0f}' for value in values)
                for size, values in self.quantiles[split].items()]
    for title, items in (('note', self.notes), ('fault', self.faults)):
      lines += [f'{title}: {item}' for item in items[:MAX_LINES]]
      if len(items) > MAX_LINES:
        lines.append(f'... and {len(items) - MAX_LINES:,} more; --json has all')
    files = len({fault.file for fault in self.faults})
    lines.append(f'{len(self.faults):,} faults in {files:,} files'
                 if self.faults else 'no faults')
    return '\n'.join(lines)

  def to_json(self) -> dict[str, Any]:
    """The report as plain dicts and lists."""
    return {**dataclasses.asdict(self), 'ok': self.ok,
            'quantile_percents': list(QUANTILES)}


@dataclasses.dataclass(frozen=True)
class _FileCheck:
  """What is kept of one file: no array."""
  path: str
  faults: list[Fault]
  sizes: dict[str, int] | None  # None where an array is missing.
  withheld: bool
  identical_configs: bool


def check_data(root: str) -> Report:
  """Checks a data root, or one folder of .npz files.

  The labels of the test split (or of a folder named so) may be withheld, in
  all of its files or in none.

  Args:
    root: folder with train, valid and test, or with .npz files; `~` is
      expanded.

  Raises:
    UserError: there is neither.
  """
  folder = os.path.abspath(os.path.expanduser(root))
  report = Report(counts={}, quantiles={}, faults=[], notes=[])
  splits = [split for split in schema.SPLITS
            if os.path.isdir(os.path.join(folder, split))]
  if splits:
    folders = {split: os.path.join(folder, split) for split in splits}
    report.faults += [
        Fault(root, '', f'the split folder {split} is missing')
        for split in schema.SPLITS if split not in splits]
  else:
    if not _npz_files(folder):
      raise UserError(
          f'{root}: found neither the folders {", ".join(schema.SPLITS)} nor '
          '.npz files; name a data root or one folder of it')
    folders = {os.path.basename(folder): folder}
  owner = {}  # tile id -> file that has it.
  for split, split_folder in folders.items():
    checks = _check_split(split, split_folder, report)
    _find_doubles(checks, owner, report)
  return report


def _npz_files(folder: str) -> list[str]:
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return [os.path.join(folder, name) for name in sorted(names)
          if name.endswith('.npz')]


def _check_split(split: str, folder: str, report: Report) -> list[_FileCheck]:
  """Checks the files of one folder and adds what it finds to the report."""
  paths = _npz_files(folder)
  if not paths:
    report.faults.append(Fault(folder, '', 'has no .npz files'))
  may_hide = split == HIDDEN_SPLIT
  checks = [_check_file(path, may_hide) for path in tqdm.tqdm(
      paths, desc=split, unit='kernel', disable=None)]
  for check in checks:
    report.faults += check.faults
    if check.identical_configs:
      report.notes.append(f'{check.path}: all configurations have the same '
                          'features, so they cannot be ranked')
  hidden = [check for check in checks if check.withheld]
  if may_hide and len(hidden) < len(checks):
    report.faults += [
        Fault(check.path, RUNTIME, 'is withheld, but '
              f'{len(checks) - len(hidden)} other files of the folder have '
              'labels; either all have or none')
        for check in hidden]
  _add_sizes(split, checks, len(hidden) if may_hide else 0, report)
  return checks


def _check_file(path: str, may_hide: bool) -> _FileCheck:
  arrays, faults = load_arrays(path)
  withheld = may_hide and is_withheld(arrays)
  configs = arrays.get('config_feat')
  axes = {FIELDS[name].axes[0]: len(array)
          for name, array in arrays.items() if array.ndim}
  return _FileCheck(
      path=path, withheld=withheld,
      faults=faults + check_arrays(path, arrays, labelled=not withheld),
      sizes=axes if len(axes) == 3 else None,
      identical_configs=bool(
          configs is not None and configs.ndim and len(configs) > 1
          and (configs == configs[0]).all()))


def _add_sizes(split: str, checks: list[_FileCheck], hidden: int,
               report: Report) -> None:
  sizes = [check.sizes for check in checks if check.sizes]
  report.counts[split] = {'kernels': len(checks)}
  report.quantiles[split] = {}
  for axis in ('nodes', 'edges', 'configs'):
    values = [size[axis] for size in sizes]
    report.counts[split][axis] = sum(values)
    if values:
      report.quantiles[split][axis] = np.percentile(values, QUANTILES).tolist()
  report.counts[split]['without label'] = hidden


def _find_doubles(checks: list[_FileCheck], owner: dict[str, str],
                  report: Report) -> None:
  """Adds a fault for every kernel name that an earlier file has too."""
  for check in checks:
    tile_id = kernel_lib.tile_id_of(check.path)
    if tile_id in owner:
      report.faults.append(Fault(
          check.path, '', f'the tile id is also that of {owner[tile_id]}; '
          'each kernel belongs to one split'))
    owner.setdefault(tile_id, check.path)
