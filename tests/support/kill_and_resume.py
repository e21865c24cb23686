"""Kills training runs at random moments, and resumes them until they are done.

    python kill_and_resume.py FOLDER KILLS SEED

FOLDER holds a data root `data`. TensorFlow is imported once; each try is a
forked child, which saves most of the time. Of the two large models only the
variables are saved. Prints a line of JSON a run: what was killed and when, and
by how much it differs from the run that nobody killed.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
import sys
import time

import numpy as np

from tpu_graphs_ext import cli, files

SMALL = {'hidden_dim': 8, 'op_embed_dim': 4}
MODELS = {
    'EarlyJoinSAGE': SMALL, 'MyEarlyJoinSAGE': SMALL,
    'EnsembleRanker': {'copies': 2, 'members': {
        'MyEarlyJoinSAGE': {'feature_stats': None, **SMALL}}},
}
KILLS_A_RUN = 6
TOLERANCE = 1e-5


def arguments(folder: str, model: str, out: str) -> list[str]:
  return ['train', '--resume', f'--model={model}', '--model_kwargs_json',
          json.dumps(MODELS[model]), '--epochs=6', '--early_stop=3',
          '--batch=2', '--configs=6', '--seed=3', '--lr=0.01',
          '--clip_norm=1', f'--data_root={folder}/data',
          f'--cache_dir={folder}/{out}/cache', f'--out_dir={folder}/{out}']


def started(argv: list[str], log: str) -> multiprocessing.Process:
  """A forked child that runs the command."""
  child = multiprocessing.get_context('fork').Process(
      target=_command, args=(argv, log))
  child.start()
  return child


def _command(argv: list[str], log: str) -> None:
  with open(log, 'a') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  if '--model=EarlyJoinSAGE' not in argv:
    import tensorflow as tf
    tf.keras.Model.save = lambda model, path, **_: tf.train.Checkpoint(
        model=model).write(os.path.join(path, 'variables', 'variables'))
  sys.exit(cli.main(argv))


def ended(child: multiprocessing.Process, seconds: float = 900) -> int | None:
  """The exit code, negative for a signal; None: it still runs."""
  child.join(seconds)
  return child.exitcode


def content(folder: str, out: str) -> dict:
  """What is compared of a finished run: one run file, one model."""
  import tensorflow as tf
  out_dir = os.path.join(folder, out)
  # Half-written ones are removed later, by a process that writes there.
  names = [name for name in os.listdir(out_dir)
           if not name.endswith(files.TEMPORARY)]
  name, = [name for name in names if name.endswith('.jsonz')]
  with gzip.open(os.path.join(out_dir, name)) as file:
    run = json.load(file)
  model, = [name for name in names if name.startswith('model_')]
  reader = tf.train.load_checkpoint(
      os.path.join(out_dir, model, 'variables', 'variables'))
  arrays = {key: reader.get_tensor(key)
            for key in reader.get_variable_to_shape_map()
            if 'VARIABLE_VALUE' in key and '/metrics/' not in key}
  arrays['strays'] = [name for name in names if name.split('_')[0] not in (
      'run', 'model', 'results', 'cache')]
  return {**arrays, **{key: run[key] for key in (
      'train_curve', 'final_error', 'seed', 'test_predictions')}}


def difference(first: dict, second: dict) -> float:
  """The largest of all numbers; ValueError where there are not the same."""
  import tensorflow as tf
  tf.nest.assert_same_structure(first, second)
  return float(np.max([np.abs(np.subtract(*pair)).max() for pair in zip(
      tf.nest.flatten(first), tf.nest.flatten(second))]))


def killed_run(folder: str, model: str, out: str, kills: int, longest: float,
               rng: random.Random) -> dict:
  """Trains in a loop of `train --resume`; the first tries are killed."""
  report = {'model': model, 'killed': [], 'codes': []}
  argv, log = arguments(folder, model, out), os.path.join(folder, out + '.log')
  while len(report['killed']) < kills:
    child = started(argv, log)
    number = signal.SIGTERM if rng.random() < 0.25 else signal.SIGKILL
    wait = rng.uniform(0, longest)
    code = ended(child, wait)
    if code is None:
      os.kill(child.pid, number)
      code = ended(child)
      report['killed'].append([number.name, round(wait, 1)])
    report['codes'].append(code)
    if code not in (143, -signal.SIGTERM, -signal.SIGKILL):
      break  # It came to its end; what is killed now only reports.
  report['codes'].append(ended(started(argv, log)))
  return report


def main(folder: str, kills: int, seed: int) -> None:
  rng = random.Random(seed)
  # Imported here, so that a forked child has it; no operation runs.
  from tpu_graphs_ext.engine import train  # noqa: F401
  longest, done = {}, 0
  for model in MODELS:
    start = time.monotonic()
    code = ended(started(
        arguments(folder, model, model), f'{folder}/{model}.log'))
    longest[model] = time.monotonic() - start
    print(json.dumps({'model': model, 'codes': [code]}), flush=True)
  # More runs than kills: on a machine that gets idle, many end before a kill.
  for number in range(10 * kills):
    if done >= kills:
      break
    model = list(MODELS)[number % len(MODELS)]
    out = f'{model}_{number}'
    report = killed_run(folder, model, out, min(KILLS_A_RUN, kills - done),
                        longest[model], rng)
    done += len(report['killed'])
    report['difference'] = difference(
        content(folder, model), content(folder, out))
    print(json.dumps(report), flush=True)


if __name__ == '__main__':
  main(sys.argv[1], *map(int, sys.argv[2:]))
