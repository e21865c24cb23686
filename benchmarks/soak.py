"""Memory and open files of one process that works for long.

  python benchmarks/soak.py

trains 200 epochs on small data, then evaluates and predicts 10,000 kernels, a
few hundred a call, and writes results/soak.csv (a row an epoch or a call),
soak.md (a table) and, with matplotlib, soak.svg.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import os
import sys
import tempfile
import threading
import time

import numpy as np

from machine import machine
from tpu_graphs_ext import files
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import how_to_install

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'results',
                       'soak.csv')
PHASES = ('train', 'evaluate', 'predict')


@dataclasses.dataclass(frozen=True)
class Row:
  """What the process had after one step.

  Attributes:
    phase: train, evaluate or predict.
    step: the epoch or the call, counted from 1.
    mib: resident memory.
    open_files: file handles.
  """
  phase: str
  step: int
  mib: float
  open_files: int

  @classmethod
  def now(cls, phase: str, step: int) -> Row:
    with open('/proc/self/status', encoding='ascii') as file:
      kib = next(int(line.split()[1]) for line in file
                 if line.startswith('VmRSS'))
    return cls(phase, step, round(kib / 1024, 1),
               len(os.listdir('/proc/self/fd')))


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


def soak(folder: str, epochs: int, kernels: int, calls: int) -> list[Row]:
  """Trains and ranks in this process.

  Args:
    folder: for data and models; empty.
    epochs: of training.
    kernels: of a call of `evaluate` or `predict`.
    calls: of each of the two.
  """
  from tpu_graphs_ext.engine import evaluate, predict, train
  from tpu_graphs_ext.engine.settings import LoadSettings, TrainSettings
  data = os.path.join(folder, 'data')
  write_data(data, kernels)
  log = os.path.join(folder, 'log.csv')
  rows: list[Row] = []
  watch = _Watch(log, rows)
  watch.start()
  result = train.train(TrainSettings(
      model='MyEarlyJoinSAGE', epochs=epochs, early_stop=0, seed=0,
      validate_batches=4, data_root=data, csv_log=log,
      cache_dir=os.path.join(folder, 'cache'),
      out_dir=os.path.join(folder, 'out')))
  watch.done.set()
  watch.join()
  loading = LoadSettings(data_root=data,
                         cache_dir=os.path.join(folder, 'cache'))
  for call in range(1, calls + 1):
    evaluate.evaluate(result.model_dir, loading=loading)
    rows.append(Row.now('evaluate', call))
  for call in range(1, calls + 1):
    predict.predict(result.model_dir, loading=loading,
                    out=os.path.join(folder, 'predictions.csv'))
    rows.append(Row.now('predict', call))
  return rows


class _Watch(threading.Thread):
  """Adds a row when the log of the epochs has grown."""

  def __init__(self, log: str, rows: list[Row]):
    super().__init__(daemon=True)
    self.done = threading.Event()
    self._log, self._rows = log, rows

  def run(self):
    known = 0
    while not self.done.is_set():
      time.sleep(0.05)
      try:
        with open(self._log, encoding='utf-8') as file:
          epochs = sum(1 for _ in file) - 1
      except OSError:
        continue
      if epochs > known:
        known = epochs
        self._rows.append(Row.now('train', epochs))


def table(rows: list[Row]) -> str:
  """Memory and open files early and late in each phase, as Markdown."""
  lines = ['# A long process', '', 'Written by `benchmarks/soak.py`.', '',
           '| phase | step | memory, MiB | open files |',
           '| --- | ---: | ---: | ---: |']
  for phase in PHASES:
    steps = [row for row in rows if row.phase == phase]
    for number in sorted({0, min(9, len(steps) // 2), len(steps) // 2,
                          len(steps) - 1}):
      row = steps[number]
      lines.append(
          f'| {phase} | {row.step} | {row.mib:.0f} | {row.open_files} |')
  from tpu_graphs_ext.engine import artifacts
  versions = ', '.join(
      f'{name} {version}' for name, version in artifacts.versions().items())
  return '\n'.join([*lines, '', f'- {machine()}; {versions}', ''])


def draw(path: str, rows: list[Row]) -> None:
  """Draws memory and open files; without matplotlib it says so."""
  try:
    import matplotlib
  except ImportError:
    print('no figure: matplotlib is not installed; '
          f'{how_to_install("report")}', file=sys.stderr)
    return
  matplotlib.use('Agg')
  from matplotlib import pyplot
  content = io.BytesIO()
  with pyplot.rc_context({'svg.hashsalt': 'soak', 'font.size': 9}):
    figure, panels = pyplot.subplots(
        2, len(PHASES), figsize=(9, 4), sharey='row', sharex='col')
    for column, phase in zip(panels.T, PHASES):
      steps = [row for row in rows if row.phase == phase]
      numbers = [row.step for row in steps]
      column[0].plot(numbers, [row.mib for row in steps])
      column[1].plot(numbers, [row.open_files for row in steps])
      column[0].set_title(phase)
      column[1].set_xlabel('epoch' if phase == 'train' else 'call')
    for line, label, most in (
        (panels[0], 'memory, MiB', max(row.mib for row in rows)),
        (panels[1], 'open files', max(row.open_files for row in rows))):
      line[0].set_ylabel(label)
      line[0].set_ylim(0, 1.1 * most)
    figure.tight_layout()
    figure.savefig(content, format='svg', metadata={'Date': None})
    pyplot.close(figure)
  lines = content.getvalue().decode().splitlines()
  files.write_file(path, '\n'.join(
      line.rstrip() for line in lines).encode() + b'\n')


def write(path: str, rows: list[Row]) -> None:
  with files.new_file(path) as file:
    lines = [','.join(map(str, dataclasses.astuple(row))) for row in rows]
    names = ','.join(field.name for field in dataclasses.fields(Row))
    file.write('\n'.join([names, *lines, '']).encode())


def read(path: str) -> list[Row]:
  with open(path, encoding='utf-8', newline='') as file:
    return [Row(row['phase'], int(row['step']), float(row['mib']),
                int(row['open_files'])) for row in csv.DictReader(file)]


def faults(rows: list[Row], settled: int, most_mib: float) -> list[str]:
  """What grows: memory or open files after the first steps of a phase.

  Args:
    settled: steps of a phase that do not count, for what is made once.
    most_mib: how much more memory the last fifth of the steps may have, at
      its least, than the first fifth of those that count, at its most.
  """
  found = []
  for phase in PHASES:
    steps = [row for row in rows if row.phase == phase][settled:]
    part = max(1, len(steps) // 5)
    growth = (min(row.mib for row in steps[-part:])
              - max(row.mib for row in steps[:part]))
    if growth > most_mib:
      found.append(f'{phase}: {growth:.1f} MiB more memory')
    more = (min(row.open_files for row in steps[-part:])
            - max(row.open_files for row in steps[:part]))
    if more > 0:
      found.append(f'{phase}: {more} more open files')
  return found


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--epochs', type=int, default=200)
  parser.add_argument('--kernels', type=int, default=500,
                      help='of a call (default: %(default)s)')
  parser.add_argument('--calls', type=int, default=20,
                      help='of evaluate, and of predict (default: %(default)s)')
  parser.add_argument('--out', default=RESULTS, help='the CSV')
  args = parser.parse_args()
  path = files.require_path('--out', args.out)
  with tempfile.TemporaryDirectory() as folder:
    rows = soak(folder, args.epochs, args.kernels, args.calls)
  write(path, rows)
  stem = os.path.splitext(path)[0]
  files.write_file(stem + '.md', table(rows).encode())
  draw(stem + '.svg', rows)
  found = faults(rows, settled=min(10, args.calls // 2), most_mib=20)
  print('\n'.join(found) or f'Nothing grows: {path}')
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main())
