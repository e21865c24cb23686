"""Settings of training, of loading a model and of `stats`, and their help.

The names are the flags of the command line, which makes them of the fields.
Settings are checked when created. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Iterator
from typing import Any, Optional

from tpu_graphs_ext import files
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.files import parse_json
from tpu_graphs_ext.host import recipes

LOSS_NAMES = ('ListMLELoss', 'PairwiseHingeLoss', 'MSE')
TEST_MODES = ('predictions', 'metrics')
LR_SCHEDULES = ('constant', 'cosine')

DATA_ROOT = '~/data/tpugraphs/npz/tile/xla'
CACHE_DIR = '~/data/tpugraphs/cache/tile'

# Where the normalisation of features comes from; see `LoadSettings.stats`.
STATS_SOURCES = ('run', 'train', 'all')

# NumPy and TensorFlow take no more than 32 bits.
MOST_SEED = 2 ** 32 - 1

# What `predict` writes, and `rank` lists, unless told otherwise.
CSV_NAME = 'predictions_model_output.csv'
TOP_CONFIGS = 5


def parse_losses(text: str) -> list[tuple[str, float]]:
  """Reads 'ListMLELoss:1,MSE:0.02' into (name, weight) pairs.

  Raises:
    UserError: an unknown name, or a weight that is no positive number.
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
    UserError: the text is no JSON object.
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


