"""The layout task: programs whose layouts are to be ranked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext import files, load_models
from tpu_graphs_ext.data import programs, schema
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.programs import Program, Programs
from tpu_graphs_ext.engine import (
  compiled_model,
  evaluate,
  metrics,
  results,
  scoring,
  task,
)
from tpu_graphs_ext.tasks import feature_stats, layout_batches, layout_settings

LoadSettings = layout_settings.LayoutLoadSettings
TrainSettings = layout_settings.LayoutTrainSettings
# Configurations for a model at once: 64 MB of float32, beside which the
# program's own features are small.
_CHUNK_FLOATS = 1 << 24
_BLOCK_FLOATS = 1 << 22  # Of layouts that are counted at once.


def row_of(program: Program, scores: scoring.Scores,
           ks: Sequence[int] = layout_settings.TOP_KS) -> dict[str, Any]:
  """Measures of one labelled program with a model's scores.

  Returns:
    program: its name.
    nodes, configurable, configs: number of nodes, of those with layouts, and
      of configurations.
    runtimes: number of distinct runtimes; few bound tau away from 1.
    kendall: Kendall's tau-b of the runtimes and the places in the model's order
      of all configurations, as in the organisers' `layout_evaluate.py`. An
      order has no ties; equal runtimes are corrected for. NaN where all are.
    opa: share of the pairs of different runtime that the scores order alike;
      NaN where all runtimes are equal.
    slowdown_<k>: how much slower the fastest of the first k configurations is
      than the fastest of all.
    random_<k>: the expected slowdown of k drawn at random.
  """
  runtime, order = program.runtime_rel, scores.order
  return {
      'program': program.name,
      'nodes': program.num_nodes,
      'configurable': program.num_configurable,
      'configs': program.num_configs,
      'runtimes': len(np.unique(runtime)),
      'kendall': metrics.pair_agreement(runtime, np.argsort(order))[1],
      'opa': metrics.pair_agreement(runtime, scores.given)[0],
      **{f'slowdown_{k}': metrics.slowdown_of(runtime, order[:k])
         for k in ks},
      **{f'random_{k}': metrics.random_slowdown(runtime, scores.repeats, k)
         for k in ks}}


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation(results.Results):
  """Measures of all programs of one source, by one model; see `row_of`."""
  NAME, PROBLEMS = 'program', 'programs'
  INTERVALS = COMPARED = ('kendall', 'opa', 'slowdown')
  ABOUT, LISTED = ('nodes', 'configs'), (*COMPARED, 'random')
  CSV = files.Output(
      '--csv', 'model_dir,data,program,nodes,configurable,configs,runtimes,'
      'kendall,opa', 'CSV of evaluate --task layout')

  def to_json(self) -> dict[str, Any]:
    return {'model_dir': self.model_dir, 'data': self.data,
            'mean': self.summary_json(self.mean),
            'programs': self.problems_json()}


class LayoutTask(task.Task):
  """See `Task`."""
  name, problem = 'layout', 'program'
  loading = LoadSettings
  evaluation, row_of = Evaluation, staticmethod(row_of)
  top_ks = layout_settings.TOP_KS
  final = (('slowdown', 'final_error'), ('kendall', 'final_kendall'),
           ('opa', 'final_opa'))
  csv_name, csv_id, csv_end = layout_settings.CSV_NAME, 'layout:', '\n'
  csv_configs = test_configs = None
  scored_at_once = 1
  config_table = 'node_config_feat'
  has_duplicates = False

  def read(self, path: str, loading: LoadSettings) -> Programs:
    return programs.read_programs(
        path, cache_dir=loading.cache_dir,
        limit=programs.TOY_FILES if loading.toy_data else None)

  def collection(self, args: Mapping[str, Any],
                 loading: Optional[LoadSettings] = None
                 ) -> tuple[str, ...]:
    return tuple((loading and getattr(loading, name)) or args[name]
                 for name in ('source', 'search'))

  def statistics(self, args: Mapping[str, Any],
                 loading: LoadSettings) -> tuple[FeatureStats, int]:
    data = programs.read_collection(
        loading.data_root, *self.collection(args), min_configs=args['configs'],
        cache_dir=loading.cache_dir, toy_data=loading.toy_data)
    return data.train.stats, data.num_ops

  def prepared(self, settings: TrainSettings) -> tuple[
      TrainSettings, task.Splits]:
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_file)
    data = programs.read_collection(
        settings.data_root, settings.source, settings.search,
        min_configs=settings.configs, max_configs=settings.max_configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data,
        seed=settings.seed or 0)
    where = os.path.join(settings.data_root, settings.source, settings.search)
    labelled = schema.SPLITS if settings.test_mode == 'metrics' else (
        schema.SPLITS[:2])
    for split in labelled:
      evaluate.require_labels(
          getattr(data, split), os.path.join(where, split), self)
    validated = data.valid.to_train_on(
        os.path.join(where, 'valid'), settings.configs, settings.max_configs,
        [settings.seed or 0, schema.SPLITS.index('valid')])
    if settings.validate_batches >= 0:
      validated = Programs(
          validated[:settings.validate_batches * settings.batch])
    stats = data.train.stats
    if takes_stats:
      settings = feature_stats.given_to_model(settings, {
          table: {side: columns[side] for side in ('minimum', 'maximum')}
          for table, columns in stats.to_json().items()})
    return settings, task.Splits(
        **vars(data), validated=validated, stats=stats)

  def compiled_model(self, settings: TrainSettings,
                     splits: task.Splits) -> tf.keras.Model:
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.ListMLE(), steps=-(-len(splits.train) // settings.batch))

  def datasets(self, settings: TrainSettings, splits: task.Splits, seed: int,
               first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    sizes = dict(batch_size=settings.batch, num_configs=settings.configs,
                 seed=seed)
    return layout_batches.training_dataset(
        splits.train, splits.stats, keep_nodes=settings.keep_nodes,
        first_epoch=first_epoch, **sizes
    ), layout_batches.training_dataset(
        splits.validated, splits.stats, keep_nodes=-1, anew=False, **sizes)

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    rows = np.tile(stats.config.minimum, (2, 1, 1))  # Of two configurations.
    return layout_batches.program_graph(
        Program(
            name='sample', node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            node_config_ids=np.zeros(1, np.int64),
            runtime_ns=np.ones(2, np.int64), bounds=stats,
            read_layouts=lambda configs: rows[configs]),
        np.arange(2), stats)

  def graphs(self, problem: Program,
             stats: FeatureStats) -> Iterator[tfgnn.GraphTensor]:
    for configs in _blocks(problem, _CHUNK_FLOATS):
      yield layout_batches.program_graph(problem, configs, stats)

  def config_rows(self, problem: Program,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    bounds = problem.bounds.config
    if (bounds.minimum < stats.config.minimum).any() or (
        bounds.maximum > stats.config.maximum).any():
      for configs in _blocks(problem, _BLOCK_FLOATS):
        yield problem.layouts(configs).reshape(-1, len(bounds.minimum))


def _blocks(problem: Program, floats: int) -> list[np.ndarray]:
  """Configurations in order, int64, with about so many numbers in layouts."""
  at_once = max(1, floats // (
      problem.num_configurable * len(problem.bounds.config.minimum)))
  return np.split(np.arange(problem.num_configs),
                  range(at_once, problem.num_configs, at_once))


TASK = LayoutTask()
