"""The assignment in the environment that quickstart.sh makes.

It lacks the tests' own packages. It is built in a temporary folder for the
Python and the stack that run the tests, which takes minutes and 2.5 GB;
TPU_GRAPHS_EXT_PLAIN_PYTHON names the Python of an existing one, on either
stack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from support.places import PROJECT
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine import predictions_csv
from tpu_graphs_ext.stacks import versions

VARIABLE = 'TPU_GRAPHS_EXT_PLAIN_PYTHON'
# What would let a test's own packages or settings in.
STACK_VARIABLE = 'TPU_GRAPHS_EXT_STACK'
NOT_HANDED_ON = ('PYTHONPATH', 'VIRTUAL_ENV', 'TF_USE_LEGACY_KERAS', 'PYTHON',
                 checkout.ROOT_VARIABLE, STACK_VARIABLE)
EXTRAS = ('pytest', 'xdist', 'ruff', 'lightgbm')
# Rows of a competition with as few kernels as the sample data.
LAYOUT_ROWS = {'layout:xla:random:net': [0, 1], 'layout:nlp:default:net': [0]}


@pytest.fixture
def run(tmp_path):
  """Runs a command of the environment in a home of its own."""
  variables = {key: value for key, value in os.environ.items()
               if key not in NOT_HANDED_ON}
  python = os.environ.get(VARIABLE)
  if not python:
    python = f'{tmp_path}/venv/bin/python'
    subprocess.run(
        ['bash', '-euo', 'pipefail', '-c', 'source "$0"; make_environment',
         f'{PROJECT}/run_scripts/environment.sh'], check=True, env={
             **variables, 'PYTHON': sys.executable, 'VENV': f'{tmp_path}/venv',
             STACK_VARIABLE: versions.stack_name()})

  def run(name: str, *arguments: str, codes=(0,)) -> str:
    """Runs a command; returns what it prints."""
    done = subprocess.run(
        [os.path.join(os.path.dirname(python), name), *arguments],
        cwd=tmp_path, env={**variables, 'HOME': str(tmp_path)}, text=True,
        capture_output=True, check=False)
    assert done.returncode in codes, (
        f'{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}')
    return done.stdout.strip()

  yield run
  shutil.rmtree(tmp_path / 'venv', ignore_errors=True)  # Pytest keeps the rest.


@pytest.mark.slow
def test_from_doctor_to_the_file_for_kaggle(run, tmp_path):
  """Without a checkout."""
  def verb(*arguments, **how):
    return run('tpu-graphs-ext', *arguments, **how)

  assert run('python', '-c', (
      'import importlib.util\n'
      f'print([name for name in {EXTRAS} if importlib.util.find_spec(name)])'
  )) == '[]'
  verb('sample-data', f'--out={tmp_path}/data', '--kernels=24')
  data, out = f'--data_root={tmp_path}/data', tmp_path / 'own'
  # It may find fault with the machine; here packages matter alone.
  diagnosis = json.loads(verb('doctor', '--json', data, codes=(0, 1)))
  for finding in diagnosis['findings']:
    assert finding['state'] == 'fine' or finding['what'].startswith(
        ('checkout', 'data', 'disk')), finding
  verb('train', '--model=MyEarlyJoinSAGE', '--epochs=1', '--batch=2',
       '--configs=4', data, f'--out_dir={out}')
  (model_dir,) = out.glob('model_*')
  verb('predict', f'--dir={model_dir}', '--stats=all', data,
       f'--out={out}/predictions.csv')
  assert 'this hand-in works' in verb(
      'package', f'--model_dir={model_dir}', data, f'--out={out}/hand_in.zip')
  assert 'this hand-in works' in verb(
      'verify', f'--package={out}/hand_in.zip', data)
  predictions_csv.write(f'{out}/sample.csv', {
      **{f'tile:xla:{kernel.stem}': [0, 1, 2, 3, 4] for kernel in sorted(
          (tmp_path / 'data/test').glob('*.npz'))}, **LAYOUT_ROWS}, '')
  verb('kaggle-csv', f'--tile={out}/predictions.csv', data,
       f'--sample={out}/sample.csv', f'--out={out}/kaggle.csv')
  assert predictions_csv.read(f'{out}/kaggle.csv') == {
      **predictions_csv.read(f'{out}/predictions.csv'), **LAYOUT_ROWS}
