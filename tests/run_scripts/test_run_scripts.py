"""What the shell scripts say on a machine that lacks something.

Each test gives them a PATH with nothing but basic tools and made-up ones.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from support.places import PROJECT
from tpu_graphs_ext.cli import app

SCRIPTS = PROJECT / 'run_scripts'
TOOLS = ('awk', 'bash', 'cat', 'cksum', 'dirname', 'env', 'grep', 'mkdir',
         'rm', 'rmdir', 'tail', 'touch', 'tr')

# Answers like a Python of that version; `-m venv` makes an environment whose
# own Python is this script, and pip does what the second blank says.
PYTHON = '''#!/usr/bin/env bash
case "$*" in
  *version_info*) echo {version} ;;
  *ensurepip*) exit 0 ;;
  '-m venv '*) mkdir -p "$3/bin"; cat "$0" > "$3/bin/python"
    chmod +x "$3/bin/python" ;;
  '-m pip '*) {pip} ;;
  *) echo "ran: $*" ;;
esac
'''


@pytest.fixture
def machine(tmp_path):
  """Folder of the only commands there are."""
  commands = tmp_path / 'bin'
  commands.mkdir()
  for tool in (*TOOLS, 'chmod'):
    (commands / tool).symlink_to(shutil.which(tool))
  add(commands, 'df', 'echo x; echo "/dev/disk 9 9 90000000 1% /"')
  return commands


def add(commands: pathlib.Path, name: str, script: str) -> None:
  """Adds a command."""
  path = commands / name
  path.write_text(script if script.startswith('#!')
                  else f'#!/usr/bin/env bash\n{script}\n')
  path.chmod(0o755)


def python(version: str, pip: str = 'exit 0') -> str:
  return PYTHON.format(version=version, pip=pip)


def run(machine, script: str = 'quickstart.sh', *flags: str, **variables: str):
  """Runs the script; returns (exit code, stdout, stderr)."""
  done = subprocess.run(
      [str(machine / 'bash'), str(SCRIPTS / script), *flags],
      env={'PATH': str(machine), 'VENV': str(machine.parent / 'venv'),
           **variables}, capture_output=True, text=True, check=False)
  return done.returncode, done.stdout, done.stderr


def assert_one_sentence(outcome, *parts: str) -> None:
  code, unused_output, error = outcome
  assert code == 1
  assert error.startswith('error: ')
  assert error.count('\n') == 1
  for part in parts:
    assert part in error


def test_without_a_usable_python(machine):
  assert_one_sentence(
      run(machine), 'no usable Python of 3.9, 3.10, 3.11, 3.12, 3.13 was found',
      'apt-get install python3 python3-venv')
  add(machine, 'python3', python('3.14'))
  assert_one_sentence(run(machine, TPU_GRAPHS_EXT_STACK='classic'),
                      'found python3 (3.14)', 'PYTHON=/path/to/python3')
  assert_one_sentence(run(machine, TPU_GRAPHS_EXT_STACK='modern'),
                      'must be classic or current; got modern')
  # A chosen one is not replaced by another.
  assert_one_sentence(run(machine, 'quickstart.sh', '--python', 'python3'),
                      'python3 is no usable Python; found python3 (3.14)')


@pytest.mark.parametrize('there,chosen,constraints', [
    (['3.13'], {}, 'current-python3.13'),
    (['3.9', '3.12', '3.11'], {}, 'classic-python3.11'),
    (['3.11'], {'TPU_GRAPHS_EXT_STACK': 'current'}, 'current-python3.11'),
    (['3.11', '3.12'], {'PYTHON': 'python3.12'}, 'current-python3.12'),
])
def test_the_stack_follows_from_the_python(machine, there, chosen, constraints):
  """And a second run goes straight to the program."""
  for version in there:
    add(machine, f'python{version}', python(version, 'echo "$*" >> "$0.pip"'))
  code, output, error = run(machine, 'test.sh', '-m', 'slow', **chosen)
  assert code == 0, error
  ran = ('ran: -m ruff check --quiet .\n'
         'ran: -m pytest --numprocesses auto -m slow\n')
  assert f'Installing the {constraints.split("-")[0]} stack' in output
  assert output.endswith(ran)
  installed = (machine.parent / 'venv/bin/python.pip').read_text()
  assert f'/constraints/{constraints}.txt' in installed
  assert installed.endswith(f'--editable {PROJECT}[dev]\n')
  assert run(machine, 'test.sh', '-m', 'slow', **chosen)[1] == ran
  assert (machine.parent / 'venv/bin/python.pip').read_text() == installed


def test_an_installation_that_fails(machine):
  for pip, free, message in (
      ('echo "Temporary failure in name resolution"; exit 1', 90000000,
       'pip could not download a package; check the network'),
      ('echo "OSError: No space left on device"; exit 1', 90000000,
       'the disk is full; free some and start again'),
      ('exit 0', 100000, 'only 100 MB are free')):
    add(machine, 'python3.11', python('3.11', pip))
    add(machine, 'df', f'echo x; echo "/dev/disk 9 9 {free} 1% /"')
    shutil.rmtree(machine.parent / 'venv', ignore_errors=True)
    assert_one_sentence(run(machine), message)


def test_a_folder_of_other_files_is_not_replaced(machine):
  add(machine, 'python3.11', python('3.11'))
  mine = machine.parent / 'venv' / 'mine'
  mine.parent.mkdir()
  mine.touch()
  assert_one_sentence(run(machine), 'venv holds something other than an envir')
  assert mine.exists()
  (mine.parent / 'pyvenv.cfg').touch()  # Its Python is gone.
  assert run(machine, 'test.sh')[0] == 0 and not mine.exists()


@pytest.mark.parametrize('clones', [True, False])
def test_quickstart(machine, clones):
  """With the baseline's scripts, or where it cannot be cloned by `train`."""
  for tool in ('ls', 'head', 'sed', 'mktemp', 'timeout'):
    (machine / tool).symlink_to(shutil.which(tool))
  make = 'for word; do :; done; mkdir -p "${word#--out_dir=}'
  add(machine, 'git', f'{make}"' if clones else 'exit 1')
  home = machine.parent
  (home / 'venv/bin').mkdir(parents=True)

  def commands(on_training, *flags):
    """(outcome, what was run), by task and --out alone."""
    add(home / 'venv/bin', 'python', 'case "$*" in *version_info*) echo 3.11 ;;'
        f'*out_dir*) {on_training} ;; esac')
    outcome = run(machine, 'quickstart.sh', *flags, '--out', f'{home}/out')
    return outcome, re.findall(r'^\$ tpu-graphs-ext (.*?)(?: --cache_dir.*)?$',
                               outcome[2].replace(str(home), 'HOME'), re.M)

  trained = make + '/model_1a"'
  (code, output, error), tiles = commands(trained, '--epochs=3')
  assert code == 0, error
  data = '--data_root HOME/out/sample_data'
  model = 'HOME/out/models/model_1a'
  assert tiles == [
      'sample-data --task tile --out HOME/out/sample_data',
      *(['install --root HOME/out/tpu_graphs --task tile'] * clones),
      *(f'run --root HOME/out/tpu_graphs tiles_train.py --model={name} '
        '--epochs=3 --data_root=HOME/out/sample_data' if clones else
        f'train --task tile --model {name} --epochs 3 {data}'
        for name in ('MyEarlyJoinSAGE', 'EarlyJoinSAGE')),
      f'evaluate --task tile --dir {model} {model} --data '
      f'HOME/out/sample_data/valid {data}',
      f'predict --task tile --dir {model} {data}']
  for line in output.splitlines()[-3:]:  # They can be pasted.
    app.parse(shlex.split(line)[1:])
  (code, *_), layouts = commands(trained, '--task', 'layout')
  assert code == 0
  assert ('run --root HOME/out/tpu_graphs layout_train.py --source=xla '
          '--search=random --model=ResModel --epochs=10 '
          '--data_root=HOME/out/layout_sample_data' in layouts) == clones
  (code, _, error), _ = commands('echo no luck; exit 1')
  assert code == 1
  assert ('tiles_train.py failed: no luck (all' in error) == clones


