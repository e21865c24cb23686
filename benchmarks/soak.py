"""Memory and open files of one process that works for long.

  python benchmarks/soak.py

Trains 200 epochs on small data, then evaluates and predicts 10,000 kernels, and
writes results/soak.csv (a row per epoch or call), soak.md and soak.svg. The
exit code is 1 if memory or open files grow. Linux only.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import numpy as np
import pandas
import tensorflow as tf

from machine import machine
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts, evaluate, predict, train
from tpu_graphs_ext.engine.settings import LoadSettings, TrainSettings

RESULTS = pathlib.Path(__file__).resolve().parent / 'results'
PHASES = ('train', 'evaluate', 'predict')
MOST_MIB = 20


def row(phase: str, step: int) -> dict:
  """Resident memory and open files of this process after a step."""
  with open('/proc/self/status', encoding='ascii') as file:
    kib = next(int(line.split()[1]) for line in file
               if line.startswith('VmRSS'))
  return {'phase': phase, 'step': step, 'mib': round(kib / 1024, 1),
          'open_files': len(os.listdir('/proc/self/fd'))}


def write_data(folder: str, count: int) -> None:
  """A data root of random kernels, `count` of them in valid and in test."""
  chance = np.random.default_rng(0)
  for split, size in (('train', 40), ('valid', count), ('test', count)):
    os.makedirs(os.path.join(folder, split))
    for number in range(size):
      _random_kernel(f'net_{number:016x}', chance, split == 'test').save(
          os.path.join(folder, split))


def _random_kernel(tile_id: str, chance: np.random.Generator,
                   blank: bool) -> Kernel:
  nodes, configs = int(chance.integers(2, 40)), int(chance.integers(10, 60))
  features = chance.integers(0, 64, (configs, len(schema.CONFIG_FEATURES)))
  runtime = 1000 * (1 + features[:, 0])
  return Kernel(
      tile_id=tile_id,
      node_feat=chance.integers(
          0, 999, (nodes, len(schema.NODE_FEATURES))).astype(np.float32),
      node_opcode=chance.integers(2, 60, nodes).astype(np.uint8),
      edge_index=np.array([(node, int(chance.integers(node)))
                           for node in range(1, nodes)], np.int64),
      config_feat=features.astype(np.float32),
      runtime_ns=(0 if blank else 1) * runtime,
      normalizer_ns=np.full(configs, 1 if blank else runtime[0]))


def soak(folder: str, epochs: int = 200, kernels: int = 500,
         calls: int = 20) -> pandas.DataFrame:
  """Trains and ranks in this process.

  Args:
    folder: for data and models; empty.
    epochs: of training.
    kernels: per call of `evaluate` or `predict`.
    calls: of each of the two.

  Returns:
    A row per epoch or call: phase, step, mib, open_files.
  """
  data, cache = os.path.join(folder, 'data'), os.path.join(folder, 'cache')
  write_data(data, kernels)
  rows = []
  after_epochs = tf.keras.callbacks.LambdaCallback(
      on_epoch_end=lambda epoch, logs: rows.append(row('train', epoch + 1)))
  result = train.train(TrainSettings(
      model='MyEarlyJoinSAGE', epochs=epochs, early_stop=0, seed=0,
      validate_batches=4, data_root=data, cache_dir=cache,
      out_dir=os.path.join(folder, 'out')), further=(after_epochs,))
  loading = LoadSettings(data_root=data, cache_dir=cache)
  for call in range(1, calls + 1):
    evaluate.evaluate(result.model_dir, loading=loading)
    rows.append(row('evaluate', call))
  for call in range(1, calls + 1):
    predict.predict(result.model_dir, loading=loading,
                    out=os.path.join(folder, 'predictions.csv'))
    rows.append(row('predict', call))
  return pandas.DataFrame(rows)


def faults(rows: pandas.DataFrame, settled: int = 10) -> list[str]:
  """What grows once the first `settled` steps of a phase are over.

  The least of the last fifth of the steps is compared with the most of the
  first fifth.
  """
  found = []
  for phase in PHASES:
    steps = rows[rows['phase'] == phase][settled:]
    part = max(1, len(steps) // 5)
    more = (steps[-part:].min(numeric_only=True)
            - steps[:part].max(numeric_only=True))
    if more['mib'] > MOST_MIB:
      found.append(f'{phase}: {more["mib"]:.1f} MiB more memory')
    if more['open_files'] > 0:
      found.append(f'{phase}: {more["open_files"]:.0f} more open files')
  return found


def write(folder: pathlib.Path, rows: pandas.DataFrame) -> None:
  """soak.csv, soak.md and soak.svg."""
  rows.to_csv(folder / 'soak.csv', index=False)
  lines = ['# A long process', '', 'Written by `benchmarks/soak.py`.', '',
           '| phase | step | memory, MiB | open files |',
           '| --- | ---: | ---: | ---: |']
  for phase in PHASES:
    steps = rows[rows['phase'] == phase]
    last = len(steps) - 1
    for _, one in steps.iloc[sorted({0, min(9, last), last})].iterrows():
      lines.append(f'| {phase} | {one["step"]} | {one["mib"]:.0f} | '
                   f'{one["open_files"]} |')
  versions = ', '.join(f'{name} {version}' for name, version
                       in artifacts.versions().items())
  (folder / 'soak.md').write_text(
      '\n'.join([*lines, '', f'- {machine()}; {versions}', '']))
  import matplotlib
  matplotlib.use('Agg')
  from matplotlib import pyplot
  with pyplot.rc_context({'svg.hashsalt': 'soak', 'font.size': 9}):
    figure, panels = pyplot.subplots(
        2, len(PHASES), figsize=(9, 4), sharey='row', sharex='col',
        layout='constrained')
    for phase, column in zip(PHASES, panels.T):
      steps = rows[rows['phase'] == phase]
      for axes, name in zip(column, ('mib', 'open_files')):
        axes.plot(steps['step'], steps[name])
        axes.set_ylim(0, 1.1 * rows[name].max())
      column[0].set_title(phase)
      column[1].set_xlabel('epoch' if phase == 'train' else 'call')
    panels[0, 0].set_ylabel('memory, MiB')
    panels[1, 0].set_ylabel('open files')
    figure.savefig(folder / 'soak.svg', metadata={'Date': None},
                   facecolor='white')


def main() -> int:
  with tempfile.TemporaryDirectory() as folder:
    rows = soak(folder)
  write(RESULTS, rows)
  found = faults(rows)
  print('\n'.join(found) or f'Nothing grows: {RESULTS / "soak.csv"}')
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main())
