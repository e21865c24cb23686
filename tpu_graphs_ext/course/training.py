"""Trains through the unchanged tiles_train.py, for assignment_train.sh.

  python -m tpu_graphs_ext.course.training ROOT MODELS_PY OUT_DIR [FLAG ...]

ROOT is the checkout, where MODELS_PY is installed; the flags are those of
tiles_train.py. What it would only find out after reading the data is checked
first. The cache of the data, which the baseline names by the folder alone, is
one for these very files. OUT_DIR is where the later scripts look for models.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.course import checkout, swap
from tpu_graphs_ext.data import cache, read
from tpu_graphs_ext.engine import origin
from tpu_graphs_ext.errors import UserError, printable
from tpu_graphs_ext.tasks import TILE, tile

SCRIPT = 'tiles_train.py'
# In OUT_DIR: the model that was trained last, if --out_dir was another.
LAST = 'trained_last.txt'
_DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float,
           bool: flags.DEFINE_boolean, str: flags.DEFINE_string}


def train(root: str, models_py: str, out_dir: str,
          arguments: Sequence[str]) -> str:
  """Runs the script with its `arguments`; returns the model's folder.

  Raises UserError if an argument, the data or models.py cannot be used or no
  model was written, CalledProcessError if the script failed and has said why.
  """
  flags_given = parsed(arguments)
  for name in ('out_dir', 'data_root', 'results_csv', 'cache_dir'):
    if flags_given.get(name):  # The script runs in another folder.
      flags_given[name] = files.full_path(flags_given[name])
  run = tile.TrainSettings(**flags_given)
  try:
    for folder in read.split_folders(run.data_root).values():
      read.find_npz(folder)
    data = cache.data_key(files.full_path(run.data_root))
  except UserError as error:
    raise UserError(
        f'{error}. Get the data with ./run_scripts/download_data.sh, or name '
        'another folder as DATA_ROOT') from error
  models_py = files.full_path(models_py)
  load_models.require_in_text(run.model, run.model_kwargs, models_py)
  print(swap.install(root, models_py))
  source = files.read_file(models_py)
  paths = {
      'data_root': run.data_root, 'out_dir': run.out_dir,
      'results_csv': run.baseline_args(int(time.time() * 1000))['results_csv'],
      'cache_dir': flags_given.get('cache_dir', os.path.join(
          files.full_path(tile.CACHE_DIR), f'scripts_{data}'))}
  arguments = [*arguments, *(
      f'--{name}={path}' for name, path in paths.items())]
  root = checkout.find(root)
  subprocess.run(checkout.script_command(
      [os.path.join(root, SCRIPT), *arguments], root), cwd=root, check=True)
  return _written(
      tile.TrainSettings(**{**flags_given, **paths}), source, out_dir)


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
  """The flags that are given, as absl reads them in the script."""
  values = flags.FlagValues()
  defaults = dataclasses.asdict(tile.TrainSettings())
  names = [name for name, value in defaults.items() if value is not None]
  for name in names:
    _DEFINE[type(defaults[name])](name, None, '', flag_values=values)
  try:
    values([SCRIPT, *arguments], known_only=True)
  except flags.Error as error:
    raise UserError(f'{SCRIPT}: {error}') from error
  return {name: values[name].value for name in names if values[name].present}


def _written(run: tile.TrainSettings, source: bytes, out_dir: str) -> str:
  """The model folder of a run of the script, which is noted in `out_dir`.

  It gets a copy of the models.py, as `train` leaves it.
  """
  name = 'model_' + TILE.train_hash(run.baseline_args())
  model_dir = os.path.join(run.out_dir, name)
  if not os.path.isdir(model_dir):
    raise UserError(f'{model_dir}: {SCRIPT} should have written this folder '
                    'and has not; see its output above')
  files.write_file(os.path.join(model_dir, origin.COPY), source)
  origin.remember(source)
  if (out_dir := files.full_path(out_dir)) != run.out_dir:
    files.write_file(os.path.join(out_dir, LAST), f'{model_dir}\n'.encode())
  return model_dir


def main() -> int:
  try:
    model_dir = train(*sys.argv[1:4], sys.argv[4:])
  except UserError as error:
    print(f'error: {printable(str(error))}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    return 130
  except subprocess.CalledProcessError as error:
    return error.returncode
  print(f'trained: {model_dir}\nnext:    ./run_scripts/assignment_hand_in.sh '
        + checkout.shown_path(model_dir))
  return 0


if __name__ == '__main__':
  sys.exit(main())
