"""Trials of a sweep: a configuration with a seed and a data root.

A trial's key is a hash of its content: task, model, arguments, settings, seed,
and the content of the data and of models.py. So a sweep that is started again,
or whose grid has grown, knows which trials are done with these very files.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.data import cache
from tpu_graphs_ext.engine import recipes
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import grid as grids
from tpu_graphs_ext.sweep.grid import Configuration, Grid, Prune


@dataclasses.dataclass(frozen=True)
class Trial:
  """One training, as a worker gets it.

  Attributes:
    key: hash of its content.
    data_root, out: full paths; `out` is the sweep's folder.
    prune: when it may end early; None: never.
    number: in its Optuna study, once it is started.
  """
  key: str
  task: str
  configuration: Configuration
  seed: int
  data_root: str
  out: str
  prune: Optional[Prune]
  number: int = -1

  def settings(self) -> Any:
    """Those of `train`, which resume what an earlier attempt left."""
    tried = self.configuration
    return grids.SETTINGS[self.task](
        model=tried.model, seed=self.seed, resume=True,
        model_kwargs_json=json.dumps(tried.kwargs, sort_keys=True),
        data_root=self.data_root, out_dir=self.out,
        # Names the trial in the hash of the run, as data roots are not in it.
        results_csv=os.path.join(self.out, f'predictions_{self.key}.csv'),
        **tried.settings)


def describe(row: dict[str, Any]) -> str:
  """'EarlyJoinSAGE hidden_dim=32 lr=0.01 seed=0', of a row of a study."""
  given = {**row['kwargs'], **row['settings']}
  return ' '.join([row['model'], *(
      f'{name}={text_of(value, 4)}' for name, value in given.items()
      if name != 'cache_dir'), f'seed={row["seed"]}'])


def text_of(value: Any, digits: int = 17) -> str:
  """A value as JSON, or as it is if it is a text."""
  if isinstance(value, float):  # Of which a search draws 17 digits.
    value = float(f'{value:.{digits}g}')
  return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def trials_of(grid: Grid, out: str,
              configuration: Configuration) -> Iterator[Trial]:
  """A configuration with each seed on each data root.

  Args:
    grid: the sweep.
    out: its folder.
    configuration: one of the grid's.

  Raises:
    UserError: a data root has no kernels, or a file cannot be read.
  """
  for root in grid.data_roots:
    for seed in grid.seeds:
      trial = Trial('', grid.task, configuration, seed, root, out, grid.prune)
      yield dataclasses.replace(trial, key=_key(trial))


def _key(trial: Trial) -> str:
  settings, tried = trial.settings(), trial.configuration
  content = {
      'format': 'tpu_graphs_ext trial 1', 'task': trial.task,
      'model': tried.model, 'kwargs': tried.kwargs,
      'settings': _not_default(settings), 'seed': trial.seed,
      'data': _data_key(grids.data_folder(trial.data_root, settings)),
      'prune': trial.prune and dataclasses.asdict(trial.prune),
      'models_py': _file_sum(grids.models_py_of(trial.task, tried.settings))}
  return hashlib.sha256(json.dumps(
      content, sort_keys=True).encode()).hexdigest()[:16]


def _not_default(settings: Any) -> dict[str, Any]:
  """The settings that matter; a flag of a later version changes no key."""
  defaults = {field.name: field.default
              for field in dataclasses.fields(settings)}
  if hasattr(settings, 'recipe'):  # The recipe's values are in the others.
    defaults.update(recipes.recipe(recipes.DEFAULT), recipe=settings.recipe)
  return {name: value for name, value in dataclasses.asdict(settings).items()
          if name not in (*grids.OWN_SETTINGS, *grids.FIXED_SETTINGS)
          and value != defaults[name]}


def forget_files() -> None:
  """Before each sweep: files are read once, but may change in between."""
  _data_key.cache_clear()
  _file_sum.cache_clear()


@functools.lru_cache(None)
def _data_key(folder: str) -> str:
  """Hash of all .npz files below a folder, by their paths and checksums.

  Raises:
    UserError: there is none, or one is damaged.
  """
  found = []
  for parent, folders, names in os.walk(folder, followlinks=True):
    folders.sort()
    paths = [os.path.join(parent, name) for name in sorted(names)
             if name.endswith('.npz')]
    if paths:
      part = os.path.relpath(parent, folder).replace(os.sep, '/')
      found.append(cache.content_key(paths, part))
  if not found:
    raise UserError(f'{folder}: has no .npz files, so nothing can be trained; '
                    'name a data root in "data_roots"')
  return hashlib.sha256(''.join(found).encode()).hexdigest()


@functools.lru_cache(None)
def _file_sum(path: str) -> str:
  try:
    with open(files.full_path(path), 'rb') as file:
      return hashlib.sha256(file.read()).hexdigest()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
