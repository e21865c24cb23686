"""How much memory ranking takes, in a process of its own."""

import json
import os
import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = '''
import json
import resource
import numpy as np
from support import tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import batches

# A tensor [nodes, configs, 64] of all configurations at once takes 100 MB.
NODES, CONFIGS, REPEATS = 100, 4000, 2
rng = np.random.default_rng(0)
few, many = (
    tiny_kernels.learnable_kernel('net', rng, configs, num_nodes=NODES)
    for configs in (100, CONFIGS))
stats = FeatureStats.of_partition(Partition.from_kernels([few, many]))
model = load_models.build({name!r}, 10, 108, {{}})

def peak_mib_and_faults():
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_maxrss / 1024, usage.ru_minflt

model.forward(batches.kernel_graph(few, stats), 100)
small = peak_mib_and_faults()
graph = batches.kernel_graph(many, stats)
for _ in range(REPEATS):
  model.forward(graph, CONFIGS)
large = peak_mib_and_faults()
for _ in range(REPEATS):
  model.forward(graph, CONFIGS)
print(json.dumps({{
    'growth_mib': large[0] - small[0],
    'faults': (peak_mib_and_faults()[1] - large[1]) / REPEATS}}))
'''


def ranked(name: str, **variables: str) -> dict:
  """What a process that ranks with a new model of that name measures."""
  env = {key: value for key, value in os.environ.items()
         if not key.startswith(('MALLOC_', 'TF_CPU_'))}
  env.update(PYTHONPATH=os.pathsep.join(sys.path), **variables)
  done = subprocess.run(
      [sys.executable, '-c', PROGRAM.format(name=name)], check=True,
      env=env, stdout=subprocess.PIPE, encoding='utf-8')
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(platform.system() != 'Linux',
                    reason='reads the peak in KiB, as Linux gives it')
@pytest.mark.parametrize('name', ['EarlyJoinSAGE', 'MyEarlyJoinSAGE'])
def test_memory_is_bounded_and_kept(name):
  measured = ranked(name)
  assert measured['growth_mib'] < 40  # Less than half of one such tensor.
  # One such tensor has 25,000 pages, and a call makes about thirty of them,
  # a chunk at a time.
  assert measured['faults'] * resource.getpagesize() < 10 * 2 ** 20


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc',
                    reason='other C libraries may keep freed memory too')
def test_settings_in_the_environment_come_first():
  measured = ranked('EarlyJoinSAGE', TF_CPU_ALLOCATOR_USE_BFC='false',
                    MALLOC_TRIM_THRESHOLD_='0')
  assert measured['faults'] * resource.getpagesize() > 80 * 2 ** 20
