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

Only "models" must be there. A model's own kwargs and settings go before those
of all. A configuration is a model with values of them; a trial is one with a
seed and a data root. `ranges` has the forms of values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, Optional, Union

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError, did_you_mean, shortened
from tpu_graphs_ext.host.settings import MOST_SEED, TrainSettings
from tpu_graphs_ext.layout.settings import LayoutTrainSettings
from tpu_graphs_ext.sweep import ranges

SETTINGS = {'tile': TrainSettings, 'layout': LayoutTrainSettings}
# Each takes a second at least, and an entry in memory.
MOST_TRIALS = 100_000
METHODS = ('grid', 'random', 'bayes')
# What a sweep can look for, by task: of the validation split, the mean over
# its kernels. OPA and Kendall's tau shall be high, slowdowns low.
GOALS = {'tile': ('opa', 'top1', 'top5', 'top10'),
         'layout': ('opa', 'kendall', 'top1', 'top10', 'top100')}
_HIGH = ('opa', 'kendall')

_KEYS = ('task', 'models', 'kwargs', 'settings', 'seeds', 'data_roots',
         'search', 'prune', 'goal')
_MODEL_KEYS = ('model', 'kwargs', 'settings')
# Settings that each trial is given by the sweep, and where it has them from.
OWN_SETTINGS = {
    'model': '"models"', 'model_kwargs_json': '"kwargs"', 'seed': '"seeds"',
    'data_root': '"data_roots"', 'out_dir': '--out', 'run_id': 'the trial',
    'results_csv': '--out', 'resume': 'the sweep', 'tensorboard': 'nobody',
    'csv_log': 'nobody', 'plot': 'nobody'}
# Those that say where things lie, which no two trials may have apart.
FIXED_SETTINGS = ('cache_dir', 'models_py')


@dataclasses.dataclass(frozen=True)
class ModelSpace:
  """One entry of "models", with what is said of all models.

  Attributes:
    name: class of the model.
    kwargs: name -> its values.
    settings: name -> its values.
    own: names, as 'kwargs.hidden_dim', that the entry itself says.
  """
  name: str
  kwargs: dict[str, ranges.Values]
  settings: dict[str, ranges.Values]
  own: frozenset

  def values(self) -> Iterator[tuple[str, str, ranges.Values]]:
    """('kwargs' or 'settings', name, values) of all, in the file's order."""
    for part in ('kwargs', 'settings'):
      for name, values in getattr(self, part).items():
        yield part, name, values


@dataclasses.dataclass(frozen=True)
class Configuration:
  """What is tried with each seed on each data root.

  Attributes:
    model: class of the model.
    kwargs: its arguments.
    settings: flags of `train` that are given.
  """
  model: str
  kwargs: dict[str, Any]
  settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Search:
  """How configurations are found.

  Attributes:
    method: one of `METHODS`.
    configurations: how many a search draws; None of a grid, which has all.
    seed: of the draws.
  """
  method: str = 'grid'
  configurations: Optional[int] = None
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Prune:
  """When poor trials end early; see `pruning`.

  Attributes:
    min_epochs: so many epochs each trial has.
    factor: of the trials that come to a rung (min_epochs, min_epochs *
      factor, ...) the best of so many go on.
  """
  min_epochs: int = 1
  factor: int = 3


