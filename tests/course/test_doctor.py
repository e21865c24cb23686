"""Each thing that doctor looks at, fine and broken, and what mends it."""

import json
import os
import re
import subprocess

import pytest

from support import tiny_kernels
from tpu_graphs_ext.course import checkout, doctor, swap
from tpu_graphs_ext.course.doctor import BROKEN, FINE, WARNING
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.stacks import versions

CLASSIC = {'tensorflow': '2.15.1', 'keras': '2.15.0',
           'tensorflow_gnn': '1.0.3',
           'tensorflow-ranking': '0.5.5.dev', 'numpy': '1.26.4',
           'absl-py': '2.5.1', 'apache-beam': '2.77.0', 'pandas': '3.0.6',
           'scipy': '1.17.1', 'tqdm': '4.70.1'}


def in_use(python='3.10.1', name='classic', **changes):
  """A classic stack, with some versions changed."""
  installed = {**CLASSIC, **{
      package.replace('_ranking', '-ranking'): version
      for package, version in changes.items()}}
  return versions.StackInUse(name, 'why', python, installed,
                             versions.STACKS[name].requirements)


def states(findings) -> dict[str, str]:
  return {finding.what: finding.state for finding in findings}


def test_a_whole_stack():
  for python in ('3.9.18', '3.10.1', '3.11.7'):
    found = states(doctor.version_findings(in_use(python), {}))
    assert len(found) == 12  # The stack, Python and ten packages.
    assert set(found.values()) == {FINE}


@pytest.mark.parametrize('python', ['3.8.10', '3.12.1', '3.13.0'])
def test_another_python(python):
  found = list(doctor.version_findings(in_use(python), {}))
  assert found[1].state == BROKEN
  assert f'{python}; the classic stack needs 3.9 to 3.11' in found[1].text
  assert '--python /path/to/python3.11' in found[1].fix


@pytest.mark.parametrize('package, version', [
    ('tensorflow', '2.15.0'), ('keras', '3.4.1'), ('numpy', '2.0.0'),
    ('tensorflow_ranking', '0.5.4'), ('tensorflow_gnn', None),
    ('pandas', None), ('scipy', '1.10.1')])
def test_another_version(package, version):
  found = list(doctor.version_findings(in_use(**{package: version}), {}))
  (broken,) = [finding for finding in found if finding.state != FINE]
  name = package.replace('_ranking', '-ranking')
  assert (broken.what, broken.state) == (name, BROKEN)
  assert (version or 'is missing') in broken.text
  assert f"-m pip install '{name}>=" in broken.fix


def test_a_package_that_cannot_be_imported():
  found = list(doctor.version_findings(in_use(), {
      'tensorflow_ranking': 'ImportError: no estimator'}))
  (broken,) = [finding for finding in found if finding.state != FINE]
  assert broken.what == 'tensorflow-ranking'
  assert 'cannot be imported (ImportError: no estimator)' in broken.text


def test_every_package_of_a_stack_has_a_module():
  for each in versions.STACKS.values():
    assert set(each.requirements) <= set(doctor.MODULES)


def test_errors_are_those_of_a_real_import(monkeypatch):
  monkeypatch.setattr(doctor, 'MODULES', {
      **dict.fromkeys(doctor.MODULES, 'json'), 'numpy': 'no_such_module'})
  assert doctor.import_errors() == {
      'no_such_module':
          "ModuleNotFoundError: No module named 'no_such_module'"}


def test_an_import_that_ends_python(monkeypatch):
  monkeypatch.setattr(doctor, '_IMPORTS', 'raise SystemExit("libx missing")')
  assert set(doctor.import_errors().values()) == {
      'import ends Python: libx missing'}


# ---------------------------------------------------------------- checkout


@pytest.fixture
def root(tmp_path, plain_git):
  """A checkout in git, the course's scripts beside it."""
  root = tmp_path / 'tpu_graphs'
  (root / checkout.MODELS_PY).parent.mkdir(parents=True)
  (root / checkout.MODELS_PY).write_text('# theirs\n')
  (root / 'tiles_train.py').write_text('')
  scripts = tmp_path / checkout.COURSE_FOLDER
  scripts.mkdir()
  for name in checkout.COURSE_FILES:
    (scripts / name).write_text('')
  for command in (['init', '--quiet'], ['add', '.'],
                  ['-c', 'user.name=a', '-c', 'user.email=a@b', 'commit',
                   '--quiet', '-m', 'first']):
    subprocess.run(['git', '-C', str(root), *command], check=True)
  return root


def commit_of(root) -> str:
  return subprocess.run(
      ['git', '-C', str(root), 'rev-parse', '--short=7', 'HEAD'], check=True,
      capture_output=True, text=True).stdout.strip()


def test_a_good_checkout(root, monkeypatch):
  monkeypatch.setattr(checkout, 'COMMIT', commit_of(root))
  swap.install(str(root))
  found = list(doctor.checkout_findings(str(root)))
  assert states(found) == {
      'checkout': FINE, 'models.py in place': FINE, 'course scripts': FINE}
  assert found[0].text.endswith(f'commit {commit_of(root)}, unchanged')


def test_a_changed_checkout(root):
  (root / 'tiles_train.py').write_text('print(1)\n')
  (root / checkout.MODELS_PY).write_text('# mine\n')
  for path in (root.parent / checkout.COURSE_FOLDER).iterdir():
    path.unlink()
  first, models, scripts = doctor.checkout_findings(str(root))
  assert first.state == WARNING
  assert 'changes that the graders do not have: tiles_train.py' in first.text
  assert models.state == WARNING
  assert models.text.startswith('changed by hand')
  assert 'install --root' in models.fix
  assert scripts.state == BROKEN
  assert scripts.fix == f'cd {root.parent} && git clone {checkout.COURSE_URL}'


