"""Settings of the verbs with `--task layout`, with their help.

See `engine.settings`, whose classes these extend. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from tpu_graphs_ext.engine.settings import (
  LR_SCHEDULES,
  Loading,
  Training,
  as_in,
  check,
  setting,
)

SOURCES = ('xla', 'nlp')
SEARCHES = ('random', 'default')
DATA_ROOT = '~/data/tpugraphs/npz/layout'
CACHE_DIR = '~/data/tpugraphs/cache/layout'
# Defaults of `predict`'s file and of the number of `rank`'s choices.
CSV_NAME = 'predictions_layout.csv'
TOP_CONFIGS = 5
# How many configurations `evaluate` tries, as the organisers' script.
TOP_KS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class LayoutTrainSettings(Training):
  """What to train, on what, and how."""
  epochs: int = setting(50, 'maximum number of passes over the train programs')
  early_stop: int = setting(
      25, 'stop after this many epochs without a better validation OPA; 0: '
      'never')
  lr: float = setting(1e-3, 'learning rate of Adam')
  lr_schedule: str = setting(
      'constant', 'learning-rate schedule; `cosine` decays to 0 at the last '
      'epoch', LR_SCHEDULES)
  clip_norm: float = setting(
      1e-2, "clip each variable's gradient to this L2 norm")
  configs: int = setting(
      16, 'configurations drawn from each program for a training step, fast '
      'ones more often; programs with fewer are left out')
  batch: int = setting(8, 'programs per training step')
  model: str = setting('ResModel', 'class in layout_models.py')
  models_py: str = setting(
      '', "file with the model's class; empty: the package's layout_models.py")
  out_dir: str = setting(
      '~/out/tpugraphs_layout', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>_<source>_<search>.csv')
  validate_batches: int = setting(
      10, 'batches to validate on after each epoch; -1: all')
  data_root: str = setting(
      DATA_ROOT, 'folder with <source>/<search>/train, valid and test')
  cache_dir: str = setting(
      CACHE_DIR, 'folder for memory-mapped copies of the splits, a quarter as '
      'large as the arrays; empty: a temporary one')
  toy_data: bool = setting(False, 'read only the first 5 files of each split')

  source: str = setting('xla', 'collection of programs', SOURCES)
  search: str = setting(
      'random', 'collection of configurations: drawn at random, or by a search '
      "from the compiler's default", SEARCHES)
  max_configs: int = setting(
      -1, 'configurations of each program to train on: the fastest and the '
      'slowest thirds, and some between; -1: all, in the same memory')
  keep_nodes: int = setting(
      5000, 'nodes of a program in a training step, a random segment; -1: all')

  TASK, CSV_SUFFIX = 'layout', '_{source}_{search}'
  ARGS = (
      'source', 'search', 'model', 'model_kwargs_json', 'epochs', 'batch_size',
      'configs', 'max_configs', 'early_stop', 'keep_nodes', 'learning_rate',
      'clip_norm', 'out_dir', 'results_csv', 'validate_batches', 'run_id')
  IN_RUN_ID: ClassVar[Mapping[str, Any]] = {'lr_schedule': LR_SCHEDULES[0]}

  def __post_init__(self):
    check_collection(self)
    super().__post_init__()
    for name, least in (('validate_batches', 1), ('keep_nodes', 1),
                        ('max_configs', self.configs)):
      value = getattr(self, name)
      check(name, value, value == -1 or value >= least,
            f'-1 (all) or at least {least}')


@dataclasses.dataclass(frozen=True)
class LayoutLoadSettings(Loading):
  """What it takes to load a trained model, besides its folder."""
  stats: str = setting(
      'run', 'statistics to normalise features by; run: those in the run file, '
      'or if it has none, as train; train: of the train programs in '
      '--data_root', ('run', 'train'))
  data_root: str = as_in(LayoutTrainSettings, 'data_root')
  cache_dir: str = as_in(LayoutTrainSettings, 'cache_dir')
  toy_data: bool = as_in(LayoutTrainSettings, 'toy_data')
  models_py: str = as_in(LayoutTrainSettings, 'models_py')
  source: str = setting(
      '', "collection of programs; empty: the model's", ('', *SOURCES))
  search: str = setting(
      '', "collection of configurations; empty: the model's",
      ('', *SEARCHES))

  TASK, STATS = 'layout', ('run', 'train')

  def __post_init__(self):
    super().__post_init__()
    check_collection(self, ('',))


def check_collection(settings: LayoutTrainSettings | LayoutLoadSettings,
                     more: tuple[str, ...] = ()) -> None:
  """Raises UserError unless source and search are known, or among `more`."""
  for name, known in (('source', SOURCES), ('search', SEARCHES)):
    value = getattr(settings, name)
    check(name, value, value in (*known, *more), ' or '.join(known))
