"""The layout task from start to end: what `quickstart.sh --task layout` runs.

Makes the sample data of the layout task, trains `MyLayoutSAGE` and the
baseline's `ResModel` on one of its collections by the baseline's unchanged
`layout_train.py`, which writes the predictions CSV, and compares both on the
test programs by its unchanged `layout_evaluate.py`.
"""

from __future__ import annotations

import csv
import glob
import os
import tempfile

import numpy as np
from tqdm import tqdm

from tpu_graphs_ext import load_models
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.errors import UserError

MODELS = ('MyLayoutSAGE', 'ResModel')
SOURCE, SEARCH = 'xla', 'random'
EPOCHS = 10
_COLUMNS = ('tau', 'top-1', 'top-10', 'top-100')


def run(out: str, epochs: int, root: str | None) -> str:
  """Does it all; returns the closing text.

  Args:
    out: full path of the folder for everything that is written; what is there
      is reused, but the models are trained anew.
    epochs: passes over the train programs, for both models.
    root: the baseline's checkout.

  Raises:
    UserError: there is no checkout, or a script fails.
  """
  from tpu_graphs_ext.sample import write_layouts
  if not root:
    raise UserError(
        f'{checkout.ROOT_VARIABLE} names no checkout of the baseline, and '
        f'cloning {checkout.URL} did not work; the layout task is shown by its '
        'scripts')
  data = os.path.join(out, 'layout_sample_data')
  print(write_layouts.write_layout_data(data).text())
  print(f'\nTraining on {SOURCE}:{SEARCH} through the unchanged '
        f'layout_train.py of\n{root}, in a copy with this package\'s layout '
        'models swapped in.')
  with tempfile.TemporaryDirectory() as folder:
    copy = checkout.working_copy(
        root, os.path.join(folder, 'tpu_graphs'),
        load_models.models_path('layout'), 'layout')
    hidden = os.path.join(folder, 'hidden')
    hide_labels(data, hidden)
    trained = {name: train(copy, out, data, name, epochs) for name in MODELS}
    means = {name: evaluate(copy, out, data, hidden, model_dir)
             for name, (model_dir, _) in trained.items()}
  print(comparison(
      f'\nTest programs after {epochs} epochs (Kendall\'s tau, and '
      'slowdown of the best of\nthe top k; lower is better):', means))
  model_dir, predictions = trained[MODELS[0]]
  return '\n'.join(['', f'sample data: {data}', f'model:       {model_dir}',
                    f'predictions: {predictions}', '', 'Next:',
                    f'  tpu-graphs-ext evaluate --task layout --dir {model_dir}'
                    f' --data_root {data}'])


def train(copy: str, out: str, data: str, name: str,
          epochs: int) -> tuple[str, str]:
  """Trains by the unchanged layout_train.py.

  Returns:
    (model folder, predictions CSV).
  """
  models = os.path.join(out, 'layout_models')
  patterns = [os.path.join(models, kind) for kind in ('model_*', 'results_*')]
  before = [set(glob.glob(pattern)) for pattern in patterns]
  with tqdm(total=epochs, desc=f'{name}, epochs') as bar, (
      tempfile.TemporaryDirectory()) as cache:
    def count_epochs(line):
      bar.update(min(1, line.count('val_opa_metric:')))

    checkout.run_script(copy, [
        'layout_train.py', f'--model={name}', f'--epochs={epochs}',
        f'--source={SOURCE}', f'--search={SEARCH}', f'--data_root={data}',
        f'--cache_dir={cache}', f'--out_dir={models}',
    ], os.path.join(out, f'{name}_layout.log'), count_epochs)
  (model_dir,), (predictions,) = (
      set(glob.glob(pattern)) - earlier
      for pattern, earlier in zip(patterns, before))
  return model_dir, predictions


def hide_labels(data: str, folder: str) -> None:
  """The labels of the test split, as layout_evaluate.py --test wants them."""
  place = os.path.join(folder, SOURCE, SEARCH, 'test_export', 'secret')
  os.makedirs(place)
  for path in glob.glob(os.path.join(
      data, SOURCE, SEARCH, 'test_labelled', '*.npz')):
    with np.load(path) as stored:
      runtime = stored['config_runtime']
    name = os.path.basename(path)
    np.savez(os.path.join(place, name), input_file=name,
             config_runtime=runtime)


def evaluate(copy: str, out: str, data: str, hidden: str,
             model_dir: str) -> list[float]:
  """Means over the test programs: tau and the slowdowns."""
  checkout.run_script(copy, [
      'layout_evaluate.py', f'--dirs={model_dir}', f'--data_root={data}',
      '--cache_dir=', '--test', f'--secret_path={hidden}',
  ], os.path.join(out, 'layout_evaluate.log'))
  path = model_dir.replace('/model_', '/test_results_') + '_sample.csv'
  with open(path, encoding='utf-8') as file:
    _, *rows = csv.reader(file)
  return np.mean([[float(cell) for cell in row[1:]] for row in rows],
                 axis=0).tolist()


def comparison(title: str, means: dict[str, list[float]]) -> str:
  """A table of the models, a row each."""
  lines = [title, f'{"":16}' + ''.join(f'{head:>10}' for head in _COLUMNS)]
  for name, (tau, *slowdowns) in means.items():
    cells = [f'{tau:.3f}', *(f'{100 * error:.2f} %' for error in slowdowns)]
    lines.append(f'{name:16}' + ''.join(f'{cell:>10}' for cell in cells))
  return '\n'.join(lines)
