"""The main job from start to end on sample data: what quickstart.sh runs.

Makes the sample data, trains `MyEarlyJoinSAGE` and the baseline's
`EarlyJoinSAGE`, compares them on the validation split and on real TPU kernels,
and writes the predictions CSV. With a checkout of the baseline it trains
through the unchanged `tiles_train.py`, else through this package's own host.
"""

from __future__ import annotations

import argparse
import glob
import logging
import os
import subprocess
import sys
import time

from tqdm import tqdm

from tpu_graphs_ext import files, quickstart_layout
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
  root = checkout.find()
  clone = os.path.join(out, 'tpu_graphs')
  if root or os.path.isdir(clone):
    return root or checkout.find(clone)
  try:
    with files.new_folder(clone, replace=False) as new:
      subprocess.run(
          ['git', 'clone', '--quiet', '--depth', '1', checkout.URL, new],
          check=True, timeout=CLONE_SECONDS, stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
          env=dict(os.environ, GIT_TERMINAL_PROMPT='0'))
  except (OSError, subprocess.SubprocessError):
    return None
  return checkout.find(clone)


def make_sample_data(folder: str) -> None:
  """Writes the sample data unless it is there."""
  from tpu_graphs_ext.sample import write
  print(write.write_sample_data(
      write.SampleDataSettings(out=folder)).text())


def train_with_baseline(root: str, out: str, data: str, name: str,
                        epochs: int) -> str:
  """Trains by the unchanged tiles_train.py; returns the model's folder."""
  from tpu_graphs_ext import load_models
  copy = checkout.working_copy(
      root, os.path.join(out, 'baseline_copy'),
      load_models.models_module().__file__)
  models_before = set(glob.glob(os.path.join(out, 'models', 'model_*')))
  with tqdm(total=epochs, desc=f'{name}, epochs') as bar:
    def count_epochs(line):
      ended = line.count('val_opa_metric:')
      if ended:
        bar.update(ended)

    checkout.run_script(
        copy,
        ['tiles_train.py', f'--model={name}', f'--epochs={epochs}',
         f'--data_root={data}', f'--cache_dir={os.path.join(out, "cache_tf")}',
         f'--out_dir={os.path.join(out, "models")}'],
        os.path.join(out, f'{name}.log'), count_epochs)
  (model_dir,) = (
      set(glob.glob(os.path.join(out, 'models', 'model_*'))) - models_before)
  return model_dir


def train_with_own_host(out: str, data: str, name: str, epochs: int) -> str:
  """Trains by `tpu-graphs-ext train`; returns the model's folder."""
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


def conclusion(found: dict[str, Summary]) -> str:
  """What a newcomer should take from the first table."""
  best, other = (100 * found[name]['slowdown_5'] for name in MODELS)
  chance = 100 * found[MODELS[0]]['random_5']
  return (f'\nOf five tiles the best is {best:.2f} % slower than the fastest '
          f'of all where {MODELS[0]}\nchooses, {other:.2f} % where '
          f'{MODELS[1]} does, and {chance:.2f} % by chance. With one tile to '
          "try,\ntake the compiler's default.")


def comparison(title: str, found: dict[str, Summary],
               seconds: dict[str, float] | None = None) -> str:
  """A table of what `measured` found, a row a model.

  Below them the compiler's default tile, which is one tile and so has only a
  top-1, and what tiles drawn at random are to be expected to give.
  """
  heads = [f'top-{k}' for k in metrics.TOP_KS] + ['OPA', 'tau']
  lines = [title, f'{"":16}' + ''.join(f'{head:>10}' for head in heads)
           + ('   seconds' if seconds else '')]
  for name, micro in found.items():
    cells = [f'{100 * micro[f"slowdown_{k}"]:.2f} %' for k in metrics.TOP_KS]
    cells += [f'{micro["opa"]:.3f}', f'{micro["kendall"]:.3f}']
    if seconds:
      cells.append(f'{seconds[name]:.0f}')
    lines.append(f'{name:16}' + ''.join(f'{cell:>10}' for cell in cells))
  lines.append(f'{"default tile":16}{100 * micro["default"]:>8.2f} %')
  lines.append(f'{"random choice":16}' + ''.join(
      f'{100 * micro[f"random_{k}"]:>8.2f} %' for k in metrics.TOP_KS))
  return '\n'.join(lines)


