"""How much memory ranking takes, and who decides from where it comes.

Counted where the code decides it: tensors by TensorFlow's own allocator, arrays
and objects by Python's. What the system makes of that (pages, arenas, when it
takes memory back) is another machine's tomorrow; benchmarks measure it.

In processes of their own: the allocator is chosen by a process's first
operation.
"""

import ast
import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tpu_graphs_ext import load_models

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


def set_by_models(monkeypatch, script: str = '', cores: int = 2,
                  **given: str) -> dict:
  """The variables as models.py leaves them, before its first class."""
  path = load_models.models_module().__file__
  tree = ast.parse(pathlib.Path(path).read_text())
  tree.body = list(itertools.takewhile(
      lambda node: not isinstance(node, ast.ClassDef), tree.body))
  for name in list(os.environ):
    if name.startswith(('TF_CPU_', 'TF_NUM_')):
      monkeypatch.delenv(name)
  for name, value in given.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(sys, 'argv', [script])
  monkeypatch.setattr(os, 'cpu_count', lambda: cores)
  before = dict(os.environ)
  try:
    exec(compile(tree, path, 'exec'), {'__name__': 'head_of_models'})
    return {name: value for name, value in os.environ.items()
            if name in given or name not in before}
  finally:
    for name in set(os.environ) - set(before):
      del os.environ[name]


@pytest.mark.parametrize('given', [
    {}, {'TF_CPU_ALLOCATOR_USE_BFC': 'false'},
    {'TF_CPU_BFC_MEM_LIMIT_IN_MB': '512'}])
def test_settings_in_the_environment_come_first(monkeypatch, given):
  assert set_by_models(monkeypatch, **given) == {**DEFAULTS, **given}


TRAINER = '/somewhere/tiles_train.py'


def test_the_baselines_trainer_gets_neither_its_lock_nor_shared_operations(
    monkeypatch):
  without = {**DEFAULTS, 'TF_CPU_ALLOCATOR_USE_BFC': 'false'}
  assert set_by_models(monkeypatch, TRAINER) == {
      **without, 'TF_NUM_INTRAOP_THREADS': '1'}
  assert set_by_models(monkeypatch, TRAINER, cores=64) == without
  for name, value in (('TF_CPU_ALLOCATOR_USE_BFC', 'true'),
                      ('TF_NUM_INTRAOP_THREADS', '2')):
    assert set_by_models(
        monkeypatch, TRAINER, **{name: value})[name] == value


def test_operations_of_ranking_are_shared_from_three_cores_on(monkeypatch):
  script = '/somewhere/tiles_evaluate.py'
  assert set_by_models(monkeypatch, script, cores=2) == {
      **DEFAULTS, 'TF_NUM_INTRAOP_THREADS': '1'}
  assert set_by_models(monkeypatch, script, cores=3) == DEFAULTS
  assert set_by_models(monkeypatch, cores=2) == DEFAULTS


def test_tensorflow_then_does_as_it_was_told():
  assert printed("print(json.dumps([counted('current') is not None, set_to]))",
                 script=TRAINER) == [
      False, {**DEFAULTS, 'TF_CPU_ALLOCATOR_USE_BFC': 'false'}]
