"""What a sweep tries: GRID.json, read and checked before anything is trained.

  {"models": ["MyEarlyJoinSAGE",
              {"model": "EarlyJoinSAGE", "kwargs": {"hidden_dim": [32, 64]}}],
   "kwargs": {"op_embed_dim": 16},
   "settings": {"epochs": 20, "lr": {"min": 1e-4, "max": 1e-2, "log": true}},
   "seeds": [0, 1, 2],
   "data_roots": ["~/data/tpugraphs/npz/tile/xla"],
   "search": {"method": "bayes", "configurations": 30},
   "prune": {"min_epochs": 3, "factor": 3},
   "goal": "opa"}

Only "models" is required. A model's own kwargs and settings override those of
all models. A configuration is a model with one value for each; a trial is a
configuration with a seed and a data root. `values` has the forms of a value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.engine.settings import MOST_SEED, TrainSettings
from tpu_graphs_ext.errors import UserError, did_you_mean, shortened
from tpu_graphs_ext.sweep import values
from tpu_graphs_ext.sweep.values import Values
from tpu_graphs_ext.tasks.layout_settings import LayoutTrainSettings

SETTINGS = {'tile': TrainSettings, 'layout': LayoutTrainSettings}
# Each takes a second at least, and an entry in memory.
MOST_TRIALS = 100_000
METHODS = ('grid', 'random', 'bayes')
# What a sweep can look for, by task: means over the kernels of the validation
# split. OPA and Kendall's tau are best high, slowdowns low.
GOALS = {'tile': ('opa', 'top1', 'top5', 'top10'),
         'layout': ('opa', 'kendall', 'top1', 'top10', 'top100')}
_HIGH = ('opa', 'kendall')

_KEYS = ('task', 'models', 'kwargs', 'settings', 'seeds', 'data_roots',
         'search', 'prune', 'goal')
_MODEL_KEYS = ('model', 'kwargs', 'settings')
# Settings that the sweep gives each trial, and where it has them from.
OWN_SETTINGS = {
    'model': '"models"', 'model_kwargs_json': '"kwargs"', 'seed': '"seeds"',
    'data_root': '"data_roots"', 'out_dir': '--out', 'run_id': 'the trial',
    'results_csv': '--out', 'resume': 'the sweep', 'tensorboard': 'nobody',
    'csv_log': 'nobody', 'plot': 'nobody'}
# Those that say where things lie, in which no two trials may differ.
FIXED_SETTINGS = ('cache_dir', 'models_py')


@dataclasses.dataclass(frozen=True)
class Configuration:
  """A model's class, its arguments, and flags of `train` that are given."""
  model: str
  kwargs: dict[str, Any]
  settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelSpace:
  """One entry of "models", with what is said of all models.

  Attributes:
    name: class of the model.
    values: 'kwargs.<name>' or 'settings.<name>' -> its values.
    own: keys of `values` that the entry itself has.
  """
  name: str
  values: dict[str, Values]
  own: frozenset

  def configuration(self, chosen: dict[str, Any]) -> Configuration:
    """That of one value for each key."""
    parts = {'kwargs': {}, 'settings': {}}
    for key, value in chosen.items():
      part, _, name = key.partition('.')
      parts[part][name] = value
    return Configuration(self.name, **parts)


@dataclasses.dataclass(frozen=True)
class Search:
  """A method of `METHODS`; how many configurations to draw (None: the grid)."""
  method: str = 'grid'
  configurations: Optional[int] = None
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Prune:
  """The best 1/factor of the trials continue after `min_epochs` times
  1, factor, factor ** 2, ... epochs.
  """
  min_epochs: int = 1
  factor: int = 3


@dataclasses.dataclass(frozen=True)
class Grid:
  """A file that was read; the attributes are its keys.

  Attributes:
    path: of the file.
    data_roots: full paths.
    prune: None: every trial has all its epochs.
  """
  path: str
  task: str
  models: tuple[ModelSpace, ...]
  seeds: tuple[int, ...]
  data_roots: tuple[str, ...]
  search: Search
  prune: Optional[Prune]
  goal: str

  @property
  def highest_is_best(self) -> bool:
    return self.goal in _HIGH

  def configurations(self) -> Iterator[Configuration]:
    """All of a grid, in the order of the file."""
    for model in self.models:
      for chosen in itertools.product(*(
          choices.values for choices in model.values.values())):
        yield model.configuration(dict(zip(model.values, chosen)))

  def drawn(self, trial: Any) -> Configuration:
    """One that Optuna's `trial` draws."""
    place = 0
    if len(self.models) > 1:
      place = trial.suggest_categorical('model', list(range(len(self.models))))
    model = self.models[place]
    # A model's own key may mean something else for another model.
    return model.configuration({
        key: chosen.drawn(
            trial, f'models[{place}].{key}' if key in model.own else key)
        for key, chosen in model.values.items()})

  @property
  def num_trials(self) -> int:
    number = self.search.configurations
    if number is None:
      number = sum(math.prod(len(choices.values)
                             for choices in model.values.values())
                   for model in self.models)
    return number * len(self.seeds) * len(self.data_roots)

  @property
  def space_hash(self) -> str:
    """Of what a search draws from, and of what it looks for."""
    models = [(model.name, list(model.values.items()), sorted(model.own))
              for model in self.models]
    content = (models, self.search.method, self.seeds, self.data_roots,
               self.goal)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def read(path: str) -> Grid:
  """Reads and checks a file.

  Raises:
    UserError: it cannot be read, has an unknown key, model or argument, or a
      value that no training takes; names file and key.
  """
  try:
    with files.open_ordinary(files.full_path(path)) as file:
      text = file.read()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  found = parsed(path, files.parse_json(text, path))
  _check(found)
  return found


