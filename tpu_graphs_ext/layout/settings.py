"""Settings of the verbs with `--task layout`, and their help.

As `host.settings`: the names are the flags, checked when created. Imports no
TensorFlow.
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
from tpu_graphs_ext.host.settings import (
  LR_SCHEDULES,
  MOST_SEED,
  TEST_MODES,
  as_in_training,
  check,
  parse_model_kwargs,
  setting,
)

SOURCES = ('xla', 'nlp')
SEARCHES = ('random', 'default')
DATA_ROOT = '~/data/tpugraphs/npz/layout'
CACHE_DIR = '~/data/tpugraphs/cache/layout'
# What `predict` writes, and `rank` lists, unless told otherwise.
CSV_NAME = 'predictions_layout.csv'
TOP_CONFIGS = 5
# How many configurations `evaluate` tries: those of the organisers' script.
TOP_KS = (1, 10, 100)

_CACHE_HELP = ('folder for copies of the files as they are read, memory-mapped '
               'and a quarter as large as their arrays; empty: a temporary one')


@dataclasses.dataclass(frozen=True)
class LayoutTrainSettings:
  """What to train, on what, and how.

  The first block has the names and defaults of the baseline's
  `layout_train.py`; the second is this package's own.
  """
  source: str = setting('xla', 'collection of programs', SOURCES)
  search: str = setting(
      'random', 'collection of configurations: how they were looked for, at '
      "random or from the compiler's default on", SEARCHES)
  epochs: int = setting(50, 'passes over the train programs at most')
  early_stop: int = setting(
      25, 'stop after this many epochs without a better validation OPA; 0 '
      'never stops early')
  lr: float = setting(1e-3, 'learning rate of Adam')
  clip_norm: float = setting(
      1e-2, 'largest L2 norm of the gradient of one variable')
  configs: int = setting(
      16, 'configurations drawn from each program for a training step, fast '
      'ones sooner; programs with fewer are not trained on')
  max_configs: int = setting(
      -1, 'configurations of each program that are trained on: the fastest and '
      'the slowest thirds and some between; -1: all. Memory does not grow '
      'with them')
  keep_nodes: int = setting(
      5000, 'nodes of the segment of each program that a step learns from; -1: '
      'all')
  batch: int = setting(8, 'programs in a training step')
  model: str = setting('ResModel', 'class in layout_models.py')
  model_kwargs_json: str = as_in_training('model_kwargs_json')
  out_dir: str = setting(
      '~/out/tpugraphs_layout', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>_<source>_<search>.csv')
  validate_batches: int = setting(
      10, 'validate on this many batches while training; -1: all')
  run_id: str = as_in_training('run_id')
  data_root: str = setting(
      DATA_ROOT, 'folder with <source>/<search>/train, valid and test')
  cache_dir: str = setting(CACHE_DIR, _CACHE_HELP)
  toy_data: bool = setting(False, 'read only the first 5 files of each split')

  test_mode: str = as_in_training('test_mode')
  lr_schedule: str = setting(
      'constant', 'how the learning rate goes on; cosine: down to 0 in the '
      'last of all --epochs', LR_SCHEDULES)
  seed: Optional[int] = as_in_training('seed')
  resume: bool = as_in_training('resume')
  tensorboard: str = as_in_training('tensorboard')
  csv_log: str = as_in_training('csv_log')
  plot: str = as_in_training('plot')
  models_py: str = setting(
      '', "another file of layout models; empty: the package's")

  def __post_init__(self):
    check_collection(self)
    for name in ('data_root', 'out_dir'):
      files.require_path('--' + name, getattr(self, name))
    for name, least in (('epochs', 1), ('early_stop', 0), ('configs', 2),
                        ('batch', 1)):
      check(name, getattr(self, name), getattr(self, name) >= least,
            f'at least {least}')
    for name in ('lr', 'clip_norm'):
      check(name, getattr(self, name), 0 < getattr(self, name) < math.inf,
            'a positive number')
    for name, least in (('validate_batches', 1), ('keep_nodes', 1),
                        ('max_configs', self.configs)):
      value = getattr(self, name)
      check(name, value, value == -1 or value >= least,
            f'-1 (all) or at least {least}')
    check('lr_schedule', self.lr_schedule, self.lr_schedule in LR_SCHEDULES,
          ' or '.join(LR_SCHEDULES))
    check('test_mode', self.test_mode, self.test_mode in TEST_MODES,
          ' or '.join(TEST_MODES))
    if self.seed is not None:
      check('seed', self.seed, 0 <= self.seed <= MOST_SEED, f'0 to {MOST_SEED}')
    _ = self.model_kwargs  # Bad text is refused at once.

  @functools.cached_property
  def model_kwargs(self) -> dict[str, Any]:
    """What `model_kwargs_json` says: constructor arguments of the model."""
    return parse_model_kwargs(self.model_kwargs_json)

  def baseline_args(self) -> dict[str, Any]:
    """The `args` of a run file: exactly the keys that the baseline stores.

    See `TrainSettings.baseline_args`.
    """
    results_csv = self.results_csv or os.path.join(
        os.path.expanduser(self.out_dir),
        f'results_{int(time.time() * 1000)}_{self.source}_{self.search}.csv')
    return {
        'source': self.source,
        'search': self.search,
        'model': self.model,
        'model_kwargs_json': self.model_kwargs_json,
        'epochs': self.epochs,
        'batch_size': self.batch,
        'configs': self.configs,
        'max_configs': self.max_configs,
        'early_stop': self.early_stop,
        'keep_nodes': self.keep_nodes,
        'learning_rate': self.lr,
        'clip_norm': self.clip_norm,
        'out_dir': self.out_dir,
        'results_csv': results_csv,
        'validate_batches': self.validate_batches,
        'run_id': self.run_id or '_'.join(self._apart_by()),
    }

  def _apart_by(self) -> Iterator[str]:
    """Settings that decide what is trained and are not in `baseline_args`."""
    if self.seed is not None:
      yield f'seed{self.seed}'
    if self.lr_schedule != LR_SCHEDULES[0]:
      yield f'lr_schedule={self.lr_schedule}'

  def command(self) -> list[str]:
    """The words of a command line that gives these settings."""
    return ['train', '--task=layout', *(
        f'--{field.name}={getattr(self, field.name)}'
        for field in dataclasses.fields(self)
        if getattr(self, field.name) != field.default)]


def _layout_field(name: str) -> Any:
  """A field with the default and the help of `LayoutTrainSettings`."""
  field, = (field for field in dataclasses.fields(LayoutTrainSettings)
            if field.name == name)
  return dataclasses.field(default=field.default, metadata=field.metadata)


@dataclasses.dataclass(frozen=True)
class LayoutLoadSettings:
  """What it takes to load a trained model, besides its folder."""
  stats: str = setting(
      'run', 'what features are normalised by; run: the statistics in the run '
      "file, or where it has none, as the baseline's, the same as train; "
      'train: those of the train programs that the model was trained on, of '
      '--data_root', ('run', 'train'))
  data_root: str = _layout_field('data_root')
  source: str = setting(
      '', 'collection of programs; empty: that of the model', ('', *SOURCES))
  search: str = setting(
      '', 'collection of configurations; empty: that of the model',
      ('', *SEARCHES))
  cache_dir: str = _layout_field('cache_dir')
  toy_data: bool = _layout_field('toy_data')
  models_py: str = _layout_field('models_py')

  def __post_init__(self):
    files.require_path('--data_root', self.data_root)
    check('stats', self.stats, self.stats in ('run', 'train'), 'run or train')
    check_collection(self, ('',))


def check_collection(settings: Any, more: tuple[str, ...] = ()) -> None:
  """Raises a UserError where source or search is none that there is."""
  for name, known in (('source', SOURCES), ('search', SEARCHES)):
    value = getattr(settings, name)
    check(name, value, value in (*known, *more), ' or '.join(known))
