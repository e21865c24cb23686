"""Runs a task on sample data, from start to end, for quickstart.sh.

Writes the sample data, trains our model and the baseline's, compares them, and
writes the predictions CSV. With a checkout of the baseline its unchanged
`tiles_train.py` or `layout_train.py` trains, else this package.
"""

from __future__ import annotations

import argparse
import glob
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tpu_graphs_ext import files
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine.settings import Loading
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import TASKS, TILE, ShippedTask

CLONE_SECONDS = 60


def find_baseline(out: str) -> str | None:
  """The checkout that TPU_GRAPHS_ROOT names, or a clone in `out`, or None."""
  clone = os.path.join(out, 'tpu_graphs')
  if checkout.find() or os.path.isdir(clone):
    return checkout.find() or checkout.find(clone)
  try:
    with files.new_folder(clone) as new:
      subprocess.run(
          ['git', 'clone', '--quiet', '--depth', '1', checkout.URL, new],
          check=True, timeout=CLONE_SECONDS, stdin=subprocess.DEVNULL,
          capture_output=True, env=dict(os.environ, GIT_TERMINAL_PROMPT='0'))
  except (OSError, subprocess.SubprocessError):
    return None
  return checkout.find(clone)


def train_with_baseline(task: ShippedTask, root: str, out: str, data: str,
                        name: str, epochs: int) -> str:
  """Trains with the unchanged script; returns the model's folder."""
  how = task.quickstart
  models = os.path.join(out, how.prefix + 'models')
  before = set(glob.glob(os.path.join(models, 'model_*')))
  log = os.path.join(out, f'{name}.log')
  print(f'  {name} ... (progress: {checkout.shown_path(log)})', flush=True)
  with tempfile.TemporaryDirectory() as folder:
    copy = checkout.working_copy(
        root, os.path.join(folder, 'tpu_graphs'), task.models_file, task)
    cache = os.path.join(out, 'cache_tf') if how.knows_files else folder
    checkout.run_script(copy, [
        how.script, f'--model={name}', f'--epochs={epochs}',
        *how.script_flags, f'--data_root={data}', f'--cache_dir={cache}',
        f'--out_dir={models}'], log)
  model_dir, = set(glob.glob(os.path.join(models, 'model_*'))) - before
  return model_dir


def train_here(task: ShippedTask, out: str, data: str, name: str,
               epochs: int) -> str:
  """Trains like `tpu-graphs-ext train`; returns the model's folder."""
  from tpu_graphs_ext.engine import threads, train
  threads.one_for_each_operation()
  return train.train(task.training(
      model=name, epochs=epochs, data_root=data,
      cache_dir=os.path.join(out, 'cache'),
      out_dir=os.path.join(out, task.quickstart.prefix + 'models'))).model_dir


def compare(title: str, task: ShippedTask, model_dirs: Sequence[str],
            data: str, loading: Loading) -> None:
  """Prints how trained models rank one labelled source."""
  from tpu_graphs_ext.tasks import api
  evaluations = api.evaluate_all(model_dirs, data, loading=loading)
  print(f'\n{title}\n{task.evaluation.comparison(evaluations)}')


def run(task: ShippedTask, out: str, epochs: int) -> str:
  """Does it all in the folder `out`; returns the closing text.

  Data are reused, models are trained anew, and nothing that another program
  wrote is replaced.
  """
  from tpu_graphs_ext.tasks import api
  how = task.quickstart
  data = os.path.join(out, how.prefix + 'sample_data')
  stack = versions.describe()
  print(f'{stack.name.capitalize()} stack, Python {stack.python}: '
        f'{stack.why}.\n')
  print(task.write_sample(data).text())
  root = find_baseline(out)
  print(f'\nTraining with the unchanged {how.script} of {root},\nin a copy '
        "that has this package's models." if root else
        f'\nTraining with this package: {checkout.ROOT_VARIABLE} names no '
        'checkout of the\nbaseline, and cloning it did not work.')
  model_dirs = [
      train_with_baseline(task, root, out, data, name, epochs) if root
      else train_here(task, out, data, name, epochs) for name in how.models]
  loading = task.loading(data_root=data, cache_dir=os.path.join(out, 'cache'))
  labelled = os.path.join(data, how.labelled)
  compare(f"{how.compared_on} after {epochs} epochs, by the compiler's own "
          'estimates:', task, model_dirs, labelled, loading)
  real = os.path.join(root or '', how.real)
  if root and os.path.isfile(real):
    labelled = real
    compare("15 real TPU kernels, as measured (trained on the compiler's "
            'estimates alone):', task, model_dirs, real, loading)
  csv = api.predict(model_dirs[0], loading=loading, out=os.path.join(
      out, how.prefix + 'predictions.csv'))
  return closing_text(task, model_dirs[0], csv, data, labelled)


def closing_text(task: ShippedTask, model_dir: str, csv: str, data: str,
                 labelled: str) -> str:
  """Where things are, and commands to go on with from the working folder."""
  short = checkout.shown_path
  command, models = checkout.own_command(), os.path.dirname(model_dir)
  report = short(os.path.join(os.path.dirname(models), 'report.html'))
  start = short(model_dir[:len(models) + 15])  # model_ and eight digits.
  of_data, models = f'--data_root {short(data)}', short(models)
  commands = {
      'rank': f'--dir {start} --data {short(labelled)} {of_data}',
      'evaluate': f'--task {task.name} --dir {start} {of_data}',
      'report': f'{models} --out {report} {of_data}',
      'train': f'--model {task.quickstart.models[0]} --recipe best --out_dir '
               f'{models} {of_data}'}
  return '\n'.join([
      '', f'Model: {short(model_dir)}',
      f'Data: {short(data)}, predictions: {short(csv)}', '',
      f'Next, in {os.getcwd()}:',
      *(f'  {command} {verb} {commands[verb]}'
        for verb in task.quickstart.next)])


def main() -> int:
  """Parses the flags; prints one line for what the user can mend."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      epilog='quickstart.sh also takes --python PATH: another Python, 3.9 to '
             '3.13, in an environment of its own.')
  flag = parser.add_argument
  flag('--out', default='out/quickstart',
       help='folder for everything (default: %(default)s)')
  flag('--task', default=TILE.name, choices=TASKS, help='what to rank: '
       + ' or '.join(task.about for task in TASKS.values())
       + ' (default: %(default)s)')
  flag('--epochs', type=int, help='epochs of both models (default: '
       + ', '.join(f'{task.quickstart.epochs} for {task.choices}'
                   for task in TASKS.values()) + ')')
  args = parser.parse_args()
  logging.basicConfig(format='%(message)s')  # As the commands do.
  try:
    out = files.full_path(files.require_path('--out', args.out))
    os.makedirs(out, exist_ok=True)
    task = TASKS[args.task]
    print(run(task, out, args.epochs or task.quickstart.epochs))
  except (UserError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
