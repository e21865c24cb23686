"""What a sweep tries: GRID.json (docs/scale.md), checked before training."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional, Union

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.engine.settings import (
  MOST_SEED,
  broken_rule,
  setting,
  wrong_kind,
)
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TASKS, TILE

_log = logging.getLogger(__name__)
MOST_TRIALS = 100_000
# Settings that the sweep gives each trial.
_OWN_SETTINGS = {'model', 'model_kwargs_json', 'seed', 'data_root', 'out_dir',
                 'results_csv', 'run_id', 'resume', 'tensorboard'}


def goals_of(task: str) -> list[str]:
  """Means over the validation split; slowdowns, as 'top5', are best low."""
  return [*dict.fromkeys(['opa', *(
      measure for measure, _ in TASKS[task].final if measure != 'slowdown')]),
          *(f'top{k}' for k in TASKS[task].top_ks)]


def _require(holds: Any, rule: str, value: Any) -> None:
  if not holds:
    raise UserError(f'{rule}; got {json.dumps(value)[:100]}')


def filled(cls: type, content: Any, where: str) -> Any:
  """An object of the file as a dataclass, or a UserError that begins so."""
  _require(isinstance(content, dict), f'{where}: must be an object', content)
  fields = {field.name: field for field in dataclasses.fields(cls)}
  for key, value in content.items():
    _require(key in fields,
             f'{where}: may only have the keys {", ".join(fields)}', key)
    rule = wrong_kind(fields[key].type, value) or broken_rule(
        value, **fields[key].metadata)
    _require(not rule and (type(value) is not float or math.isfinite(value)),
             f'{where}: {key}: must be {rule or "finite"}', value)
  for name, field in fields.items():
    _require(name in content or field.default is not dataclasses.MISSING
             or field.default_factory is not dataclasses.MISSING,
             f'{where}: must have the key {name}', content)
  try:
    return cls(**content)
  except UserError as error:
    raise UserError(f'{where}: {error}') from error


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers that a search draws, whole if the ends are."""
  min: float
  max: float
  log: bool = False

  def __post_init__(self):
    _require(self.min < self.max and (self.min > 0 or not self.log),
             'min must be below max and, where log is true, above 0',
             [self.min, self.max])


@dataclasses.dataclass(frozen=True)
class Search:
  """How configurations are chosen: all of a grid, or as Optuna draws them."""
  method: str = setting('grid', 'all, or drawn', ('grid', 'random', 'bayes'))
  configurations: int = 0
  seed: int = setting(0, 'of the draws', least=0, most=MOST_SEED)

  def __post_init__(self):
    _require((self.configurations > 0) == (self.method != 'grid'),
             'configurations must be at least 1; a grid tries all, without it',
             self.configurations)


@dataclasses.dataclass(frozen=True)
class Prune:
  """The best 1/factor go on after min_epochs * factor ** i epochs, i >= 0."""
  min_epochs: int = setting(1, 'of every trial', least=1)
  factor: int = setting(3, 'the best 1/factor go on', least=2)


@dataclasses.dataclass(frozen=True)
class Configuration:
  """A model's class, its arguments, and flags of `train`."""
  model: str
  kwargs: dict = dataclasses.field(default_factory=dict)
  settings: dict = dataclasses.field(default_factory=dict)

  @property
  def text(self) -> str:
    """The same for equal ones, however their objects are ordered."""
    return json.dumps(dataclasses.asdict(self), sort_keys=True)


class ModelSpace(NamedTuple):
  """A model's class; ('kwargs' or 'settings', name) -> values, or a range."""
  name: str
  values: dict[tuple[str, str], Union[list, Range]]

  def configuration(self, chosen: Iterable[Any]) -> Configuration:
    """The configuration with one value for each key."""
    configuration = Configuration(self.name)
    for (part, name), value in zip(self.values, chosen):
      getattr(configuration, part)[name] = value
    return configuration


