"""Every fault of every file of a data root, in one report."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any

import numpy as np
import tqdm

from tpu_graphs_ext import files
from tpu_graphs_ext.data import npz, rules, schema
from tpu_graphs_ext.errors import UserError

UNKNOWN = 'nodes of unknown opcode'
COUNTED = 'nodes', UNKNOWN, 'edges', 'configs', 'without label'


@dataclasses.dataclass(frozen=True)
class Fault:
  """A broken rule in a file or folder, and in a field unless that is ''."""
  file: str
  field: str
  message: str

  def __str__(self) -> str:
    return ': '.join(filter(None, dataclasses.astuple(self)))


@dataclasses.dataclass
class Report:
  """The result of `check_data`; `counts` of files and `COUNTED`, by split."""
  counts: dict[str, dict[str, int]]
  faults: list[Fault]

  def text(self) -> str:
    """The report for a person."""
    lines = [f'{split}: ' + ', '.join(
        f'{number:,} {what}' for what, number in counts.items())
             for split, counts in self.counts.items()]
    lines += [f'fault: {fault}' for fault in self.faults]
    return '\n'.join([*lines, f'faults: {len(self.faults):,}' if self.faults
                      else 'no faults'])

  def to_json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), 'ok': not self.faults}


def check_file(path: str, of_task: rules.TaskRules = rules.TILE,
               may_hide: bool = False) -> tuple[
                   list[Fault], dict[str, int], str]:
  """The faults of a file, what it adds to `Report.counts`, and its problem.

  That is a hash of all but the name and the times. With `may_hide` its label
  may be withheld.
  """
  counts = {of_task.problems: 1}
  if other := of_task.other_task(path):
    return [Fault(path, '', other)], counts, path
  try:
    arrays, faults = npz.read_arrays(
        path, list(of_task.fields), of_task.max_bytes)
  except npz.DamagedError as error:
    return [Fault(path, '', f'cannot be read as .npz ({error}); it may be cut '
                  'short or pickled')], counts, path
  withheld = may_hide and rules.RUNTIME in arrays and not (
      arrays[rules.RUNTIME].any())
  counts['without label'] = int(withheld)
  counts |= {of_task.fields[name].axes[0]: len(array)
             for name, array in arrays.items() if array.ndim}
  counts[UNKNOWN] = int((arrays.get(
      'node_opcode', np.ones(0)) == schema.UNKNOWN_OPCODE).sum())
  problem = hashlib.sha256()
  for name in sorted(arrays.keys() - {rules.RUNTIME, rules.NORMALIZER}):
    problem.update(repr((name, arrays[name].shape)).encode())
    problem.update(np.ascontiguousarray(arrays[name]))
  return [Fault(path, *fault) for fault in (
      *faults.items(),
      *of_task.faults(arrays, strict=True, labelled=not withheld))], counts, (
          problem.hexdigest())


def check_data(root: str, of_task: rules.TaskRules = rules.TILE) -> Report:
  """Checks train, valid and test of a folder, or its .npz files.

  Labels may be withheld in the test split, and in a folder that is no split.
  Raises UserError if it holds neither.
  """
  folder = files.full_path(root)
  report = Report(counts={}, faults=[])
  folders = {split: os.path.join(folder, split) for split in schema.SPLITS
             if os.path.isdir(os.path.join(folder, split))}
  if folders:
    report.faults += [
        Fault(root, '', f'the split folder {split} is missing')
        for split in schema.SPLITS if split not in folders]
  elif os.path.isdir(folder) and _npz_files(folder):
    folders = {os.path.basename(folder): folder}
  else:
    raise UserError(
        f'{root}: is no folder with .npz files or with the folders '
        f'{", ".join(schema.SPLITS)}; name a data root or one folder of it')
  # Name, and hash, of each kernel -> its first file, and that one's split.
  names, problems = {}, {}
  for split, split_folder in folders.items():
    paths = _npz_files(split_folder)
    if not paths:
      report.faults.append(Fault(split_folder, '', 'has no .npz files'))
    total = report.counts[split] = dict.fromkeys(
        (of_task.problems, *COUNTED), 0)
    for path in tqdm.tqdm(paths, desc=split, unit='file', disable=None):
      faults, counts, problem = check_file(
          path, of_task, split not in ('train', 'valid'))
      report.faults += faults
      for what in total:
        total[what] += counts.get(what, 0)
      other = names.setdefault(os.path.basename(path), path)
      twin, its_split = problems.setdefault(problem, (path, split))
      same = (f'{other} has the same name' if other != path else
              f'{twin} has the same nodes and configurations under another '
              'name' if its_split != split else '')
      if same:
        report.faults.append(Fault(
            path, '', f'{same}; {of_task.problems} belong to one split each'))
  return report


def _npz_files(folder: str) -> list[str]:
  return [os.path.join(folder, name) for name in sorted(os.listdir(folder))
          if name.endswith('.npz')]
