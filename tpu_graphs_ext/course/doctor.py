"""Checks what the assignment needs, and says how to mend it.

One line a finding: fine, a warning (something will be missing or slow), or
broken (a step of the assignment will fail).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import pathlib
import platform
import sys
from collections.abc import Iterator
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.course.checkout import shown_path
from tpu_graphs_ext.data import check, read, schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import TASKS, TILE, tile

FINE, WARNING, BROKEN = 'fine', 'warning', 'broken'
MARKS = {FINE: '✓', WARNING: '!', BROKEN: '✗'}


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line: what was checked, FINE, WARNING or BROKEN, what was found.

  `fix` is the command to paste, or the step, that mends it.
  """
  what: str
  state: str
  text: str
  fix: str = ''

  def __str__(self) -> str:
    line = f'{MARKS[self.state]} {self.what + ":":<19} {self.text}'
    return f'{line}\n    -> {self.fix}' if self.fix else line


@dataclasses.dataclass(frozen=True)
class Diagnosis:
  """All findings."""
  findings: list[Finding]

  @property
  def ok(self) -> bool:
    return all(finding.state != BROKEN for finding in self.findings)

  def text(self) -> str:
    states = [finding.state for finding in self.findings]
    return '\n'.join([*map(str, self.findings), ', '.join(
        f'{states.count(state)} {state}' for state in MARKS)])

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, 'findings': [
        dataclasses.asdict(finding) for finding in self.findings]}


def doctor(root: str = '',
           data_root: str = TILE.training.data_root) -> Diagnosis:
  """Checks versions, data, and the checkout: `root` or TPU_GRAPHS_ROOT."""
  checks = {'versions': version_findings(), 'checkout': checkout_findings(root),
            'data': data_findings(data_root),
            'cache': cache_findings(data_root)}
  findings = []
  for what, check_it in checks.items():
    try:
      findings.extend(check_it)
    except (UserError, OSError, ValueError) as error:
      findings.append(Finding(what, BROKEN, ' '.join(str(error).split()),
                              'mend this, and run doctor again'))
  return Diagnosis(findings)


def _finding(what: str, is_fine: bool, text: str, fix: str,
             state: str = BROKEN) -> Finding:
  return (Finding(what, FINE, text) if is_fine
          else Finding(what, state, text, fix))


def version_findings() -> Iterator[Finding]:
  """Compares what is installed with the stack that is in use."""
  stack = versions.STACKS[versions.stack_name()]
  tensorflow, python = versions.tensorflow_version(), platform.python_version()
  yield Finding('stack', FINE, f'{stack.name}: ' + (
      f'TensorFlow {tensorflow} is installed' if tensorflow else
      f'what Python {python} gets; TensorFlow is not installed'))
  first, last = stack.pythons[0], stack.pythons[-1]
  yield _finding(
      'Python', '.'.join(python.split('.')[:2]) in stack.pythons,
      f'{python}; {first} to {last} fit', f'{_script("quickstart.sh")} '
      f'--python /path/to/python{last}  # makes .venv with it')
  for package, wanted in stack.requirements.items():
    version = (tensorflow if package == 'tensorflow'
               else versions.installed(package))
    yield _finding(
        package, bool(version) and versions.within(version, wanted),
        f'{version or "missing"}; {wanted} fits',
        f"{shown_path(sys.executable)} -m pip install '{package}{wanted}'")


def checkout_findings(root: str = '') -> Iterator[Finding]:
  """Checks the checkout, its models.py and the course's scripts."""
  folder = checkout.find(root)
  if folder is None:
    yield Finding(
        'checkout', WARNING, 'none is named, so verify and package cannot run '
        "the graders' script", f'git clone {checkout.URL}  # then give --root '
        f'tpu_graphs or set {checkout.ROOT_VARIABLE}')
    return
  place = os.path.join(folder, checkout.MODELS_PY)
  if swap.committed(place) is None:
    yield Finding('checkout', BROKEN, f'{place}: git, which keeps the '
                  'original, does not have it or is not installed',
                  f'git clone {checkout.URL}  # and name that one')
  else:
    yield from _clone_findings(folder, place)
  beside = checkout.course_folders(folder)[1]
  scripts = checkout.course_scripts(folder)
  yield _finding('course scripts', bool(scripts),
                 scripts or f'neither in {folder} nor in {beside}',
                 f'git clone {checkout.COURSE_URL} {shown_path(beside)}')


