"""The layout task: programs whose layouts are to be ranked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data import programs, schema
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.programs import Program, Programs
from tpu_graphs_ext.engine import compiled_model, evaluate, task
from tpu_graphs_ext.tasks import (
  feature_stats,
  layout_batches,
  layout_results,
  layout_settings,
)
from tpu_graphs_ext.tasks.layout_settings import (
  LayoutLoadSettings,
  LayoutTrainSettings,
)

# Configurations for a model at once: 64 MB of float32, beside which the
# program's own features are small.
_CHUNK_FLOATS = 1 << 24
_BLOCK_FLOATS = 1 << 22  # Of layouts that are counted at once.


class LayoutTask(task.Task):
  """See `Task`."""
  name, problem = 'layout', 'program'
  loading = LayoutLoadSettings
  evaluation = layout_results.Evaluation
  row_of = staticmethod(layout_results.row_of)
  top_ks = layout_settings.TOP_KS
  final = (('slowdown', 'final_error'), ('kendall', 'final_kendall'),
           ('opa', 'final_opa'))
  csv_name, csv_id, csv_end = layout_settings.CSV_NAME, 'layout:', '\n'
  csv_configs = test_configs = None
  scored_at_once = 1
  config_table = 'node_config_feat'
  has_duplicates = False

  def read(self, path: str, loading: LayoutLoadSettings) -> Programs:
    return programs.read_programs(path, cache_dir=loading.cache_dir)

  def read_split(self, loading: LayoutLoadSettings, collection: Sequence[str],
                 split: str) -> Programs:
    return programs.read_folder(
        os.path.join(loading.data_root, *collection, split),
        cache_dir=loading.cache_dir,
        limit=programs.TOY_FILES if loading.toy_data else None)

  def collection(self, args: Mapping[str, Any],
                 loading: Optional[LayoutLoadSettings] = None
                 ) -> tuple[str, ...]:
    return tuple((loading and getattr(loading, name)) or args[name]
                 for name in ('source', 'search'))

  def statistics(self, args: Mapping[str, Any],
                 loading: LayoutLoadSettings) -> tuple[FeatureStats, int]:
    data = programs.read_collection(
        loading.data_root, *self.collection(args), min_configs=args['configs'],
        cache_dir=loading.cache_dir, toy_data=loading.toy_data)
    return data.train.stats, data.num_ops

  def prepared(self, settings: LayoutTrainSettings) -> tuple[
      LayoutTrainSettings, task.Splits]:
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_file)
    data = programs.read_collection(
        settings.data_root, settings.source, settings.search,
        min_configs=settings.configs, max_configs=settings.max_configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data,
        seed=settings.seed or 0)
    for split in (data.train, data.valid) + (
        (data.test,) if settings.test_mode == 'metrics' else ()):
      evaluate.require_labels(split, split.where, self)
    validated = data.valid.to_train_on(
        settings.configs, settings.max_configs,
        [settings.seed or 0, schema.SPLITS.index('valid')])
    if settings.validate_batches >= 0:
      number = settings.validate_batches * settings.batch
      validated = Programs(validated[:number], validated.where)
    stats = data.train.stats
    if takes_stats:
      settings = feature_stats.given_to_model(
          settings, feature_stats.of_programs(stats))
    return settings, task.Splits(
        **vars(data), validated=validated, stats=stats)

  def compiled_model(self, settings: LayoutTrainSettings,
                     splits: task.Splits) -> tf.keras.Model:
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.ListMLE(), steps=-(-len(splits.train) // settings.batch))

  def datasets(
      self, settings: LayoutTrainSettings, splits: task.Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    sizes = dict(batch_size=settings.batch, num_configs=settings.configs,
                 seed=seed)
    return layout_batches.training_dataset(
        splits.train, splits.stats, keep_nodes=settings.keep_nodes,
        first_epoch=first_epoch, **sizes
    ), layout_batches.training_dataset(
        splits.validated, splits.stats, keep_nodes=-1, shuffle=False, **sizes)

  def check_columns(self, problems: Programs, stats: FeatureStats) -> None:
    for program in problems:
      stats.node.apply(program.node_feat[:0], 'node_feat')

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    # Of two configurations.
    rows = np.broadcast_to(stats.config.minimum,
                           (2, 1, len(stats.config.minimum)))
    return layout_batches.program_graph(
        Program(
            name='sample', path='', node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            node_config_ids=np.zeros(1, np.int64),
            runtime_ns=np.ones(2, np.int64), bounds=stats,
            read_layouts=lambda configs: rows[configs]),
        np.arange(2), stats)

  def problems(self, members: Sequence[Program]) -> Programs:
    return Programs(members, '')

  def graphs(self, problem: Program,
             stats: FeatureStats) -> Iterator[tfgnn.GraphTensor]:
    at_once = max(1, _CHUNK_FLOATS // (
        problem.num_configurable * stats.config.num_used))
    for configs in programs.blocks_of(problem.num_configs, at_once):
      yield layout_batches.program_graph(problem, configs, stats)

  def all_graphs(self, problems: Programs, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    return (self.graphs(problem, stats) for problem in problems)

  def config_rows(self, problem: Program,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    bounds = problem.bounds.config
    if (bounds.minimum < stats.config.minimum).any() or (
        bounds.maximum > stats.config.maximum).any():
      columns = bounds.minimum.size
      at_once = max(1, _BLOCK_FLOATS // (problem.num_configurable * columns))
      for configs in programs.blocks_of(problem.num_configs, at_once):
        yield problem.layouts(configs).reshape(-1, columns)


TASK = LayoutTask()
