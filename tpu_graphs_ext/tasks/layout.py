"""The layout task: programs whose layouts are to be ranked.

Its settings and its one object, `LAYOUT`; see `tile` for what is imported when.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tpu_graphs_ext import load_models
from tpu_graphs_ext.engine.settings import Loading, Training, as_in, setting
from tpu_graphs_ext.engine.task import Splits
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import shipped

if TYPE_CHECKING:
  import numpy as np
  import tensorflow as tf
  import tensorflow_gnn as tfgnn

  from tpu_graphs_ext.data.normalize import FeatureStats
  from tpu_graphs_ext.data.programs import Program, Programs
  from tpu_graphs_ext.sample.write import Summary

SOURCES = ('xla', 'nlp')
SEARCHES = ('random', 'default')


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

  CSV_SUFFIX = '_{source}_{search}'
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
      '', "collection of configurations; empty: the model's", ('', *SEARCHES))


class LayoutTask(shipped.ShippedTask):
  """Ranks the layouts of a program."""
  name, problem, choices = 'layout', 'program', 'layouts'
  training, loading = LayoutTrainSettings, LayoutLoadSettings
  models_file = load_models.models_path('layout_models.py')
  collection_args = ('source', 'search')
  # The scripts would look for the loss by its name.
  keeps_optimizer = False
  unhashed = ('out_dir',)
  top_ks = (1, 10, 100)  # As the organisers' script.
  final = (('slowdown', 'final_error'), ('kendall', 'final_kendall'),
           ('opa', 'final_opa'))
  csv_name, csv_id, csv_end = 'predictions_layout.csv', 'layout:', '\n'
  config_table = 'node_config_feat'

  about = 'layouts of programs'
  sources = 'folder of .npz files, or one'
  has_pretrained = has_small_steps = has_geometry = has_groups = False
  compared_by = ('kendall', 'opa', 'slowdown')
  baseline_models = os.path.join(
      'tpu_graphs', 'baselines', 'layout', 'models.py')

  def read(self, path: str, loading: LayoutLoadSettings) -> Programs:
    """The programs of a folder of .npz files, or of one; layouts stay on disk.
    """
    from tpu_graphs_ext.data import programs
    return programs.read_programs(
        path, cache_dir=loading.cache_dir,
        limit=programs.TOY_FILES if loading.toy_data else None)

  def statistics(self, args: Mapping[str, Any],
                 loading: LayoutLoadSettings) -> tuple[FeatureStats, int]:
    """By the train programs of the collection that the run was trained on, with
    `args['configs']` configurations or more.
    """
    from tpu_graphs_ext.data import programs
    data = programs.read_collection(
        loading.data_root, *self.collection(args), min_configs=args['configs'],
        cache_dir=loading.cache_dir, toy_data=loading.toy_data)
    return data.train.stats, data.num_ops

  def prepared(self, settings: LayoutTrainSettings) -> tuple[
      LayoutTrainSettings, Splits]:
    """The settings and the data of the collection."""
    from tpu_graphs_ext.data import programs, schema
    from tpu_graphs_ext.tasks import feature_stats
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_file)
    data = programs.read_collection(
        settings.data_root, settings.source, settings.search,
        min_configs=settings.configs, max_configs=settings.max_configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data,
        seed=settings.seed or 0)
    validated = data.valid.to_train_on(
        os.path.join(settings.data_root, settings.source, settings.search,
                     'valid'), settings.configs, settings.max_configs,
        [settings.seed or 0, schema.SPLITS.index('valid')])
    if settings.validate_batches >= 0:
      validated = programs.Programs(
          validated[:settings.validate_batches * settings.batch])
    stats = data.train.stats
    if takes_stats:
      settings = feature_stats.given_to_model(settings, {
          table: {side: columns[side] for side in ('minimum', 'maximum')}
          for table, columns in stats.to_json().items()})
    return settings, Splits(data.train, validated, data.valid, data.test,
                            data.num_ops, stats)

  def datasets(
      self, settings: LayoutTrainSettings, splits: Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches of up to `batch` programs with labels float32 [B, configs].

    Programs are cut to `keep_nodes` nodes, but whole ones are validated on.
    """
    from tpu_graphs_ext.tasks import layout_batches
    sizes = dict(batch_size=settings.batch, num_configs=settings.configs,
                 seed=seed)
    return layout_batches.training_dataset(
        splits.train, splits.stats, keep_nodes=settings.keep_nodes,
        first_epoch=first_epoch, **sizes
    ), layout_batches.training_dataset(
        splits.validated, splits.stats, keep_nodes=-1, anew=False, **sizes)

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    """A program of one node, with two layouts of the least of all features."""
    import numpy as np

    from tpu_graphs_ext.data.programs import Program
    from tpu_graphs_ext.tasks import layout_batches
    rows = np.tile(stats.config.minimum, (2, 1, 1))  # Of two configurations.
    return layout_batches.program_graph(
        Program(
            name='sample', node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            node_config_ids=np.zeros(1, np.int64),
            runtime_ns=np.ones(2, np.int64), bounds=stats,
            read_layouts=lambda configs: rows[configs]), np.arange(2), stats)

  def graphs(self, problem: Program,
             stats: FeatureStats) -> Iterator[tfgnn.GraphTensor]:
    """Graphs of so many configurations as fit into 64 MB of layouts.

    Their node set `nconfig` is float32 [configurable, configs, columns].
    """
    from tpu_graphs_ext.tasks import layout_batches
    for configs in layout_batches.blocks(problem, layout_batches.SCORED_FLOATS):
      yield layout_batches.program_graph(problem, configs, stats)

  def config_rows(self, problem: Program,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    """Layouts as stored, float32 [configs * configurable, columns], in blocks.

    None where the program's bounds show that all are within `stats`.
    """
    from tpu_graphs_ext.tasks import layout_batches
    bounds = problem.bounds.config
    if (bounds.minimum < stats.config.minimum).any() or (
        bounds.maximum > stats.config.maximum).any():
      for configs in layout_batches.blocks(
          problem, layout_batches.COUNTED_FLOATS):
        yield problem.layouts(configs).reshape(-1, len(bounds.minimum))

  def has_args(self, args: Mapping[str, Any]) -> bool:
    """Whether `layout_train.py` wrote them."""
    return 'keep_nodes' in args

  def write_sample(self, out: str) -> Summary:
    """Programs with layouts, of both searches."""
    from tpu_graphs_ext.sample import write
    return write.write_layout_data(out)


LAYOUT = LayoutTrainSettings.task = LayoutLoadSettings.task = LayoutTask()
