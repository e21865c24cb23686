"""Looks over all that the assignment needs, and says what mends it.

One line a thing: fine, a warning (something will be missing or slow), or
broken (a step of the assignment will fail).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.engine import settings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions

FINE, WARNING, BROKEN = 'fine', 'warning', 'broken'
MARKS = {FINE: '✓', WARNING: '!', BROKEN: '✗'}

CLONE = f'git clone {checkout.URL}'
DOWNLOAD = 'run_scripts/download_data.sh'

# The archives, the files in them and the caches; the environment not counted.
DISK_GB = 10
# The baseline keeps a gigabyte of features, and copies them once.
MEMORY_GB, LEAST_MEMORY_GB = 8, 4


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


def doctor(root: str = '', data_root: str = settings.DATA_ROOT) -> Diagnosis:
  """Looks at versions, checkout, data, disk and memory.

  Args:
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder of the splits train, valid and test.
  """
  return Diagnosis([
      *version_findings(versions.describe(), import_errors()),
      *checkout_findings(root), *data_findings(data_root),
      disk_finding(shutil.disk_usage(_nearest(data_root)).free),
      memory_finding(_memory())])


# ---------------------------------------------------------------- versions

# Package for pip -> module.
MODULES = {'tensorflow': 'tensorflow', 'keras': 'keras',
           'tf_keras': 'tf_keras',
           'tensorflow_gnn': 'tensorflow_gnn',
           'tensorflow-ranking': 'tensorflow_ranking', 'numpy': 'numpy',
           'tensorboard': 'tensorboard', 'absl-py': 'absl',
           'apache-beam': 'apache_beam', 'pandas': 'pandas', 'scipy': 'scipy',
           'tqdm': 'tqdm'}
# Imports for real: a package may be there and not work with another. This
# package comes first, so that the current stack is prepared.
_IMPORTS = '''
import importlib, json, sys
import tpu_graphs_ext
errors = {}
for name in sys.argv[1:]:
  try:
    importlib.import_module(name)
  except Exception as error:
    errors[name] = f'{type(error).__name__}: {error}'
print(json.dumps(errors))
'''


def import_errors() -> dict[str, str]:
  """Module -> what is said when it is imported; modules that work are not in.
  """
  needed = [MODULES[package] for package in
            versions.STACKS[versions.stack_name()].requirements]
  done = subprocess.run(
      [sys.executable, '-c', _IMPORTS, *needed],
      capture_output=True, encoding='utf-8', errors='replace', check=False,
      env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3'))
  lines = done.stdout.splitlines()
  if done.returncode == 0 and lines:
    # What a package prints at the end of Python would be no answer.
    with contextlib.suppress(UserError):
      errors = files.parse_json(lines[-1], 'imports')
      if isinstance(errors, dict):
        return errors
  last = (done.stderr.strip().splitlines() or ['no message'])[-1]
  return dict.fromkeys(needed, f'import ends Python: {last}')


def version_findings(in_use: versions.StackInUse,
                     errors: dict[str, str]) -> Iterator[Finding]:
  """Compares with the stack that is in use.

  Args:
    in_use: of `versions.describe`.
    errors: of `import_errors`.
  """
  yield Finding('stack', FINE, f'{in_use.name}: {in_use.why}')
  pythons = versions.STACKS[in_use.name].pythons
  if '.'.join(in_use.python.split('.')[:2]) in pythons:
    yield Finding('Python', FINE, in_use.python)
  else:
    yield Finding(
        'Python', BROKEN, f'{in_use.python}; the {in_use.name} stack needs '
        f'{pythons[0]} to {pythons[-1]}', 'run_scripts/quickstart.sh --python '
        f'/path/to/python{pythons[-1]} makes .venv with it')
  for package, version in in_use.versions.items():
    wanted = in_use.expected[package]
    fix = f"{sys.executable} -m pip install '{package}{wanted}'"
    error = errors.get(MODULES[package])
    if not version:
      yield Finding(package, BROKEN, 'is missing', fix)
    elif not versions.within(version, wanted):
      yield Finding(package, BROKEN, f'{version}; the {in_use.name} stack '
                    f'needs {package}{wanted}', fix)
    elif error:
      yield Finding(package, BROKEN, f'{version} cannot be imported ({error})',
                    fix)
    else:
      yield Finding(package, FINE, version)


# ---------------------------------------------------------------- checkout


def checkout_findings(root: str = '') -> Iterator[Finding]:
  """Looks at the checkout, its models.py and the course's scripts."""
  try:
    folder = checkout.find(root)
  except UserError as error:
    yield Finding('checkout', BROKEN, str(error), CLONE)
    return
  if folder is None:
    yield Finding(
        'checkout', WARNING, 'none is named, so verify and package use this '
        "package's own host", f'{CLONE}; then give --root tpu_graphs or set '
        f'{checkout.ROOT_VARIABLE}')
    return
  yield _commit(folder)
  yield _models_file(folder)
  scripts = checkout.course_scripts(folder)
  if scripts:
    yield Finding('course scripts', FINE, scripts)
  else:
    parent = os.path.dirname(folder)
    yield Finding(
        'course scripts', BROKEN, f'neither in {folder} nor in '
        f'{os.path.join(parent, checkout.COURSE_FOLDER)}',
        f'cd {parent} && git clone {checkout.COURSE_URL}')


