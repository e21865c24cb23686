"""Neither memory nor open files grow in a process that works for long."""

import os

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_kernels
from tpu_graphs_ext.engine import train
from tpu_graphs_ext.tasks import api
from tpu_graphs_ext.tasks.tile import LoadSettings, TrainSettings

pytestmark = [pytest.mark.survive, pytest.mark.skipif(
    not os.path.isdir('/proc/self/fd'), reason='needs /proc')]

CALLS, SETTLED = 10, 4


def used() -> tuple[float, int]:
  """MiB of resident memory, and open files."""
  with open('/proc/self/status', encoding='ascii') as file:
    kib = next(int(line.split()[1]) for line in file
               if line.startswith('VmRSS'))
  return kib / 1024, len(os.listdir('/proc/self/fd'))


def keeps_growing(mib) -> bool:
  """Whether most steps add memory, and the last third has more than the first.

  A step of a new shape is traced, which adds memory once; and what a call
  leaves goes up and down by tens of MiB.
  """
  third = len(mib) // 3
  return bool(np.median(np.diff(mib)) > 0.5
              and min(mib[-third:]) > max(mib[:third]) + 10)


def test_long_runs_do_not_grow(tmp_path):
  data = tiny_kernels.write_data_root(tmp_path / 'data', num_test=200)
  steps = {'train': [], 'evaluate': [], 'predict': []}
  result = train.train(
      TrainSettings(model='MyEarlyJoinSAGE', epochs=60, early_stop=0, seed=0,
                    configs=2, batch=4, data_root=str(data), cache_dir='',
                    out_dir=str(tmp_path / 'out')),
      further=(tf.keras.callbacks.LambdaCallback(
          on_epoch_end=lambda *_: steps['train'].append(used())),))
  loading = LoadSettings(data_root=str(data), cache_dir='')
  for _ in range(CALLS):
    api.evaluate(result.model_dir, str(data / 'test_labelled'), loading=loading)
    steps['evaluate'].append(used())
  for _ in range(CALLS):
    api.predict(result.model_dir, loading=loading,
                out=str(tmp_path / 'predictions.csv'))
    steps['predict'].append(used())
  for phase, measured in steps.items():
    mib, files = zip(*measured[SETTLED:])
    assert not keeps_growing(mib), (phase, mib)
    assert files[-1] <= files[0], (phase, files)
