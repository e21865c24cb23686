"""What a sweep tries: GRID.json, read and checked before anything is trained.

docs/scale.md describes the file. A configuration is a model with one value for
each argument and setting; a trial is a configuration with a seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.engine.settings import MOST_SEED, TrainSettings
from tpu_graphs_ext.errors import UserError, did_you_mean
from tpu_graphs_ext.tasks.layout_settings import LayoutTrainSettings

SETTINGS = {'tile': TrainSettings, 'layout': LayoutTrainSettings}
MOST_TRIALS = 100_000
# By task: means over the validation split. Slowdowns are best low.
GOALS = {'tile': ('opa', 'top1', 'top5', 'top10'),
         'layout': ('opa', 'kendall', 'top1', 'top10', 'top100')}
# Settings that the sweep gives each trial, and who sets them instead.
OWN_SETTINGS = {
    'model': '"models" does', 'model_kwargs_json': '"kwargs" does',
    'seed': '"seeds" does', 'data_root': '"data_root" does',
    'out_dir': '--out does', 'results_csv': '--out does',
    'run_id': 'the sweep does', 'resume': 'the sweep does',
    'tensorboard': 'trials have none'}
# Places, which must be the same for all trials.
FIXED_SETTINGS = ('cache_dir', 'models_py')

def _require(holds: Any, text: str) -> None:
  if not holds:
    raise UserError(text)


def _require_choice(name: str, value: str, known: Sequence[str]) -> None:
  _require(value in known, f'{name}: must be one of {", ".join(known)}; got '
           f'{value!r}; {did_you_mean(value, list(known))}'.rstrip('; '))


def _require_whole(name: str, value: int, least: int) -> None:
  _require(least <= value <= MOST_SEED, f'{name}: must be a whole number from '
           f'{least} to {MOST_SEED}; got {value}')


def _hint(name: str, known: Iterable[str]) -> str:
  hint = did_you_mean(name, list(known))
  return f'{hint} ' if hint else ''


def _cut(value: Any) -> str:
  return json.dumps(value)[:100]


# ----------------------------------------------------- the objects of a file


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers that a search draws, whole if the ends are."""
  min: float
  max: float
  step: Optional[float] = None
  log: bool = False

  def __post_init__(self):
    _require(self.min < self.max,
             f'min must be below max; got {self.min} and {self.max}')
    _require(self.min > 0 or not self.log,
             f'min must be above 0 where log is true; got {self.min}')
    _require(self.step is None or (self.step > 0 and not self.log),
             f'step must be above 0, and goes without log; got {self.step}')

  def drawn(self, trial: Any, name: str) -> Any:
    """A number, drawn by an Optuna trial under a name."""
    is_whole = all(type(number) is int for number in (
        self.min, self.max, self.step or 1))
    draw = trial.suggest_int if is_whole else trial.suggest_float
    step = {'step': self.step} if self.step else {}
    return draw(name, self.min, self.max, log=self.log, **step)


@dataclasses.dataclass(frozen=True)
class Search:
  """How configurations are chosen: all of a grid, or as Optuna draws them."""
  method: str = 'grid'
  configurations: int = 0
  seed: int = 0

  def __post_init__(self):
    _require_choice('method', self.method, ('grid', 'random', 'bayes'))
    _require_whole('seed', self.seed, 0)
    if self.method == 'grid':
      _require(not self.configurations,
               'configurations: a grid tries all; leave it out')
    else:
      _require_whole('configurations', self.configurations, 1)


@dataclasses.dataclass(frozen=True)
class Prune:
  """The best 1/factor go on after min_epochs * factor ** i epochs, i >= 0."""
  min_epochs: int = 1
  factor: int = 3

  def __post_init__(self):
    _require_whole('min_epochs', self.min_epochs, 1)
    _require_whole('factor', self.factor, 2)


@dataclasses.dataclass(frozen=True)
class _Model:
  model: str
  kwargs: dict = dataclasses.field(default_factory=dict)
  settings: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _File:
  models: list
  task: str = 'tile'
  kwargs: dict = dataclasses.field(default_factory=dict)
  settings: dict = dataclasses.field(default_factory=dict)
  seeds: list = dataclasses.field(default_factory=lambda: [0])
  data_root: Optional[str] = None
  search: dict = dataclasses.field(default_factory=dict)
  prune: Any = None
  goal: str = 'opa'

  def __post_init__(self):
    _require_choice('task', self.task, tuple(SETTINGS))
    _require_choice('goal', self.goal, GOALS[self.task])
    _require(self.models, 'models: must be a list of at least one model, as '
             '["MLP"]; got []')
    _require(self.seeds and all(
        type(seed) is int and 0 <= seed <= MOST_SEED for seed in self.seeds)
             and len(set(self.seeds)) == len(self.seeds),
             'seeds: must be a list of different whole numbers from 0 to '
             f'{MOST_SEED}; got {_cut(self.seeds)}')


