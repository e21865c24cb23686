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
configuration with a seed and a data root. A value is one of

  0.001                            this value
  [1, 2, 4]                        each of them
  {"min": 1, "max": 4, "step": 1}  1, 2, 3, 4
  {"min": 1e-4, "max": 1e-2, "count": 3, "log": true}   1e-4, 1e-3, 1e-2
  {"min": 1e-4, "max": 1e-2, "log": true}   any between them; for a search
  {"value": [1, 2]}                a value that is itself a list or an object
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.engine.settings import MOST_SEED, TrainSettings
from tpu_graphs_ext.errors import UserError, did_you_mean, shortened
from tpu_graphs_ext.tasks.layout_settings import LayoutTrainSettings

SETTINGS = {'tile': TrainSettings, 'layout': LayoutTrainSettings}
MOST_TRIALS = 100_000
_MOST_POINTS = 10_000  # Of one range.
METHODS = ('grid', 'random', 'bayes')
# By task: means over the validation split. Slowdowns are best low.
GOALS = {'tile': ('opa', 'top1', 'top5', 'top10'),
         'layout': ('opa', 'kendall', 'top1', 'top10', 'top100')}

_KEYS = ('task', 'models', 'kwargs', 'settings', 'seeds', 'data_roots',
         'search', 'prune', 'goal')
_RANGE = ('min', 'max', 'step', 'count', 'log')
# Settings that the sweep gives each trial, and who sets them instead.
OWN_SETTINGS = {
    'model': '"models" does', 'model_kwargs_json': '"kwargs" does',
    'seed': '"seeds" does', 'data_root': '"data_roots" does',
    'out_dir': '--out does', 'results_csv': '--out does',
    'run_id': 'the sweep does', 'resume': 'the sweep does',
    'tensorboard': 'trials have none', 'csv_log': 'trials have none'}
# Places, which must be the same for all trials.
FIXED_SETTINGS = ('cache_dir', 'models_py')


