"""Checks everything that the assignment needs, and says how to mend it.

One line a finding: fine, a warning (something will be missing or slow), or
broken (a step of the assignment will fail).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
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


def _checked(what: str, is_fine: bool, text: str, wrong: str, fix: str,
             state: str = BROKEN) -> Finding:
  """`text` if it is fine, else `wrong` with its fix."""
  return (Finding(what, FINE, text) if is_fine
          else Finding(what, state, wrong, fix))


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
  findings = []
  for what, fix, check_it in checks:
    try:
      findings.extend(check_it)
    except (UserError, OSError, ValueError, AttributeError) as error:
      findings.append(
          Finding(what, BROKEN, ' '.join(str(error).split()), fix))
  return Diagnosis(findings)


def version_findings(in_use: versions.StackInUse) -> Iterator[Finding]:
  """Compares what is installed with the stack that is in use."""
  yield Finding('stack', FINE, f'{in_use.name}: {in_use.why}')
  pythons = versions.STACKS[in_use.name].pythons
  needs = f'the {in_use.name} stack needs'
  yield _checked(
      'Python', '.'.join(in_use.python.split('.')[:2]) in pythons,
      in_use.python, f'{in_use.python}; {needs} {pythons[0]} to {pythons[-1]}',
      f'{_script("quickstart.sh")} --python /path/to/python{pythons[-1]}  '
      '# makes .venv with it')
  for package, version in in_use.versions.items():
    wanted = in_use.expected[package]
    yield _checked(
        package, bool(version) and versions.within(version, wanted),
        str(version),
        f'{version}; {needs} {package}{wanted}' if version else 'is missing',
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
  yield _models(folder, os.path.join(folder, checkout.MODELS_PY))
  scripts, (_, beside) = (checkout.course_scripts(folder),
                          checkout.course_folders(folder))
  yield _checked('course scripts', bool(scripts), str(scripts),
                 f'neither in {folder} nor in {beside}',
                 f'git clone {checkout.COURSE_URL} {beside}')


def _clone(root: str) -> str:
  root = root or os.environ.get(checkout.ROOT_VARIABLE, '')
  return f'git clone {checkout.URL} {root}'.rstrip()


def _commit(folder: str) -> Finding:
  """The checkout's commit, and changes to other files than models.py."""
  commit = checkout.git(folder, 'rev-parse', '--short=7', 'HEAD')
  status = checkout.git(
      folder, 'status', '--porcelain', '--untracked-files=no')
  if commit is None or status is None:
    return Finding('checkout', WARNING, f'{folder} is not a git checkout, so '
                   'changes cannot be seen', f'git clone {checkout.URL}')
  commit = commit.decode().strip()
  text = f'{folder}, commit {commit}'
  changed = [line[3:] for line in status.decode(errors='replace').splitlines()
             if line[3:] not in checkout.TASKS.values()]
  if changed:
    return Finding('checkout', WARNING, f'{text}, with changes that the '
                   f'graders do not have: {", ".join(changed)}',
                   f'git -C {folder} stash')
  return _checked(
      'checkout', commit == checkout.COMMIT, f'{text}, unchanged',
      f'{text}; this package was tested with {checkout.COMMIT}',
      f'git -C {folder} checkout {checkout.COMMIT}', WARNING)


def _models(folder: str, path: str) -> Finding:
  what = 'models.py in place'
  install = f'{checkout.own_command()} install --root {folder}'
  try:
    kind = swap.state(path)
  except UserError as error:
    return Finding(what, BROKEN, str(error), f'chmod u+r {path}')
  if kind == swap.OTHER:
    return Finding(what, WARNING, f"{kind}: neither the checkout's nor one "
                   'that install put there', f'cp {path} my_models.py && '
                   f'{install} --models_py my_models.py')
  return _checked(what, kind == swap.INSTALLED, kind, f'{kind}: models of '
                  'this project cannot be trained in it yet',
                  f'{install}  # as assignment_train.sh does', WARNING)


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
    text, is_sample = f'{found:,} kernels', sample and found
    yield _checked(
        f'data, {split}', found == published, text,
        f'{text} of sample data, never timed: good for a rehearsal, not for a '
        'grade' if is_sample else f'{text}; the collection has {published:,}',
        download, WARNING if is_sample else BROKEN)
  faults = report.faults
  yield _checked(
      'data, files', not faults, 'no faults',
      f'{len(faults):,} faults, the first: {"".join(map(str, faults[:1]))}',
      f'{checkout.own_command()} check-data {folder}  # lists them; delete '
      f'those files and run {download}')


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
  yield _checked(
      'disk', free >= _DISK_GB, f'{free:.1f} GB free', f'{free:.1f} GB free; '
      f'downloading and training take up to {_DISK_GB} GB',
      'free some, or name --data_root and --out_dir elsewhere', WARNING)
  total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9
  yield _checked(
      'memory', total >= _MEMORY_GB, f'{total:.1f} GB', f'{total:.1f} GB; '
      'training through the baseline is comfortable with '
      f'{_MEMORY_GB} GB', 'use `tpu-graphs-ext train`, which maps the data '
      'from disk', WARNING)
