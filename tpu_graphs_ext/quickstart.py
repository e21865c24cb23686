"""What quickstart.sh runs: the tile task on sample data, from start to end.

Writes the sample data, trains `MyEarlyJoinSAGE` and the baseline's
`EarlyJoinSAGE`, compares them on the validation split and on real TPU kernels,
and writes the predictions CSV. With a checkout of the baseline its unchanged
`tiles_train.py` trains, else this package.
"""

from __future__ import annotations

import argparse
import glob
import logging
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time

from tqdm import tqdm

from tpu_graphs_ext import files, load_models, quickstart_layout
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.engine import metrics
from tpu_graphs_ext.engine.results import Summary
from tpu_graphs_ext.engine.settings import LoadSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.stacks import versions

MODELS = ('MyEarlyJoinSAGE', 'EarlyJoinSAGE')
EPOCHS = 15
CLONE_SECONDS = 60


def find_baseline(out: str) -> str | None:
  """The checkout that TPU_GRAPHS_ROOT names, or a clone in `out`, or None."""
  clone = os.path.join(out, 'tpu_graphs')
  if checkout.find() or os.path.isdir(clone):
    return checkout.find() or checkout.find(clone)
  try:
    with files.new_folder(clone, replace=False) as new:
      subprocess.run(
          ['git', 'clone', '--quiet', '--depth', '1', checkout.URL, new],
          check=True, timeout=CLONE_SECONDS, stdin=subprocess.DEVNULL,
          capture_output=True, env=dict(os.environ, GIT_TERMINAL_PROMPT='0'))
  except (OSError, subprocess.SubprocessError):
    return None
  return checkout.find(clone)


def train_with_baseline(root: str, out: str, data: str, name: str,
                        epochs: int) -> str:
  """Trains with the unchanged tiles_train.py; returns the model's folder."""
  pattern = os.path.join(out, 'models', 'model_*')
  before = set(glob.glob(pattern))
  with tempfile.TemporaryDirectory() as folder, tqdm(
      total=epochs, desc=f'{name}, epochs') as bar:
    copy = checkout.working_copy(
        root, os.path.join(folder, 'tpu_graphs'), load_models.models_path())
    checkout.run_script(
        copy,
        ['tiles_train.py', f'--model={name}', f'--epochs={epochs}',
         f'--data_root={data}', f'--cache_dir={os.path.join(out, "cache_tf")}',
         f'--out_dir={os.path.join(out, "models")}'],
        os.path.join(out, f'{name}.log'),
        lambda line: bar.update(line.count('val_opa_metric:')))
  (model_dir,) = set(glob.glob(pattern)) - before
  return model_dir


def train_here(out: str, data: str, name: str, epochs: int) -> str:
  """Trains like `tpu-graphs-ext train`; returns the model's folder."""
  from tpu_graphs_ext.engine import threads, train
  threads.one_for_each_operation()
  return train.train(train.TrainSettings(
      model=name, epochs=epochs, data_root=data,
      cache_dir=os.path.join(out, 'cache'),
      out_dir=os.path.join(out, 'models'))).model_dir


def measured(model_dirs: dict[str, str], data: str,
             loading: LoadSettings) -> dict[str, Summary]:
  """Name of a model -> its means over the kernels of one labelled source."""
  from tpu_graphs_ext.engine import evaluate
  return {name: evaluate.evaluate(model_dir, data, loading=loading).micro
          for name, model_dir in model_dirs.items()}


def comparison(title: str, found: dict[str, Summary],
               seconds: dict[str, float] | None = None) -> str:
  """A table of what `measured` found, a row a model.

  Below them the compiler's default tile and tiles drawn at random.
  """
  def row(name, *cells):
    return f'{name:16}' + ''.join(
        f'{cell if isinstance(cell, str) else f"{100 * cell:.2f} %":>10}'
        for cell in cells)

  ks = metrics.TOP_KS
  lines = [title, row('', *(f'top-{k}' for k in ks), 'OPA', 'tau',
                      *['seconds'] * bool(seconds))]
  for name, micro in found.items():
    lines.append(row(
        name, *(micro[f'slowdown_{k}'] for k in ks), f'{micro["opa"]:.3f}',
        f'{micro["kendall"]:.3f}',
        *[f'{seconds[name]:.0f}'] if seconds else []))
  same = found[MODELS[0]]  # For every model.
  return '\n'.join([
      *lines, row('default tile', same['default']),
      row('random choice', *(same[f'random_{k}'] for k in ks))])


def conclusion(found: dict[str, Summary]) -> str:
  """What a newcomer should take from the last table."""
  mine, theirs = (found[name] for name in MODELS)
  (least, best), (more, other) = sorted([
      (100 * mine['default'], "the compiler's default tile"),
      (100 * mine['slowdown_1'], f"{MODELS[0]}'s first choice")])
  only = (f'{best} ({least:.2f} % slower) and {other} ({more:.2f} %) are about '
          'as good' if more - least < 1 else
          f'take {best}: it is {least:.2f} % slower, and {other} {more:.2f} %')
  return '\n' + textwrap.fill(
      f'Conclusion: time the five tiles that {MODELS[0]} ranks first. The best '
      f'of them is {100 * mine["slowdown_5"]:.2f} % slower than the fastest '
      f'tile of all; of five that {MODELS[1]} ranks first, '
      f'{100 * theirs["slowdown_5"]:.2f} %; of five at random, '
      f'{100 * mine["random_5"]:.2f} %. If you can try only one tile, '
      f'{only}.', 79)


