"""Measures epochs of training and the reading of data, against the baseline's.

Every function is a part of `speed.py`; see `speed_ranking` for the rows.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

from speed_ranking import OURS, peak_mib, row, run_worker
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import read
from tpu_graphs_ext.engine import settings

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Keras' line of an epoch, of which the first is left out: it has the tracing.
_EPOCH = re.compile(r' (\d+)(ms|s)/step - loss')
EPOCHS = 5


# --- Epochs -------------------------------------------------------------------


def training(worker: list[str], root: str,
             data_root: str) -> list[dict[str, Any]]:
  """Milliseconds of a step, validation included, in three hosts.

  The baseline's unchanged script with its own models.py and with ours, and
  this package's host. The model is EarlyJoinSAGE, under default flags, and
  MyEarlyJoinSAGE beside it. Without a checkout only our host is measured.
  """
  milliseconds = {}

  def measured(label, name, steps):
    milliseconds.setdefault((label, name), []).extend(steps)

  for _ in range(2):  # In turn, so that all of them see the machine's moods.
    if root:
      measured('baseline', 'EarlyJoinSAGE', _script_steps(
          root, data_root, None, 'EarlyJoinSAGE'))
    for name in ('EarlyJoinSAGE', OURS):
      if root:
        measured('ours, unchanged script', name,
                 _script_steps(root, data_root, 'models.py', name))
      measured('ours, own host', name, [
          each['value'] for each in run_worker(
              worker, 'host_steps', name, data_root)])
  rows = [row('training', name, label, 'step', statistics.median(values), 'ms')
          for (label, name), values in milliseconds.items()]
  if root:
    theirs = statistics.median(milliseconds['baseline', 'EarlyJoinSAGE'])
    rows += [row('training', name, label, 'step over the baseline\'s '
                 'EarlyJoinSAGE', statistics.median(values) / theirs, 'times')
             for (label, name), values in milliseconds.items()]
  return rows


def _script_steps(root, data_root, models_py, name) -> list[float]:
  """Milliseconds a step of each epoch but the first, by tiles_train.py."""
  with tempfile.TemporaryDirectory() as folder:
    copy = checkout.working_copy(
        root, os.path.join(folder, 'copy'),
        models_py and os.path.join(PROJECT, models_py))
    log = os.path.join(folder, 'log')
    checkout.run_script(copy, [
        'tiles_train.py', f'--model={name}', f'--epochs={EPOCHS}',
        f'--data_root={data_root}', f'--out_dir={folder}/out',
        f'--cache_dir={folder}/cache'], log)
    with open(log, encoding='utf-8') as file:
      found = _EPOCH.findall(file.read())
  steps = [float(value) * (1000 if unit == 's' else 1) for value, unit in found]
  return steps[1:]


def host_steps(name: str, data_root: str) -> list[dict[str, Any]]:
  """A row for each epoch but the first, by `tpu-graphs-ext train`."""
  from tpu_graphs_ext.engine import callbacks, threads, train
  seconds = []
  end_epoch = callbacks.Record.on_epoch_end

  def timed(self, epoch, logs=None):
    before = self._progress.seconds
    end_epoch(self, epoch, logs)
    seconds.append(self._progress.seconds - before)

  callbacks.Record.on_epoch_end = timed
  threads.one_for_each_operation()
  with tempfile.TemporaryDirectory() as folder:
    train.train(settings.TrainSettings(
        model=name, data_root=data_root, epochs=1 + EPOCHS, seed=0,
        early_stop=0, out_dir=folder, cache_dir=folder + '/cache'))
  steps = len(read.read_dataset(data_root, min_train_configs=10).train) // 10
  return [row('training', name, 'ours, own host', 'step',
              1000 * each / steps, 'ms') for each in seconds[1:]]


# --- Reading ------------------------------------------------------------------

_READ_BASELINE = '''
import resource, sys, time
sys.path.insert(0, sys.argv[1])
from absl import flags
from tpu_graphs.baselines.tiles import data
flags.FLAGS(sys.argv[:1])
start = time.perf_counter()
data.get_npz_dataset(sys.argv[2], min_train_configs=10)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print('[[%r, %r]]' % (seconds, peak))
'''


def loading(worker: list[str], root: str, data_root: str,
            ) -> list[dict[str, Any]]:
  """First read and read from the cache, each in a process of its own."""
  rows, cache = [], tempfile.mkdtemp()
  try:
    for case in ('first read', 'from the cache'):
      rows += run_worker(worker, 'one_read', case, data_root, cache)
  finally:
    shutil.rmtree(cache, ignore_errors=True)
  if root:
    [[seconds, peak]] = run_worker(
        [sys.executable, '-c', _READ_BASELINE], root, data_root)
    first = {each['measure']: each['value'] for each in rows
             if each['case'] == 'first read'}
    rows += [
        row('loading', 'baseline', 'first read', 'time', seconds, 's'),
        row('loading', 'baseline', 'first read', 'peak of the process', peak,
            'MiB'),
        row('loading', 'ratio', 'first read', 'time', first['time'] / seconds,
            'of the baseline'),
        row('loading', 'ratio', 'first read', 'peak of the process',
            first['peak of the process'] / peak, 'of the baseline')]
  return rows


def one_read(case: str, data_root: str, cache: str) -> list[dict[str, Any]]:
  """Time and peak memory of reading all three splits."""
  start = time.perf_counter()
  dataset = read.read_dataset(data_root, min_train_configs=10, cache_dir=cache)
  seconds = time.perf_counter() - start
  configs = sum(int(part.num_configs.sum())
                for part in (dataset.train, dataset.valid, dataset.test))
  return [row('loading', 'ours', case, 'time', seconds, 's'),
          row('loading', 'ours', case, 'peak of the process', peak_mib(),
              'MiB'),
          row('loading', 'ours', case, 'configurations', configs, '')]