def test_quickstart_refuses_wrong_flags(machine):
  (machine / 'sed').symlink_to(shutil.which('sed'))
  assert_one_sentence(run(machine, 'quickstart.sh', '--epoch', '3'),
                      'there is no flag --epoch')
  assert_one_sentence(run(machine, 'quickstart.sh', '--out'), 'a value')
  assert_one_sentence(run(machine, 'quickstart.sh', '--task=tree'),
                      'must be tile or layout; got tree')
  assert '[--out DIR]' in run(machine, 'quickstart.sh', '--help')[1]


# ----------------------------------------------------------- the assignment


@pytest.fixture
def student(machine):
  """A machine with a Python, a checkout and two trained models."""
  for tool in ('find', 'date', 'sort', 'cut', 'head'):
    (machine / tool).symlink_to(shutil.which(tool))
  add(machine, 'python3.11', python('3.11'))
  home = machine.parent
  (home / 'out').symlink_to('disk')
  for name in ('tpu_graphs', 'tpu_graphs_scripts', 'disk', 'out/model_b',
               'out/model_a', 'out/model_c.tmp', 'd/train', 'd/valid',
               'd/test'):
    (home / name).mkdir(parents=True)
  os.utime(home / 'out/model_b', (1, 1))  # The older one.
  os.utime(home / 'out/model_c.tmp', (3e9, 3e9))  # Half-written.
  for name in 'ab':
    (home / f'out/run_{name}.jsonz').touch()
  (home / 'tpu_graphs_scripts/sample_submission.csv').touch()
  for split in ('train', 'valid', 'test'):
    (home / f'd/{split}/a.npz').touch()
  return machine