def run(out: str, epochs: int) -> str:
  """Does it all; returns the closing text.

  Args:
    out: folder for everything that is written. Data are reused, models are
      trained anew, and nothing that another program wrote is replaced.
    epochs: passes over the train kernels, for both models.
  """
  from tpu_graphs_ext.engine import rank
  from tpu_graphs_ext.sample import write
  data, models = os.path.join(out, 'sample_data'), os.path.join(out, 'models')
  stack = versions.describe()
  print(f'{stack.name.capitalize()} stack, Python {stack.python}: '
        f'{stack.why}.\n')
  print(write.write_sample_data(write.SampleDataSettings(out=data)).text())
  root = find_baseline(out)
  print(f'\nTraining with the unchanged tiles_train.py of {root},\nin a copy '
        'that has this models.py.' if root else
        f'\nTraining with this package: {checkout.ROOT_VARIABLE} names no '
        'checkout of the\nbaseline, and cloning it did not work.')
  model_dirs, seconds = {}, {}
  for name in MODELS:
    started = time.monotonic()
    model_dirs[name] = (train_with_baseline(root, out, data, name, epochs)
                        if root else train_here(out, data, name, epochs))
    seconds[name] = time.monotonic() - started
  loading = LoadSettings(data_root=data, cache_dir=os.path.join(out, 'cache'))
  found = measured(model_dirs, os.path.join(data, 'valid'), loading)
  print(comparison(
      f"\nValidation kernels of Google's TPU compiler after {epochs} epochs "
      '(slowdown of the best of\nthe top k against the fastest tile, by its '
      'own estimates; lower is better):', found, seconds))
  real = os.path.join(root or '', checkout.REAL_KERNELS)
  labelled = os.path.join(data, 'valid')
  if root and os.path.isfile(real):
    labelled, found = real, measured(model_dirs, real, loading)
    print(comparison('\n15 real TPU kernels, as measured (trained on the '
                     "compiler's estimates alone):", found))
  print(conclusion(found))
  csv = rank.predict(model_dirs[MODELS[0]], loading=loading,
                        out=os.path.join(out, 'predictions.csv'))
  return closing_text(model_dirs[MODELS[0]], csv, data, labelled, models)


def closing_text(model_dir: str, csv: str, data: str, labelled: str,
                 models: str) -> str:
  """Where things are, and three commands to go on with.

  They are relative to the working folder, which quickstart.sh makes the clone.
  """
  def short(path):
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith(os.pardir) else relative)

  command = short(os.path.join(os.path.dirname(sys.executable),
                               'tpu-graphs-ext'))
  report = short(os.path.join(os.path.dirname(models), 'report.html'))
  start = short(os.path.join(models, os.path.basename(model_dir)[:14]))
  of_data, models = f'--data_root {short(data)}', short(models)
  longer = f'--model {MODELS[0]} --recipe best --out_dir {models}'
  return f'''
Model: {short(model_dir)}
Data: {short(data)}, predictions: {short(csv)}

Next, in {os.getcwd()}, the tiles to try first, a page that
compares both models, and an ensemble of three, trained for longer:
  {command} rank --dir {start} --data {short(labelled)} {of_data}
  {command} report {models} --out {report} {of_data}
  {command} train {longer} {of_data}'''


def main() -> int:
  """Parses the flags; prints one line for what the user can mend."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      epilog='quickstart.sh also takes --python PATH: another Python, 3.9 to '
             '3.13, in an environment of its own.')
  flag = parser.add_argument
  flag('--out', default='out/quickstart',
       help='folder for everything (default: %(default)s)')
  flag('--task', default='tile', choices=('tile', 'layout'), help='what to '
       'rank: tiles of kernels or layouts of programs (default: %(default)s)')
  flag('--epochs', type=int, help=f'epochs of both models (default: {EPOCHS}; '
       f'for layouts {quickstart_layout.EPOCHS})')
  flag('-v', '--verbose', action='store_true',
       help='print each feature outside the training data')
  args = parser.parse_args()
  logging.basicConfig(format='%(message)s')  # As the commands do.
  if args.verbose:
    logging.getLogger('tpu_graphs_ext').setLevel(logging.DEBUG)
  try:
    out = files.full_path(files.require_path('--out', args.out))
    os.makedirs(out, exist_ok=True)
    print(quickstart_layout.run(
        out, args.epochs or quickstart_layout.EPOCHS, find_baseline(out))
          if args.task == 'layout' else run(out, args.epochs or EPOCHS))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  except OSError as error:
    print(f'error: {error.filename or args.out}: {error.strerror}; free some '
          'disk or choose another folder with --out', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
