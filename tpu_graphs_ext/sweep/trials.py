"""Trials of a sweep: what each is, and what became of it.

  <out>/trials/<key>.json   a trial that was started, and how it ended

The key is a hash of the trial's content: task, model, arguments, settings,
seed, the content of the data and of the file that the model is from. So a
sweep that is started again, or whose grid has grown, knows what is done; and
what was done with other data or another models.py is not taken for it.
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
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import recipes
from tpu_graphs_ext.sweep import checks
from tpu_graphs_ext.sweep.grid import (
  FIXED_SETTINGS,
  OWN_SETTINGS,
  SETTINGS,
  Configuration,
  Grid,
  Prune,
  data_folder,
)

# How a trial ended; 'started' is none of them.
FINISHED, STOPPED, FAILED = 'finished', 'stopped', 'failed'
STARTED = 'started'

FOLDER = 'trials'
_FORMAT = 'tpu_graphs_ext trial 1'


@dataclasses.dataclass(frozen=True)
class Trial:
  """One training, as a worker is told it.

  Attributes:
    key: hash of its content.
    task: 'tile' or 'layout'.
    configuration: what is tried.
    seed: of weights, batches and dropout.
    data_root: full path.
    out: full path of the sweep's folder.
    prune: when it may end early; None: never.
  """
  key: str
  task: str
  configuration: Configuration
  seed: int
  data_root: str
  out: str
  prune: Optional[Prune]

  def settings(self, resume: bool = False) -> Any:
    """Those of `train`."""
    tried = self.configuration
    return SETTINGS[self.task](
        model=tried.model, seed=self.seed, resume=resume,
        model_kwargs_json=json.dumps(tried.kwargs, sort_keys=True),
        data_root=self.data_root, out_dir=self.out,
        # Names the trial in the hash of the run, as data roots are not in it.
        results_csv=os.path.join(self.out, f'predictions_{self.key}.csv'),
        **tried.settings)


@dataclasses.dataclass(frozen=True)
class Record:
  """What became of a trial.

  Attributes:
    key: of the trial.
    model, kwargs, settings, seed, data_root: of the trial.
    state: `STARTED`, `FINISHED`, `STOPPED` (poor, and ended early) or `FAILED`.
    error: why it failed.
    attempts: how often it was started.
    run: hash of its run; '' where it has none.
    values: goal -> value on the validation split.
    epochs: that it had.
    best_epoch: that of the model, from 1.
    parameters: trainable numbers of the model.
    seconds: it took, all its attempts.
  """
  key: str
  model: str
  kwargs: dict[str, Any]
  settings: dict[str, Any]
  seed: int
  data_root: str
  state: str = STARTED
  error: str = ''
  attempts: int = 0
  run: str = ''
  values: dict[str, float] = dataclasses.field(default_factory=dict)
  epochs: int = 0
  best_epoch: int = 0
  parameters: int = 0
  seconds: float = 0.0

  @classmethod
  def of(cls, trial: Trial) -> Record:
    return cls(trial.key, trial.configuration.model,
               trial.configuration.kwargs, trial.configuration.settings,
               trial.seed, trial.data_root)

  @property
  def is_over(self) -> bool:
    return self.state != STARTED


class Maker:
  """Makes the trials of a grid; reads each data root and models.py once.

  Args:
    grid: what is tried.
    out: full path of the sweep's folder.
  """

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
    folder = data_folder(trial.data_root, settings)
    content = {
        'format': _FORMAT, 'task': trial.task,
        'model': trial.configuration.model,
        'kwargs': trial.configuration.kwargs,
        'settings': _not_default(settings), 'seed': trial.seed,
        'data': self._data_key(folder),
        'prune': trial.prune and dataclasses.asdict(trial.prune),
        'models_py': self._file_sum(checks.models_py_of(
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
          if name not in (*OWN_SETTINGS, *FIXED_SETTINGS)
          and value != defaults[name]}


def _data_key(folder: str) -> str:
  """Hash of all .npz files below a folder, by their places and checksums.

  Raises:
    UserError: there is none, or one is damaged.
  """
  digest = hashlib.sha256()
  for parent, folders, names in os.walk(folder, followlinks=True):
    folders.sort()
    paths = [os.path.join(parent, name) for name in sorted(names)
             if name.endswith('.npz')]
    if paths:
      part = os.path.relpath(parent, folder).replace(os.sep, '/')
      digest.update(cache.content_key(paths, part).encode())
  if digest.digest() == hashlib.sha256().digest():
    raise UserError(f'{folder}: has no .npz files, so nothing can be trained; '
                    'name a data root in "data_roots"')
  return digest.hexdigest()


def _file_sum(path: str) -> str:
  try:
    with open(files.full_path(path), 'rb') as file:
      return hashlib.sha256(file.read()).hexdigest()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error


def path_of(out: str, key: str) -> str:
  return os.path.join(out, FOLDER, f'{key}.json')


def write(out: str, record: Record) -> None:
  """Puts a record in its place.

  Raises:
    UserError: it cannot be written.
  """
  files.write_file(path_of(out, record.key), json.dumps(
      {'format': _FORMAT, **dataclasses.asdict(record)}, indent=1,
      sort_keys=True).encode())


def read(out: str, key: str) -> Optional[Record]:
  """What became of a trial; None where it was never started.

  A file that is damaged counts as none: the trial is then done again, and
  finds what it has done already by its run.
  """
  path = path_of(out, key)
  try:
    with files.open_ordinary(path) as file:
      given = files.parse_json(file.read(), path)
    known = {field.name: field.type for field in dataclasses.fields(Record)}
    if given.pop('format') != _FORMAT or set(given) != set(known):
      return None
    record = Record(**given)
    return record if _is_sound(record, key) else None
  except (OSError, UserError, AttributeError, KeyError, TypeError):
    return None


def _is_sound(record: Record, key: str) -> bool:
  return (record.key == key
          and record.state in (STARTED, FINISHED, STOPPED, FAILED)
          and type(record.attempts) is int
          and isinstance(record.values, dict) and all(
              type(value) in (int, float) for value in record.values.values())
          and isinstance(record.error, str) and isinstance(record.run, str)
          and all(type(number) in (int, float) for number in (
              record.epochs, record.best_epoch, record.parameters,
              record.seconds)))
