"""Runs a task on sample data, from start to end, for quickstart.sh.

Writes the sample data, trains our model and the baseline's, compares them, and
writes the predictions CSV. With a checkout of the baseline its unchanged
`tiles_train.py` or `layout_train.py` trains, else this package.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import logging
import os
import subprocess
import sys
import tempfile

import pandas as pd

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.engine.results import Summary
from tpu_graphs_ext.engine.settings import Loading, LoadSettings, TrainSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions
from tpu_graphs_ext.tasks import layout_settings
from tpu_graphs_ext.tasks.layout_settings import (
  LayoutLoadSettings,
  LayoutTrainSettings,
)

CLONE_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Task:
  """How the two tasks differ here."""
  name: str
  models: tuple[str, str]  # Ours and the baseline's.
  epochs: int
  script: str  # Of the baseline, which trains; with these flags.
  script_flags: tuple[str, ...]
  prefix: str  # Of the names of folders and files in `out`.
  labelled: str  # The folder of the sample data to compare on.
  compared_on: str
  training: type
  loading: type
  ks: tuple[int, ...]


TILE = Task(
    'tile', ('MyEarlyJoinSAGE', 'EarlyJoinSAGE'), 15, 'tiles_train.py', (), '',
    'valid', "Validation kernels of Google's TPU compiler",
    TrainSettings, LoadSettings, metrics.TOP_KS)
LAYOUT = Task(
    'layout', ('MyLayoutSAGE', 'ResModel'), 10, 'layout_train.py',
    ('--source=xla', '--search=random'), 'layout_', 'xla/random/test_labelled',
    'Test programs', LayoutTrainSettings, LayoutLoadSettings,
    layout_settings.TOP_KS)
TASKS = {task.name: task for task in (TILE, LAYOUT)}


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


def train_with_baseline(task: Task, root: str, out: str, data: str, name: str,
                        epochs: int) -> str:
  """Trains with the unchanged script; returns the model's folder."""
  models = os.path.join(out, task.prefix + 'models')
  before = set(glob.glob(os.path.join(models, 'model_*')))
  log = os.path.join(out, f'{name}.log')
  print(f'  {name} ... (progress: {checkout.shown_path(log)})', flush=True)
  with tempfile.TemporaryDirectory() as folder:
    copy = checkout.working_copy(
        root, os.path.join(folder, 'tpu_graphs'),
        load_models.models_path(task.name), task.name)
    # The cache of layout_train.py knows files by their names alone.
    cache = folder if task is LAYOUT else os.path.join(out, 'cache_tf')
    checkout.run_script(copy, [
        task.script, f'--model={name}', f'--epochs={epochs}',
        *task.script_flags, f'--data_root={data}', f'--cache_dir={cache}',
        f'--out_dir={models}'], log)
  model_dir, = set(glob.glob(os.path.join(models, 'model_*'))) - before
  return model_dir


def train_here(task: Task, out: str, data: str, name: str, epochs: int) -> str:
  """Trains like `tpu-graphs-ext train`; returns the model's folder."""
  from tpu_graphs_ext.engine import threads, train
  threads.one_for_each_operation()
  return train.train(task.training(
      model=name, epochs=epochs, data_root=data,
      cache_dir=os.path.join(out, 'cache'),
      out_dir=os.path.join(out, task.prefix + 'models'))).model_dir


def measured(model_dirs: dict[str, str], data: str,
             loading: Loading) -> dict[str, Summary]:
  """Name of a model -> its means over the problems of one labelled source."""
  from tpu_graphs_ext.engine import evaluate
  found = {name: evaluate.evaluate(model_dir, data, loading=loading)
           for name, model_dir in model_dirs.items()}
  return {name: getattr(one, 'micro', one.mean) for name, one in found.items()}


def comparison(title: str, found: dict[str, Summary],
               ks: tuple[int, ...]) -> str:
  """A table of what `measured` found, a row a model.

  Below them the compiler's default tile and configurations drawn at random.
  """
  same = next(iter(found.values()))  # For every model.
  slowdowns = {name: [means[f'slowdown_{k}'] for k in ks]
               for name, means in found.items()}
  if ks == TILE.ks:
    slowdowns['default tile'] = [same['default']]
  slowdowns['random choice'] = [same[f'random_{k}'] for k in ks]
  table = pd.DataFrame.from_dict({
      name: [f'{100 * slowdown:.2f} %' for slowdown in of_name]
      for name, of_name in slowdowns.items()}, orient='index')
  table.columns = [f'top-{k}' for k in ks]
  for title_of, measure in (('OPA', 'opa'), ('tau', 'kendall')):
    table[title_of] = pd.Series({
        name: f'{means[measure]:.3f}' for name, means in found.items()})
  return f'{title}\n{table.fillna("").to_string()}'


