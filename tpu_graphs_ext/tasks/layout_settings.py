"""Settings of the verbs with `--task layout`; imports no TensorFlow."""

from __future__ import annotations

import dataclasses

from tpu_graphs_ext.engine.settings import Loading, Training, as_in, setting
from tpu_graphs_ext.errors import UserError

SOURCES = ('xla', 'nlp')
SEARCHES = ('random', 'default')
CSV_NAME = 'predictions_layout.csv'  # The default of `predict`.
# How many configurations `evaluate` tries, as the organisers' script.
TOP_KS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class LayoutTrainSettings(Training):
  """Settings of training in the layout task."""
  epochs: int = as_in(Training, 'epochs', default=50)
  early_stop: int = as_in(Training, 'early_stop', default=25)
  clip_norm: float = as_in(Training, 'clip_norm', default=1e-2)
  configs: int = as_in(
      Training, 'configs', default=16, help='configurations drawn from '
      'each program for a training step, fast ones more often; programs with '
      'fewer are left out')
  batch: int = as_in(
      Training, 'batch', default=8, help='programs per training step')
  model: str = setting('ResModel', 'class in layout_models.py')
  out_dir: str = as_in(Training, 'out_dir', default='~/out/tpugraphs_layout')
  results_csv: str = setting(
      '', 'file for the test predictions; empty: '
      '<out_dir>/results_<milliseconds>_<source>_<search>.csv')
  validate_batches: int = as_in(Training, 'validate_batches', default=10)
  data_root: str = setting(
      '~/data/tpugraphs/npz/layout',
      'folder with <source>/<search>/train, valid and test')
  cache_dir: str = setting(
      '~/data/tpugraphs/cache/layout', 'folder for memory-mapped copies of the '
      'splits, a quarter as large as the arrays; empty: a temporary one')
  toy_data: bool = setting(False, 'read only the first 5 files of each split')

  source: str = setting('xla', 'collection of programs', SOURCES)
  search: str = setting(
      'random', 'collection of configurations: drawn at random, or by a search '
      "from the compiler's default", SEARCHES)
  max_configs: int = setting(
      -1, 'configurations of each program to train on: the fastest and the '
      'slowest thirds, and some between; -1: all, in the same memory')
  keep_nodes: int = setting(
      5000, 'nodes of a program in a training step, a random segment; -1: all',
      least=1, or_all=True)

  TASK, CSV_SUFFIX = 'layout', '_{source}_{search}'
  ARGS = (
      'source', 'search', 'model', 'model_kwargs_json', 'epochs', 'batch_size',
      'configs', 'max_configs', 'early_stop', 'keep_nodes', 'learning_rate',
      'clip_norm', 'out_dir', 'results_csv', 'validate_batches', 'run_id')

  def __post_init__(self):
    super().__post_init__()
    if self.max_configs != -1 and self.max_configs < self.configs:
      raise UserError(f'--max_configs={self.max_configs}: must be -1 (all) or '
                      f'at least --configs, {self.configs}')


@dataclasses.dataclass(frozen=True)
class LayoutLoadSettings(Loading):
  """Settings for loading a trained model of the layout task."""
  data_root: str = as_in(LayoutTrainSettings, 'data_root')
  cache_dir: str = as_in(LayoutTrainSettings, 'cache_dir')
  toy_data: bool = as_in(LayoutTrainSettings, 'toy_data')
  source: str = setting(
      '', "collection of programs; empty: the model's", ('', *SOURCES))
  search: str = setting(
      '', "collection of configurations; empty: the model's",
      ('', *SEARCHES))

  TASK = 'layout'
