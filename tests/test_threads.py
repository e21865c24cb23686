"""How many threads an operation of training gets."""

import os
import subprocess
import sys

import pytest

from tpu_graphs_ext import threads

PROGRAM = '''
import os
os.cpu_count = lambda: {cores}
import tensorflow as tf
from tpu_graphs_ext import threads
if {started}:
  tf.constant(1) + 1
threads.one_for_each_operation()
print(tf.config.threading.get_intra_op_parallelism_threads())
'''


@pytest.mark.parametrize('cores, started, given, threads_of_one', [
    (2, False, None, 1),
    (64, False, None, 0),   # 0: TensorFlow's own choice.
    (2, False, '2', 0),     # TensorFlow reads the variable by itself.
    (2, True, None, 0)])
def test_threads_of_an_operation(cores, started, given, threads_of_one):
  env = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
  env.pop(threads.VARIABLE, None)
  if given:
    env[threads.VARIABLE] = given
  done = subprocess.run(
      [sys.executable, '-c', PROGRAM.format(cores=cores, started=started)],
      env=env, stdout=subprocess.PIPE, check=True, encoding='utf-8')
  assert done.stdout.split()[-1] == str(threads_of_one)