@dataclasses.dataclass(frozen=True)
class Configuration:
  """A model's class, its arguments, and flags of `train`."""
  model: str
  kwargs: dict[str, Any]
  settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers from `low` to `high` that a search draws; see optuna's suggest.

  Whole numbers if the ends are.
  """
  low: float
  high: float
  step: Optional[float] = None
  log: bool = False

  def drawn(self, trial: Any, name: str) -> Any:
    is_whole = all(type(number) is int for number in (
        self.low, self.high, self.step or 1))
    draw = trial.suggest_int if is_whole else trial.suggest_float
    step = {'step': self.step} if self.step else {}
    return draw(name, self.low, self.high, log=self.log, **step)


@dataclasses.dataclass(frozen=True)
class ModelSpace:
  """One entry of "models", with what is given for all models.

  Attributes:
    name: class of the model.
    values: 'kwargs.<name>' or 'settings.<name>' -> list of values, or Range.
    own: keys of `values` that the entry itself has.
  """
  name: str
  values: dict[str, Any]
  own: frozenset

  def configuration(self, chosen: dict[str, Any]) -> Configuration:
    """The configuration with one value for each key."""
    parts = {'kwargs': {}, 'settings': {}}
    for key, value in chosen.items():
      part, _, name = key.partition('.')
      parts[part][name] = value
    return Configuration(self.name, **parts)


@dataclasses.dataclass(frozen=True)
class Prune:
  """The best 1/factor of the trials continue after `min_epochs` times
  1, factor, factor ** 2, ... epochs.
  """
  min_epochs: int = 1
  factor: int = 3


@dataclasses.dataclass(frozen=True)
class Grid:
  """A file that was read; see there.

  Attributes:
    path: of the file.
    data_roots: full paths.
    method: of `METHODS`.
    draws: number of configurations that a search draws.
    prune: None: every trial has all its epochs.
  """
  path: str
  task: str
  models: tuple[ModelSpace, ...]
  seeds: tuple[int, ...] = (0,)
  data_roots: tuple[str, ...] = ()
  method: str = 'grid'
  draws: int = 0
  search_seed: int = 0
  prune: Optional[Prune] = None
  goal: str = 'opa'

  @property
  def highest_is_best(self) -> bool:
    return not self.goal.startswith('top')

  def configurations(self) -> Iterator[Configuration]:
    """All of a grid, in the order of the file."""
    for model in self.models:
      for chosen in itertools.product(*model.values.values()):
        yield model.configuration(dict(zip(model.values, chosen)))

  def drawn(self, trial: Any) -> Configuration:
    """The configuration that Optuna's `trial` draws."""
    place = 0
    if len(self.models) > 1:
      place = trial.suggest_categorical('model', list(range(len(self.models))))
    model, chosen = self.models[place], {}
    for key, values in model.values.items():
      # A model's own key may mean something else for another model.
      name = f'models[{place}].{key}' if key in model.own else key
      if isinstance(values, Range):
        chosen[key] = values.drawn(trial, name)
      elif len(values) == 1:
        chosen[key] = values[0]
      else:  # Optuna's categories are numbers and texts; ours may be lists.
        chosen[key] = json.loads(trial.suggest_categorical(
            name, [json.dumps(value, sort_keys=True) for value in values]))
    return model.configuration(chosen)

  @property
  def num_trials(self) -> int:
    number = self.draws or sum(
        math.prod(map(len, model.values.values())) for model in self.models)
    return number * len(self.seeds) * len(self.data_roots)

  @property
  def space_hash(self) -> str:
    """Hash of what a search draws from, and of its goal."""
    content = ([(model.name, list(model.values.items()), sorted(model.own))
                for model in self.models], self.method, self.seeds,
               self.data_roots, self.goal)
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
  """The grid of a file's JSON; models and settings are not checked yet.

  Raises:
    UserError: it is not a grid, or asks for too many trials.
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
    self._known(given, _KEYS)
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
    search = self._object('search', self._given)
    self._known(search, ('method', 'configurations', 'seed'), 'search.')
    method = self._choice('search.method', 'grid', METHODS)
    draws = self._number('search.configurations', search, 0, 1)
    self._require((method == 'grid') == (not draws), 'search.configurations',
                  'a grid has all; leave it out' if draws else
                  f'how many shall {method!r} try? Give a number')
    models = self._given.get('models')
    self._require(isinstance(models, list) and models, 'models', 'must be a '
                  f'list of at least one model, as ["MLP"]; got {_cut(models)}')
    return Grid(
        self._path, self._task,
        tuple(self._model(entry, f'models[{place}]', method != 'grid')
              for place, entry in enumerate(models)), seeds,
        tuple(map(files.full_path, roots)), method, draws,
        self._number('search.seed', search, 0, 0), self._prune(),
        self._choice('goal', 'opa', GOALS[self._task]))

  def _require(self, holds: Any, key: str, text: str) -> None:
    if not holds:
      raise UserError(f'{self._path}: {key}: {text}')

  def _known(self, given: dict, known: tuple, where: str = '') -> None:
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
    self._require(isinstance(given, list) and given and all(
        type(value) is kind for value in given), key,
                  f'must be a list of {what}; got {_cut(given)}')
    self._require(len(set(given)) == len(given), key,
                  f'has one of {_cut(given)} twice')
    return tuple(given)

  def _object(self, key: str, given: dict, where: str = '') -> dict:
    value = given.get(key, {})
    self._require(isinstance(value, dict), where + key,
                  f'must be an object of names and values; got {_cut(value)}')
    return value

  def _number(self, key: str, given: dict, default: int, least: int) -> int:
    name = key.partition('.')[2]
    value = given.get(name, default)
    self._require(name not in given or (
        type(value) is int and least <= value <= MOST_SEED), key,
                  f'must be a whole number from {least} to {MOST_SEED}; got '
                  f'{value!r}')
    return value

  def _prune(self) -> Optional[Prune]:
    if self._given.get('prune') in (None, False):
      return None
    given = ({} if self._given['prune'] is True
             else self._object('prune', self._given))
    self._known(given, ('min_epochs', 'factor'), 'prune.')
    return Prune(self._number('prune.min_epochs', given, 1, 1),
                 self._number('prune.factor', given, 3, 2))

  def _model(self, entry: Any, where: str, is_search: bool) -> ModelSpace:
    if isinstance(entry, str):
      entry = {'model': entry}
    self._require(
        isinstance(entry, dict) and isinstance(entry.get('model'), str), where,
        'must be the name of a model, or an object with "model", "kwargs" and '
        f'"settings"; got {_cut(entry)}')
    self._known(entry, ('model', 'kwargs', 'settings'), where + '.')
    found, own = {}, set()
    for part in ('kwargs', 'settings'):
      for given, prefix in ((self._given, ''), (entry, where + '.')):
        for name, value in self._object(part, given, prefix).items():
          key = f'{part}.{name}'
          found[key] = values_of(
              value, f'{self._path}: {prefix}{key}', is_search)
          own |= {key} if prefix else set()
          if part == 'settings':
            self._check_setting(name, found[key])
    return ModelSpace(entry['model'], found, frozenset(own))

  def _check_setting(self, name: str, values: Any) -> None:
    key = f'settings.{name}'
    self._require(name not in OWN_SETTINGS, key, 'cannot be set here: '
                  f'{OWN_SETTINGS.get(name)}')
    free = [other for other in self._fields if other not in OWN_SETTINGS]
    self._require(name in free, key, 'train has no such flag; ' + (
        _hint(name, free) or f'it has {shortened(free, len(free))}'))
    self._require(name not in FIXED_SETTINGS or len(_tested(values)) == 1, key,
                  'must be one value')


def _cut(value: Any) -> str:
  return json.dumps(value)[:100]


# -------------------------------------------------------------------- values


def values_of(given: Any, where: str, is_search: bool) -> Any:
  """The values of one argument: a list, or for a search a `Range`.

  Args:
    given: from the file; see the module.
    where: the file and the key, for messages.
    is_search: a search draws numbers of a range; a grid has them as points.

  Raises:
    UserError: it has none of the forms of a value.
  """
  def require(holds: Any, text: str) -> None:
    if not holds:
      raise UserError(where + text)

  if isinstance(given, list):
    require(given, ': is an empty list; give values, or leave the key out')
    texts = [json.dumps(value, sort_keys=True) for value in given]
    twice = [text for text in texts if texts.count(text) > 1] if len(
        set(texts)) < len(texts) else []
    require(not twice, f': has {(twice or [""])[0]} twice; each value once')
    return given
  if not isinstance(given, dict):
    return [given]
  if set(given) == {'value'}:
    return [given['value']]
  for key in given:
    require(key in _RANGE, f': has the unknown key {key!r}; '
            f'{_hint(key, [*_RANGE, "value"])}a range has '
            f'{", ".join(_RANGE)}; write an object that is itself the value as '
            '{"value": {...}}')
  for key in ('min', 'max'):
    require(key in given, f': is a range without {key!r}; give both ends')
  for key in ('min', 'max', 'step'):
    value = given.get(key, 1)
    require(type(value) in (int, float) and math.isfinite(value),
            f'.{key}: must be a number; got {value!r}')
  low, high, step = given['min'], given['max'], given.get('step')
  count, log = given.get('count'), given.get('log', False)
  require(low < high, f': min must be below max; got {low} and {high}')
  require(isinstance(log, bool), f'.log: must be true or false; got {log!r}')
  require(not log or low > 0,
          f'.min: must be above 0 where log is true; got {low}')
  require(step is None or step > 0, f'.step: must be above 0; got {step}')
  require(step is None or not (log or 'count' in given),
          ': step goes with neither count nor log; leave one of them out')
  if is_search:
    require('count' not in given, '.count: a search draws between min and max; '
            'leave it out, or give "step"')
    return Range(low, high, step, log)
  if step is not None:
    require((high - low) / step <= _MOST_POINTS,
            f'.step: gives more than {_MOST_POINTS} points; got {step}')
    return [low + place * step
            for place in range(1 + math.floor((high - low) / step + 1e-9))]
  require('count' in given, ': how many numbers? A grid needs "count" or '
          '"step"; "search" can draw between min and max')
  require(type(count) is int and 2 <= count <= _MOST_POINTS,
          f'.count: must be a whole number from 2 to {_MOST_POINTS}; got '
          f'{count!r}')
  points = (np.geomspace if log else np.linspace)(low, high, count).tolist()
  if type(low) is type(high) is int:
    return list(dict.fromkeys(map(round, points)))
  return [low, *(float(f'{point:.12g}') for point in points[1:-1]), high]


def _tested(values: Any) -> Sequence[Any]:
  """Values such that if they are allowed, all are."""
  return [values.low, values.high] if isinstance(values, Range) else values


# ------------------------------------------------------- models and settings


def models_py_of(task: str, settings: dict[str, Any]) -> str:
  """The file that a configuration's model comes from."""
  return settings.get('models_py', '') or load_models.models_path(task)


