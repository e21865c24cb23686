"""Settings of training and of loading a model, which each task completes.

The command line makes its flags from the fields, whose metadata are checked;
`checked` does the same for the arguments of public functions. This module
imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Optional, TypeVar, Union

from tpu_graphs_ext import files
from tpu_graphs_ext.engine.task import Task
from tpu_graphs_ext.errors import UserError

MOST_SEED = 2 ** 32 - 1  # NumPy and TensorFlow take no more than 32 bits.
TOP_CONFIGS = 5  # Default of `rank`.

# Presets of `train --recipe`; a setting that is given wins.
DEFAULT_RECIPE = 'default'  # The baseline's.
RECIPES: dict[str, dict[str, Any]] = {
    name: dict(zip(('epochs', 'early_stop', 'lr', 'lr_schedule', 'list_size',
                    'members'), values))
    for name, values in {
        DEFAULT_RECIPE: (100, 20, 1e-3, 'constant', 0, 1),
        'quick': (18, 0, 2e-3, 'cosine', 32, 1),
        'best': (110, 15, 2e-3, 'cosine', 32, 3)}.items()}


def parse_model_kwargs(text: str) -> dict[str, Any]:
  """The JSON object in --model_kwargs_json, or a UserError."""
  where = f'--model_kwargs_json={text[:200]}'
  kwargs = files.parse_json(text, where)
  if not isinstance(kwargs, dict):
    raise UserError(f'{where}: must be a JSON object of constructor arguments '
                    'such as \'{"hidden_dim": 128}\'')
  return kwargs


def setting(default: Any, help: str, choices: Optional[tuple[str, ...]] = None,
            **limits: Any) -> Any:
  """A field with its flag's help, and the limits of `broken_rule`."""
  return dataclasses.field(default=default, metadata={
      'help': help, 'choices': choices, **limits})


def as_in(settings_class: type, name: str, **changes: Any) -> Any:
  """A field of another class, but for its default, help or limits."""
  field = settings_class.__dataclass_fields__[name]
  return setting(**{'default': field.default, **field.metadata, **changes})


# Annotation of a field -> the types of its values, and what to call them.
_KINDS = {'int': ((int,), 'a whole number'), 'str': ((str,), 'a text'),
          'float': ((int, float), 'a number'), 'list': ((list,), 'a list'),
          'bool': ((bool,), 'true or false'),
          'dict': ((dict,), 'an object of names and values')}


def wrong_kind(annotation: Any, value: Any) -> str:
  """What a value must be by a field's annotation; '' if it is that."""
  name = getattr(annotation, '__name__', annotation)
  types, kind = _KINDS.get(re.sub(r'Optional\[|\]', '', name), ((), ''))
  is_left_out = value is None and name.startswith('Optional')
  return '' if is_left_out or type(value) in types else kind


def _plain(value: Any) -> Any:
  """As JSON has it: a path as text, a number of NumPy's as Python's."""
  if getattr(value, 'shape', None) == () and hasattr(value, 'item'):
    return value.item()
  return os.fspath(value) if isinstance(value, os.PathLike) else value


def broken_rule(value: Any, choices: Optional[tuple[str, ...]] = None,
                least: float = -math.inf, most: float = math.inf,
                or_all: bool = False, positive: bool = False, **_: Any) -> str:
  """The rule of a field that a value breaks; '' if it keeps them."""
  if choices:
    return '' if value in choices else ' or '.join(filter(None, choices))
  if positive:
    return '' if 0 < value < math.inf else 'a positive number'
  if least == -math.inf or least <= value <= most or (or_all and value == -1):
    return ''
  return ('-1 (all) or ' if or_all else '') + (
      f'at least {least}' if most == math.inf else f'{least} to {most}')


