"""The tile task: kernels whose tiles are to be ranked."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import (
  compiled_model,
  evaluate,
  metrics,
  predictions_csv,
  settings,
  task,
)
from tpu_graphs_ext.engine.settings import LoadSettings, TrainSettings
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import (
  feature_stats,
  kernel_inputs,
  tile_batches,
  tile_results,
)

# Training steps in one call of TensorFlow: they are short.
STEPS_PER_CALL = 10

_ENSEMBLE = 'EnsembleRanker'
# Arguments of an ensemble, not of its members, and their values for a model
# that has no such argument.
_OF_ALL = {'objective': 'flags', 'averaging': 0.0}
# Long lists leave room for what matters in the end: fewer errors at top-1.
_BEST_OBJECTIVES = {'listmle_fastest_first': 'listmle_and_slowdown'}


class TileTask(task.Task):
  """See `Task`."""
  name, problem = 'tile', 'kernel'
  loading = LoadSettings
  evaluation = tile_results.Evaluation
  row_of = staticmethod(tile_results.row_of)
  top_ks = metrics.TOP_KS
  final = (('slowdown', 'final_error'),)
  csv_name, csv_configs = settings.CSV_NAME, settings.TOP_CONFIGS
  csv_id, csv_end = predictions_csv.TILE, ''
  test_configs = 10
  scored_at_once = 8
  config_table = 'config_feat'
  has_duplicates = True

  def read(self, path: str, loading: LoadSettings) -> Partition:
    return kernel_inputs.read_kernels(path, cache_dir=loading.cache_dir)

  def read_split(self, loading: LoadSettings, collection: Sequence[str],
                 split: str) -> Partition:
    return read.read_split(
        os.path.join(loading.data_root, *collection, split),
        cache_dir=loading.cache_dir,
        limit=read.TOY_FILES if loading.toy_data else None)

  def statistics(self, args: Mapping[str, Any],
                 loading: LoadSettings) -> tuple[FeatureStats, int]:
    dataset = read.read_dataset(
        loading.data_root, cache_dir=loading.cache_dir,
        toy_data=loading.toy_data,
        min_train_configs=-1 if loading.stats == 'all' else args['configs'])
    return FeatureStats.of_partition(dataset.train), dataset.num_ops

  def prepared(self, settings: TrainSettings) -> tuple[
      TrainSettings, task.Splits]:
    # Cheap checks first: a wrong name must not wait for the data.
    settings = with_members(settings)
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, settings.models_file)
    data = read.read_dataset(
        settings.data_root, min_train_configs=settings.configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data)
    validated = data.valid
    if settings.validate_batches >= 0:
      # As the baseline: 5 % more kernels than the batches hold, for those that
      # drop out because they have too few configurations.
      count = int(settings.validate_batches * settings.batch * 1.05)
      validated = validated.select(np.arange(min(count, len(validated))))
    stats = FeatureStats.of_partition(data.train)
    for partition in (data.valid, data.test):
      stats.check_columns(partition)
    if settings.test_mode == 'metrics':
      evaluate.require_labels(
          data.test, os.path.join(settings.data_root, 'test'), self)
    for split, kernels in (('train', data.train), ('valid', validated)):
      usable = int((kernels.num_configs >= settings.configs).sum())
      if usable < settings.batch:
        raise UserError(
            f'{os.path.join(settings.data_root, split)}: only {usable} of '
            f'{len(kernels)} kernels have at least --configs='
            f'{settings.configs} configurations, fewer than one --batch='
            f'{settings.batch}; lower --batch or --configs')
    if takes_stats:
      settings = feature_stats.given_to_model(
          settings, feature_stats.of_kernels(stats, data.every_train))
    return settings, task.Splits(
        **vars(data), validated=validated, stats=stats)

  def compiled_model(self, settings: TrainSettings,
                     splits: task.Splits) -> tf.keras.Model:
    return compiled_model.model(
        settings, splits.num_ops, self.sample_graph(splits.stats),
        compiled_model.CombinedLoss(settings.weighted_losses),
        steps=len(splits.train) // settings.batch,
        steps_per_call=STEPS_PER_CALL)

  def datasets(
      self, settings: TrainSettings, splits: task.Splits, seed: int,
      first_epoch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    sizes = dict(batch_size=settings.batch, num_configs=settings.drawn_configs,
                 least_configs=settings.configs, seed=seed)
    # The same configurations in all epochs, so that epochs compare.
    return tile_batches.training_dataset(
        splits.train, splits.stats, first_epoch=first_epoch, **sizes
    ), tile_batches.training_dataset(
        splits.validated, splits.stats, shuffle=False, redraw=False,
        **sizes).cache()

  def check_columns(self, problems: Partition, stats: FeatureStats) -> None:
    stats.check_columns(problems)

  def sample_graph(self, stats: FeatureStats) -> tfgnn.GraphTensor:
    return tile_batches.kernel_graph(
        Kernel(
            tile_id='sample',
            node_feat=stats.node.minimum[np.newaxis],
            node_opcode=np.zeros(1, np.uint8),
            edge_index=np.zeros((0, 2), np.int64),
            config_feat=stats.config.minimum[np.newaxis],
            runtime_ns=np.ones(1, np.int64),
            normalizer_ns=np.ones(1, np.int64)),
        stats)

  def problems(self, members: Sequence[Kernel]) -> Partition:
    return Partition.from_kernels(members)

  def graphs(self, problem: Kernel,
             stats: FeatureStats) -> Iterable[tfgnn.GraphTensor]:
    return [tile_batches.kernel_graph(problem, stats)]

  def all_graphs(self, problems: Partition, stats: FeatureStats
                 ) -> Iterable[Iterable[tfgnn.GraphTensor]]:
    # Made ahead of use.
    return ([graph] for graph in tile_batches.kernel_graphs(problems, stats))

  def config_rows(self, problem: Kernel,
                  stats: FeatureStats) -> Iterable[np.ndarray]:
    return [problem.config_feat]


def with_members(settings: TrainSettings) -> TrainSettings:
  """The settings with `members` of the model as one `EnsembleRanker`.

  Of an ensemble, each member is multiplied. Raises UserError if there is no
  such model, or the models.py has no ensembles.
  """
  cls = load_models.model_class(settings.model, settings.models_py)
  if settings.members == 1:
    return settings
  if _ENSEMBLE not in load_models.model_names(settings.models_py):
    raise UserError(
        f'--members={settings.members}: there is no {_ENSEMBLE} in '
        f'{settings.models_py} to hold them; give --members=1')
  kwargs = dict(settings.model_kwargs)
  if settings.model != _ENSEMBLE:
    defaults = load_models.constructor_arguments(cls)[0]
    of_all = {name: kwargs.pop(name, defaults.get(name, default))
              for name, default in _OF_ALL.items()}
    if settings.recipe == 'best' and 'objective' not in settings.model_kwargs:
      of_all['objective'] = _BEST_OBJECTIVES.get(
          of_all['objective'], of_all['objective'])
    kwargs = {'members': {settings.model: kwargs}, **of_all}
  return dataclasses.replace(
      settings, model=_ENSEMBLE, model_kwargs_json=json.dumps(
          {**kwargs, 'copies': settings.members}))


TASK = TileTask()