@dataclasses.dataclass(frozen=True)
class Grid:
  """A file that was read.

  Attributes:
    path: of the file.
    task: 'tile' or 'layout'.
    models: at least one.
    seeds: of each configuration.
    data_roots: as given.
    search: how configurations are found.
    prune: None: every trial has all its epochs.
    goal: one of `GOALS`.
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
      parts = list(model.values())
      for chosen in itertools.product(*(values.points()
                                        for _, _, values in parts)):
        yield configuration(model, chosen)

  @property
  def num_configurations(self) -> int:
    if self.search.configurations is not None:
      return self.search.configurations
    total = 0
    for model in self.models:
      points = 1
      for _, _, values in model.values():
        points *= len(values.points())
      total += points
    return total

  @property
  def num_trials(self) -> int:
    return self.num_configurations * len(self.seeds) * len(self.data_roots)

  @property
  def space_hash(self) -> str:
    """Of what a search draws from, and what it looks for."""
    content = ([(model.name, list(model.values())) for model in self.models],
               self.search.method, self.seeds, self.data_roots, self.goal)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def configuration(model: ModelSpace, chosen: Union[list, tuple]
                  ) -> Configuration:
  """That of one value each, in the order of `model.values()`."""
  parts = {'kwargs': {}, 'settings': {}}
  for (part, name, _), value in zip(model.values(), chosen):
    parts[part][name] = value
  return Configuration(model.name, **parts)


def read(path: str) -> Grid:
  """Reads and checks a file.

  Raises:
    UserError: it cannot be read, has an unknown key, model or argument, or a
      value that no training takes; names file and key.
  """
  full = files.full_path(path)
  try:
    with files.open_ordinary(full) as file:
      text = file.read()
  except OSError as error:
    raise files.cannot_be_read(path, error) from error
  given = files.parse_json(text, path)
  if not isinstance(given, dict):
    raise UserError(f'{path}: must be a JSON object, as {{"models": ["MLP"]}}; '
                    f'got a {type(given).__name__}')
  found = _Reader(path, given).grid()
  if found.num_trials > MOST_TRIALS:
    raise UserError(f'{path}: asks for {found.num_trials:,} trials; '
                    f'{MOST_TRIALS:,} are allowed. Give fewer values, or let a '
                    '"search" draw from them')
  from tpu_graphs_ext.sweep import checks  # It takes TensorFlow to look.
  checks.check(found)
  return found


class _Reader:
  """Reads one file's object; each method raises UserErrors."""

  def __init__(self, path: str, given: dict[str, Any]):
    self._path, self._given = path, given
    self._require_known(given, _KEYS, '')
    self._task = self._choice('task', 'tile', tuple(SETTINGS))
    self._search = self._read_search()

  def grid(self) -> Grid:
    default_root = [field.default for field in dataclasses.fields(
        SETTINGS[self._task]) if field.name == 'data_root']
    roots = self._list('data_roots', default_root, str, 'paths of data roots')
    for root in roots:
      files.require_path(f'{self._path}: data_roots', root)
    seeds = self._list('seeds', [0], int, 'whole numbers')
    if not all(0 <= seed <= MOST_SEED for seed in seeds):
      raise self._fault('seeds', f'must be from 0 to {MOST_SEED}; got {seeds}')
    return Grid(
        self._path, self._task, self._models(), seeds,
        tuple(map(files.full_path, roots)), self._search, self._prune(),
        self._choice('goal', 'opa', GOALS[self._task]))

  def _fault(self, key: str, text: str) -> UserError:
    return UserError(f'{self._path}: {key}: {text}')

  def _require_known(self, given: dict, known: tuple, where: str) -> None:
    for key in given:
      if key not in known:
        hint = did_you_mean(key, list(known))
        raise UserError(
            f'{self._path}: there is no key {where + key!r}; {hint}'
            f'{" " if hint else ""}the keys are {", ".join(known)}')

  def _choice(self, key: str, default: str, known: tuple[str, ...],
              where: str = '', given: Optional[dict] = None) -> str:
    value = (self._given if given is None else given).get(key, default)
    if value not in known:
      hint = did_you_mean(str(value), list(known))
      raise self._fault(where + key, f'must be one of {", ".join(known)}; got '
                        f'{value!r}{"; " if hint else ""}{hint}')
    return value

  def _list(self, key: str, default: list, kind: type, what: str) -> tuple:
    given = self._given.get(key, default)
    if not isinstance(given, list) or not given or not all(
        type(value) is kind for value in given):
      raise self._fault(key, f'must be a list of {what}; got '
                        f'{json.dumps(given)[:100]}')
    if len(set(given)) < len(given):
      raise self._fault(key, f'has one of {json.dumps(given)[:100]} twice')
    return tuple(given)

  def _object(self, key: str, given: dict, where: str = '') -> dict:
    value = given.get(key, {})
    if not isinstance(value, dict):
      raise self._fault(where + key, 'must be an object of names and values; '
                        f'got {json.dumps(value)[:100]}')
    return value

  def _number(self, key: str, given: dict, default: Any, least: int,
              where: str) -> Any:
    value = given.get(key, default)
    optional = value is None and default is None
    if not optional and (type(value) is not int or value < least):
      raise self._fault(where + key, f'must be a whole number of at least '
                        f'{least}; got {value!r}')
    return value

  def _read_search(self) -> Search:
    given = self._object('search', self._given)
    self._require_known(given, ('method', 'configurations', 'seed'), 'search.')
    method = self._choice('method', 'grid', METHODS, 'search.', given)
    number = self._number('configurations', given, None, 1, 'search.')
    if (method == 'grid') != (number is None):
      raise self._fault('search.configurations', (
          'a grid has all; leave it out' if number else
          f'how many shall {method!r} try? Give a number'))
    seed = self._number('seed', given, 0, 0, 'search.')
    if not 0 <= seed <= MOST_SEED:
      raise self._fault('search.seed', f'must be at most {MOST_SEED}')
    return Search(method, number, seed)

  def _prune(self) -> Optional[Prune]:
    if self._given.get('prune') in (None, False):
      return None
    given = ({} if self._given['prune'] is True
             else self._object('prune', self._given))
    self._require_known(given, ('min_epochs', 'factor'), 'prune.')
    return Prune(self._number('min_epochs', given, 1, 1, 'prune.'),
                 self._number('factor', given, 3, 2, 'prune.'))

  def _models(self) -> tuple[ModelSpace, ...]:
    given = self._given.get('models')
    if not isinstance(given, list) or not given:
      raise self._fault('models', 'must be a list of at least one model, as '
                        f'["MLP"]; got {json.dumps(given)[:100]}')
    return tuple(self._model(entry, f'models[{place}]')
                 for place, entry in enumerate(given))

  def _model(self, entry: Any, where: str) -> ModelSpace:
    if isinstance(entry, str):
      entry = {'model': entry}
    if not isinstance(entry, dict) or not isinstance(entry.get('model'), str):
      raise self._fault(where, 'must be the name of a model, or an object '
                        'with "model", "kwargs" and "settings"; got '
                        f'{json.dumps(entry)[:100]}')
    self._require_known(entry, _MODEL_KEYS, where + '.')
    parts, own = {}, set()
    for part in ('kwargs', 'settings'):
      parts[part] = {
          name: self._values(value, f'{part}.{name}')
          for name, value in self._object(part, self._given).items()}
      for name, value in self._object(part, entry, where + '.').items():
        parts[part][name] = self._values(value, f'{where}.{part}.{name}')
        own.add(f'{part}.{name}')
    for name, values in parts['settings'].items():
      self._check_setting(name, values)
    return ModelSpace(entry['model'], own=frozenset(own), **parts)

  def _values(self, given: Any, key: str) -> ranges.Values:
    return ranges.parsed(given, f'{self._path}: {key}',
                         self._search.method != 'grid')

  def _check_setting(self, name: str, values: ranges.Values) -> None:
    known = [field.name for field in dataclasses.fields(SETTINGS[self._task])]
    if name in OWN_SETTINGS:
      raise self._fault(f'settings.{name}', 'is not for a grid to set; the '
                        f'trials have it from {OWN_SETTINGS[name]}')
    free = [other for other in known if other not in OWN_SETTINGS]
    if name not in free:
      hint = did_you_mean(name, free)
      raise self._fault(f'settings.{name}', 'train has no such flag; ' + (
          hint or f'it has {shortened(free, len(free))}'))
    if name in FIXED_SETTINGS and len(values.extremes()) > 1:
      raise self._fault(f'settings.{name}', 'must be one value')


def data_folder(root: str, settings: Any) -> str:
  """Where a trial's splits lie: of layouts, those of its collection."""
  if isinstance(settings, LayoutTrainSettings):
    return os.path.join(root, settings.source, settings.search)
  return root
