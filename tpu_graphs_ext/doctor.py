"""Looks over all that the assignment needs, and says what mends it.

One line a thing: fine, a warning (something will be missing or slow), or
broken (a step of the assignment will fail).
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tpu_graphs_ext import baseline, config, install, schema, validate
from tpu_graphs_ext.errors import UserError

FINE, WARNING, BROKEN = 'fine', 'warning', 'broken'
MARKS = {FINE: '✓', WARNING: '!', BROKEN: '✗'}

CLONE = 'git clone https://github.com/google-research-datasets/tpu_graphs'
CLONE_SCRIPTS = 'git clone https://github.com/ADAPT-uiuc/tpu_graphs_scripts'
BASELINE_COMMIT = 'ddd187c'
DOWNLOAD = 'run_scripts/download_data.sh'
KERNELS = {'train': 5709, 'valid': 676, 'test': 844}
SAMPLE_MARK = 'sample_data.json'  # `sample-data` leaves it in its folder.

# The archives, the files in them and the caches; the environment not counted.
DISK_GB = 10
# The baseline keeps a gigabyte of features, and copies them once.
MEMORY_GB, LEAST_MEMORY_GB = 8, 4


@dataclasses.dataclass(frozen=True)
class WorkingSet:
  """Versions with which the unchanged baseline runs.

  Attributes:
    python: lowest version, and the first that is too new.
    packages: name for pip -> (module, lowest version, first too new one).
  """
  python: tuple[str, str]
  packages: dict[str, tuple[str, str, str]]


WORKING_SETS = {
    'classic': WorkingSet(
        python=('3.9', '3.12'),
        packages={
            'tensorflow': ('tensorflow', '2.15.1', '2.16'),
            'keras': ('keras', '2.15', '3'),
            'tensorflow_gnn': ('tensorflow_gnn', '1.0.3', '1.1'),
            'tensorflow-ranking': ('tensorflow_ranking', '0.5.5', '0.6'),
            'numpy': ('numpy', '1.22', '2'),
        }),
}


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line.

  Attributes:
    what: what was looked at.
    state: FINE, WARNING or BROKEN.
    text: what was found.
    fix: command or step that mends it; empty if there is nothing to mend.
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
    """Nothing is broken."""
    return all(finding.state != BROKEN for finding in self.findings)

  def text(self) -> str:
    counts = {state: sum(finding.state == state for finding in self.findings)
              for state in MARKS}
    lines = [str(finding) for finding in self.findings]
    return '\n'.join([*lines, ', '.join(
        f'{number} {state}' for state, number in counts.items())])

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, 'findings': [
        dataclasses.asdict(finding) for finding in self.findings]}


def doctor(root: str = '', data_root: str = config.DATA_ROOT) -> Diagnosis:
  """Looks at versions, checkout, data, disk and memory.

  Args:
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder of the splits train, valid and test.
  """
  return Diagnosis([
      *versions(platform.python_version(), installed_versions()),
      *checkout(root), *data(data_root),
      disk(shutil.disk_usage(_nearest(data_root)).free), memory(_memory())])


# ---------------------------------------------------------------- versions

# Imports for real: a package may be there and not work with another.
_IMPORTS = '''
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
  try:
    found[name] = importlib.import_module(name).__version__
  except Exception as error:
    found[name] = f'{type(error).__name__}: {error}'
print(json.dumps(found))
'''


def installed_versions() -> dict[str, str]:
  """Module -> its version, or the error when it is imported."""
  modules = {module for working_set in WORKING_SETS.values()
             for module, _, _ in working_set.packages.values()}
  done = subprocess.run(
      [sys.executable, '-c', _IMPORTS, *sorted(modules)],
      capture_output=True, text=True, check=False,
      env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3'))
  lines = done.stdout.splitlines()
  if done.returncode or not lines:
    last = (done.stderr.strip().splitlines() or ['no message'])[-1]
    return dict.fromkeys(modules, f'import ends Python: {last}')
  return json.loads(lines[-1])


def versions(python: str, installed: dict[str, str]) -> Iterator[Finding]:
  """Compares with the working set that fits this Python, or the first."""
  fitting = [working_set for working_set in WORKING_SETS.values()
             if _within(python, *working_set.python)]
  if fitting:
    yield Finding('Python', FINE, python)
  else:
    ranges = ' or '.join(
        f'{working_set.python[0]} and later, before {working_set.python[1]}'
        for working_set in WORKING_SETS.values())
    yield Finding('Python', BROKEN, f'{python}; needed is {ranges}',
                  'PYTHON=/path/to/python3.11 run_scripts/quickstart.sh makes '
                  '.venv with it')
  chosen = (fitting or list(WORKING_SETS.values()))[0]
  for name, (module, least, too_new) in chosen.packages.items():
    version = installed.get(module, 'is not there')
    fix = (f"{sys.executable} -m pip install '{name}>={least},<{too_new}'")
    if _within(version, least, too_new):
      yield Finding(name, FINE, version)
    elif re.match(r'\d', version):
      yield Finding(name, BROKEN, f'{version}; the baseline runs with {least} '
                    f'and later, before {too_new}', fix)
    else:
      yield Finding(name, BROKEN, f'cannot be imported ({version})', fix)


def _within(version: str, least: str, too_new: str) -> bool:
  return _numbers(least) <= _numbers(version) < _numbers(too_new)


def _numbers(version: str) -> list[int]:
  """'2.15.1rc0' -> [2, 15, 1]; no version -> []."""
  found = re.match(r'\d+(\.\d+)*', version)
  return [int(part) for part in found[0].split('.')] if found else []


# ---------------------------------------------------------------- checkout


def checkout(root: str = '') -> Iterator[Finding]:
  """Looks at the checkout, its models.py and the course's scripts."""
  try:
    folder = baseline.checkout(root or None)
  except UserError as error:
    yield Finding('checkout', BROKEN, str(error), CLONE)
    return
  if folder is None:
    yield Finding(
        'checkout', WARNING, 'none is named, so verify and package use this '
        "package's own host", f'{CLONE}; then give --root tpu_graphs or set '
        f'{baseline.ROOT_VARIABLE}')
    return
  yield _commit(folder)
  yield _models_file(folder)
  scripts = baseline.course_scripts(folder)
  if scripts:
    yield Finding('course scripts', FINE, scripts)
  else:
    parent = os.path.dirname(folder)
    yield Finding(
        'course scripts', BROKEN, f'neither in {folder} nor in '
        f'{os.path.join(parent, baseline.COURSE_FOLDER)}',
        f'cd {parent} && {CLONE_SCRIPTS}')


