"""How much memory ranking takes, and who decides from where it comes.

Counted where the code decides it: tensors by TensorFlow's own allocator, arrays
and objects by Python's. What the system makes of that (pages, arenas, when it
takes memory back) is another machine's tomorrow; benchmarks measure it.

In processes of their own: the allocator is chosen by a process's first
operation.
"""

import json
import os
import subprocess
import sys

import pytest

START = '''
import json
import os
import sys
import tensorflow as tf
from tpu_graphs_ext import load_models

sys.argv = sys.argv[1:]
load_models.models_module()
set_to = {name: os.environ[name] for name in (
    'TF_CPU_ALLOCATOR_USE_BFC', 'TF_CPU_BFC_MEM_LIMIT_IN_MB')}

def counted(what):
  """MiB of all tensors; None where TensorFlow does not allocate by itself."""
  tf.constant(0)
  try:
    return tf.config.experimental.get_memory_info('CPU:0')[what] / 2 ** 20
  except ValueError:
    return None
'''
RANK = '''
import tracemalloc
import numpy as np
from support import tiny_kernels
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import batches

rng = np.random.default_rng(0)
few, many = (
    tiny_kernels.learnable_kernel('net', rng, configs, num_nodes=100)
    for configs in (100, 4000))
stats = FeatureStats.of_partition(Partition.from_kernels([few, many]))
result = {'set_to': set_to}
for name in ('EarlyJoinSAGE', 'MyEarlyJoinSAGE'):
  model = load_models.build(name, 10, 108, {})
  model.forward(batches.kernel_graph(few, stats), 100)
  graph = batches.kernel_graph(many, stats)
  tf.config.experimental.reset_memory_stats('CPU:0')
  before = counted('current')
  tracemalloc.start()
  model.forward(graph, 4000)
  result[name] = {'tensors': counted('peak') - before,
                  'python': tracemalloc.get_traced_memory()[1] / 2 ** 20}
  tracemalloc.stop()
print(json.dumps(result))
'''


def printed(program: str, script: str = '', **variables: str):
  """What a new process that takes itself for a script prints last, as JSON."""
  env = {key: value for key, value in os.environ.items()
         if not key.startswith(('TF_CPU_', 'TF_NUM_'))}
  env.update(PYTHONPATH=os.pathsep.join(sys.path), **variables)
  done = subprocess.run(
      [sys.executable, '-c', START + program, script], check=True, env=env,
      stdout=subprocess.PIPE, encoding='utf-8')
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def ranked() -> dict:
  """Model -> MiB that ranking 4,000 configurations of 100 nodes adds.

  A tensor [nodes, configs, 64] of all of them takes 98 MiB, and about six are
  alive at once where they are not ranked in chunks.
  """
  return printed(RANK)


@pytest.mark.parametrize('name', ['EarlyJoinSAGE', 'MyEarlyJoinSAGE'])
def test_memory_does_not_grow_with_the_configurations(ranked, name):
  assert 0 < ranked[name]['tensors'] < 40  # 10 and 17.
  # Nothing of [nodes, configs] is made outside of TensorFlow: 0.1.
  assert ranked[name]['python'] < 4


def test_tensorflow_keeps_the_memory_that_tensors_free(ranked):
  """Its own allocator does: the one that counts, as above."""
  assert ranked['set_to']['TF_CPU_ALLOCATOR_USE_BFC'] == 'true'
  limit_mib = int(ranked['set_to']['TF_CPU_BFC_MEM_LIMIT_IN_MB'])
  assert limit_mib > 2 ** 20  # More than machines have.


DEFAULTS = {'TF_CPU_ALLOCATOR_USE_BFC': 'true',
            'TF_CPU_BFC_MEM_LIMIT_IN_MB': str(2 ** 24)}


@pytest.mark.parametrize('given', [
    {'TF_CPU_ALLOCATOR_USE_BFC': 'false'},
    {'TF_CPU_BFC_MEM_LIMIT_IN_MB': '512'}])
def test_settings_in_the_environment_come_first(given):
  """Each of them by itself; TensorFlow then does as it was told."""
  counts, set_to = printed(
      "print(json.dumps([counted('current') is not None, set_to]))", **given)
  assert set_to == {**DEFAULTS, **given}
  assert counts == (set_to['TF_CPU_ALLOCATOR_USE_BFC'] == 'true')


def threads_of(cores: int, **variables: str):
  """(allocator, threads an operation) in the baseline's trainer."""
  return printed(f"""
import importlib
os.environ.pop('TF_CPU_ALLOCATOR_USE_BFC')  # Of the first import.
os.environ.pop('TF_NUM_INTRAOP_THREADS', None)
os.environ.update({variables!r})
os.cpu_count = lambda: {cores}
importlib.reload(load_models.models_module())
print(json.dumps([counted('current') is not None,
                  os.environ.get('TF_NUM_INTRAOP_THREADS')]))
""", script='/somewhere/tiles_train.py')


def test_the_baselines_trainer_gets_neither_its_lock_nor_shared_operations():
  assert threads_of(2) == [False, '1']
  assert threads_of(64, TF_CPU_ALLOCATOR_USE_BFC='true') == [True, None]
