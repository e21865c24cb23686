"""Every fault of every kernel file, in one report."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import tqdm

from tpu_graphs_ext.data import kernel as kernel_lib
from tpu_graphs_ext.data import layout_rules, npz, rules, schema, task_of_file
from tpu_graphs_ext.data.rules import Arrays
from tpu_graphs_ext.errors import UserError, shortened

# The split whose labels may be withheld, and those that nobody withholds. A
# folder that is none of them is a plain one, of kernels to rank perhaps.
HIDDEN_SPLIT = 'test'
LABELLED_SPLITS = tuple(
    split for split in schema.SPLITS if split != HIDDEN_SPLIT)
# What a layout graph has, and no tile kernel.
_LAYOUT_ONLY = ({field.name for field in schema.LAYOUT_FIELDS}
                - {field.name for field in schema.TILE_FIELDS})
_LAYOUT_TEXT = ('of the layout collection, not of the tile collection that '
                'this checks')
QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_RULES = {'tile': rules, 'layout': layout_rules}
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


# --------------------------------------------------------------- one file


def load_arrays(path: str, task: str = 'tile') -> tuple[
    dict[str, np.ndarray], list[Fault]]:
  """The arrays that can be read, and a fault for each that cannot.

  A tile kernel that is read as a layout graph has one fault, which says so.
  """
  its = _RULES[task]
  try:
    arrays, faults = npz.read_arrays(path, list(its.FIELDS), its.MAX_BYTES)
  except npz.DamagedError as error:
    return {}, [Fault(path, '', f'cannot be read as .npz ({error}); it may be '
                      'cut short or pickled')]
  if task == 'layout' and task_of_file.FEATURES[task] in faults:
    other = task_of_file.of_other_task(path, task)
    if other:
      return {}, [Fault(path, '', other)]
  return arrays, [Fault(path, *fault) for fault in faults.items()]


def check_arrays(path: str, arrays: Arrays, labelled: bool = True,
                 task: str = 'tile') -> list[Fault]:
  """Every fault of the arrays of one file; see `check_kernel_file`."""
  its = _RULES[task]
  faults, sound = [], {}
  for name, array in arrays.items():
    field = its.FIELDS[name]
    shape_faults = list(rules.wrong_shape(array, field))
    faults += [Fault(path, name, message)
               for message in (*rules.wrong_dtype(array, field), *shape_faults)]
    if not shape_faults and array.dtype.kind in 'iuf':
      sound[name] = array
  faults += [Fault(path, name, message)
             for name, message in its.unequal_counts(sound)]
  every = its.RULES + its.LABEL_RULES if labelled else its.RULES
  for field_name, needed, rule in every:
    if sound.keys() >= set(needed):
      faults += [Fault(path, field_name, message) for message in rule(sound)]
  if (not labelled and task == 'tile'
      and {rules.RUNTIME, rules.NORMALIZER} <= sound.keys()
      and not rules.is_withheld(sound)):
    faults.append(Fault(path, rules.RUNTIME, 'is not all 0 with normalizers of '
                        '1, as a withheld label is'))
  return faults


def check_kernel_file(path: str, labelled: bool = True,
                      task: str = 'tile') -> list[Fault]:
  """Every fault of one .npz file; empty if there is none.

  Args:
    path: the file.
    labelled: True wants positive runtimes and normalizers; False wants the
      runtimes to be withheld: all 0, with normalizers of 1.
    task: 'tile' or 'layout', whose file it is.
  """
  arrays, faults = load_arrays(path, task)
  if task == 'tile' and is_layout(path, arrays):
    return [layout_fault(path)]
  return faults + check_arrays(path, arrays, labelled, task)


def is_layout(path: str, arrays: Arrays) -> bool:
  """Whether it is a layout graph, as whose file it has other arrays."""
  if 'config_feat' in arrays:
    return False
  try:
    return bool(npz.array_names(path) & _LAYOUT_ONLY)
  except npz.DamagedError:
    return False


def layout_fault(path: str) -> Fault:
  """What to say of a layout graph."""
  return Fault(path, '', f'is a file {_LAYOUT_TEXT}; move it to a folder of '
               'its own')


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
  is_layout: bool = False


def check_data(root: str, task: str = 'tile') -> Report:
  """Checks a data root, or one folder of .npz files.

  The labels of the test split (or of a folder named so) may be withheld, in
  all of its files or in none. In a folder that is no split they may be
  withheld in any, which a note then says.

  Args:
    root: folder with train, valid and test, or with .npz files; `~` is
      expanded.
    task: 'tile' or 'layout', whose files they are.

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
    checks = _check_split(split, split_folder, report, task)
    _find_doubles(checks, owner, report)
  return report


def _npz_files(folder: str) -> list[str]:
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return [os.path.join(folder, name) for name in sorted(names)
          if name.endswith('.npz')]


def _check_split(split: str, folder: str, report: Report,
                 task: str) -> list[_FileCheck]:
  """Checks the files of one folder and adds what it finds to the report."""
  paths = _npz_files(folder)
  if not paths:
    report.faults.append(Fault(folder, '', 'has no .npz files'))
  may_hide = split not in LABELLED_SPLITS
  checks = [_check_file(path, may_hide, task) for path in tqdm.tqdm(
      paths, desc=split, unit='file', disable=None)]
  if checks and all(check.is_layout for check in checks):
    report.faults.append(Fault(
        folder, '', f'all {len(checks)} files are {_LAYOUT_TEXT}'))
    return []
  for check in checks:
    report.faults += check.faults
    if check.identical_configs:
      report.notes.append(f'{check.path}: all configurations have the same '
                          'features, so they cannot be ranked')
  checks = [check for check in checks if not check.is_layout]
  hidden = [check for check in checks if check.withheld]
  if split != HIDDEN_SPLIT:
    report.notes += _unlabelled_note(folder, hidden, len(checks))
  elif len(hidden) < len(checks):
    report.faults += [
        Fault(check.path, rules.RUNTIME, 'is withheld, but '
              f'{len(checks) - len(hidden)} other files of the folder have '
              'labels; either all have or none')
        for check in hidden]
  _add_sizes(split, checks, len(hidden) if may_hide else 0, report)
  return checks


def _unlabelled_note(folder: str, hidden: list[_FileCheck],
                     number: int) -> list[str]:
  """One note for all kernels of a plain folder that have no labels."""
  if not hidden:
    return []
  names = shortened([os.path.basename(check.path) for check in hidden])
  which = (f'none of the {number} kernels has labels' if len(hidden) == number
           else f'{len(hidden)} of {number} kernels have no labels ({names})')
  return [f'{folder}: {which}, as all their runtimes are 0; they can be '
          'ranked, but not be trained or evaluated on']


def _check_file(path: str, may_hide: bool, task: str) -> _FileCheck:
  its = _RULES[task]
  arrays, faults = load_arrays(path, task)
  if task == 'tile' and is_layout(path, arrays):
    return _FileCheck(path, [layout_fault(path)], None, False, False, True)
  withheld = may_hide and its.is_withheld(arrays)
  configs = arrays.get(task_of_file.FEATURES[task])
  axes = {its.FIELDS[name].axes[0]: len(array)
          for name, array in arrays.items() if array.ndim}
  return _FileCheck(
      path=path, withheld=withheld,
      faults=faults + check_arrays(path, arrays, not withheld, task),
      sizes=axes if axes.keys() >= {'nodes', 'edges', 'configs'} else None,
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