def _commit(folder: str) -> Finding:
  """The checkout's commit, and what has changed besides models.py."""
  commit = _git(folder, 'rev-parse', '--short=7', 'HEAD')
  if not commit:
    return Finding('checkout', WARNING, f'{folder} is no git checkout, so '
                   'changes cannot be seen', CLONE)
  own = (baseline.MODELS_PY, baseline.MODELS_PY + install.ORIGINAL,
         baseline.MODELS_PY + install.RECORD)
  changed = [line[3:] for line in _git(
      folder, 'status', '--porcelain', '--untracked-files=no').splitlines()
             if line[3:] not in own]
  if changed:
    return Finding(
        'checkout', WARNING, f'{folder}, commit {commit}, with changes that '
        f'the graders do not have: {", ".join(changed)}',
        f'git -C {folder} stash')
  if commit != BASELINE_COMMIT:
    return Finding('checkout', WARNING, f'{folder}, commit {commit}; this '
                   f'package was tested with {BASELINE_COMMIT}',
                   f'git -C {folder} checkout {BASELINE_COMMIT}')
  return Finding('checkout', FINE, f'{folder}, commit {commit}, unchanged')


def _models_file(folder: str) -> Finding:
  kind = install.state(os.path.join(folder, baseline.MODELS_PY))
  what = 'models.py in place'
  command = f'tpu-graphs-ext install --root {folder}'
  if kind in (install.OURS, install.INSTALLED):
    return Finding(what, FINE, kind)
  if kind == install.OTHER:
    return Finding(what, WARNING, f'{kind}: neither the checkout\'s nor one '
                   'that install put there', f'cp {folder}/{baseline.MODELS_PY}'
                   f' my_models.py && {command} --models_py my_models.py')
  return Finding(what, WARNING, f'{kind}: models of this project cannot be '
                 'trained in it yet', command)


