"""Settings of training, of loading a model and of `stats`, with their help.

The command line makes its flags from the fields. Settings are checked when they
are created. `Training` and `Loading` have what all tasks share; the classes
after them are the tile task's. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.engine import recipes
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import parse_json

LOSS_NAMES = ('ListMLELoss', 'PairwiseHingeLoss', 'MSE')
TEST_MODES = ('predictions', 'metrics')
LR_SCHEDULES = ('constant', 'cosine')

DATA_ROOT = '~/data/tpugraphs/npz/tile/xla'
CACHE_DIR = '~/data/tpugraphs/cache/tile'

# Where the normalisation of features comes from; see `LoadSettings.stats`.
STATS_SOURCES = ('run', 'train', 'all')

# NumPy and TensorFlow take no more than 32 bits.
MOST_SEED = 2 ** 32 - 1

_MODELS = {'tile': '', 'layout': load_models.models_path('layout')}

# Defaults of `predict`'s file and of the number of `rank`'s choices.
CSV_NAME = 'predictions_model_output.csv'
TOP_CONFIGS = 5


def parse_losses(text: str) -> list[tuple[str, float]]:
  """Reads 'ListMLELoss:1,MSE:0.02' into (name, weight) pairs.

  Raises:
    UserError: an unknown name, or a weight that is not positive.
  """
  losses = []
  for part in text.split(','):
    name, colon, weight_text = part.strip().partition(':')
    if name not in LOSS_NAMES:
      raise UserError(
          f'--losses={text}: there is no loss {name!r}; choose from '
          f'{", ".join(LOSS_NAMES)}, each with a weight, as in '
          'ListMLELoss:1,MSE:0.02')
    try:
      weight = float(weight_text)
    except ValueError:
      weight = math.nan
    if not colon or not 0 < weight < math.inf:
      raise UserError(
          f'--losses={text}: the weight of {name} must be a positive number; '
          f'got {weight_text!r}. Write, for example, {name}:1')
    losses.append((name, weight))
  return losses


def parse_model_kwargs(text: str) -> dict[str, Any]:
  """Reads --model_kwargs_json.

  Raises:
    UserError: the text is not a JSON object.
  """
  flag = f'--model_kwargs_json={str(text)[:200]}'
  try:
    if not isinstance(text, str):
      raise UserError(f'is not JSON, but a {type(text).__name__}')
    kwargs = parse_json(text, 'it')
  except UserError as error:
    raise UserError(
        f'{flag}: {error}; write, for example, \'{{"hidden_dim": 128}}\''
    ) from error
  if not isinstance(kwargs, dict):
    raise UserError(
        f'{flag}: must be a JSON object of constructor arguments; got a '
        f'{type(kwargs).__name__}')
  return kwargs


def setting(default: Any, help_text: str,
            choices: Optional[tuple[str, ...]] = None) -> Any:
  """A field with the help, and the choices, of its flag."""
  return dataclasses.field(
      default=default, metadata={'help': help_text, 'choices': choices})


def as_in(settings_class: type, name: str) -> Any:
  """A field with the default and the help of another class."""
  field = settings_class.__dataclass_fields__[name]
  return dataclasses.field(default=field.default, metadata=field.metadata)


def check(name: str, value: Any, holds: bool, rule: str) -> None:
  """Raises UserError with the flag and the rule unless `holds`."""
  if not holds:
    raise UserError(f'--{name}={value}: must be {rule}')


@dataclasses.dataclass(frozen=True)
class Training:
  """Settings of training in every task.

  Each task gives the fields of the first block its own defaults. Fields that
  the baseline's trainers have too keep their names and defaults.
  """
  epochs: int
  early_stop: int
  lr: float
  lr_schedule: str
  clip_norm: float
  configs: int
  batch: int
  model: str
  models_py: str
  out_dir: str
  results_csv: str
  validate_batches: int
  data_root: str
  cache_dir: str
  toy_data: bool

  model_kwargs_json: str = setting(
      '{}', 'constructor arguments of the model, as a JSON object')
  test_mode: str = setting(
      'predictions', 'write the predictions for the test split as a CSV, or '
      'compute its errors', TEST_MODES)
  run_id: str = setting(
      '', 'free text that goes into the hash; empty: seed<S> if --seed is '
      'given')
  seed: Optional[int] = setting(
      None, 'seed of weights and batch order; not given: drawn at random and '
      'kept in the run file')
  resume: bool = setting(
      False, 'continue the interrupted run with these settings; a finished one '
      'is only reported, and without one a new run starts')
  tensorboard: str = setting('', 'folder for TensorBoard logs; empty: none')
  csv_log: str = setting(
      '', 'file for one CSV row for each epoch; empty: none')

  # Set by each task: its name, the `args` of its run files, the end of the
  # default name of --results_csv, and the settings that make runs differ but
  # are not among the `args`, with their defaults.
  TASK: ClassVar[str]
  ARGS: ClassVar[tuple[str, ...]]
  CSV_SUFFIX: ClassVar[str]
  IN_RUN_ID: ClassVar[Mapping[str, Any]]

  def __post_init__(self):
    for name in ('data_root', 'out_dir'):
      files.require_path('--' + name, getattr(self, name))
    for name, least in (('epochs', 1), ('early_stop', 0), ('configs', 2),
                        ('batch', 1)):
      self._check_least(name, least)
    for name in ('lr', 'clip_norm'):
      check(name, getattr(self, name), 0 < getattr(self, name) < math.inf,
            'a positive number')
    for name, known in (('lr_schedule', LR_SCHEDULES),
                        ('test_mode', TEST_MODES)):
      check(name, getattr(self, name), getattr(self, name) in known,
            ' or '.join(known))
    if self.seed is not None:
      check('seed', self.seed, 0 <= self.seed <= MOST_SEED,
            f'0 to {MOST_SEED}')
    _ = self.model_kwargs  # Parsed here, so that bad text is refused at once.

  def _check_least(self, name: str, least: int) -> None:
    value = getattr(self, name)
    check(name, value, value >= least, f'at least {least}')

  @property
  def models_file(self) -> str:
    """The file with the model's class; '' is the package's models.py."""
    return self.models_py or _MODELS[self.TASK]

  @property
  def drawn_configs(self) -> int:
    """Configurations of each kernel or program in a training step."""
    return self.configs

  @functools.cached_property
  def model_kwargs(self) -> dict[str, Any]:
    """Constructor arguments of the model, from `model_kwargs_json`."""
    return parse_model_kwargs(self.model_kwargs_json)

  def baseline_args(self) -> dict[str, Any]:
    """The `args` of a run file: exactly the keys that the baseline stores.

    The default results_csv contains the time, so every call gives another
    hash, as in the baseline. Runs with different seeds, or different settings
    that these keys lack, have different hashes: the default run_id names them.
    """
    run_id = [] if self.seed is None else [f'seed{self.seed}']
    run_id += [f'{name}={getattr(self, name)}'
               for name, default in self.IN_RUN_ID.items()
               if getattr(self, name) != default]
    clock = int(time.time() * 1000)
    named = {
        'batch_size': self.batch,
        'learning_rate': self.lr,
        'results_csv': self.results_csv or os.path.join(
            os.path.expanduser(self.out_dir), f'results_{clock}'
            f'{self.CSV_SUFFIX.format(**vars(self))}.csv'),
        'run_id': self.run_id or '_'.join(run_id)}
    return {key: named[key] if key in named else getattr(self, key)
            for key in self.ARGS}

  def defaults(self) -> dict[str, Any]:
    """The value of each setting that is not given."""
    return {field.name: field.default for field in dataclasses.fields(self)}

  def command(self) -> list[str]:
    """The words of a command line that gives these settings."""
    task = [] if self.TASK == 'tile' else [f'--task={self.TASK}']
    return ['train', *task, *(
        f'--{name}={getattr(self, name)}'
        for name, default in self.defaults().items()
        if getattr(self, name) != default)]


@dataclasses.dataclass(frozen=True)
class Loading:
  """Settings for loading a trained model of any task."""
  stats: str
  data_root: str
  cache_dir: str
  toy_data: bool
  models_py: str

  TASK: ClassVar[str]
  STATS: ClassVar[tuple[str, ...]]  # What `stats` may be.

  def __post_init__(self):
    files.require_path('--data_root', self.data_root)
    check('stats', self.stats, self.stats in self.STATS,
          f'one of {", ".join(self.STATS)}')

  models_file = Training.models_file


# ------------------------------------------------------------- the tile task


def _from_recipe(name: str, help_text: str,
                 choices: Optional[tuple[str, ...]] = None) -> Any:
  """A field that the recipe fills in if it is not given."""
  return setting(None, f'{help_text} ({recipes.values_of(name)})', choices)


@dataclasses.dataclass(frozen=True)
class TrainSettings(Training):
  """Settings of training in the tile task.

  A setting of `recipes` that is not given is None until the recipe fills it in.
  """
  epochs: Optional[int] = _from_recipe(
      'epochs', 'maximum number of passes over the train kernels')
  early_stop: Optional[int] = _from_recipe(
      'early_stop', 'stop after this many epochs without a better validation '
      'OPA; 0: never')
  lr: Optional[float] = _from_recipe('lr', 'learning rate of Adam')
  lr_schedule: Optional[str] = _from_recipe(
      'lr_schedule', 'learning-rate schedule; `cosine` decays to 0 at the last '
      'epoch', LR_SCHEDULES)
  clip_norm: float = setting(
      1e-3, "clip each variable's gradient to this L2 norm")
  configs: int = setting(
      10, 'configurations drawn from each kernel for a training step; kernels '
      'with fewer are left out')
  batch: int = setting(10, 'kernels per training step')
  model: str = setting('EarlyJoinSAGE', 'class in models.py')
  models_py: str = setting(
      '', "file with the model's class; empty: the package's models.py")
  out_dir: str = setting(
      '~/out/tpugraphs_tiles', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>.csv')
  validate_batches: int = setting(
      -1, 'batches to validate on after each epoch; -1: all')
  data_root: str = setting(
      DATA_ROOT, 'folder with the splits train, valid and test')
  cache_dir: str = setting(
      CACHE_DIR, 'folder for memory-mapped copies of the splits; empty: none')
  toy_data: bool = setting(
      False, 'read only the first 100 files of each split')

  eval_every: int = setting(
      5, 'has no effect, as in the baseline: every epoch is validated')
  losses: str = setting(
      'ListMLELoss:1,MSE:0.02',
      f'comma-separated name:weight of {", ".join(LOSS_NAMES)}; a model with '
      'its own loss, such as MyEarlyJoinSAGE, ignores them')
  recipe: str = setting(
      recipes.DEFAULT, 'preset for the flags you leave out; their help lists '
      'its values', tuple(recipes.RECIPES))
  list_size: Optional[int] = _from_recipe(
      'list_size', 'draw this many configurations from each kernel if that is '
      'more than --configs; small kernels repeat theirs')
  members: Optional[int] = _from_recipe(
      'members', 'number of ensemble members trained together; their scores '
      'are averaged (EnsembleRanker)')

  TASK, CSV_SUFFIX = 'tile', ''
  ARGS = (
      'epochs', 'eval_every', 'batch_size', 'configs', 'early_stop', 'losses',
      'learning_rate', 'clip_norm', 'model', 'model_kwargs_json', 'test_mode',
      'out_dir', 'results_csv', 'validate_batches', 'run_id')
  IN_RUN_ID: ClassVar[Mapping[str, Any]] = {
      name: recipes.RECIPES[recipes.DEFAULT][name]
      for name in ('lr_schedule', 'list_size', 'members')}

  def __post_init__(self):
    for name, value in recipes.recipe(self.recipe).items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    super().__post_init__()
    for name, least in (('list_size', 0), ('members', 1)):
      self._check_least(name, least)
    check('validate_batches', self.validate_batches,
          self.validate_batches == -1 or self.validate_batches >= 1,
          '-1 (all batches) or at least 1')
    _ = self.weighted_losses

  @property
  def drawn_configs(self) -> int:
    return max(self.configs, self.list_size)

  @functools.cached_property
  def weighted_losses(self) -> list[tuple[str, float]]:
    """(name, weight) pairs, from `losses`."""
    return parse_losses(self.losses)

  def defaults(self) -> dict[str, Any]:
    return {**super().defaults(), **recipes.recipe(self.recipe)}


@dataclasses.dataclass(frozen=True)
class LoadSettings(Loading):
  """Settings for loading a trained model of the tile task.

  The data are read if statistics must be computed, or a verb uses a split.
  """
  stats: str = setting(
      'run', 'statistics to normalise features by; run: those in the run file, '
      'or if it has none, as train; train: of the train kernels with at least '
      '--configs configurations, as in training; all: of all train kernels, '
      "as the baseline's evaluation and prediction scripts do",
      STATS_SOURCES)
  data_root: str = as_in(TrainSettings, 'data_root')
  cache_dir: str = as_in(TrainSettings, 'cache_dir')
  toy_data: bool = as_in(TrainSettings, 'toy_data')
  models_py: str = as_in(TrainSettings, 'models_py')
  keep_repeats: bool = setting(
      False, "rank duplicate configurations by the model's scores, as the "
      "baseline's scripts do; otherwise they come last")

  TASK, STATS = 'tile', STATS_SOURCES


@dataclasses.dataclass(frozen=True)
class StatsSettings:
  """Kernels whose statistics `stats` prints.

  A trainer with the same flags scales features with these.
  """
  data_root: str = as_in(TrainSettings, 'data_root')
  configs: int = as_in(TrainSettings, 'configs')
  model_kwargs_json: str = as_in(TrainSettings, 'model_kwargs_json')
  cache_dir: str = as_in(TrainSettings, 'cache_dir')
  toy_data: bool = as_in(TrainSettings, 'toy_data')

  def __post_init__(self):
    files.require_path('--data_root', self.data_root)