def data_folder(root: str, settings: Any) -> str:
  """Where a trial's splits are; a layout's collection has its own folder."""
  if isinstance(settings, LayoutTrainSettings):
    return os.path.join(root, settings.source, settings.search)
  return root


def _check(grid: Grid) -> None:
  """Tries every value by itself; raises a UserError that names the key.

  What only a model can know about a value, such as that a width must be
  positive, shows when its trial starts.
  """
  for place, model in enumerate(grid.models):
    where = f'models[{place}]'
    models_py = model.values.get('settings.models_py', [''])[0]
    try:
      cls = load_models.model_class(model.name, models_py or (
          load_models.models_path(grid.task) if grid.task == 'layout' else ''))
    except UserError as error:
      text = str(error).replace('--model: ', '')
      raise UserError(f'{grid.path}: {where}: {text}') from error
    allowed, takes_any = load_models.constructor_arguments(cls)
    for key, values in model.values.items():
      part, _, name = key.partition('.')
      full = f'{grid.path}: {f"{where}.{key}" if key in model.own else key}: '
      if part == 'settings':
        for value in _tested(values):
          _check_value(SETTINGS[grid.task], name, value, full)
      elif name not in allowed and not takes_any:
        hint = did_you_mean(name, list(allowed), 1, cutoff=0.4)
        raise UserError(
            f'{full}{model.name} has no such argument; '
            f'{hint}{" " if hint else ""}it takes {", ".join(allowed)}')


_TYPES = {'int': ((int,), 'a whole number'), 'str': ((str,), 'a text'),
          'float': ((int, float), 'a number'),
          'bool': ((bool,), 'true or false')}


def _check_value(settings: type, name: str, value: Any, where: str) -> None:
  """Raises a UserError, after `where`, unless a flag of `train` may be so."""
  field, = [field for field in dataclasses.fields(settings)
            if field.name == name]
  types, problem = _TYPES[field.type.replace('Optional[', '').rstrip(']')]
  if type(value) in types:
    choices = field.metadata['choices']
    problem = '' if not choices or value in choices else (
        f'one of {", ".join(choices)}; {_hint(value, choices)}'.rstrip('; '))
  try:
    if problem:
      raise UserError(f'must be {problem}; got {value!r}')
    settings(**{name: value})
  except UserError as error:
    raise UserError(f'{where}{error}') from error
