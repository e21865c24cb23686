"""What the features of a data root are scaled with, as a model's argument.

Both hosts hand a model features that are scaled by the train split and lack
its constant columns. Models that need sizes in their own units, such as
`AnalyticTileModel`, take the statistics as the argument `feature_stats`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine.settings import (
  StatsSettings,
  TrainSettings,
  parse_model_kwargs,
)
from tpu_graphs_ext.errors import UserError

ARGUMENT = 'feature_stats'
TILES = ('layout tiles', 'elements')  # What tile bounds can count.
# In layout tiles, the largest tile has a smaller part of a tensor's elements.
_LEAST_PART = 0.02


def model_kwargs_json(settings: StatsSettings) -> str:
  """JSON for --model_kwargs_json with the statistics of the train split.

  A float32 survives it exactly.

  Raises:
    UserError: the data cannot be used, or `settings.model_kwargs_json` is no
      JSON object.
  """
  kwargs = parse_model_kwargs(settings.model_kwargs_json)
  every = read.read_split(
      os.path.join(settings.data_root, 'train'), min_configs=-1,
      cache_dir=settings.cache_dir,
      limit=read.TOY_FILES if settings.toy_data else None)
  enough = every.num_configs >= settings.configs
  if not enough.any():
    raise UserError(
        f'{os.path.join(settings.data_root, "train")}: no kernel has '
        f'--configs={settings.configs} or more configurations; lower --configs')
  stats = FeatureStats.of_partition(every.select(enough))
  return json.dumps(_with_stats(kwargs, stats, every), separators=(',', ':'))


def given_to_model(settings: TrainSettings, stats: FeatureStats,
                   every: Partition) -> TrainSettings:
  """The settings, in which a model that takes statistics is given `stats`.

  A null that is given already stays: the model then goes without.

  Args:
    settings: of the run.
    stats: what training scales with.
    every: all train kernels.

  Raises:
    UserError: the model is given other statistics already.
  """
  if settings.model_kwargs.get(ARGUMENT, '') is None:
    return settings
  kwargs = _with_stats(settings.model_kwargs, stats, every)
  return dataclasses.replace(settings, model_kwargs_json=json.dumps(kwargs))


def _with_stats(kwargs: dict[str, Any], stats: FeatureStats,
               every: Partition) -> dict[str, Any]:
  """A model's arguments with the statistics that its features are scaled with.

  The baseline's trainer scales with the train kernels that have enough
  configurations, its evaluation and prediction scripts with all of them.
  Where the two differ both are stored, the second under 'all_kernels'; with
  other columns than in training those scripts cannot run, so then it is not.

  Args:
    kwargs: arguments of the model; `feature_stats` may be among them.
    stats: what training scales with.
    every: all train kernels.

  Raises:
    UserError: the arguments hold other statistics already.
  """
  given, tiles = kwargs.get(ARGUMENT), what_tiles_count(every)
  if given is not None and not (
      _equal(FeatureStats.from_json(given), stats)
      and given.get('tiles', tiles) == tiles):
    raise UserError(
        f'--model_kwargs_json: {ARGUMENT} are not those of the train split; '
        'leave them out, and they are filled in')
  stored = {**stats.to_json(), 'tiles': tiles}
  of_all = FeatureStats.of_partition(every)
  same_columns = all(
      np.array_equal(a.used, b.used)
      for a, b in ((stats.node, of_all.node), (stats.config, of_all.config)))
  if same_columns and not _equal(stats, of_all):
    stored['all_kernels'] = of_all.to_json()
  return {**kwargs, ARGUMENT: stored}


def what_tiles_count(every: Partition) -> str:
  """'elements' or 'layout tiles': see `_count_elements` of models.py."""
  tile = _largest(every.config_feat, 'output_bounds_product',
                  schema.CONFIG_COLUMN, every.config_start, every.num_configs)
  tensor = _largest(every.node_feat, 'shape_dimensions_product',
                    schema.NODE_COLUMN, every.node_start, every.num_nodes)
  parts = tile / np.maximum(1.0, tensor)
  parts = parts[parts > 0]
  return TILES[bool(len(parts) and np.median(parts) > _LEAST_PART)]


def _largest(table: np.ndarray, name: str, columns: dict[str, int],
             start: np.ndarray, number: np.ndarray) -> np.ndarray:
  """float64 [kernels]: largest value of a column; 0 if it is not there."""
  if columns[name] >= table.shape[1]:
    return np.zeros(len(start))
  column = table[:, columns[name]]  # A view: nothing is copied.
  return np.array([column[first:first + rows].max(initial=0)
                   for first, rows in zip(start, number)], float)


def _equal(one: FeatureStats, other: FeatureStats) -> bool:
  return all(np.array_equal(getattr(a, bound), getattr(b, bound))
             for a, b in ((one.node, other.node), (one.config, other.config))
             for bound in ('minimum', 'maximum'))
