"""Settings of the verbs with `--task layout`, and their help.

As `host.settings`, whose classes these are. Imports no TensorFlow.
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
# What `predict` writes, and `rank` lists, unless told otherwise.
CSV_NAME = 'predictions_layout.csv'
TOP_CONFIGS = 5
# How many configurations `evaluate` tries: those of the organisers' script.
TOP_KS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class LayoutTrainSettings(Training):
  """What to train, on what, and how."""
  epochs: int = setting(50, 'passes over the train programs at most')
  early_stop: int = setting(
      25, 'stop after this many epochs without a better validation OPA; 0 '
      'never stops early')
  lr: float = setting(1e-3, 'learning rate of Adam')
  lr_schedule: str = setting(
      'constant', 'how the learning rate goes on; cosine: down to 0 in the '
      'last of all --epochs', LR_SCHEDULES)
  clip_norm: float = setting(
      1e-2, 'largest L2 norm of the gradient of one variable')
  configs: int = setting(
      16, 'configurations drawn from each program for a training step, fast '
      'ones sooner; programs with fewer are not trained on')
  batch: int = setting(8, 'programs in a training step')
  model: str = setting('ResModel', 'class in layout_models.py')
  models_py: str = setting(
      '', "another file of layout models; empty: the package's")
  out_dir: str = setting(
      '~/out/tpugraphs_layout', 'folder for model_<hash> and run_<hash>.jsonz')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>_<source>_<search>.csv')
  validate_batches: int = setting(
      10, 'validate on this many batches while training; -1: all')
  data_root: str = setting(
      DATA_ROOT, 'folder with <source>/<search>/train, valid and test')
  cache_dir: str = setting(
      CACHE_DIR, 'folder for copies of the files as they are read, '
      'memory-mapped and a quarter as large as their arrays; empty: a '
      'temporary one')
  toy_data: bool = setting(False, 'read only the first 5 files of each split')

  source: str = setting('xla', 'collection of programs', SOURCES)
  search: str = setting(
      'random', 'collection of configurations: how they were looked for, at '
      "random or from the compiler's default on", SEARCHES)
  max_configs: int = setting(
      -1, 'configurations of each program that are trained on: the fastest and '
      'the slowest thirds and some between; -1: all. Memory does not grow '
      'with them')
  keep_nodes: int = setting(
      5000, 'nodes of the segment of each program that a step learns from; -1: '
      'all')

  TASK, CSV_SUFFIX = 'layout', '_{source}_{search}'
  ARGS = (
      'source', 'search', 'model', 'model_kwargs_json', 'epochs', 'batch_size',
      'configs', 'max_configs', 'early_stop', 'keep_nodes', 'learning_rate',
      'clip_norm', 'out_dir', 'results_csv', 'validate_batches', 'run_id')
  APART_BY: ClassVar[Mapping[str, Any]] = {'lr_schedule': LR_SCHEDULES[0]}

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
      'run', 'what features are normalised by; run: the statistics in the run '
      "file, or where it has none, as the baseline's, the same as train; "
      'train: those of the train programs that the model was trained on, of '
      '--data_root', ('run', 'train'))
  data_root: str = as_in(LayoutTrainSettings, 'data_root')
  cache_dir: str = as_in(LayoutTrainSettings, 'cache_dir')
  toy_data: bool = as_in(LayoutTrainSettings, 'toy_data')
  models_py: str = as_in(LayoutTrainSettings, 'models_py')
  source: str = setting(
      '', 'collection of programs; empty: that of the model', ('', *SOURCES))
  search: str = setting(
      '', 'collection of configurations; empty: that of the model',
      ('', *SEARCHES))

  TASK, STATS = 'layout', ('run', 'train')

  def __post_init__(self):
    super().__post_init__()
    check_collection(self, ('',))


def check_collection(settings: Any, more: tuple[str, ...] = ()) -> None:
  """Raises a UserError where source or search is none that there is."""
  for name, known in (('source', SOURCES), ('search', SEARCHES)):
    value = getattr(settings, name)
    check(name, value, value in (*known, *more), ' or '.join(known))
