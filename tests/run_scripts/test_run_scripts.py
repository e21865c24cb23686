"""What the shell scripts say on a machine that lacks something.

Each test gives them a PATH with nothing but basic tools and made-up ones.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

from support.places import PROJECT
from tpu_graphs_ext.course import checkout

SCRIPTS = PROJECT / 'run_scripts'
TOOLS = ('awk', 'bash', 'cat', 'cksum', 'dirname', 'env', 'grep', 'mkdir',
         'rm', 'tail', 'touch', 'tr')

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
           **variables},
      capture_output=True, text=True, check=False)
  return done.returncode, done.stdout, done.stderr


def assert_one_sentence(outcome, *parts: str) -> None:
  code, unused_output, error = outcome
  assert code == 1
  assert error.startswith('error: ')
  assert error.count('\n') == 1
  for part in parts:
    assert part in error


def test_no_python_at_all(machine):
  assert_one_sentence(
      run(machine), 'no usable Python of 3.9, 3.10, 3.11, 3.12, 3.13 was found',
      'apt-get install python3 python3-venv')


def test_a_python_that_is_too_new_is_named(machine):
  add(machine, 'python3', python('3.14'))
  assert_one_sentence(run(machine), 'found python3 (3.14)',
                      'PYTHON=/path/to/python3')


def test_a_chosen_python_is_not_replaced_by_another(machine):
  add(machine, 'python3.11', python('3.11'))
  add(machine, 'mine', python('3.8'))
  assert_one_sentence(run(machine, 'quickstart.sh', '--python', 'mine'),
                      'mine is no usable Python; found mine (3.8)')
  assert_one_sentence(run(machine, 'quickstart.sh', '--python=absent'),
                      'absent is no usable Python.')
  assert_one_sentence(run(machine, 'quickstart.sh', '--python'),
                      '--python must be followed by the path of a Python')


def test_a_stack_that_does_not_exist(machine):
  add(machine, 'python3.11', python('3.11'))
  assert_one_sentence(run(machine, TPU_GRAPHS_EXT_STACK='modern'),
                      'must be classic or current; got modern')


def test_a_python_that_the_chosen_stack_does_not_have(machine):
  add(machine, 'python3.12', python('3.12'))
  assert_one_sentence(run(machine, TPU_GRAPHS_EXT_STACK='classic'),
                      'no usable Python of 3.9, 3.10, 3.11 was found',
                      'found python3.12 (3.12)')


@pytest.mark.parametrize('there,chosen,constraints', [
    (['3.10', '3.12'], {}, 'classic-python3.10'),
    (['3.12'], {}, 'current-python3.12'),
    (['3.13'], {}, 'current-python3.13'),
    (['3.9', '3.12', '3.11'], {}, 'classic-python3.11'),
    (['3.11'], {'TPU_GRAPHS_EXT_STACK': 'current'}, 'current-python3.11'),
    (['3.9', '3.13'], {'TPU_GRAPHS_EXT_STACK': 'current'},
     'current-python3.13'),
    (['3.11', '3.12'], {'PYTHON': 'python3.12'}, 'current-python3.12'),
])
def test_the_stack_follows_from_the_python(machine, there, chosen, constraints):
  for version in there:
    add(machine, f'python{version}', python(version, 'echo "$*" >> "$0.pip"'))
  code, output, error = run(machine, 'test.sh', **chosen)
  assert code == 0, error
  stack = constraints.split('-')[0]
  assert f'Installing the {stack} stack' in output
  installed = (machine.parent / 'venv/bin/python.pip').read_text()
  assert f'/constraints/{constraints}.txt' in installed


@pytest.fixture
def project(tmp_path):
  """A copy of the scripts, to make environments in."""
  folder = tmp_path / 'project'
  for name in ('run_scripts', 'constraints', 'tpu_graphs_ext', '.ci'):
    shutil.copytree(PROJECT / name, folder / name,
                    ignore=shutil.ignore_patterns('__pycache__'))
  for name in ('setup.py', 'pyproject.toml'):
    shutil.copy(PROJECT / name, folder)
  return folder


def test_a_chosen_python_has_an_environment_of_its_own(machine, project):
  for version in ('3.11', '3.12'):
    add(machine, f'python{version}', python(version))
  script = str(project / 'run_scripts' / 'quickstart.sh')
  for flags in ([], ['--python', 'python3.12']):
    code, unused_output, error = run(machine, script, *flags, VENV='')
    assert code == 0, error
  assert sorted(path.name for path in project.glob('.venv*')) == [
      '.venv', '.venv-current-python3.12']


@pytest.mark.parametrize('there,other', [
    (['3.11', '3.12'], '.venv-current-python3.12'),
    (['3.9', '3.13'], '.venv-current-python3.13'),
    (['3.11'], ''), (['3.12'], ''), (['3.10', '3.11'], '.venv-current-python'
                                                       '3.10')])
def test_ci_tests_a_second_stack_where_there_is_a_second_python(
    machine, project, there, other):
  for version in there:
    add(machine, f'python{version}', python(version).replace(
        'ran: $*', 'ran: $* across $TPU_GRAPHS_EXT_OTHER_PYTHON in '
        '$TPU_GRAPHS_EXT_PLAIN_PYTHON oneDNN $TF_ENABLE_ONEDNN_OPTS'))
  code, output, error = run(
      machine, str(project / '.ci' / 'run'), VENV='', HOME=str(machine.parent),
      TF_ENABLE_ONEDNN_OPTS='')
  assert code == 0, error
  other_python = f'{project}/{other}/bin/python' if other else ''
  tests = [line for line in output.splitlines() if '-m pytest' in line]
  assert tests == [
      f'ran: -m pytest --numprocesses auto across {other_python} in  oneDNN ',
      *('ran: -m pytest --numprocesses auto tests/models '
        f'across {other_python} in  oneDNN {value}' for value in (0, 1)),
      'ran: -m pytest --numprocesses auto --numprocesses 0 -m slow '
      'tests/course/test_quickstart_environment.py '
      f'across {other_python} in {other_python} oneDNN ']
  # An environment with JAX where libtpu has a Python.
  assert (project / '.venv-jax').is_dir() == (there[0] != '3.9')


def test_a_full_disk(machine):
  add(machine, 'python3.10', python('3.10'))
  add(machine, 'df', 'echo x; echo "/dev/disk 9 9 100000 99% /"')
  assert_one_sentence(run(machine), 'only 100 MB are free',
                      'VENV=/path/to/folder')


def test_no_network(machine):
  add(machine, 'python3.11', python(
      '3.11', 'echo "Temporary failure in name resolution"; exit 1'))
  assert_one_sentence(
      run(machine), 'pip could not download a package; check the network')


def test_the_disk_fills_up_during_installation(machine):
  add(machine, 'python3.11', python(
      '3.11', 'echo "OSError: No space left on device"; exit 1'))
  assert_one_sentence(
      run(machine), 'the disk is full; free some and start again')


def test_everything_is_installed_once(machine):
  """The second run goes straight to the program."""
  add(machine, 'python3.9', python('3.9', 'echo "$*" >> "$0.pip"'))
  code, first, error = run(machine, 'quickstart.sh', '--epochs', '3')
  assert code == 0, error
  assert first.endswith('ran: -m tpu_graphs_ext.quickstart --epochs 3\n')
  installed = (machine.parent / 'venv/bin/python.pip').read_text()
  assert 'constraints/classic-python3.9.txt' in installed
  assert installed.endswith(f'--editable {PROJECT}\n')  # Without extras.
  code, second, error = run(machine, 'quickstart.sh', '--epochs', '3')
  assert code == 0, error
  assert second == 'ran: -m tpu_graphs_ext.quickstart --epochs 3\n'
  assert (machine.parent / 'venv/bin/python.pip').read_text() == installed


def test_the_test_command_installs_and_calls_ruff_and_pytest(machine):
  add(machine, 'python3.10', python('3.10'))
  code, output, error = run(machine, 'test.sh', '-m', 'slow')
  assert code == 0, error
  assert output.endswith(
      'ran: -m ruff check --quiet .\n'
      'ran: -m pytest --numprocesses auto -m slow\n')


# ----------------------------------------------------------- the assignment


@pytest.fixture
def student(machine):
  """A machine with a Python, a checkout and two trained models."""
  for tool in ('find', 'date', 'sort', 'cut', 'head'):
    (machine / tool).symlink_to(shutil.which(tool))
  add(machine, 'python3.11', python('3.11'))
  home = machine.parent
  for name in ('tpu_graphs', 'tpu_graphs_scripts', 'out/model_b',
               'out/model_a'):
    (home / name).mkdir(parents=True)
  os.utime(home / 'out/model_b', (1, 1))  # The older one.
  (home / 'tpu_graphs_scripts/sample_submission.csv').touch()
  (home / 'd/train').mkdir(parents=True)
  (home / 'd/train/a.npz').touch()
  return machine


def run_step(student, script: str, *flags: str) -> list[str]:
  """What the script runs, as the stand-in for Python prints it."""
  home = student.parent
  done = subprocess.run(
      [str(student / 'bash'), str(SCRIPTS / script), *flags],
      env={'PATH': str(student), 'VENV': str(home / 'venv'), 'HOME': str(home),
           'DATA_ROOT': str(home / 'd'), 'OUT_DIR': str(home / 'out')},
      capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  return [line for line in done.stdout.replace(str(home), 'HOME').splitlines()
          if line.startswith(('ran: ', 'trained: '))]


def test_step_1_clones_nothing_that_is_there(student):
  assert run_step(student, 'assignment_setup.sh') == [
      'ran: -m tpu_graphs_ext.cli doctor --root HOME/tpu_graphs '
      '--data_root HOME/d']


def test_step_1_clones_what_the_package_names():
  text = (SCRIPTS / 'assignment_setup.sh').read_text()
  assert f'clone {checkout.URL} "' in text
  assert f'clone {checkout.COURSE_URL} \\\n' in text


def test_step_1_without_a_network_lists_what_there_is(student):
  shutil.rmtree(student.parent / 'tpu_graphs')
  add(student, 'git', 'exit 128')
  assert run_step(student, 'assignment_setup.sh')[0].startswith(
      'ran: -m tpu_graphs_ext.cli doctor ')


def test_step_1_takes_the_courses_scripts_from_the_checkout(student):
  home = student.parent
  shutil.rmtree(home / 'tpu_graphs_scripts')
  (home / 'tpu_graphs/tiles_gen_predictions_csv.py').touch()
  add(student, 'git', 'echo "ran: git $*"')
  assert len(run_step(student, 'assignment_setup.sh')) == 1


def test_step_2_looks_for_the_data_before_it_changes_anything(student):
  (student.parent / 'd/train/a.npz').unlink()
  outcome = subprocess.run(
      [str(student / 'bash'), str(SCRIPTS / 'assignment_train.sh')],
      env={'PATH': str(student), 'VENV': str(student.parent / 'venv'),
           'HOME': str(student.parent), 'DATA_ROOT': '/nowhere'},
      capture_output=True, text=True, check=False)
  assert_one_sentence((outcome.returncode, '', outcome.stderr),
                      'there are no .npz files in /nowhere/train')


def test_step_2_trains_in_the_checkout(student):
  assert run_step(student, 'assignment_train.sh', '--epochs=3') == [
      'ran: -m tpu_graphs_ext.cli install --root HOME/tpu_graphs '
      f'--models_py {SCRIPTS.parent}/models.py',
      'ran: -m tpu_graphs_ext.cli run tiles_train.py --model=MyEarlyJoinSAGE '
      '--data_root=HOME/d --out_dir=HOME/out --epochs=3',
      'trained: HOME/out/model_a']


def test_step_3_packs_the_newest_model_or_the_one_given(student):
  (first,) = run_step(student, 'assignment_hand_in.sh')
  assert first.startswith(
      'ran: -m tpu_graphs_ext.cli package --model_dir HOME/out/model_a ')
  assert first.endswith('--root HOME/tpu_graphs --data_root HOME/d '
                        '--out HOME/out/submission.zip')
  (second,) = run_step(student, 'assignment_hand_in.sh', '/m/model_b')
  assert '--model_dir /m/model_b ' in second


def test_step_3_without_a_model(student):
  shutil.rmtree(student.parent / 'out')
  outcome = subprocess.run(
      [str(student / 'bash'), str(SCRIPTS / 'assignment_hand_in.sh')],
      env={'PATH': str(student), 'VENV': str(student.parent / 'venv'),
           'HOME': str(student.parent), 'OUT_DIR': '/nowhere'},
      capture_output=True, text=True, check=False)
  assert_one_sentence((outcome.returncode, '', outcome.stderr),
                      'there is no model_<hash> in /nowhere')


def test_step_4_uses_the_courses_sample(student):
  first, second = run_step(student, 'assignment_kaggle.sh')
  assert 'predict --dir HOME/out/model_a ' in first
  assert '--stats all ' in first
  assert second == (
      'ran: -m tpu_graphs_ext.cli kaggle-csv --tile HOME/out/predictions.csv '
      '--sample HOME/tpu_graphs_scripts/sample_submission.csv '
      '--data_root HOME/d --out HOME/out/kaggle.csv')


def test_step_4_can_be_rehearsed_with_other_kernels(student):
  home = student.parent
  (home / 'out/predictions.csv').write_text('ID,TopConfigs\ntile:xla:a,1;0')
  (home / 'tpu_graphs_scripts/sample_submission.csv').write_text(
      'ID,TopConfigs\ntile:xla:b,0;1\nlayout:xla:random:c,0;1')
  command = run_step(student, 'assignment_kaggle.sh')[1]
  assert '--sample HOME/out/rehearsal_sample.csv ' in command
  assert (home / 'out/rehearsal_sample.csv').read_text() == (
      'ID,TopConfigs\ntile:xla:a,1;0\nlayout:xla:random:c,0;1\n')


def test_step_5_puts_the_file_back(student):
  assert run_step(student, 'assignment_clean_up.sh') == [
      'ran: -m tpu_graphs_ext.cli uninstall --root HOME/tpu_graphs']
