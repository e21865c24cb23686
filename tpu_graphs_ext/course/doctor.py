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
_CLONE = f'git clone {checkout.URL}'
_SCRIPTS = os.path.normpath(os.path.join(
    files.full_path(__file__), *3 * [os.pardir], 'run_scripts'))
# Where the archives are unpacked, below the folder of the download.
_UNPACKED = os.path.join('npz', 'tile', 'xla')
# The archives, the files in them and the caches; without the environment.
_DISK_GB = 10
# The baseline keeps a gigabyte of features, and copies them once.
_MEMORY_GB, _LEAST_MEMORY_GB = 8, 4


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
    return '\n'.join([*map(str, self.findings), ', '.join(
        f'{states.count(state)} {state}' for state in MARKS)])

  def to_json(self) -> dict[str, Any]:
    return {'ok': self.ok, 'findings': [
        dataclasses.asdict(finding) for finding in self.findings]}


def doctor(root: str = '', data_root: str = settings.DATA_ROOT) -> Diagnosis:
  """Checks versions, checkout, data, disk and memory.

  Args:
    root: the baseline's checkout; empty: what TPU_GRAPHS_ROOT names.
    data_root: folder of the splits train, valid and test.
  """
  return Diagnosis([
      *version_findings(versions.describe(), import_errors()),
      *checkout_findings(root), *data_findings(data_root),
      disk_finding(_free_bytes(data_root)), memory_finding(_memory_bytes())])


# ---------------------------------------------------------------- versions

# Package for pip -> module.
MODULES = {'tensorflow': 'tensorflow', 'keras': 'keras',
           'tf_keras': 'tf_keras',
           'tensorflow_gnn': 'tensorflow_gnn',
           'tensorflow-ranking': 'tensorflow_ranking', 'numpy': 'numpy',
           'tensorboard': 'tensorboard', 'absl-py': 'absl',
           'apache-beam': 'apache_beam', 'pandas': 'pandas', 'scipy': 'scipy',
           'tqdm': 'tqdm'}
