"""Every fault of every file of a data root, in one report."""

from __future__ import annotations

import dataclasses
import glob
import os
from typing import Any

import tqdm

from tpu_graphs_ext.data import npz, rules, schema
from tpu_graphs_ext.errors import UserError, shortened

# The split whose labels may be withheld. In a plain folder, of kernels to rank
# perhaps, they may be too; in the other splits never.
HIDDEN_SPLIT = 'test'
# Fault lines in the text of a report; the rest is only counted.
MAX_LINES = 200


@dataclasses.dataclass(frozen=True)
class Fault:
  """A broken rule in a file or folder, and in a field unless that is ''."""
  file: str
  field: str
  message: str

  def __str__(self) -> str:
    return ': '.join(part for part in (self.file, self.field, self.message)
                     if part)


@dataclasses.dataclass
class Report:
  """The result of `check_data`.

  Attributes:
    counts: split -> what ('kernels', 'nodes', 'edges', 'configs',
      'without label') -> number.
    faults: broken rules.
    notes: allowed but worth knowing.
  """
  counts: dict[str, dict[str, int]]
  faults: list[Fault]
  notes: list[str]

  @property
  def ok(self) -> bool:
    """True if there is no fault."""
    return not self.faults

  def text(self) -> str:
    """The report for a person."""
    lines = [f'{split}: ' + ', '.join(
        f'{number:,} {what}' for what, number in counts.items())
             for split, counts in self.counts.items()]
    for title, items in (('note', self.notes), ('fault', self.faults)):
      lines += [f'{title}: {item}' for item in items[:MAX_LINES]]
      if len(items) > MAX_LINES:
        lines.append(f'... and {len(items) - MAX_LINES:,} more; --json has all')
    faults, files = (len(found) for found in (
        self.faults, {fault.file for fault in self.faults}))
    lines.append(f'{faults:,} fault{"s" * (faults > 1)} in {files:,} '
                 f'file{"s" * (files > 1)}' if faults else 'no faults')
    return '\n'.join(lines)

  def to_json(self) -> dict[str, Any]:
    """The report as plain dicts and lists."""
    return {**dataclasses.asdict(self), 'ok': self.ok}


# --------------------------------------------------------------- one file


@dataclasses.dataclass
class _File:
  """The result of checking one file."""
  path: str
  faults: list[Fault] = dataclasses.field(default_factory=list)
  sizes: dict[str, int] = dataclasses.field(default_factory=dict)
  withheld: bool = False
  other_task: bool = False


def check_file(path: str, task: str = 'tile', may_hide: bool = False) -> _File:
  """Checks one .npz file; `may_hide`: its label may be withheld."""
  its, found = rules.TASKS[task], _File(path)
  if other := rules.belongs_to_other_task(path, task):
    found.faults, found.other_task = [Fault(path, '', other)], True
    return found
  try:
    arrays, faults = npz.read_arrays(path, list(its.fields), its.max_bytes)
  except npz.DamagedError as error:
    found.faults = [Fault(path, '', f'cannot be read as .npz ({error}); it may '
                          'be cut short or pickled')]
    return found
  found.withheld = may_hide and its.is_withheld(arrays)
  found.faults = [Fault(path, *fault) for fault in (
      *faults.items(), *its.all_faults(arrays, not found.withheld))]
  found.sizes = {its.fields[name].axes[0]: len(array)
                 for name, array in arrays.items() if array.ndim}
  return found


# -------------------------------------------------------------- many files


def check_data(root: str, task: str = 'tile') -> Report:
  """Checks a data root, or one folder of .npz files.

  The labels of the test split (or of a folder with that name) may be withheld,
  in all of its files or in none. In a folder that is not a split they may be
  withheld in any; a note then says so.

  Args:
    root: folder with train, valid and test, or with .npz files; `~` is
      expanded.
    task: 'tile' or 'layout', the task of the files.

  Raises:
    UserError: there is neither.
  """
  folder = os.path.abspath(os.path.expanduser(root))
  report = Report(counts={}, faults=[], notes=[])
  folders = {split: os.path.join(folder, split) for split in schema.SPLITS
             if os.path.isdir(os.path.join(folder, split))}
  if folders:
    report.faults += [
        Fault(root, '', f'the split folder {split} is missing')
        for split in schema.SPLITS if split not in folders]
  elif glob.glob(os.path.join(glob.escape(folder), '*.npz')):
    folders = {os.path.basename(folder): folder}
  else:
    raise UserError(
        f'{root}: found neither the folders {", ".join(schema.SPLITS)} nor '
        '.npz files; name a data root or one folder of it')
  first = {}  # Kernel -> the first file with that name.
  for split, split_folder in folders.items():
    for path in _check_split(split, split_folder, report, task):
      name = os.path.basename(path)
      if name in first:
        report.faults.append(Fault(
            path, '', f'{first[name]} has the same tile id; '
            'each kernel belongs to one split'))
      first.setdefault(name, path)
  return report


def _check_split(split: str, folder: str, report: Report,
                 task: str) -> list[str]:
  """Adds a folder's faults, notes and sizes; returns the paths of its files."""
  paths = sorted(glob.glob(os.path.join(glob.escape(folder), '*.npz')))
  if not paths:
    report.faults.append(Fault(folder, '', 'has no .npz files'))
  may_hide = split == HIDDEN_SPLIT or split not in schema.SPLITS
  checks = [check_file(path, task, may_hide) for path in tqdm.tqdm(
      paths, desc=split, unit='file', disable=None)]
  if checks and all(check.other_task for check in checks):
    report.faults.append(Fault(
        folder, '', f'none of its {len(checks)} files belongs to the {task} '
        f'task; the first {checks[0].faults[0].message}'))
    return []
  report.faults += [fault for check in checks for fault in check.faults]
  checks = [check for check in checks if not check.other_task]
  hidden = [check.path for check in checks if check.withheld]
  if hidden and split != HIDDEN_SPLIT:
    names = shortened([os.path.basename(path) for path in hidden])
    which = (f'none of the {len(checks)} kernels has labels'
             if len(hidden) == len(checks) else
             f'{len(hidden)} of {len(checks)} kernels have no labels ({names})')
    report.notes.append(
        f'{folder}: {which}, as all their runtimes are 0; they can be ranked, '
        'but not be trained or evaluated on')
  elif len(hidden) < len(checks):  # None, or in the test split.
    report.faults += [
        Fault(path, rules.RUNTIME, 'is withheld, but '
              f'{len(checks) - len(hidden)} other files of the folder have '
              'labels; either all have or none')
        for path in hidden]
  report.counts[split] = {
      'kernels': len(checks), **{
          axis: sum(check.sizes.get(axis, 0) for check in checks)
          for axis in ('nodes', 'edges', 'configs')},
      'without label': len(hidden)}
  return [check.path for check in checks]