def write_data(task: Task, data: str) -> str:
  """Writes the sample data; returns a description."""
  from tpu_graphs_ext.sample import write
  summary = (write.write_layout_data(data) if task is LAYOUT else
             write.write_sample_data(write.SampleDataSettings(out=data)))
  return summary.text()


def run(task: Task, out: str, epochs: int) -> str:
  """Does it all; returns the closing text.

  Args:
    task: one of `TASKS`.
    out: folder for everything that is written. Data are reused, models are
      trained anew, and nothing that another program wrote is replaced.
    epochs: passes over the train split, for both models.
  """
  from tpu_graphs_ext.engine import rank
  data = os.path.join(out, task.prefix + 'sample_data')
  stack = versions.describe()
  print(f'{stack.name.capitalize()} stack, Python {stack.python}: '
        f'{stack.why}.\n')
  print(write_data(task, data))
  root = find_baseline(out)
  print(f'\nTraining with the unchanged {task.script} of {root},\nin a copy '
        "that has this package's models." if root else
        f'\nTraining with this package: {checkout.ROOT_VARIABLE} names no '
        'checkout of the\nbaseline, and cloning it did not work.')
  model_dirs = {
      name: train_with_baseline(task, root, out, data, name, epochs) if root
      else train_here(task, out, data, name, epochs) for name in task.models}
  loading = task.loading(data_root=data, cache_dir=os.path.join(out, 'cache'))
  labelled = os.path.join(data, task.labelled)
  found = measured(model_dirs, labelled, loading)
  print(comparison(
      f'\n{task.compared_on} after {epochs} epochs (slowdown of the best of\n'
      "the top k against the fastest, by the compiler's own estimates; lower "
      'is better):', found, task.ks))
  if task is TILE:
    real = os.path.join(root or '', checkout.REAL_KERNELS)
    if root and os.path.isfile(real):
      labelled, found = real, measured(model_dirs, real, loading)
      print(comparison('\n15 real TPU kernels, as measured (trained on the '
                       "compiler's estimates alone):", found, task.ks))
  model_dir = model_dirs[task.models[0]]
  csv = rank.predict(model_dir, loading=loading, out=os.path.join(
      out, task.prefix + 'predictions.csv'))
  return closing_text(task, model_dir, csv, data, labelled)


def closing_text(task: Task, model_dir: str, csv: str, data: str,
                 labelled: str) -> str:
  """Where things are, and commands to go on with from the working folder."""
  short = checkout.shown_path
  command, models = checkout.own_command(), os.path.dirname(model_dir)
  report = short(os.path.join(os.path.dirname(models), 'report.html'))
  start = short(model_dir[:len(models) + 15])  # model_ and eight digits.
  of_data, models = f'--data_root {short(data)}', short(models)
  commands = [
      f'rank --dir {start} --data {short(labelled)} {of_data}',
      f'report {models} --out {report} {of_data}',
      f'train --model {task.models[0]} --recipe best --out_dir {models} '
      f'{of_data}']
  if task is LAYOUT:
    commands = [f'evaluate --task layout --dir {start} {of_data}']
  return '\n'.join([
      '', f'Model: {short(model_dir)}',
      f'Data: {short(data)}, predictions: {short(csv)}', '',
      f'Next, in {os.getcwd()}:',
      *(f'  {command} {words}' for words in commands)])


def main() -> int:
  """Parses the flags; prints one line for what the user can mend."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      epilog='quickstart.sh also takes --python PATH: another Python, 3.9 to '
             '3.13, in an environment of its own.')
  flag = parser.add_argument
  flag('--out', default='out/quickstart',
       help='folder for everything (default: %(default)s)')
  flag('--task', default='tile', choices=TASKS, help='what to '
       'rank: tiles of kernels or layouts of programs (default: %(default)s)')
  flag('--epochs', type=int, help=f'epochs of both models (default: '
       f'{TILE.epochs}; for layouts {LAYOUT.epochs})')
  args = parser.parse_args()
  logging.basicConfig(format='%(message)s')  # As the commands do.
  try:
    out = files.full_path(files.require_path('--out', args.out))
    os.makedirs(out, exist_ok=True)
    task = TASKS[args.task]
    print(run(task, out, args.epochs or task.epochs))
  except (UserError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