# A package may be there and not work with another, so all are imported. This
# package comes first: it prepares the current stack.
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
  """Module -> its error when imported; modules that work are left out."""
  needed = [MODULES[package] for package in
            versions.STACKS[versions.stack_name()].requirements]
  done = subprocess.run(
      [sys.executable, '-c', _IMPORTS, *needed],
      capture_output=True, encoding='utf-8', errors='replace', check=False,
      env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3'))
  try:
    # What a package prints at the end of Python would not be an answer.
    errors = files.parse_json((done.stdout.splitlines() or [''])[-1], 'imports')
  except UserError:
    errors = None
  if done.returncode == 0 and isinstance(errors, dict):
    return errors
  last = (done.stderr.strip().splitlines() or ['no message'])[-1]
  return dict.fromkeys(needed, f'import ends Python: {last}')


def version_findings(in_use: versions.StackInUse,
                     errors: dict[str, str]) -> Iterator[Finding]:
  """Compares with the stack that is in use.

  Args:
    in_use: from `versions.describe`.
    errors: from `import_errors`.
  """
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
    wanted, error = in_use.expected[package], errors.get(MODULES[package])
    text = ''
    if not version:
      text = 'is missing'
    elif not versions.within(version, wanted):
      text = f'{version}; the {in_use.name} stack needs {package}{wanted}'
    elif error:
      text = f'{version} cannot be imported ({error})'
    yield Finding(
        package, BROKEN, text, f'{checkout.shown_path(sys.executable)} -m pip '
        f"install '{package}{wanted}'") if text else Finding(
            package, FINE, version)


# ---------------------------------------------------------------- checkout


def checkout_findings(root: str = '') -> Iterator[Finding]:
  """Checks the checkout, its models.py and the course's scripts."""
  try:
    folder = checkout.find(root)
  except UserError as error:
    yield Finding('checkout', BROKEN, str(error), f'{_CLONE} '
                  + (root or os.environ.get(checkout.ROOT_VARIABLE, '')))
    return
  if folder is None:
    yield Finding(
        'checkout', WARNING, 'none is named, so verify and package cannot run '
        "the graders' script", f'{_CLONE}  # then give --root tpu_graphs or '
        f'set {checkout.ROOT_VARIABLE}')
    return
  yield _commit(folder)
  yield _models_file(folder)
  scripts, (_, beside) = (checkout.course_scripts(folder),
                          checkout.course_folders(folder))
  yield Finding('course scripts', FINE, scripts) if scripts else Finding(
      'course scripts', BROKEN, f'neither in {folder} nor in {beside}',
      f'git clone {checkout.COURSE_URL} {beside}')


def _commit(folder: str) -> Finding:
  """The checkout's commit, and changes to other files than models.py."""
  commit = _git(folder, 'rev-parse', '--short=7', 'HEAD')
  if not commit:
    return Finding('checkout', WARNING, f'{folder} is not a git checkout, so '
                   'changes cannot be seen', _CLONE)
  changed = [line[3:] for line in _git(
      folder, 'status', '--porcelain', '--untracked-files=no').splitlines()
             if line[3:] not in checkout.TASKS.values()]
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
  what, path = 'models.py in place', os.path.join(folder, checkout.MODELS_PY)
  install = f'{checkout.own_command()} install --root {folder}'
  try:
    kind = swap.state(path)
  except UserError as error:
    return Finding(what, BROKEN, str(error), f'chmod u+r {path}')
  if kind in (swap.OURS, swap.INSTALLED):
    return Finding(what, FINE, kind)
  if kind == swap.OTHER:
    return Finding(what, WARNING, f'{kind}: neither the checkout\'s nor one '
                   'that install put there', f'cp {path} my_models.py && '
                   f'{install} --models_py my_models.py')
  return Finding(what, WARNING, f'{kind}: models of this project cannot be '
                 'trained in it yet', f'{install}  # as assignment_train.sh '
                 'does')


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
    download = _download(folder)
    report = check.check_data(folder)
  except OSError as error:
    yield Finding('data', BROKEN, f'{folder} cannot be read ({error})',
                  f'chmod -R u+rX {folder}  # or name another --data_root')
    return
  except UserError as error:
    yield Finding('data', BROKEN, ' '.join(str(error).split()),
                  f'{_download("")}  # or name another --data_root')
    return
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
  path = os.path.join(_SCRIPTS, name)
  return (checkout.shown_path(path) if os.path.isfile(path)
          else f'run_scripts/{name}')


def _download(folder: str) -> str:
  """The command that downloads the data, to that data root if it can."""
  base = folder.removesuffix(os.sep + _UNPACKED)
  default = files.full_path(settings.DATA_ROOT)
  return _script('download_data.sh') + (
      f' {base}' if base != folder != default else '')


# ----------------------------------------------------------------- machine


def disk_finding(free_bytes: int) -> Finding:
  """Free space where the data lies or will lie."""
  text = f'{free_bytes / 1e9:.1f} GB free'
  if free_bytes < _DISK_GB * 1e9:
    return Finding('disk', WARNING, f'{text}; downloading and training take up '
                   f'to {_DISK_GB} GB',
                   'free some, or name --data_root and --out_dir elsewhere')
  return Finding('disk', FINE, text)


def memory_finding(total_bytes: int | None) -> Finding:
  """Memory of the machine."""
  if total_bytes is None:
    return Finding('memory', WARNING, 'unknown on this system')
  text, advice = f'{total_bytes / 1e9:.1f} GB', (
      'use `tpu-graphs-ext train`, which maps the data from disk')
  if total_bytes < _LEAST_MEMORY_GB * 1e9:
    return Finding('memory', BROKEN, f'{text}; training through the baseline '
                   f'takes {_LEAST_MEMORY_GB} GB and more',
                   f'take another machine, or {advice}')
  if total_bytes < _MEMORY_GB * 1e9:
    return Finding('memory', WARNING, f'{text}; {_MEMORY_GB} GB are '
                   'comfortable', f'close other programs, or {advice}')
  return Finding('memory', FINE, text)


def _memory_bytes() -> int | None:
  try:
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, ValueError, OSError):
    return None


def _free_bytes(path: str) -> int:
  """Of the disk of a folder, or of the first folder above that exists."""
  folder = files.full_path(path)
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  return shutil.disk_usage(folder).free
