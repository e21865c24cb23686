"""Trials of a sweep: a configuration with a seed and a data root each.

A trial's key is a hash of its content: task, model, arguments, settings, seed,
the content of the data and of the file that the model is from. So a sweep that
is started again, or whose grid has grown, knows what is done, and what was
done with other data or another models.py is not mistaken for it.
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
  """One training, as a worker is told it.

  Attributes:
    key: hash of its content.
    data_root, out: full paths; `out` is the sweep's folder.
    prune: when it may end early; None: never.
    number: in its study of Optuna's, once it was started.
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


class Maker:
  """Makes the trials of a grid; reads each data root and models.py once."""

  def __init__(self, grid: Grid, out: str):
    self._grid, self._out = grid, out
    self._data_key = functools.lru_cache(None)(_data_key)
    self._file_sum = functools.lru_cache(None)(_file_sum)

  def trials(self, configuration: Configuration) -> Iterator[Trial]:
    """Each seed on each data root.

    Raises:
      UserError: a data root has no kernels, or a file cannot be read.
    """
    for root in self._grid.data_roots:
      for seed in self._grid.seeds:
        trial = Trial('', self._grid.task, configuration, seed, root,
                      self._out, self._grid.prune)
        yield dataclasses.replace(trial, key=self._key(trial))

  def _key(self, trial: Trial) -> str:
    settings = trial.settings()
    content = {
        'format': 'tpu_graphs_ext trial 1', 'task': trial.task,
        'model': trial.configuration.model,
        'kwargs': trial.configuration.kwargs,
        'settings': _not_default(settings), 'seed': trial.seed,
        'data': self._data_key(grids.data_folder(trial.data_root, settings)),
        'prune': trial.prune and dataclasses.asdict(trial.prune),
        'models_py': self._file_sum(grids.models_py_of(
            trial.task, trial.configuration.settings))}
    return hashlib.sha256(json.dumps(
        content, sort_keys=True).encode()).hexdigest()[:16]


def _not_default(settings: Any) -> dict[str, Any]:
  """What decides the training; so a flag of a later version changes no key."""
  defaults = {field.name: field.default
              for field in dataclasses.fields(settings)}
  if hasattr(settings, 'recipe'):  # The recipe's values are in the others.
    defaults.update(recipes.recipe(recipes.DEFAULT), recipe=settings.recipe)
  return {name: value for name, value in dataclasses.asdict(settings).items()
          if name not in (*grids.OWN_SETTINGS, *grids.FIXED_SETTINGS)
          and value != defaults[name]}


def _data_key(folder: str) -> str:
  """Hash of all .npz files below a folder, by their places and checksums.

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


def _file_sum(path: str) -> str:
  try:
    with open(files.full_path(path), 'rb') as file:
      return hashlib.sha256(file.read()).hexdigest()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
