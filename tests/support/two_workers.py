"""Trains by one process, and by two that share each batch, on this machine.

    python two_workers.py FOLDER

FOLDER holds a data root `data`. TensorFlow is imported once; each process is a
forked child. Prints a line of JSON a case: exit codes of its processes, and of
a run that came to its end what is to be compared. Logs stay in FOLDER.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import signal
import socket
import sys
import time

from support import tiny_models
from support.kill_and_resume import ended
from tpu_graphs_ext import cli

TINY = ['--model=TinyRanker', f'--models_py={tiny_models.__file__}',
        '--lr=0.01', '--clip_norm=1']
# With dropout, averaged weights, losses of its own and embedded opcodes.
LARGE = ['--model=MyEarlyJoinSAGE', '--model_kwargs_json='
         '{"hidden_dim": 8, "joint_dim": 8, "op_embed_dim": 4}']
KILLED_EPOCHS = 12


def started(argv: list[str], log: str, variables: dict[str, str],
            cpus: int = 1) -> int:
  """Forks a child that runs the command as a process does, to its very end."""
  sys.stdout.flush()
  child = os.fork()
  if child:
    return child
  handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(handle, 1)
  os.dup2(handle, 2)
  os.environ.update(variables)
  import tensorflow as tf
  if cpus > 1:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0],
        [tf.config.LogicalDeviceConfiguration()] * cpus)
  sys.exit(cli.main(argv))


def arguments(folder: str, out: str, more: list[str]) -> list[str]:
  return ['train', '--epochs=2', '--batch=6', '--configs=6', '--seed=3',
          f'--data_root={folder}/data', '--cache_dir=',
          f'--out_dir={folder}/{out}', *more]


def two(folder: str, out: str, more: list[str],
        of_second: tuple[str, ...] = ()) -> list[tuple[int, str]]:
  """Starts two workers; of each the process id and the log."""
  sockets = [socket.socket() for _ in range(2)]
  for bound in sockets:
    bound.bind(('127.0.0.1', 0))
  addresses = [f'127.0.0.1:{bound.getsockname()[1]}' for bound in sockets]
  for bound in sockets:
    bound.close()
  workers = []
  for index in range(2):
    log = f'{folder}/{out}_{index}.log'
    # What a worker that is no chief writes would be in a folder of its own.
    own = [] if index == 0 else [f'--out_dir={folder}/{out}_of_second',
                                 *of_second]
    workers.append((started(
        arguments(folder, out, more) + own, log, {'TF_CONFIG': json.dumps({
            'cluster': {'worker': addresses},
            'task': {'type': 'worker', 'index': index}})}), log))
  return workers


def codes_of(workers: list[tuple[int, str]]) -> list:
  codes = [ended(child) for child, _ in workers]
  for code, (child, _) in zip(codes, workers):
    if code is None:
      os.kill(child, signal.SIGKILL)
  return codes


def tell(folder: str, case: str, out: str, codes: list) -> None:
  """Prints what came of a case."""
  told = {'case': case, 'codes': codes,
          'second_wrote': os.path.exists(f'{folder}/{out}_of_second')}
  paths = glob.glob(f'{folder}/{out}/run_*.jsonz')
  if paths:
    with gzip.open(paths[0]) as file:
      run = json.load(file)
    told.update({key: run[key] for key in (
        'train_curve', 'final_error', 'test_predictions') if key in run})
    told['models'] = len(glob.glob(f'{folder}/{out}/model_*'))
  print(json.dumps(told), flush=True)


def kill_the_second(folder: str) -> None:
  """Kills a worker in the middle; then both go on, and end."""
  more = [*TINY, f'--epochs={KILLED_EPOCHS}']
  workers = two(folder, 'killed', more)
  end = time.monotonic() + 900
  while time.monotonic() < end and 'epoch 3:' not in text(workers[0][1]):
    time.sleep(0.05)
  os.kill(workers[1][0], signal.SIGKILL)
  tell(folder, 'killed', 'killed', codes_of(workers))
  tell(folder, 'resumed', 'killed',
       codes_of(two(folder, 'killed', [*more, '--resume'])))


def text(path: str) -> str:
  with open(path, errors='replace') as file:
    return file.read()


def main() -> None:
  folder = sys.argv[1]
  # Imported here, so that a forked child has it; no operation runs.
  from tpu_graphs_ext.host import train  # noqa: F401
  for name, model in (('tiny', TINY), ('large', LARGE)):
    tell(folder, name, name, [ended(started(
        arguments(folder, name, model), f'{folder}/{name}.log', {}))])
    out = f'{name}_two'
    tell(folder, out, out, codes_of(two(folder, out, model)))
    out = f'{name}_replicas'
    tell(folder, out, out, [ended(started(
        arguments(folder, out, [*model, '--replicas=2']),
        f'{folder}/{out}.log', {}, cpus=2))])
  tell(folder, 'whole', 'whole', [ended(started(
      arguments(folder, 'whole', [*TINY, f'--epochs={KILLED_EPOCHS}']),
      f'{folder}/whole.log', {}))])
  kill_the_second(folder)
  tell(folder, 'unlike', 'unlike', codes_of(
      two(folder, 'unlike', TINY, of_second=('--lr=0.02',))))


if __name__ == '__main__':
  main()
