"""Trains a layout model, by the loop of `host.train`.

What it writes is described in `host.artifacts`. The run file of the layout task
has `final_error` with the slowdown at 1, 10 and 100 configurations and beside
it `final_kendall` and `final_opa`, {split: mean over programs}; it has no test
predictions, which are as many as there are configurations: those are in the
CSV alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf
import tensorflow_ranking as tfr

from tpu_graphs_ext import load_models
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import (
  artifacts,
  feature_stats,
  losses,
  outputs,
  results,
)
from tpu_graphs_ext.host import train as host_train
from tpu_graphs_ext.layout import (
  batches,
  evaluate,
  predict,
  programs,
  scoring,
)
from tpu_graphs_ext.layout.programs import Collection, Programs
from tpu_graphs_ext.layout.settings import (
  LayoutLoadSettings,
  LayoutTrainSettings,
)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingData:
  """The splits of a run and their scale.

  Attributes:
    collection: the splits.
    stats: scale of the features: that of the train programs.
    num_ops: rows of an embedding of the opcodes.
  """
  collection: Collection
  stats: Any
  num_ops: int

  @property
  def train(self) -> Programs:
    return self.collection.train


@dataclasses.dataclass
class LayoutTask:
  """See `host.train.TileTask`, whose methods these are."""
  callbacks: Sequence[tf.keras.callbacks.Callback] = ()

  def prepared(self, settings: LayoutTrainSettings) -> tuple[
      LayoutTrainSettings, TrainingData]:
    models_py = scoring.models_path(settings.models_py)
    takes_stats = load_models.takes(
        settings.model, feature_stats.ARGUMENT, models_py)
    collection = programs.read_collection(
        settings.data_root, settings.source, settings.search,
        min_configs=settings.configs, max_configs=settings.max_configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data,
        seed=settings.seed or 0)
    if settings.test_mode == 'metrics':
      programs.require_labels(collection.test)
    stats = collection.train.stats
    if takes_stats:
      settings = with_stats(settings, stats)
    return settings, TrainingData(collection, stats, collection.num_ops)

  def check_outputs(self, settings: LayoutTrainSettings) -> None:
    if settings.results_csv:
      outputs.check_file('--results_csv', settings.results_csv, predict.START,
                         predict.WHAT)

  def compiled_model(self, settings: LayoutTrainSettings,
                     data: TrainingData) -> tf.keras.Model:
    model = load_models.build(
        settings.model, settings.configs, data.num_ops, settings.model_kwargs,
        scoring.models_path(settings.models_py),
        scoring.sample_graph(data.stats))
    steps = -(-len(data.collection.train) // settings.batch)
    model.compile(
        # A model may bring its own loss instead, as MyLayoutSAGE does.
        loss=losses.ListMLE(),
        optimizer=tf.keras.optimizers.Adam(
            learning_rate=host_train.learning_rate(settings, steps),
            clipnorm=settings.clip_norm),
        metrics=[tfr.keras.metrics.OPAMetric(name='opa_metric')])
    return model

  def datasets(self, settings: LayoutTrainSettings, data: TrainingData,
               seed: int, first_epoch: int) -> tuple[
                   tf.data.Dataset, tf.data.Dataset]:
    valid = data.collection.valid
    if settings.validate_batches >= 0:
      number = settings.validate_batches * settings.batch
      valid = Programs(valid[:number], valid.where)
    sizes = dict(batch_size=settings.batch, num_configs=settings.configs,
                 seed=seed)
    return (batches.training_dataset(
        data.collection.train, data.stats, keep_nodes=settings.keep_nodes,
        first_epoch=first_epoch, **sizes), batches.training_dataset(
            valid, data.stats, keep_nodes=-1, shuffle=False, **sizes))

  def measure(self, settings: LayoutTrainSettings, data: TrainingData,
              model: tf.keras.Model, name: str,
              run_info: dict[str, Any]) -> Optional[str]:
    ranker = scoring.Ranker(model, data.stats, data.num_ops, name,
                            settings.source, settings.search)
    collection, seconds = data.collection, run_info['seconds']
    start = time.monotonic()
    _add_errors(run_info, 'val', evaluate.measure(
        ranker, collection.every_valid, 'valid'))
    seconds['validate'] = time.monotonic() - start
    start = time.monotonic()
    csv_path = None
    if settings.test_mode == 'metrics':
      _add_errors(run_info, 'test', evaluate.measure(
          ranker, collection.test, 'test'))
    else:
      csv_path = os.path.expanduser(run_info['args']['results_csv'])
      predict.write(csv_path, ranker, collection.test,
                    settings.source, settings.search)
    seconds['test'] = time.monotonic() - start
    return csv_path

  def reported(self, run: artifacts.Run) -> Optional[str]:
    if 'test' in run.info['final_error']:
      return None
    csv_path = os.path.expanduser(run.info['args']['results_csv'])
    if not os.path.exists(csv_path):
      predict.predict(run.model_dir, out=csv_path, loading=LayoutLoadSettings(
          **{name: run.info['settings'][name] for name in (
              'data_root', 'source', 'search', 'cache_dir', 'toy_data',
              'models_py')}))
    return csv_path


def _add_errors(run_info: dict[str, Any], split: str, rows: Any) -> None:
  means = results.nested(results.Summary(rows, len(rows)).means)
  run_info['final_error'][split] = means['slowdown']
  for name in ('kendall', 'opa'):
    run_info.setdefault(f'final_{name}', {})[split] = means[name]


def with_stats(settings: LayoutTrainSettings,
               stats: Any) -> LayoutTrainSettings:
  """The settings, in which a model that takes statistics is given `stats`.

  A null that is given already stays: the model then goes without.

  Raises:
    UserError: the model is given other statistics already.
  """
  kwargs = settings.model_kwargs
  given = kwargs.get(feature_stats.ARGUMENT, '')
  if given is None:
    return settings
  stored = {table: {side: getattr(columns, side).tolist()
                    for side in ('minimum', 'maximum')}
            for table, columns in (('node', stats.node),
                                   ('config', stats.config))}
  if given not in ('', 'auto', stored):
    raise UserError(
        f'--model_kwargs_json: {feature_stats.ARGUMENT} are not those of the '
        'train split; leave them out, and they are filled in')
  return dataclasses.replace(settings, model_kwargs_json=json.dumps(
      {**kwargs, feature_stats.ARGUMENT: stored}))


def train(settings: LayoutTrainSettings) -> host_train.TrainResult:
  """Trains, keeps the best epoch, measures it, and ranks the test split.

  Raises: as `host.train.train`.
  """
  return host_train.run(settings, LayoutTask())
