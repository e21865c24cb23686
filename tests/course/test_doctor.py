"""Each thing that doctor checks, fine and broken, and what mends it."""

import json
import os
import re
import subprocess

from support import tiny_kernels
from support.places import PROJECT
from tpu_graphs_ext.course import checkout, doctor, swap
from tpu_graphs_ext.course.doctor import BROKEN, FINE, WARNING
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.stacks import versions

CLASSIC = {'tensorflow': '2.15.1', 'keras': '2.15.0',
           'tensorflow_gnn': '1.0.3',
           'tensorflow-ranking': '0.5.5.dev', 'numpy': '1.26.4',
           'absl-py': '2.5.1', 'apache-beam': '2.77.0', 'pandas': '3.0.6',
           'scipy': '1.17.1', 'tqdm': '4.70.1'}


def in_use(python='3.10.1', **changes):
  """A classic stack, with some versions changed."""
  return versions.StackInUse('classic', 'why', python, {**CLASSIC, **changes},
                             versions.STACKS['classic'].requirements)


def states(findings) -> dict[str, str]:
  return {finding.what: finding.state for finding in findings}


def broken(stack):
  (found,) = [finding for finding in doctor.version_findings(stack)
              if finding.state != FINE]
  assert found.state == BROKEN
  return found


def test_versions():
  found = states(doctor.version_findings(in_use('3.9.18')))
  assert len(found) == 12  # The stack, Python and ten packages.
  assert set(found.values()) == {FINE}
  # The one check of versions that is not faked.
  assert set(states(doctor.version_findings(
      versions.describe())).values()) == {FINE}
  found = broken(in_use('3.12.1'))
  assert '3.12.1; the classic stack needs 3.9 to 3.11' in found.text
  assert '--python /path/to/python3.11' in found.fix
  for package, version in (('tensorflow', '2.15.0'), ('pandas', None)):
    found = broken(in_use(**{package: version}))
    assert found.what == package
    assert (version or 'is missing') in found.text
    assert f"-m pip install '{package}>=" in found.fix


# ---------------------------------------------------------------- checkout


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
  assert first.state == models.state == WARNING
  assert 'changes that the graders do not have: tiles_train.py' in first.text
  assert models.text.startswith('changed by hand')
  assert 'install --root' in models.fix
  assert scripts.state == BROKEN
  assert scripts.fix == (f'git clone {checkout.COURSE_URL} '
                         f'{root.parent / checkout.COURSE_FOLDER}')


def test_another_commit_and_no_git(root, tmp_path, monkeypatch):
  """What is to be pasted has the folder of this package's command."""
  (tmp_path / 'bin').mkdir()
  (tmp_path / 'bin' / 'tpu-graphs-ext').touch()
  monkeypatch.setattr('sys.executable', str(tmp_path / 'bin' / 'python'))
  monkeypatch.chdir(tmp_path)
  first, models, _ = doctor.checkout_findings(str(root))
  assert (first.state, models.state) == (WARNING, WARNING)
  assert f'git -C {root} checkout ddd187c' == first.fix
  assert models.fix.startswith(
      f'./bin/tpu-graphs-ext install --root {root}  #')
  monkeypatch.chdir(root)
  assert checkout.own_command() == str(tmp_path / 'bin' / 'tpu-graphs-ext')
  monkeypatch.setenv('PATH', str(tmp_path / 'bin'))
  (tmp_path / 'bin' / 'tpu-graphs-ext').chmod(0o755)
  assert checkout.own_command() == 'tpu-graphs-ext'
  (root / '.git').rename(root / 'no_git')
  assert 'is not a git checkout' in next(
      doctor.checkout_findings(str(root))).text


def first_of(**places) -> doctor.Finding:
  """The first broken finding of the whole report."""
  return next(finding for finding in doctor.doctor(**places).findings
              if finding.state == BROKEN)


def test_no_checkout(monkeypatch, tmp_path):
  monkeypatch.delenv(checkout.ROOT_VARIABLE, raising=False)
  (finding,) = doctor.checkout_findings()
  assert (finding.state, 'git clone' in finding.fix) == (WARNING, True)
  finding = first_of(root=str(tmp_path / 'no'))
  assert (finding.what, finding.state) == ('checkout', BROKEN)
  assert 'there is no such folder' in finding.text
  assert finding.fix == f'git clone {checkout.URL} {tmp_path}/no'


# -------------------------------------------------------------------- data


def test_data(tmp_path, monkeypatch):
  """Whole, missing and faulty, of the sample, absent."""
  monkeypatch.chdir(tmp_path)
  root = tmp_path / 'npz' / 'tile' / 'xla'
  finding = first_of(data_root=str(root))
  assert finding.what == 'data'
  assert f'{PROJECT}/run_scripts/download_data.sh' in finding.fix
  tiny_kernels.write_data_root(root)
  with monkeypatch.context() as patch:
    patch.setattr(schema, 'PUBLISHED_KERNELS',
                  {'train': 24, 'valid': 12, 'test': 6})
    assert states(doctor.data_findings(str(root))) == {
        'data, train': FINE, 'data, valid': FINE, 'data, test': FINE,
        'data, files': FINE}
  mark = root / schema.SAMPLE_DATA_MARK
  mark.write_text('{}')
  assert set(states(doctor.data_findings(str(root))).values()) == {
      WARNING, FINE}
  mark.unlink()
  (root / 'valid' / 'cut_0.npz').write_bytes(b'PK')
  found = {finding.what: finding
           for finding in doctor.data_findings(str(root))}
  assert found['data, train'].state == BROKEN
  assert found['data, train'].text == '24 kernels; the collection has 5,709'
  # The script downloads to that folder.
  assert found['data, train'].fix.endswith(f'download_data.sh {tmp_path}')
  assert 'cut_0.npz' in found['data, files'].text
  assert 'tpu-graphs-ext check-data' in found['data, files'].fix


def test_hostile_places(root, tmp_path, monkeypatch):
  """Each is a finding, never a traceback."""
  file, pipe = tmp_path / 'file', tmp_path / 'pipe'
  file.write_text('')
  os.mkfifo(pipe)
  for path in (file, pipe, file / 'below', tmp_path / 'a\0b', '   ', ''):
    assert first_of(data_root=str(path)).what == 'data', path
  for path in (file, pipe, tmp_path / 'a\0b'):
    assert first_of(root=str(path)).what == 'checkout'
  (root / (checkout.MODELS_PY + swap.RECORD)).mkdir()
  assert len(list(doctor.checkout_findings(str(root)))) == 3

  def refuses(*unused):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(swap.files, 'open_ordinary', refuses)
  assert states(doctor.checkout_findings(str(root)))[
      'models.py in place'] == BROKEN


def test_the_whole_report(root, tmp_path, monkeypatch):
  monkeypatch.setattr(versions, 'describe', in_use)
  diagnosis = doctor.doctor(str(root), str(tmp_path / 'no' / 'data'))
  lines = diagnosis.text().splitlines()
  assert lines[0] == '✓ stack:              classic: why'
  assert sum(line.startswith('✗') for line in lines) == 1
  assert re.fullmatch(r'\d+ fine, (1 warning|\d warnings), 1 broken',
                      lines[-1])
  content = json.loads(json.dumps(diagnosis.to_json()))
  assert content['ok'] is diagnosis.ok is False
  assert content['findings'][0] == {
      'what': 'stack', 'state': 'fine', 'text': 'classic: why', 'fix': ''}
