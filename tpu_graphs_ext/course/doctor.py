"""Checks everything that the assignment needs, and says how to mend it.

One line a finding: fine, a warning (something will be missing or slow), or
broken (a step of the assignment will fail).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.engine import settings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions

FINE, WARNING, BROKEN = 'fine', 'warning', 'broken'
MARKS = {FINE: '✓', WARNING: '!', BROKEN: '✗'}
_SCRIPTS = os.path.normpath(os.path.join(
    files.full_path(__file__), *3 * [os.pardir], 'run_scripts'))
# Where the archives are unpacked, below the folder of the download.
_UNPACKED = os.path.join('npz', 'tile', 'xla')
# The archives, the files in them and the caches; without the environment.
_DISK_GB = 10
# The baseline keeps a gigabyte of features, and copies them once.
_MEMORY_GB = 8


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line.

  Attributes:
    what: what was checked.
    state: FINE, WARNING or BROKEN.
    text: what was found.
    fix: command to paste, or step, that mends it; '' if nothing needs mending.
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
    states = [finding.state for finding in self.findings]
    fine, warnings, broken = map(states.count, MARKS)
    return '\n'.join([
        *map(str, self.findings), f'{fine} fine, {warnings} '
        f'warning{"s" * (warnings != 1)}, {broken} broken'])

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, 'findings': [
        dataclasses.asdict(finding) for finding in self.findings]}


def doctor(root: str = '', data_root: str = settings.DATA_ROOT) -> Diagnosis:
  """Checks versions, checkout, data, disk and memory.

  Args:
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder of the splits train, valid and test.
  """
  # (heading and fix for an error of the check, the check)
  checks = (
      ('versions', '', version_findings(versions.describe())),
      ('checkout', _clone(root), checkout_findings(root)),
      ('data', f'{_script("download_data.sh")}  # or name another --data_root',
       data_findings(data_root)),
      ('machine', '', machine_findings(data_root)))
  return Diagnosis([finding for check_it in checks
                    for finding in _findings(*check_it)])


def _findings(what: str, fix: str,
              check_it: Iterable[Finding]) -> Iterator[Finding]:
  """The findings of a check; its error is one too."""
  try:
    yield from check_it
  except (UserError, OSError, ValueError, AttributeError) as error:
    yield Finding(what, BROKEN, ' '.join(str(error).split()), fix)


# ---------------------------------------------------------------- versions

def version_findings(in_use: versions.StackInUse) -> Iterator[Finding]:
  """Compares what is installed with the stack that is in use."""
  yield Finding('stack', FINE, f'{in_use.name}: {in_use.why}')
  pythons = versions.STACKS[in_use.name].pythons
  if '.'.join(in_use.python.split('.')[:2]) in pythons:
    yield Finding('Python', FINE, in_use.python)
  else:
    yield Finding(
        'Python', BROKEN, f'{in_use.python}; the {in_use.name} stack needs '
        f'{pythons[0]} to {pythons[-1]}', f'{_script("quickstart.sh")} '
        f'--python /path/to/python{pythons[-1]}  # makes .venv with it')
  for package, version in in_use.versions.items():
    wanted = in_use.expected[package]
    if version and versions.within(version, wanted):
      yield Finding(package, FINE, version)
    else:
      yield Finding(
          package, BROKEN, f'{version}; the {in_use.name} stack needs '
          f'{package}{wanted}' if version else 'is missing',
          f"{checkout.shown_path(sys.executable)} -m pip install "
          f"'{package}{wanted}'")


# ---------------------------------------------------------------- checkout


def checkout_findings(root: str = '') -> Iterator[Finding]:
  """Checks the checkout, its models.py and the course's scripts.

  Raises:
    UserError: the folder is not a checkout.
  """
  folder = checkout.find(root)
  if folder is None:
    yield Finding(
        'checkout', WARNING, 'none is named, so verify and package cannot run '
        "the graders' script", f'{_clone("")}  # then give --root tpu_graphs '
        f'or set {checkout.ROOT_VARIABLE}')
    return
  yield _commit(folder)
  path = os.path.join(folder, checkout.MODELS_PY)
  yield from _findings('models.py in place', f'chmod u+r {path}',
                       _models_findings(folder, path))
  scripts, (_, beside) = (checkout.course_scripts(folder),
                          checkout.course_folders(folder))
  yield Finding('course scripts', FINE, scripts) if scripts else Finding(
      'course scripts', BROKEN, f'neither in {folder} nor in {beside}',
      f'git clone {checkout.COURSE_URL} {beside}')


def _clone(root: str) -> str:
  root = root or os.environ.get(checkout.ROOT_VARIABLE, '')
  return f'git clone {checkout.URL} {root}'.rstrip()


def _commit(folder: str) -> Finding:
  """The checkout's commit, and changes to other files than models.py."""
  commit = _git(folder, 'rev-parse', '--short=7', 'HEAD')
  if not commit:
    return Finding('checkout', WARNING, f'{folder} is not a git checkout, so '
                   'changes cannot be seen', f'git clone {checkout.URL}')
  text = f'{folder}, commit {commit}'
  changed = [line[3:] for line in _git(
      folder, 'status', '--porcelain', '--untracked-files=no').splitlines()
             if line[3:] not in checkout.TASKS.values()]
  if changed:
    return Finding('checkout', WARNING, f'{text}, with changes that the '
                   f'graders do not have: {", ".join(changed)}',
                   f'git -C {folder} stash')
  return Finding('checkout', FINE, f'{text}, unchanged') if (
      commit == checkout.COMMIT) else Finding(
          'checkout', WARNING, f'{text}; this package was tested with '
          f'{checkout.COMMIT}', f'git -C {folder} checkout {checkout.COMMIT}')


