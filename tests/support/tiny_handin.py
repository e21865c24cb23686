"""Hand-ins for the tests: a student's models.py, and runs trained with it."""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil

import numpy as np

from support import tiny_kernels, tiny_models
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.engine import artifacts
from tpu_graphs_ext.tasks import of_run

# All of tiny_models but the part that needs this package.
STUDENT = pathlib.Path(tiny_models.__file__).read_text().split(
    'def tiny_settings')[0]


def write_models(folder, source: str = STUDENT) -> str:
  """Writes `<folder>/models.py` and returns its path."""
  path = pathlib.Path(folder) / 'models.py'
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(source)
  return str(path)


def write_data(folder, **kwargs) -> pathlib.Path:
  """A data root whose train kernel of 3 configurations has large features.

  Training with --configs=6 leaves it out, so statistics of all train kernels
  give every other feature another scale.
  """
  root = tiny_kernels.write_data_root(folder, **kwargs)
  for path in (root / 'train').glob('*.npz'):
    kernel = Kernel.load(str(path))
    if kernel.num_configs == 3:
      # Not the columns that are constant: constant ones are dropped.
      kernel.config_feat[:] *= np.linspace(1, 9, kernel.config_feat.shape[1])
      kernel.save(str(root / 'train'))
  return root


def copy_run(model_dir: str, folder) -> pathlib.Path:
  """Copies a model folder and its run file; returns the model folder."""
  target = pathlib.Path(folder)
  target.mkdir(parents=True, exist_ok=True)
  source = pathlib.Path(model_dir)
  shutil.copy(artifacts.run_path_of(model_dir), target)
  shutil.copytree(source, target / source.name)
  return target / source.name


def change_run(model_dir: pathlib.Path, change) -> pathlib.Path:
  """Changes what the run file holds, and both names to the new hash."""
  path = pathlib.Path(artifacts.run_path_of(str(model_dir)))
  with gzip.open(path) as file:
    run = json.load(file)
  change(run)
  path.unlink()
  task = of_run(run, str(path))
  artifacts.save_run_file(run, str(model_dir.parent), task)
  return model_dir.rename(artifacts.model_path(
      str(model_dir.parent), task.train_hash(run['args'])))


def as_baseline(run: dict) -> None:
  """Leaves only the keys that the baseline writes."""
  for key in list(run):
    if key not in ('train_curve', 'final_error', 'args', 'test_predictions'):
      del run[key]