def _git(folder: str, *arguments: str) -> str:
  """What git prints, or '' if it fails."""
  try:
    done = subprocess.run(['git', '-C', folder, *arguments],
                          capture_output=True, text=True, check=False)
  except OSError:
    return ''
  return done.stdout.rstrip() if done.returncode == 0 else ''


# -------------------------------------------------------------------- data


def data(data_root: str) -> Iterator[Finding]:
  """Counts the kernels of the splits and looks for faults in the files."""
  folder = os.path.abspath(os.path.expanduser(data_root))
  sample = os.path.isfile(os.path.join(folder, SAMPLE_MARK))
  try:
    report = validate.check_data(folder)
  except UserError:
    yield Finding('data', BROKEN, f'{folder} has no train, valid and test '
                  'with .npz files', f'{DOWNLOAD}, or name another --data_root')
    return
  for split in schema.SPLITS:
    found = report.counts.get(split, {}).get('kernels', 0)
    text = f'{found:,} kernels'
    if found == KERNELS[split]:
      yield Finding(f'data, {split}', FINE, text)
    elif sample and found:
      yield Finding(f'data, {split}', WARNING, text + ' of synthetic sample '
                    'data: good for a trial, not for a grade', DOWNLOAD)
    else:
      yield Finding(f'data, {split}', BROKEN,
                    f'{text}; the collection has {KERNELS[split]:,}', DOWNLOAD)
  if report.faults:
    yield Finding(
        'data, files', BROKEN, f'{len(report.faults):,} faults, the first: '
        f'{report.faults[0]}', f'tpu-graphs-ext check-data {folder} lists '
        f'them; delete those files and run {DOWNLOAD}')
  else:
    yield Finding('data, files', FINE, 'no faults')


# ----------------------------------------------------------------- machine


def disk(free_bytes: int) -> Finding:
  """Free space where the data lies or will lie."""
  free = free_bytes / 1e9
  if free < DISK_GB:
    return Finding('disk', WARNING, f'{free:.1f} GB free; downloading and '
                   f'training take up to {DISK_GB} GB',
                   'free some, or name --data_root and --out_dir elsewhere')
  return Finding('disk', FINE, f'{free:.1f} GB free')


def memory(total_bytes: int | None) -> Finding:
  """Memory of the machine."""
  if total_bytes is None:
    return Finding('memory', WARNING, 'cannot be told on this system')
  total = total_bytes / 1e9
  if total < LEAST_MEMORY_GB:
    return Finding('memory', BROKEN, f'{total:.1f} GB; training through the '
                   f'baseline takes {LEAST_MEMORY_GB} GB and more',
                   'use another machine, or `tpu-graphs-ext train`, which maps '
                   'the data from disk')
  if total < MEMORY_GB:
    return Finding('memory', WARNING, f'{total:.1f} GB; {MEMORY_GB} GB are '
                   'comfortable', 'close other programs, or use '
                   '`tpu-graphs-ext train`, which maps the data from disk')
  return Finding('memory', FINE, f'{total:.1f} GB')


def _memory() -> int | None:
  try:
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, ValueError, OSError):
    return None


def _nearest(path: str) -> str:
  """The path, or the first folder above it that exists."""
  folder = os.path.abspath(os.path.expanduser(path))
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  return folder