@dataclasses.dataclass
class Grid:
  """A file, with dataclasses for its objects and a full path as data_root."""
  models: list  # Of `ModelSpace`.
  task: str = setting(TILE.name, 'of all trials', tuple(TASKS))
  kwargs: dict = dataclasses.field(default_factory=dict)
  settings: dict = dataclasses.field(default_factory=dict)
  seeds: list = dataclasses.field(default_factory=lambda: [0])
  data_root: Optional[str] = None
  search: Any = dataclasses.field(default_factory=dict)
  prune: Any = None  # None: every trial has all its epochs.
  goal: str = 'opa'

  def __post_init__(self):
    goals = goals_of(self.task)
    _require(self.goal in goals, f'goal must be one of {", ".join(goals)}',
             self.goal)
    _require(self.seeds and all(
        type(seed) is int and 0 <= seed <= MOST_SEED for seed in self.seeds),
             f'seeds must be a list of whole numbers from 0 to {MOST_SEED}',
             self.seeds)
    self.search = filled(Search, self.search, 'search')
    self.prune = None if self.prune in (None, False) else filled(
        Prune, {} if self.prune is True else self.prune, 'prune')
    self.data_root = files.full_path(files.require_path(
        'data_root', TASKS[self.task].training.data_root
        if self.data_root is None else self.data_root))
    _require(self.models, 'models must be a list of at least one, as ["MLP"]',
             self.models)
    self.models = [self._space(entry, f'models[{place}]')
                   for place, entry in enumerate(self.models)]
    _require(self.num_trials <= MOST_TRIALS, f'at most {MOST_TRIALS:,} trials '
             'are allowed; give fewer values, or let a "search" draw from them',
             self.num_trials)

  def _space(self, entry: Any, where: str) -> ModelSpace:
    model = filled(Configuration, {'model': entry} if isinstance(
        entry, str) else entry, where)
    return ModelSpace(model.model, {
        (part, name): self._values(value, f'{where}.{part}.{name}')
        for part in ('kwargs', 'settings') for name, value in {
            **getattr(self, part), **getattr(model, part)}.items()})

  def _values(self, setting: Any, where: str) -> Union[list, Range]:
    if isinstance(setting, dict):
      _require(self.search.method != 'grid', f'{where}: only a "search" draws '
               'from a range; list the values of a grid, also objects', setting)
      return filled(Range, setting, where)
    if not isinstance(setting, list):
      return [setting]
    _require(setting, f'{where}: must list at least one value', setting)
    return setting

  @property
  def highest_is_best(self) -> bool:
    return not self.goal.startswith('top')

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

  def configurations(self) -> Iterator[Configuration]:
    """All of a grid, in the order of the file."""
    for model in self.models:
      yield from map(model.configuration,
                     itertools.product(*model.values.values()))

  def limit_search(self, path: str) -> None:
    """Lowers the number of configurations to draw to how many there are."""
    asked, there = self.search.configurations, set()
    for model in self.models:
      # Numbers from 0 stand for those of a range.
      numbers = (range(values.max - values.min + 1 if type(values.min) is type(
          values.max) is int else asked)[:asked] if isinstance(
              values, Range) else values for values in model.values.values())
      for chosen in itertools.product(*numbers):
        if len(there) >= asked:
          return
        there.add(model.configuration(chosen).text)
    if len(there) < asked:
      _log.warning('%s: search: configurations: there are only %d, not %d; '
                   'all are tried', path, len(there), asked)
      self.search = dataclasses.replace(
          self.search, configurations=len(there))

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
        ends = values.min, values.max
        draw = (trial.suggest_int if set(map(type, ends)) == {int}
                else trial.suggest_float)
        chosen.append(draw(name, *ends, log=values.log))
      elif len(values) == 1:
        chosen.append(values[0])
      else:  # Optuna's categories are numbers and texts; ours may be lists.
        chosen.append(json.loads(trial.suggest_categorical(
            name, [json.dumps(value, sort_keys=True) for value in values])))
    return model.configuration(chosen)


def read(path: str) -> Grid:
  """Reads a file, and tries every value of a setting by itself.

  A models.py that it names is not run before the first trial.

  Raises UserError, with file and key, if it cannot be read or has an unknown
  key, model or argument, or a value that no training takes.
  """
  grid = filled(Grid, files.read_json(files.full_path(path)), path)
  settings = TASKS[grid.task].training
  for place, model in enumerate(grid.models):
    where = f'{path}: models[{place}]'
    try:
      for (part, name), values in model.values.items():
        if part == 'settings':
          _check_setting(settings, name, values)
      arguments = [name for part, name in model.values if part == 'kwargs']
      paths = model.values.get(('settings', 'models_py'), [''])
      # Workers may have another working folder.
      paths[:] = [each and files.full_path(each) for each in paths]
      for models_py in paths:
        (load_models.require_in_text if models_py else
         load_models.class_taking)(model.name, arguments,
                                   settings(models_py=models_py).models_file)
    except UserError as error:
      raise UserError(f'{where}: {error}') from error
  grid.limit_search(path)
  return grid


def _check_setting(settings: type, name: str, values: Any) -> None:
  """Raises UserError unless flags of `train` take the values."""
  flags = {field.name for field in dataclasses.fields(settings)} - _OWN_SETTINGS
  _require(name in flags, 'settings: must be flags of train that the sweep '
           f'does not set, of {", ".join(sorted(flags))}', name)
  # If the ends of a range are allowed, all of it is.
  for value in ([values.min, values.max] if isinstance(values, Range)
                else values):
    settings(**{name: value})