def run_step(student, script: str, *flags: str, error: str = '') -> list[str]:
  """What the script runs, as the stand-in for Python prints it."""
  home = str(student.parent)
  outcome = run(student, script, *flags, HOME=home, DATA_ROOT=f'{home}/d',
                OUT_DIR=f'{home}/out')
  if error:
    assert_one_sentence(outcome, error)
  else:
    assert outcome[0] == 0, outcome[2]
  return [line for line in outcome[1].replace(home, 'HOME').splitlines()
          if line.startswith(('ran: ', 'trained: '))]


def test_train_and_clean_up(student):
  """The rest of the training is Python's: tests/course/test_training.py."""
  assert run_step(student, 'assignment_train.sh', '--epochs=3') == [
      'ran: -I -m tpu_graphs_ext.course.training HOME/tpu_graphs '
      f'{SCRIPTS.parent}/models.py HOME/out --model=MyEarlyJoinSAGE '
      '--data_root=HOME/d --out_dir=HOME/out --epochs=3']
  assert run_step(student, 'assignment_clean_up.sh') == [
      'ran: -I -m tpu_graphs_ext.cli uninstall --root HOME/tpu_graphs']


def test_the_model_trained_last_is_handed_in(student):
  """Also from another --out_dir, which the training has noted; or a given one.
  """
  home = student.parent
  def handed_in(*flags):
    (line,) = run_step(student, 'assignment_hand_in.sh', *flags)
    return line.split('--model_dir ')[1].split()[0]

  (home / 'out/model_notes').mkdir()  # Newer, but of no training.
  assert handed_in() == 'HOME/out/model_a'
  (home / 'other/model_c').mkdir(parents=True)
  (home / 'other/run_c.jsonz').touch()
  (home / 'out/trained_last.txt').write_text(f'{home}/other/model_c\n')
  os.utime(home / 'other/model_c', (2e9, 2e9))
  assert handed_in() == 'HOME/other/model_c'
  assert handed_in(f'{home}/out/model_b') == 'HOME/out/model_b'
  (home / 'other/model_c').rmdir()
  assert handed_in() == 'HOME/out/model_a'


def test_kaggle(student):
  """With the course's sample; other kernels are a rehearsal."""
  home = student.parent
  ids = ''.join(f'tile:xla:{i},1;0\n' for i in range(844))
  (home / 'out/predictions.csv').write_text(f'ID,TopConfigs\n{ids}')
  first, second = run_step(student, 'assignment_kaggle.sh')
  assert 'predict --dir HOME/out/model_a ' in first
  assert '--stats all ' in first
  assert second == (
      'ran: -I -m tpu_graphs_ext.cli kaggle-csv --tile HOME/out/predictions.csv'
      ' --sample HOME/tpu_graphs_scripts/sample_submission.csv --out '
      'HOME/out/kaggle.csv')
  sample = home / 'tpu_graphs_scripts/sample_submission.csv'
  (home / 'out/predictions.csv').write_text('ID,TopConfigs\ntile:xla:a,1;0')
  sample.write_text('ID,TopConfigs\ntile:xla:b,0;1\nlayout:xla:random:c,0;1')
  assert '--sample HOME/out/rehearsal_sample.csv ' in run_step(
      student, 'assignment_kaggle.sh')[1]
  assert (home / 'out/rehearsal_sample.csv').read_text() == (
      'ID,TopConfigs\ntile:xla:a,1;0\nlayout:xla:random:c,0;1\n')
  sample.unlink()
  assert not run_step(student, 'assignment_kaggle.sh',
                      error='sample_submission.csv is neither')