def _from_recipe(name: str, help_text: str,
                 choices: Optional[tuple[str, ...]] = None) -> Any:
  """A field that the recipe fills in where it is not given."""
  return setting(None, f'{help_text} ({recipes.values_of(name)})', choices)


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """What to train, on what, and how.

  The first block has the names and defaults of the baseline's trainer; the
  second is this package's own. A setting of `recipes` that is not given is
  None only until the recipe fills it in.
  """
  epochs: Optional[int] = _from_recipe(
      'epochs', 'passes over the train kernels at most')
  early_stop: Optional[int] = _from_recipe(
      'early_stop', 'stop after this many epochs without a better validation '
      'OPA; 0 never stops early')
  eval_every: int = setting(
      5, 'ignored, as in the baseline: every epoch is validated')
  losses: str = setting(
      'ListMLELoss:1,MSE:0.02',
      f'comma-separated name:weight of {", ".join(LOSS_NAMES)}; a model may '
      'bring its own loss instead, as MyEarlyJoinSAGE does')
  lr: Optional[float] = _from_recipe('lr', 'learning rate of Adam')
  clip_norm: float = setting(
      1e-3, 'largest L2 norm of the gradient of one variable')
  configs: int = setting(
      10, 'configurations drawn from each kernel for a training step; kernels '
      'with fewer are not trained on')
  batch: int = setting(10, 'kernels in a training step')
  model: str = setting('EarlyJoinSAGE', 'class in models.py')
  model_kwargs_json: str = setting(
      '{}', 'further constructor arguments of the model, as a JSON object')
  test_mode: str = setting(
      'predictions', "write the test split's predictions as a CSV, or compute "
      'its errors', TEST_MODES)
  out_dir: str = setting(
      '~/out/tpugraphs_tiles', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>.csv')
  validate_batches: int = setting(
      -1, 'validate on this many batches while training; -1: all')
  run_id: str = setting(
      '', 'free text that becomes part of the hash; empty: seed<S> where '
      '--seed is given')
  data_root: str = setting(
      DATA_ROOT, 'folder with the splits train, valid and test')
  cache_dir: str = setting(
      CACHE_DIR, 'folder for memory-mapped copies of the splits; empty: none')
  toy_data: bool = setting(
      False, 'read only the first 100 files of each split')

  recipe: str = setting(
      recipes.DEFAULT, 'named settings for flags that are not given; the flags '
      'whose help names recipes are those', tuple(recipes.RECIPES))
  lr_schedule: Optional[str] = _from_recipe(
      'lr_schedule', 'how the learning rate goes on; cosine: down to 0 in the '
      'last of all --epochs', LR_SCHEDULES)
  list_size: Optional[int] = _from_recipe(
      'list_size', 'configurations drawn from each kernel where --configs are '
      'fewer; a kernel that has fewer gives each of them several times')
  members: Optional[int] = _from_recipe(
      'members', 'train so many of the model together, with weights of their '
      'own, whose scores are averaged: an EnsembleRanker')
  seed: Optional[int] = setting(
      None, 'seed of weights, batch order and dropout; not given: one is '
      'drawn, which the run file keeps')
  resume: bool = setting(
      False, 'continue the interrupted run that had the same settings, or '
      'report it if it is finished; where there is none, start one')
  tensorboard: str = setting('', 'folder for TensorBoard logs; empty: none')
  csv_log: str = setting('', 'file for one CSV row an epoch; empty: none')
  plot: str = setting(
      '', 'file for a picture of the learning curves, .svg or .png; empty: '
      'none. Needs the extra [report]')
  models_py: str = setting(
      '', "another models.py to take the model from; empty: the package's")

  def __post_init__(self):
    for name, value in recipes.recipe(self.recipe).items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    files.require_path('--data_root', self.data_root)
    for name, least in (('epochs', 1), ('early_stop', 0), ('configs', 2),
                        ('batch', 1), ('list_size', 0), ('members', 1)):
      check(name, getattr(self, name), getattr(self, name) >= least,
            f'at least {least}')
    for name in ('lr', 'clip_norm'):
      check(name, getattr(self, name), 0 < getattr(self, name) < math.inf,
            'a positive number')
    check('validate_batches', self.validate_batches,
          self.validate_batches == -1 or self.validate_batches >= 1,
          '-1 (all batches) or at least 1')
    check('lr_schedule', self.lr_schedule, self.lr_schedule in LR_SCHEDULES,
          ' or '.join(LR_SCHEDULES))
    check('test_mode', self.test_mode, self.test_mode in TEST_MODES,
          ' or '.join(TEST_MODES))
    files.require_path('--out_dir', self.out_dir)
    if self.seed is not None:
      check('seed', self.seed, 0 <= self.seed <= MOST_SEED,
            f'0 to {MOST_SEED}')
    # Text is parsed here, once, so that bad text is refused at once.
    _ = self.weighted_losses, self.model_kwargs

  @property
  def drawn_configs(self) -> int:
    """Configurations of each kernel in a training step."""
    return max(self.configs, self.list_size)

  @functools.cached_property
  def weighted_losses(self) -> list[tuple[str, float]]:
    """What `losses` says: (name, weight) pairs."""
    return parse_losses(self.losses)

  @functools.cached_property
  def model_kwargs(self) -> dict[str, Any]:
    """What `model_kwargs_json` says: constructor arguments of the model."""
    return parse_model_kwargs(self.model_kwargs_json)

  def baseline_args(self) -> dict[str, Any]:
    """The `args` of a run file: exactly the keys that the baseline stores.

    Where no results_csv is given its name carries the clock, so every call
    gives another hash, as in the baseline. Runs of unlike seeds never share
    one: a seed without a run_id becomes the run_id 'seed<seed>'; nor do runs
    of unlike settings that these keys lack, which follow it there.
    """
    results_csv = self.results_csv or os.path.join(
        os.path.expanduser(self.out_dir),
        f'results_{int(time.time() * 1000)}.csv')
    run_id = self.run_id or '_'.join(self._apart_by())
    return {
        'epochs': self.epochs,
        'eval_every': self.eval_every,
        'batch_size': self.batch,
        'configs': self.configs,
        'early_stop': self.early_stop,
        'losses': self.losses,
        'learning_rate': self.lr,
        'clip_norm': self.clip_norm,
        'model': self.model,
        'model_kwargs_json': self.model_kwargs_json,
        'test_mode': self.test_mode,
        'out_dir': self.out_dir,
        'results_csv': results_csv,
        'validate_batches': self.validate_batches,
        'run_id': run_id,
    }

  def command(self) -> list[str]:
    """The words of a command line that gives these settings."""
    of_recipe = recipes.recipe(self.recipe)
    values = ((field.name, getattr(self, field.name),
               of_recipe.get(field.name, field.default))
              for field in dataclasses.fields(self))
    return ['train', *(f'--{name}={value}' for name, value, default in values
                       if value != default)]

  def _apart_by(self) -> Iterator[str]:
    """Settings that decide what is trained and are not in `baseline_args`."""
    if self.seed is not None:
      yield f'seed{self.seed}'
    for name in ('lr_schedule', 'list_size', 'members'):
      value = getattr(self, name)
      if value != recipes.RECIPES[recipes.DEFAULT][name]:
        yield f'{name}={value}'


def training_field(name: str) -> dataclasses.Field:
  """The field of `TrainSettings`, for verbs that have the same flag."""
  field, = (field for field in dataclasses.fields(TrainSettings)
            if field.name == name)
  return field


def as_in_training(name: str) -> Any:
  """A field with the default and the help of `TrainSettings`."""
  field = training_field(name)
  return dataclasses.field(default=field.default, metadata=field.metadata)


@dataclasses.dataclass(frozen=True)
class LoadSettings:
  """What it takes to load a trained model, besides its folder.

  The data are read where statistics are to be computed, and where a verb works
  on a split of them.
  """
  stats: str = setting(
      'run', 'what features are normalised by; run: the statistics in the run '
      "file, or where it has none, as the baseline's, the same as train; "
      'train: those of the train kernels of at least --configs '
      'configurations, which the model was trained on; all: those of all '
      "train kernels, as the baseline's evaluation and prediction scripts do",
      STATS_SOURCES)
  data_root: str = as_in_training('data_root')
  cache_dir: str = as_in_training('cache_dir')
  toy_data: bool = as_in_training('toy_data')
  models_py: str = as_in_training('models_py')
  keep_repeats: bool = setting(
      False, "leave configurations that repeat an earlier one's features where "
      "the model's scores put them, as the baseline's scripts do; otherwise "
      'they come last')

  def __post_init__(self):
    files.require_path('--data_root', self.data_root)
    check('stats', self.stats, self.stats in STATS_SOURCES,
          f'one of {", ".join(STATS_SOURCES)}')


@dataclasses.dataclass(frozen=True)
class StatsSettings:
  """Of which kernels `stats` prints the statistics, and what else with them.

  They are those that a trainer with the same flags scales features with.
  """
  data_root: str = as_in_training('data_root')
  configs: int = as_in_training('configs')
  model_kwargs_json: str = as_in_training('model_kwargs_json')
  cache_dir: str = as_in_training('cache_dir')
  toy_data: bool = as_in_training('toy_data')

  def __post_init__(self):
    files.require_path('--data_root', self.data_root)


def check(name: str, value: Any, holds: bool, rule: str) -> None:
  """Raises a UserError with the flag and the rule unless it holds."""
  if not holds:
    raise UserError(f'--{name}={value}: must be {rule}')
