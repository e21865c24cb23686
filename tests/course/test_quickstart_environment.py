"""The assignment in the environment that quickstart.sh makes.

It lacks the tests' own packages. It is built in a temporary folder for the
Python and the stack that run the tests, which takes minutes and 2.5 GB;
TPU_GRAPHS_EXT_PLAIN_PYTHON names the Python of an existing one, on either
stack.
"""

from __future__ import annotations

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
STEPS = '''
python -c 'import pytest' && exit 1
tpu-graphs-ext sample-data --out data --kernels 24
tpu-graphs-ext doctor --data_root data > doctor || [ $? = 1 ]
grep -E '^(!|✗)' doctor | grep -Ev '^[^ ]+ (checkout|data)' && exit 1
tpu-graphs-ext train --model=MyEarlyJoinSAGE --epochs=1 --batch=2 \\
    --configs=4 --data_root data --out_dir own
tpu-graphs-ext predict --dir own/latest --stats all --data_root data \\
    --out predictions.csv
tpu-graphs-ext package --dir own/latest --data_root data --out in.zip
tpu-graphs-ext verify --package in.zip --data_root data
(cat predictions.csv; printf '\\nlayout:xla:random:net,0;1') > sample.csv
tpu-graphs-ext kaggle-csv --tile predictions.csv --sample sample.csv \\
    --out kaggle.csv
'''


@pytest.mark.slow
def test_from_doctor_to_the_file_for_kaggle(tmp_path):
  """Without a checkout."""
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
  variables['PATH'] = os.pathsep.join(
      [os.path.dirname(python), variables['PATH']])
  done = subprocess.run(
      ['bash', '-euxo', 'pipefail', '-c', STEPS], cwd=tmp_path, text=True,
      env={**variables, 'HOME': str(tmp_path)}, check=False,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  shutil.rmtree(tmp_path / 'venv', ignore_errors=True)  # Pytest keeps the rest.
  assert done.returncode == 0, done.stdout[-5000:]
  assert done.stdout.count('this hand-in works') == 2
  assert predictions_csv.read(f'{tmp_path}/kaggle.csv') == {
      **predictions_csv.read(f'{tmp_path}/predictions.csv'),
      'layout:xla:random:net': [0, 1]}