_KINDS = {'int': ((int,), 'a whole number'), 'str': ((str,), 'a text'),
          'float': ((int, float), 'a number'), 'list': ((list,), 'a list'),
          'bool': ((bool,), 'true or false'),
          'dict': ((dict,), 'an object of names and values')}


def _require_kind(field: dataclasses.Field, value: Any, where: str) -> None:
  kind = field.type.replace('Optional[', '').rstrip(']')
  if kind != 'Any':
    types, what = _KINDS[kind]
    _require(type(value) in types and (
        type(value) is not float or math.isfinite(value)),
             f'{where}: must be {what}; got {_cut(value)}')


def _filled(cls: Callable, given: Any, where: str) -> Any:
  """An object of the file as a dataclass; raises UserError after `where`."""
  _require(isinstance(given, dict),
           f'{where}: must be an object; got {_cut(given)}')
  fields = {field.name: field for field in dataclasses.fields(cls)}
  for key, value in given.items():
    _require(key in fields, f'{where}: there is no key {key!r}; '
             f'{_hint(key, fields)}the keys are {", ".join(fields)}')
    _require_kind(fields[key], value, f'{where}: {key}')
  try:
    return cls(**given)
  except UserError as error:
    raise UserError(f'{where}: {error}') from error
  except TypeError as error:  # ... missing 1 required positional argument ...
    names = ' and '.join(re.findall("'.*?'", str(error)))
    raise UserError(f'{where}: the key {names} is missing') from error


# ------------------------------------------------------------------- the grid


@dataclasses.dataclass(frozen=True)
class Configuration:
  """A model's class, its arguments, and flags of `train`."""
  model: str
  kwargs: dict[str, Any]
  settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelSpace:
  """One entry of "models", with what is given for all models."""
  name: str  # Class of the model.
  # ('kwargs' or 'settings', name) -> list of values, or Range.
  values: dict[tuple[str, str], Any]

  def configuration(self, chosen: Iterable[Any]) -> Configuration:
    """The configuration with one value for each key."""
    parts = {'kwargs': {}, 'settings': {}}
    for (part, name), value in zip(self.values, chosen):
      parts[part][name] = value
    return Configuration(self.name, **parts)


@dataclasses.dataclass(frozen=True)
class Grid:
  """A file that was read; `data_root` is a full path."""
  path: str
  task: str
  models: tuple[ModelSpace, ...]
  seeds: tuple[int, ...] = (0,)
  data_root: str = ''
  search: Search = Search()
  prune: Optional[Prune] = None  # None: every trial has all its epochs.
  goal: str = 'opa'

  @property
  def highest_is_best(self) -> bool:
    return not self.goal.startswith('top')

  def configurations(self) -> Iterator[Configuration]:
    """All of a grid, in the order of the file."""
    for model in self.models:
      yield from map(model.configuration,
                     itertools.product(*model.values.values()))

  def drawn(self, trial: Any) -> Configuration:
    """The configuration that Optuna's `trial` draws."""
    place = 0
    if len(self.models) > 1:
      place = trial.suggest_categorical('model', list(range(len(self.models))))
    model, chosen = self.models[place], []
    for key, values in model.values.items():
      # A name may mean something else for another model.
      name = f'models[{place}].{".".join(key)}'
      if isinstance(values, Range):
        chosen.append(values.drawn(trial, name))
      elif len(values) == 1:
        chosen.append(values[0])
      else:  # Optuna's categories are numbers and texts; ours may be lists.
        chosen.append(json.loads(trial.suggest_categorical(
            name, [json.dumps(value, sort_keys=True) for value in values])))
    return model.configuration(chosen)

  @property
  def num_trials(self) -> int:
    number = self.search.configurations or sum(
        math.prod(map(len, model.values.values())) for model in self.models)
    return number * len(self.seeds)

  @property
  def study_name(self) -> str:
    """Trials of one study are compared: by a search, and by pruning."""
    content = [self.task, self.data_root, self.goal, self.prune]
    if self.search.method != 'grid':
      content += [self.seeds, self.models]
    content_hash = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    return f'{self.search.method} {content_hash}'