def _clone_findings(folder: str, place: str) -> Iterator[Finding]:
  """Checks the commit of a clone, its changes, and its models.py."""
  commit = checkout.git(folder, 'rev-parse', '--short=7', 'HEAD') or b''
  status = checkout.git(
      folder, 'status', '--porcelain', '--untracked-files=no') or b''
  commit = commit.decode().strip()
  models = {task.baseline_models for task in TASKS.values()}
  changed = [line[3:] for line in status.decode(errors='replace').splitlines()
             if line[3:] not in models]
  yield _finding(
      'checkout', commit == checkout.COMMIT and not changed,
      f'{folder}, commit {commit}, changed files: '
      f'{", ".join(changed) or "none"}',
      f'git -C {shown_path(folder)} stash && '
      f'git -C {shown_path(folder)} checkout {checkout.COMMIT}  '
      '# what this package was tested with', WARNING)
  kind = swap.state(place)
  install = f'{checkout.own_command()} install --root {shown_path(folder)}'
  yield _finding(
      'models.py in place', kind == swap.INSTALLED, kind,
      f'cp {shown_path(place)} my_models.py && {install} --models_py '
      'my_models.py' if kind == swap.OTHER else
      f'{install}  # as assignment_train.sh does', WARNING)


def data_findings(data_root: str) -> Iterator[Finding]:
  """Counts kernels, and looks for faults in their files."""
  folder = files.full_path(files.require_path('--data_root', data_root))
  download = f'{_script("download_data.sh")}  # or name another --data_root'
  try:
    report = check.check_data(folder)
  except UserError as error:
    yield Finding('data', BROKEN, str(error), download)
    return
  sample = os.path.isfile(os.path.join(folder, schema.SAMPLE_DATA_MARK))
  kind = 'sample data, good for a rehearsal; ' if sample else ''
  for split, published in schema.PUBLISHED_KERNELS.items():
    kernels = report.counts.get(split, {}).get('kernels', 0)
    yield _finding(
        f'data, {split}', kernels == published,
        f'{kernels:,} kernels; {kind}the collection has {published:,}',
        download, WARNING if sample and kernels else BROKEN)
  yield _finding(
      'data, files', not report.faults,
      ': '.join([f'{len(report.faults):,} faults',
                 *map(str, report.faults[:1])]),
      f'{checkout.own_command()} check-data {shown_path(folder)}  # lists '
      f'them; delete those files and run {_script("download_data.sh")}')


def cache_findings(data_root: str) -> Iterator[Finding]:
  """Looks for caches of the baseline's scripts that are older than the data.

  Their names depend on the folder and on flags, not on what is in the files.
  A file changes when it is unpacked, whatever time of last modification it
  gets, its folder when one comes or goes, and a data root or a link when
  another takes its place.
  """
  folder, root = files.full_path(tile.CACHE_DIR), files.full_path(data_root)
  stale = []
  for split in schema.SPLITS:
    path = os.path.join(root, split)
    for least, toy_data in itertools.product(
        (tile.TrainSettings.configs, -1) if split == 'train'
        else (read.MIN_CONFIGS,), (False, True)):
      name = hashlib.md5(f'{path}:{least}:{toy_data}'.encode()).hexdigest()
      cache = os.path.join(folder, name + '-cache.npz')
      if os.path.exists(cache) and os.path.getmtime(cache) < max(
          stat(place).st_ctime for stat in (os.stat, os.lstat)
          for place in (root, path, *read.find_npz(path))):
        stale.append(cache)
  if os.path.isdir(folder):
    yield _finding(
        'cache', not stale,
        (f'{len(stale)} in {folder} that are older than the files or their '
         'folder; tiles_train.py would train on those' if stale else
         f'none in {folder} that is older than the files'),
        f'rm {" ".join(map(shown_path, stale))}', WARNING)


def _script(name: str) -> str:
  """A script of the clone that this package was installed from."""
  project = pathlib.Path(__file__).absolute().parents[2]
  return shown_path(str(project / 'run_scripts' / name))