@dataclasses.dataclass(frozen=True)
class Checked:
  """Raises UserError, with the flag and the rule, for a wrong value."""
  task: ClassVar[Task]  # The one that they are of.

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = _plain(getattr(self, field.name))
      object.__setattr__(self, field.name, value)
      if rule := wrong_kind(field.type, value):
        raise UserError(f'--{field.name}={value!r}: must be {rule}')
      if value is not None and (rule := broken_rule(value, **field.metadata)):
        raise UserError(f'--{field.name}={value}: must be {rule}')
      if field.name in ('data_root', 'out_dir'):
        files.require_path('--' + field.name, value)
    if hasattr(self, 'model_kwargs_json'):
      _ = self.model_kwargs  # So that bad text is refused at once.

  @functools.cached_property
  def model_kwargs(self) -> dict[str, Any]:
    """Constructor arguments of the model, from `model_kwargs_json`."""
    return parse_model_kwargs(self.model_kwargs_json)

  @property
  def models_file(self) -> str:
    """The file with the model's class."""
    return self.models_py or self.task.models_file


@dataclasses.dataclass(frozen=True)
class Training(Checked):
  """Settings of training in every task; names and defaults of the baseline."""
  epochs: int = setting(
      100, 'maximum number of passes over the train split', least=1)
  early_stop: int = setting(
      20, 'stop after this many epochs without a better validation OPA; 0: '
      'never', least=0)
  lr: float = setting(1e-3, 'learning rate of Adam', positive=True)
  lr_schedule: str = setting(
      'constant', 'learning-rate schedule; `cosine` decays to 0 at the last '
      'epoch', ('constant', 'cosine'))
  clip_norm: float = setting(
      1e-3, "clip each variable's gradient to this L2 norm", positive=True)
  configs: int = setting(
      10, 'configurations drawn from each kernel for a training step; kernels '
      'with fewer are left out', least=2)
  batch: int = setting(10, 'kernels per training step', least=1)
  model: str = setting('', 'class in models.py')
  models_py: str = setting(
      '', "file with the model's class; empty: the package's")
  out_dir: str = setting(
      '~/out/tpugraphs', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>.csv')
  validate_batches: int = setting(
      -1, 'batches to validate on after each epoch; -1: all', least=1,
      or_all=True)
  data_root: str = setting(
      '~/data/tpugraphs', 'folder with the splits train, valid and test')
  cache_dir: str = setting(
      '', 'folder for memory-mapped copies of the splits; empty: none')
  toy_data: bool = setting(False, 'read only the first 100 files of each split')
  model_kwargs_json: str = setting(
      '{}', 'constructor arguments of the model, as a JSON object')
  test_mode: str = setting(
      'predictions', 'write the predictions for the test split as a CSV, or '
      'compute its errors', ('predictions', 'metrics'))
  run_id: str = setting(
      '', 'free text that goes into the hash; empty: seed<S> if --seed is '
      'given')
  seed: Optional[int] = setting(
      None, 'seed of weights and batch order; not given: drawn at random and '
      'kept in the run file', least=0, most=MOST_SEED)
  resume: bool = setting(
      False, 'continue the interrupted run with these settings; a finished one '
      'is only reported, and without one a new run starts')
  tensorboard: str = setting('', 'folder for TensorBoard logs; empty: none')

  # Set by each task.
  ARGS: ClassVar[tuple[str, ...]]  # The `args` of its run files.
  CSV_SUFFIX: ClassVar[str] = ''  # Of the default name of --results_csv.

  @property
  def drawn_configs(self) -> int:
    """Configurations of each kernel or program in a training step."""
    return max(self.configs, getattr(self, 'list_size', 0))

  def baseline_args(self, milliseconds: int = 0) -> dict[str, Any]:
    """The `args` of a run file: exactly the keys that the baseline stores.

    The default results_csv contains the time, `milliseconds` or now. The
    default run_id names the seed, and settings that these keys lack.
    """
    milliseconds = milliseconds or int(time.time() * 1000)
    run_id = [] if self.seed is None else [f'seed{self.seed}']
    for name in ('lr_schedule', 'list_size', 'members'):
      default = RECIPES[DEFAULT_RECIPE][name]
      if (value := getattr(self, name, default)) != default:
        run_id.append(f'{name}={value}')
    named = {
        'batch_size': self.batch, 'learning_rate': self.lr,
        'results_csv': self.results_csv or os.path.join(
            os.path.expanduser(self.out_dir), f'results_{milliseconds}'
            f'{self.CSV_SUFFIX.format(**vars(self))}.csv'),
        'run_id': self.run_id or '_'.join(run_id)}
    return {key: named[key] if key in named else getattr(self, key)
            for key in self.ARGS}


@dataclasses.dataclass(frozen=True)
class Loading(Checked):
  """Settings for loading a trained model of any task."""
  stats: str = setting(
      'run', 'statistics to normalise features by; run: those in the run file, '
      'or if it has none, as train; train: of the train split in --data_root, '
      'as in training', ('run', 'train'))
  data_root: str = as_in(Training, 'data_root')
  cache_dir: str = as_in(Training, 'cache_dir')
  toy_data: bool = as_in(Training, 'toy_data')
  models_py: str = as_in(
      Training, 'models_py', help="file with the model's class; empty: the one "
      "that it was trained with, else the package's. For several models "
      'several, separated by commas')

  STATS: ClassVar[tuple[str, ...]] = ('run', 'train')
  keep_repeats: ClassVar[bool] = False  # See `scoring.Scores`.

  def for_each(self, count: int) -> list[Loading]:
    """The settings of each of several models: `models_py` may name several.

    Raises UserError unless that is one file, or as many as models.
    """
    paths = self.models_py.split(',')
    if len(paths) not in (1, count):
      raise UserError(
          f'--models_py={self.models_py}: names {len(paths)} files for {count} '
          'models; name one, or one for each in their order')
    return [dataclasses.replace(self, models_py=path)
            for path in (paths if len(paths) > 1 else count * paths)]


# ------------------------------------------------------------------- arguments

_Function = TypeVar('_Function', bound=Callable)
# Numbers among arguments count something, or limit it.
_LIMITS = {int: {'least': 1}, float: {'positive': True}, str: {}, bool: {}}


def checked(function: _Function) -> _Function:
  """A public function that takes only what its annotations say.

  Raises UserError with the argument, its value and the rule. A path may be of
  `pathlib`, a number of NumPy, and a list anything with such elements.
  """
  signature = inspect.signature(function)
  hints = functools.cache(lambda: typing.get_type_hints(function))

  @functools.wraps(function)
  def call(*args, **kwargs):
    bound = signature.bind(*args, **kwargs)
    for name, value in bound.arguments.items():
      if value is not (default := signature.parameters[name].default):
        value, rule = _taken(value, hint := hints().get(name, Any))
        if rule:
          raise UserError(f'{name}={value!r:.100}: must be {rule}')
        if hint is str and default != '' and not value.strip():
          raise UserError(f'{name} is empty; is the variable for it set?')
        bound.arguments[name] = value
    return function(*bound.args, **bound.kwargs)

  return call


def _taken(value: Any, hint: Any) -> tuple[Any, str]:
  """(the value as an annotation has it, the rule that it breaks or '')."""
  value = _plain(value)
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if origin is Union and inner[1:] == (type(None),):
    return (None, '') if value is None else _taken(value, inner[0])
  if hint is Any or inner[:1] == (Any,) or origin is Union:
    return value, ''
  if origin is Sequence:
    is_list = isinstance(value, Iterable) and not isinstance(
        value, (str, bytes, Mapping))
    values = list(value) if is_list else [None]
    taken = [_taken(each, inner[0])  # Of all lists those of numbers need one.
             for each in values or [None] * (inner[0] is int)]
    rule = next((f'a list, each {rule}' for _, rule in taken if rule), '')
    return value if rule else [each for each, _ in taken], rule
  if hint in _LIMITS:
    return value, wrong_kind(hint, value) or broken_rule(value, **_LIMITS[hint])
  kinds = (isinstance(hint, type) and issubclass(hint, Checked)
           and hint.__subclasses__()) or [origin or hint]
  return value, '' if isinstance(value, origin or hint) else (
      'a ' + ' or '.join(kind.__name__ for kind in kinds))