def test_another_commit_and_no_git(root):
  first, models, _ = doctor.checkout_findings(str(root))
  assert (first.state, models.state) == (WARNING, WARNING)
  assert f'git -C {root} checkout ddd187c' == first.fix
  assert models.fix == f'tpu-graphs-ext install --root {root}'
  (root / '.git').rename(root / 'no_git')
  assert 'is no git checkout' in next(doctor.checkout_findings(str(root))).text


def test_no_checkout(monkeypatch, tmp_path):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  (finding,) = doctor.checkout_findings()
  assert (finding.state, 'git clone' in finding.fix) == (WARNING, True)
  (finding,) = doctor.checkout_findings(str(tmp_path))
  assert finding.state == BROKEN


# -------------------------------------------------------------------- data


def test_data_of_the_published_counts(tmp_path, monkeypatch):
  tiny_kernels.write_data_root(tmp_path)
  monkeypatch.setattr(schema, 'PUBLISHED_KERNELS',
                      {'train': 24, 'valid': 12, 'test': 6})
  found = states(doctor.data_findings(str(tmp_path)))
  assert found == {'data, train': FINE, 'data, valid': FINE,
                   'data, test': FINE, 'data, files': FINE}


def test_missing_and_faulty_files(tmp_path):
  tiny_kernels.write_data_root(tmp_path)
  (tmp_path / 'valid' / 'cut_0.npz').write_bytes(b'PK')
  found = {finding.what: finding
           for finding in doctor.data_findings(str(tmp_path))}
  assert found['data, train'].state == BROKEN
  assert found['data, train'].text == (
      '24 kernels; the collection has 5,709')
  assert found['data, train'].fix == doctor.DOWNLOAD
  assert 'cut_0.npz' in found['data, files'].text
  assert 'tpu-graphs-ext check-data' in found['data, files'].fix


def test_sample_data_is_a_warning_and_none_is_broken(tmp_path):
  tiny_kernels.write_data_root(tmp_path / 'data')
  (tmp_path / 'data' / schema.SAMPLE_DATA_MARK).write_text('{}')
  assert set(states(doctor.data_findings(str(tmp_path / 'data'))).values()) == {
      WARNING, FINE}
  (finding,) = doctor.data_findings(str(tmp_path / 'nowhere'))
  assert finding.state == BROKEN
  assert finding.fix.startswith('run_scripts/download_data.sh')


def test_hostile_places(root, tmp_path, monkeypatch):
  """Each is a finding, never a traceback."""
  file, pipe = tmp_path / 'file', tmp_path / 'pipe'
  file.write_text('')
  os.mkfifo(pipe)
  for path in (file, pipe, file / 'below', tmp_path / 'a\0b', '   ', ''):
    assert [finding.state for finding in doctor.data_findings(str(path))] == [
        BROKEN], path
  for path in (file, pipe, tmp_path / 'a\0b'):
    (finding,) = doctor.checkout_findings(str(path))
    assert (finding.state, finding.what) == (BROKEN, 'checkout')
  for ending in (swap.ORIGINAL, swap.RECORD):
    (root / (checkout.MODELS_PY + ending)).mkdir()
  assert len(list(doctor.checkout_findings(str(root)))) == 3

  def refuses(*unused):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(check, 'check_data', refuses)
  (finding,) = doctor.data_findings(str(tmp_path))
  assert 'cannot be read ([Errno 13] Permission denied)' in finding.text
  monkeypatch.setattr(swap.files, 'open_ordinary', refuses)
  found = states(doctor.checkout_findings(str(root)))
  assert found['models.py in place'] == BROKEN


@pytest.mark.parametrize('code', [
    'print("no JSON")', 'print("[]")', 'print("[" * 100000)',
    'import os; os.write(1, b"\\xff")'])
def test_an_import_that_prints(monkeypatch, code):
  monkeypatch.setattr(doctor, '_IMPORTS', code)
  assert set(doctor.import_errors().values()) == {
      'import ends Python: no message'}


def test_disk_and_memory():
  assert doctor.disk_finding(20 * 10 ** 9).state == FINE
  assert doctor.disk_finding(2 * 10 ** 9).state == WARNING
  assert [doctor.memory_finding(size).state for size in (
      16 * 10 ** 9, 6 * 10 ** 9, 2 * 10 ** 9, None)] == [
          FINE, WARNING, BROKEN, WARNING]


def test_the_whole_report(root, tmp_path, monkeypatch):
  monkeypatch.setattr(doctor, 'import_errors', dict)
  monkeypatch.setattr(doctor, '_memory', lambda: 16 * 10 ** 9)
  monkeypatch.setattr(versions, 'describe', in_use)
  monkeypatch.setattr(check.tqdm, 'tqdm', lambda paths, **_: paths)
  diagnosis = doctor.doctor(str(root), str(tmp_path / 'no' / 'data'))
  assert not diagnosis.ok
  lines = diagnosis.text().splitlines()
  assert lines[0] == '✓ stack:              classic: why'
  assert lines[1] == '✓ Python:             3.10.1'
  assert sum(line.startswith('✗') for line in lines) == 1
  assert re.fullmatch(r'\d+ fine, \d+ warning, 1 broken', lines[-1])
  content = json.loads(json.dumps(diagnosis.to_json()))
  assert content['ok'] is False
  assert content['findings'][0] == {
      'what': 'stack', 'state': 'fine', 'text': 'classic: why', 'fix': ''}


def test_this_environment():
  """The one check that is not faked."""
  found = states(doctor.version_findings(versions.describe(),
                                         doctor.import_errors()))
  assert set(found.values()) == {FINE}