def run(out: str, epochs: int) -> str:
  """Does it all; returns the closing text.

  Args:
    out: folder for everything that is written; what is there is reused, but
      the models are trained anew. Nothing that another program wrote there
      is replaced.
    epochs: passes over the train kernels, for both models.
  """
  from tpu_graphs_ext.engine import predict
  out = os.path.abspath(files.require_path('--out', out))
  os.makedirs(out, exist_ok=True)
  data = os.path.join(out, 'sample_data')
  described = versions.describe()
  print(f'{described.name.capitalize()} stack, Python {described.python}: '
        f'{described.why}.\n')
  make_sample_data(data)
  root = find_baseline(out)
  if root:
    print(f'\nTraining through the unchanged tiles_train.py of {root},\nin a '
          'copy with this models.py swapped in.')
  else:
    print('\nTraining through this package\'s own host: '
          f'{checkout.ROOT_VARIABLE} names no\ncheckout of the baseline, and '
          'cloning it did not work.')
  model_dirs, seconds = {}, {}
  for name in MODELS:
    started = time.monotonic()
    model_dirs[name] = (
        train_with_baseline(root, out, data, name, epochs) if root
        else train_with_own_host(out, data, name, epochs))
    seconds[name] = time.monotonic() - started
  loading = LoadSettings(data_root=data, cache_dir=os.path.join(out, 'cache'))
  found = measured(model_dirs, os.path.join(data, 'valid'), loading)
  print(comparison(
      f"\nValidation kernels of Google's TPU compiler after {epochs} epochs "
      '(slowdown of the best of\nthe top k over the best tile, by its own '
      'estimates; lower is better):', found, seconds))
  real = os.path.join(root or '', checkout.REAL_KERNELS)
  if root and os.path.isfile(real):
    print(comparison('\n15 real TPU kernels, as measured (trained on the '
                     "compiler's estimates alone):",
                     measured(model_dirs, real, loading)))
  print(conclusion(found))
  csv = predict.predict(
      model_dirs[MODELS[0]], loading=loading,
      out=os.path.join(out, 'predictions.csv'))
  return _closing_text(out, model_dirs[MODELS[0]], csv, data,
                       real if root else None)


def _closing_text(out: str, model_dir: str, csv: str, data: str,
                  real: str | None) -> str:
  command = os.path.join(os.path.dirname(sys.executable), 'tpu-graphs-ext')
  run_file = model_dir.replace('/model_', '/run_') + '.jsonz'
  return '\n'.join([
      '',
      f'sample data: {data}',
      f'model:       {model_dir}',
      f'run file:    {run_file}',
      f'predictions: {csv}',
      '',
      'Next:',
      f'  {command} rank --dir {model_dir} '
      f'--data {real or os.path.join(data, "valid")} --data_root {data}',
      f'  {command} evaluate --dir {model_dir} '
      f'--data {os.path.join(data, "test_labelled")} --data_root {data}',
      f'  {command} train --model MyEarlyJoinSAGE --data_root {data} '
      f'--out_dir {os.path.join(out, "models")}'])


def _run_layout(out: str, epochs: int) -> str:
  """The layout task, whose scripts are shown by themselves."""
  out = os.path.abspath(files.require_path('--out', out))
  os.makedirs(out, exist_ok=True)
  return quickstart_layout.run(out, epochs, find_baseline(out))


def main() -> int:
  """Parses the flags; prints one line for what the user can mend."""
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0],
      epilog='quickstart.sh also takes --python PATH: another Python, 3.9 to '
             '3.13, in an environment of its own.')
  parser.add_argument('--out', default='out/quickstart',
                      help='folder for everything (default: %(default)s)')
  parser.add_argument('--task', default='tile', choices=('tile', 'layout'),
                      help='what to rank: tiles of kernels or layouts of '
                      'programs (default: %(default)s)')
  parser.add_argument('--epochs', type=int,
                      help='epochs of both models (default: '
                      f'{EPOCHS}; of layouts {quickstart_layout.EPOCHS})')
  args = parser.parse_args()
  logging.basicConfig(format='%(message)s')  # As the commands do.
  try:
    if args.task == 'layout':
      print(_run_layout(args.out, args.epochs or quickstart_layout.EPOCHS))
    else:
      print(run(args.out, args.epochs or EPOCHS))
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