def _commit(folder: str) -> Finding:
  """The checkout's commit, and what has changed besides models.py."""
  commit = _git(folder, 'rev-parse', '--short=7', 'HEAD')
  if not commit:
    return Finding('checkout', WARNING, f'{folder} is no git checkout, so '
                   'changes cannot be seen', CLONE)
  own = [path + ending for path in checkout.TASKS.values()
         for ending in ('', swap.ORIGINAL, swap.RECORD)]
  changed = [line[3:] for line in _git(
      folder, 'status', '--porcelain', '--untracked-files=no').splitlines()
             if line[3:] not in own]
  if changed:
    return Finding(
        'checkout', WARNING, f'{folder}, commit {commit}, with changes that '
        f'the graders do not have: {", ".join(changed)}',
        f'git -C {folder} stash')
  if commit != checkout.COMMIT:
    return Finding('checkout', WARNING, f'{folder}, commit {commit}; this '
                   f'package was tested with {checkout.COMMIT}',
                   f'git -C {folder} checkout {checkout.COMMIT}')
  return Finding('checkout', FINE, f'{folder}, commit {commit}, unchanged')


def _models_file(folder: str) -> Finding:
  what = 'models.py in place'
  try:
    kind = swap.state(os.path.join(folder, checkout.MODELS_PY))
  except UserError as error:
    return Finding(what, BROKEN, str(error),
                   f'chmod u+r {folder}/{checkout.MODELS_PY}')
  command = f'tpu-graphs-ext install --root {folder}'
  if kind in (swap.OURS, swap.INSTALLED):
    return Finding(what, FINE, kind)
  if kind == swap.OTHER:
    return Finding(what, WARNING, f'{kind}: neither the checkout\'s nor one '
                   'that install put there',
                   f'cp {folder}/{checkout.MODELS_PY} my_models.py && '
                   f'{command} --models_py my_models.py')
  return Finding(what, WARNING, f'{kind}: models of this project cannot be '
                 'trained in it yet', command)


def _git(folder: str, *arguments: str) -> str:
  """What git prints, or '' if it fails."""
  try:
    done = subprocess.run(['git', '-C', folder, *arguments],
                          capture_output=True, encoding='utf-8',
                          errors='replace', check=False)
  except OSError:
    return ''
  return done.stdout.rstrip() if done.returncode == 0 else ''


# -------------------------------------------------------------------- data


def data_findings(data_root: str) -> Iterator[Finding]:
  """Counts the kernels of the splits and looks for faults in the files."""
  try:
    folder = os.path.abspath(files.require_path('--data_root', data_root))
  except UserError as error:
    yield Finding('data', BROKEN, str(error), DOWNLOAD)
    return
  sample = os.path.isfile(os.path.join(folder, schema.SAMPLE_DATA_MARK))
  try:
    report = check.check_data(folder)
  except OSError as error:
    yield Finding('data', BROKEN, f'{folder} cannot be read ({error})',
                  f'chmod -R u+rX {folder}, or name another --data_root')
    return
  except UserError:
    yield Finding('data', BROKEN, f'{folder} has no train, valid and test '
                  'with .npz files', f'{DOWNLOAD}, or name another --data_root')
    return
  for split in schema.SPLITS:
    found = report.counts.get(split, {}).get('kernels', 0)
    text = f'{found:,} kernels'
    if found == schema.PUBLISHED_KERNELS[split]:
      yield Finding(f'data, {split}', FINE, text)
    elif sample and found:
      yield Finding(f'data, {split}', WARNING, text + ' of sample data, '
                    'never timed: good for a trial, not for a grade', DOWNLOAD)
    else:
      yield Finding(f'data, {split}', BROKEN,
                    f'{text}; the collection has '
                    f'{schema.PUBLISHED_KERNELS[split]:,}', DOWNLOAD)
  if report.faults:
    yield Finding(
        'data, files', BROKEN, f'{len(report.faults):,} faults, the first: '
        f'{report.faults[0]}', f'tpu-graphs-ext check-data {folder} lists '
        f'them; delete those files and run {DOWNLOAD}')
  else:
    yield Finding('data, files', FINE, 'no faults')


# ----------------------------------------------------------------- machine


def disk_finding(free_bytes: int) -> Finding:
  """Free space where the data lies or will lie."""
  free = free_bytes / 1e9
  if free < DISK_GB:
    return Finding('disk', WARNING, f'{free:.1f} GB free; downloading and '
                   f'training take up to {DISK_GB} GB',
                   'free some, or name --data_root and --out_dir elsewhere')
  return Finding('disk', FINE, f'{free:.1f} GB free')


def memory_finding(total_bytes: int | None) -> Finding:
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
  folder = files.full_path(path)
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  return folder
