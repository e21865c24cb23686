"""Each thing that doctor checks, fine and broken, and what mends it."""

import hashlib
import json
import os
import platform
import time

import pytest

from support import tiny_kernels
from support.places import PROJECT
from tpu_graphs_ext import cli
from tpu_graphs_ext.course import checkout, doctor, swap
from tpu_graphs_ext.course.doctor import BROKEN, FINE, WARNING
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import tile

CLASSIC = versions.STACKS['classic'].requirements


@pytest.fixture
def in_use(monkeypatch):
  """Pretends that a classic stack is in use, with some versions changed."""
  def change(python='3.10.1', **changes):
    there = {**{package: wanted[2:].split(',')[0]
                for package, wanted in CLASSIC.items()}, **changes}
    monkeypatch.setattr(versions, 'installed', there.get)
    monkeypatch.setattr(
        versions, 'tensorflow_version', lambda: there['tensorflow'])
    monkeypatch.setattr(platform, 'python_version', lambda: python)

  return change


def states(findings) -> dict[str, str]:
  return {finding.what: finding.state for finding in findings}


def test_versions(in_use):
  # The one check of versions that is not faked.
  assert set(states(doctor.version_findings()).values()) == {FINE}
  in_use('3.9.18')
  states_there = states(doctor.version_findings())
  assert len(states_there) == 12  # The stack, Python and ten packages.
  assert set(states_there.values()) == {FINE}
  for what, change, text, fix in (
      ('Python', {'python': '3.12.1'}, '3.12.1; 3.9 to 3.11 fit',
       '--python /path/to/python3.11'),
      ('tensorflow', {'tensorflow': '2.15.0'}, '2.15.0; >=2.15.1',
       "-m pip install 'tensorflow>="),
      ('pandas', {'pandas': None}, 'missing; >=', "install 'pandas>=")):
    in_use(**change)
    (broken,) = [finding for finding in doctor.version_findings()
                 if finding.state != FINE]
    assert (broken.what, broken.state) == (what, BROKEN)
    assert text in broken.text and fix in broken.fix
  in_use(tensorflow=None)
  first = next(doctor.version_findings())
  assert first.text.endswith('3.10.1 gets; TensorFlow is not installed')


def test_a_good_checkout_and_a_changed_one(root, monkeypatch):
  commit = checkout.git(str(root), 'rev-parse', '--short=7', 'HEAD')
  swap.install(str(root))
  with monkeypatch.context() as patch:
    patch.setattr(checkout, 'COMMIT', commit.decode().strip())
    findings = list(doctor.checkout_findings(str(root)))
  assert states(findings) == {
      'checkout': FINE, 'models.py in place': FINE, 'course scripts': FINE}
  assert findings[0].text.endswith('changed files: none')
  (root / 'tiles_train.py').write_text('print(1)\n')
  (root / checkout.MODELS_PY).write_text('# mine\n')
  beside = root.parent / checkout.COURSE_FOLDER
  (beside / checkout.COURSE_FILES[0]).unlink()
  first, models, scripts = doctor.checkout_findings(str(root))
  assert first.state == models.state == WARNING
  assert first.text.endswith('changed files: tiles_train.py')
  assert f"git -C '{root}' checkout ddd187c" in first.fix
  assert models.text == 'changed by hand'
  assert models.fix.endswith(f"--root '{root}' --models_py my_models.py")
  assert scripts.state == BROKEN
  assert scripts.fix == f"git clone {checkout.COURSE_URL} '{beside}'"


def test_no_checkout(root):
  (finding,) = doctor.checkout_findings()
  assert (finding.state, 'git clone' in finding.fix) == (WARNING, True)
  (root / '.git').rename(root / 'no_git')
  # As GitHub's .zip has it, for which install has nothing to put back.
  first, scripts = doctor.checkout_findings(str(root))
  assert (first.state, scripts.state) == (BROKEN, FINE)
  assert 'git, which keeps the original' in first.text
  assert first.fix.startswith(f'git clone {checkout.URL}')