def parsed(path: str, given: Any) -> Grid:
  """The grid of a file's JSON; models and settings are not looked at yet.

  Raises:
    UserError: it is none, or asks for too many trials.
  """
  if not isinstance(given, dict):
    raise UserError(f'{path}: must be a JSON object, as {{"models": ["MLP"]}}; '
                    f'got a {type(given).__name__}')
  found = _Reader(path, given).grid()
  if found.num_trials > MOST_TRIALS:
    raise UserError(f'{path}: asks for {found.num_trials:,} trials; '
                    f'{MOST_TRIALS:,} are allowed. Give fewer values, or let a '
                    '"search" draw from them')
  return found


def _hint(name: Any, known: Any) -> str:
  """'did you mean a? ' or ''."""
  hint = did_you_mean(str(name), list(known))
  return f'{hint} ' if hint else ''


class _Reader:
  """Reads one file's object; each method raises UserErrors."""

  def __init__(self, path: str, given: dict[str, Any]):
    self._path, self._given = path, given
    self._require_known(given, _KEYS, '')
    self._task = self._choice('task', 'tile', tuple(SETTINGS))
    self._fields = {field.name: field for field in dataclasses.fields(
        SETTINGS[self._task])}

  def grid(self) -> Grid:
    roots = self._list('data_roots', [self._fields['data_root'].default], str,
                       'paths of data roots')
    for root in roots:
      files.require_path(f'{self._path}: data_roots', root)
    seeds = self._list('seeds', [0], int, 'whole numbers')
    self._require(all(0 <= seed <= MOST_SEED for seed in seeds), 'seeds',
                  f'must be from 0 to {MOST_SEED}; got {seeds}')
    search = self._search()
    return Grid(
        self._path, self._task, self._models(search), seeds,
        tuple(map(files.full_path, roots)), search, self._prune(),
        self._choice('goal', 'opa', GOALS[self._task]))

  def _require(self, holds: bool, key: str, text: str) -> None:
    if not holds:
      raise UserError(f'{self._path}: {key}: {text}')

  def _require_known(self, given: dict, known: tuple, where: str) -> None:
    for key in given:
      if key not in known:
        raise UserError(f'{self._path}: there is no key {where + key!r}; '
                        f'{_hint(key, known)}the keys are {", ".join(known)}')

  def _choice(self, key: str, default: str, known: tuple[str, ...]) -> str:
    outer, _, inner = key.rpartition('.')
    value = self._given.get(outer, self._given).get(inner, default)
    self._require(value in known, key, f'must be one of {", ".join(known)}; '
                  f'got {value!r}; {_hint(value, known)}'.rstrip('; '))
    return value

  def _list(self, key: str, default: list, kind: type, what: str) -> tuple:
    given = self._given.get(key, default)
    shown = json.dumps(given)[:100]
    self._require(
        isinstance(given, list) and given and all(
            type(value) is kind for value in given), key,
        f'must be a list of {what}; got {shown}')
    self._require(len(set(given)) == len(given), key,
                  f'has one of {shown} twice')
    return tuple(given)

  def _object(self, key: str, given: dict, where: str = '') -> dict:
    value = given.get(key, {})
    self._require(isinstance(value, dict), where + key, 'must be an object of '
                  f'names and values; got {json.dumps(value)[:100]}')
    return value

  def _number(self, key: str, given: dict, default: Any, least: int) -> Any:
    value = given.get(key.partition('.')[2], default)
    is_fine = type(value) is int and least <= value <= MOST_SEED
    self._require(is_fine or value is default, key, 'must be a whole number '
                  f'from {least} to {MOST_SEED}; got {value!r}')
    return value

  def _search(self) -> Search:
    given = self._object('search', self._given)
    self._require_known(given, ('method', 'configurations', 'seed'), 'search.')
    method = self._choice('search.method', 'grid', METHODS)
    number = self._number('search.configurations', given, None, 1)
    self._require((method == 'grid') == (number is None),
                  'search.configurations',
                  'a grid has all; leave it out' if number else
                  f'how many shall {method!r} try? Give a number')
    return Search(method, number, self._number('search.seed', given, 0, 0))

  def _prune(self) -> Optional[Prune]:
    if self._given.get('prune') in (None, False):
      return None
    given = ({} if self._given['prune'] is True
             else self._object('prune', self._given))
    self._require_known(given, ('min_epochs', 'factor'), 'prune.')
    return Prune(self._number('prune.min_epochs', given, 1, 1),
                 self._number('prune.factor', given, 3, 2))

  def _models(self, search: Search) -> tuple[ModelSpace, ...]:
    given = self._given.get('models')
    self._require(isinstance(given, list) and given, 'models', 'must be a list '
                  'of at least one model, as ["MLP"]; got '
                  f'{json.dumps(given)[:100]}')
    return tuple(self._model(entry, f'models[{place}]', search)
                 for place, entry in enumerate(given))

  def _model(self, entry: Any, where: str, search: Search) -> ModelSpace:
    if isinstance(entry, str):
      entry = {'model': entry}
    self._require(
        isinstance(entry, dict) and isinstance(entry.get('model'), str), where,
        'must be the name of a model, or an object with "model", "kwargs" and '
        f'"settings"; got {json.dumps(entry)[:100]}')
    self._require_known(entry, _MODEL_KEYS, where + '.')
    found, own = {}, set()
    for part in ('kwargs', 'settings'):
      for given, prefix in ((self._given, ''), (entry, where + '.')):
        for name, value in self._object(part, given, prefix).items():
          key = f'{part}.{name}'
          found[key] = values.parsed(value, f'{self._path}: {prefix}{key}',
                                     search.method != 'grid')
          own |= {key} if prefix else set()
          if part == 'settings':
            self._check_setting(name, found[key])
    return ModelSpace(entry['model'], found, frozenset(own))

  def _check_setting(self, name: str, chosen: Values) -> None:
    key = f'settings.{name}'
    self._require(name not in OWN_SETTINGS, key, 'is not for a grid to set; '
                  f'the trials have it from {OWN_SETTINGS.get(name)}')
    free = [other for other in self._fields if other not in OWN_SETTINGS]
    self._require(name in free, key, 'train has no such flag; ' + (
        _hint(name, free) or f'it has {shortened(free, len(free))}'))
    self._require(name not in FIXED_SETTINGS or len(chosen.tested()) == 1, key,
                  'must be one value')