def _git(folder: str, *arguments: str) -> str:
  """What git prints, or '' if it fails."""
  try:
    done = subprocess.run(['git', '-C', folder, *arguments],
                          capture_output=True, encoding='utf-8',
                          errors='replace', check=False)
  except OSError:
    return ''
  return done.stdout.rstrip() if done.returncode == 0 else ''


def _models_findings(folder: str, path: str) -> Iterator[Finding]:
  install = f'{checkout.own_command()} install --root {folder}'
  kind = swap.state(path)
  if kind == swap.INSTALLED:
    yield Finding('models.py in place', FINE, kind)
  elif kind == swap.OTHER:
    yield Finding('models.py in place', WARNING, f"{kind}: neither the "
                  "checkout's nor one that install put there",
                  f'cp {path} my_models.py && {install} --models_py '
                  'my_models.py')
  else:
    yield Finding('models.py in place', WARNING, f'{kind}: models of this '
                  'project cannot be trained in it yet',
                  f'{install}  # as assignment_train.sh does')


# -------------------------------------------------------------------- data


def data_findings(data_root: str) -> Iterator[Finding]:
  """Counts the kernels of the splits and looks for faults in the files.

  Raises:
    UserError: there is no such folder of splits.
    OSError: it cannot be read.
  """
  folder = files.full_path(files.require_path('--data_root', data_root))
  report, download = check.check_data(folder), _download(folder)
  sample = os.path.isfile(os.path.join(folder, schema.SAMPLE_DATA_MARK))
  for split in schema.SPLITS:
    found = report.counts.get(split, {}).get('kernels', 0)
    published = schema.PUBLISHED_KERNELS[split]
    what, text = f'data, {split}', f'{found:,} kernels'
    if found == published:
      yield Finding(what, FINE, text)
    elif sample and found:
      yield Finding(what, WARNING, f'{text} of sample data, never timed: good '
                    'for a rehearsal, not for a grade', download)
    else:
      yield Finding(what, BROKEN, f'{text}; the collection has {published:,}',
                    download)
  yield Finding(
      'data, files', BROKEN, f'{len(report.faults):,} faults, the first: '
      f'{report.faults[0]}', f'{checkout.own_command()} check-data {folder} '
      f' # lists them; delete those files and run {download}'
  ) if report.faults else Finding('data, files', FINE, 'no faults')


def _script(name: str) -> str:
  """A script of the clone that this package was installed from."""
  return checkout.shown_path(os.path.join(_SCRIPTS, name))


def _download(folder: str) -> str:
  """The command that downloads the data, to that data root if it can."""
  base = folder.removesuffix(os.sep + _UNPACKED)
  is_default = folder == files.full_path(settings.DATA_ROOT)
  return _script('download_data.sh') + (
      f' {base}' if base != folder and not is_default else '')


# ----------------------------------------------------------------- machine


def machine_findings(data_root: str) -> Iterator[Finding]:
  """Free disk where the data is or will be, and memory."""
  folder = files.full_path(data_root)
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  free = shutil.disk_usage(folder).free / 1e9
  yield Finding('disk', FINE, f'{free:.1f} GB free') if free >= _DISK_GB else (
      Finding('disk', WARNING, f'{free:.1f} GB free; downloading and training '
              f'take up to {_DISK_GB} GB', 'free some, or name --data_root and '
              '--out_dir elsewhere'))
  total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9
  yield Finding('memory', FINE, f'{total:.1f} GB') if total >= _MEMORY_GB else (
      Finding('memory', WARNING, f'{total:.1f} GB; training through the '
              f'baseline is comfortable with {_MEMORY_GB} GB', 'use '
              '`tpu-graphs-ext train`, which maps the data from disk'))