def test_data(tmp_path, monkeypatch):
  """Missing, whole, of the sample, faulty."""
  root = tmp_path / 'data'
  (finding,) = doctor.data_findings(str(root))
  assert (finding.what, finding.state) == ('data', BROKEN)
  assert f'{PROJECT.name}/run_scripts/download_data.sh' in os.path.abspath(
      finding.fix)
  tiny_kernels.write_lawful_root(root)
  with monkeypatch.context() as patch:
    patch.setattr(schema, 'PUBLISHED_KERNELS',
                  {'train': 24, 'valid': 12, 'test': 6})
    states_there = states(doctor.data_findings(str(root)))
    assert set(states_there.values()) == {FINE}
  mark = root / schema.SAMPLE_DATA_MARK
  mark.write_text('{}')
  *_, finding, _ = doctor.data_findings(str(root))
  assert finding.state == WARNING and 'good for a rehearsal' in finding.text
  mark.unlink()
  (root / 'valid' / 'cut_0.npz').write_bytes(b'PK')
  train, *_, faults = doctor.data_findings(str(root))
  assert train.state == faults.state == BROKEN
  assert train.text == '24 kernels; the collection has 5,709'
  assert 'cut_0.npz' in faults.text and 'check-data' in faults.fix


def test_a_cache_of_other_data(tmp_path, monkeypatch):
  """As the baseline's reader names it; older than the files or their folder."""
  monkeypatch.setattr(tile, 'CACHE_DIR', str(tmp_path / 'cache'))
  root = tiny_kernels.write_lawful_root(tmp_path / 'data')
  assert not [*doctor.cache_findings(str(root))]
  other = tiny_kernels.write_lawful_root(tmp_path / 'other')
  (tmp_path / 'cache').mkdir()
  first = next((root / 'train').iterdir())

  def unpack():  # As tar does, with the time that it had elsewhere.
    first.write_bytes(first.read_bytes())
    os.utime(first, (1, 1))

  def replace():  # By data that were unpacked before.
    root.rename(tmp_path / 'old')
    other.rename(root)

  def link():
    root.rename(tmp_path / 'linked')
    root.symlink_to(tmp_path / 'linked')

  for least, toy_data, change in (
      (10, False, unpack), (-1, False, lambda: first.with_name('x').touch()),
      (10, True, first.unlink), (-1, True, replace), (10, False, link)):
    key = hashlib.md5(f'{root}/train:{least}:{toy_data}'.encode()).hexdigest()
    path = tmp_path / 'cache' / f'{key}-cache.npz'
    path.touch()
    (finding,) = doctor.cache_findings(str(root))
    assert finding.state == FINE
    time.sleep(.02)
    change()
    (finding,) = doctor.cache_findings(str(root))
    assert finding.state == WARNING and finding.fix.endswith(str(path))
    assert finding.text.startswith('1 in ')
    path.unlink()


def test_hostile_places(root, tmp_path):
  """Each is a finding, never a traceback."""
  file, pipe = tmp_path / 'file', tmp_path / 'pipe'
  file.write_text('')
  os.mkfifo(pipe)
  for path in (file, pipe, file / 'below', tmp_path / 'a\0b', '   ', ''):
    findings = doctor.doctor(data_root=str(path)).findings
    assert states(findings)['data'] == BROKEN, path
  for path in (file, pipe, tmp_path / 'a\0b', tmp_path / 'no'):
    findings = doctor.doctor(root=str(path)).findings
    assert states(findings)['checkout'] == BROKEN
  # All of the reason, wherever the checkout lies.
  (root / (checkout.MODELS_PY + swap.RECORD)).mkdir()
  deep = tmp_path / ('d' * 200) / ('d' * 200)
  deep.parent.mkdir()
  root.rename(deep)
  assert 'is not an ordinary file' in doctor.doctor(root=str(deep)).text()


def test_the_whole_report(root, tmp_path, in_use, capsys):
  in_use()
  flags = ['doctor', f'--root={root}', f'--data_root={tmp_path}/no']
  assert cli.main(flags) == 1
  lines = capsys.readouterr().out.splitlines()
  stack = 'classic: TensorFlow 2.15.1 is installed'
  assert lines[0] == f'✓ stack:              {stack}'
  assert lines[-1].endswith(' warning, 1 broken')
  assert cli.main([*flags, '--json']) == 1
  content = json.loads(capsys.readouterr().out)
  assert content['ok'] is False
  assert content['findings'][0] == {
      'what': 'stack', 'state': 'fine', 'text': stack, 'fix': ''}
