"""How many threads an operation of training gets."""

import os
import subprocess
import sys

import pytest

from tpu_graphs_ext.host import threads

PROGRAM = '''
import os
import tensorflow as tf
from tpu_graphs_ext.host import threads

def set_by(cores):
  os.cpu_count = lambda: cores
  threads.one_for_each_operation()
  return tf.config.threading.get_intra_op_parallelism_threads()
'''
# 0 is TensorFlow's own choice.
FEW_CORES = '''
os.environ[threads.VARIABLE] = '2'
assert set_by(cores=2) == 0  # TensorFlow reads the variable by itself.
del os.environ[threads.VARIABLE]
assert set_by(cores=64) == 0
assert set_by(cores=2) == 1
'''
STARTED = '''
tf.constant(1) + 1
assert set_by(cores=2) == 0
'''


@pytest.mark.parametrize('checks', [FEW_CORES, STARTED])
def test_threads_of_an_operation(checks):
  env = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
  env.pop(threads.VARIABLE, None)
  subprocess.run([sys.executable, '-c', PROGRAM + checks], env=env, check=True)