def models_py_of(task: str, settings: dict[str, Any]) -> str:
  """The file that a configuration's model comes from."""
  return settings.get('models_py', '') or load_models.models_path(task)


def _check(grid: Grid) -> None:
  """Tries every value by itself; raises a UserError that names the key.

  What only a model can tell of a value, such as that a width must be positive,
  is seen when its trial starts.
  """
  for place, model in enumerate(grid.models):
    where = f'models[{place}]'
    cls = _model_class(grid, model, where)
    allowed, takes_any = load_models.constructor_arguments(cls)
    for key, chosen in model.values.items():
      part, _, name = key.partition('.')
      full = f'{where}.{key}' if key in model.own else key
      if part == 'settings':
        for value in chosen.tested():
          _check_value(grid, name, value, full)
      elif name not in allowed and not takes_any:
        hint = did_you_mean(name, list(allowed), 1, cutoff=0.4)
        raise UserError(
            f'{grid.path}: {full}: {model.name} has no such argument; '
            f'{hint}{" " if hint else ""}it takes {", ".join(allowed)}')


def _model_class(grid: Grid, model: ModelSpace, where: str) -> type:
  models_py = ''
  if 'settings.models_py' in model.values:
    models_py = model.values['settings.models_py'].tested()[0]
  if grid.task == 'layout':
    models_py = models_py or load_models.models_path(grid.task)
  try:
    return load_models.model_class(model.name, models_py)
  except UserError as error:
    text = str(error).replace('--model: ', '')
    raise UserError(f'{grid.path}: {where}: {text}') from error


def _check_value(grid: Grid, name: str, value: Any, key: str) -> None:
  settings_class = SETTINGS[grid.task]
  field, = [field for field in dataclasses.fields(settings_class)
            if field.name == name]
  kinds = {'int': ((int,), 'a whole number'), 'str': ((str,), 'a text'),
           'float': ((int, float), 'a number'),
           'bool': ((bool,), 'true or false')}
  allowed, problem = kinds[field.type.replace('Optional[', '').rstrip(']')]
  if type(value) in allowed:
    problem, choices = '', field.metadata['choices']
    if choices and value not in choices:
      problem = (f'one of {", ".join(choices)}; {_hint(value, choices)}'
                 ).rstrip('; ')
  try:
    if problem:
      raise UserError(f'must be {problem}; got {value!r}')
    settings_class(**{name: value})
  except UserError as error:
    raise UserError(f'{grid.path}: {key}: {error}') from error


def data_folder(root: str, settings: Any) -> str:
  """Where a trial's splits lie: of layouts, those of its collection."""
  if isinstance(settings, LayoutTrainSettings):
    return os.path.join(root, settings.source, settings.search)
  return root