def read(path: str) -> Grid:
  """Reads and checks a file.

  Raises:
    UserError: it cannot be read, has an unknown key, model or argument, or a
      value that no training takes; names file and key.
  """
  found = parsed(path, files.read_json(files.full_path(path)))
  for place, model in enumerate(found.models):
    _check_model(found, model, f'{path}: models[{place}]')
  return found


def parsed(path: str, given: Any) -> Grid:
  """The grid of a file's JSON; models and settings are not checked yet.

  Raises:
    UserError: it is not a grid, or asks for too many trials.
  """
  file = _filled(_File, given, path)
  search = _filled(Search, file.search, f'{path}: search')
  data_root = (SETTINGS[file.task].data_root if file.data_root is None
               else file.data_root)
  prune = file.prune and _filled(
      Prune, {} if file.prune is True else file.prune, f'{path}: prune')
  found = Grid(
      path, file.task,
      tuple(_space(file, entry, f'{path}: models[{place}]',
                   search.method != 'grid')
            for place, entry in enumerate(file.models)),
      tuple(file.seeds), files.full_path(
          files.require_path(f'{path}: data_root', data_root)),
      search, prune or None, file.goal)
  _require(found.num_trials <= MOST_TRIALS,
           f'{path}: asks for {found.num_trials:,} trials; {MOST_TRIALS:,} are '
           'allowed. Give fewer values, or let a "search" draw from them')
  return found


def _space(file: _File, entry: Any, where: str, is_search: bool) -> ModelSpace:
  model = _filled(
      _Model, {'model': entry} if isinstance(entry, str) else entry, where)
  return ModelSpace(model.model, {
      (part, name): _values(value, f'{where}.{part}.{name}', is_search)
      for part in ('kwargs', 'settings')
      for name, value in {**getattr(file, part), **getattr(model, part)}.items()
  })


def _values(given: Any, where: str, is_search: bool) -> Any:
  """The values of one argument: a list, or for a search a `Range`."""
  if isinstance(given, dict):
    _require(set(given) & {'min', 'max'}, f'{where}: is not a range, which has '
             'min and max; write an object that is itself the value as [{...}]')
    _require(is_search, f'{where}: only a "search" draws from a range; list '
             'the values of a grid')
    return _filled(Range, given, where)
  if not isinstance(given, list):
    return [given]
  texts = [json.dumps(value, sort_keys=True) for value in given]
  _require(given and len(set(texts)) == len(texts), f'{where}: must list at '
           f'least one value, and each once; got {_cut(given)}')
  return given


# ------------------------------------------------------- models and settings


def _check_model(grid: Grid, model: ModelSpace, where: str) -> None:
  """Tries every value by itself; raises a UserError that names the key.

  What only the model knows about a value shows when its trial starts.
  """
  settings = SETTINGS[grid.task]
  for (part, name), values in model.values.items():
    if part == 'settings':
      _check_setting(settings, name, values, f'{where}.settings.{name}')
  models_py = model.values.get(('settings', 'models_py'), [''])[0]
  try:
    load_models.class_taking(
        model.name, [name for part, name in model.values if part == 'kwargs'],
        settings(models_py=models_py).models_file)
  except UserError as error:
    text = re.sub(r'^--\w+: ', '', str(error))  # Not a flag here.
    raise UserError(f'{where}: {text}') from error


def _check_setting(settings: type, name: str, values: Any, where: str) -> None:
  """Raises UserError unless flags of `train` take the values."""
  fields = {field.name: field for field in dataclasses.fields(settings)}
  _require(name not in OWN_SETTINGS,
           f'{where}: cannot be set here: {OWN_SETTINGS.get(name)}')
  _require(name in fields, f'{where}: train has no such flag; '
           + (_hint(name, fields) or f'it has {", ".join(fields)}'))
  if isinstance(values, Range):  # If the ends are allowed, all are.
    values = [values.min, values.max]
  _require(name not in FIXED_SETTINGS or len(values) == 1,
           f'{where}: must be one value')
  for value in values:
    _require_kind(fields[name], value, where)
    try:
      settings(**{name: value})
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
