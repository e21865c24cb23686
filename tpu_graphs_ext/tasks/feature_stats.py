"""The scale of the features, as the argument `feature_stats` of a model.

For models that need sizes in their own units, such as `AnalyticTileModel`:
features are scaled by the train split and lack its constant columns.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from tpu_graphs_ext.data import read, schema
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine.settings import StatsSettings, Training
from tpu_graphs_ext.errors import UserError

ARGUMENT = 'feature_stats'
TILES = ('layout tiles', 'elements')  # What tile bounds can count.
# In layout tiles, the largest tile has a smaller share of a tensor's elements.
_LEAST_PART = 0.02
_TILE = schema.CONFIG_COLUMN['output_bounds_product']
_TENSOR = schema.NODE_COLUMN['shape_dimensions_product']


def model_kwargs_json(settings: StatsSettings) -> str:
  """JSON for --model_kwargs_json with the statistics of the train split."""
  folder = os.path.join(settings.data_root, 'train')
  every = read.read_kernels(
      folder, min_configs=-1, cache_dir=settings.cache_dir,
      limit=read.TOY_FILES if settings.toy_data else None)
  stats = FeatureStats.of_partition(
      read.with_enough_configs(every, folder, settings.configs))
  return json.dumps(
      _with_stats(settings.model_kwargs, of_kernels(stats, every)),
      separators=(',', ':'))


def given_to_model(settings: Training, stored: dict[str, Any]) -> Training:
  """The settings with `stored` statistics.

  A null that is given already stays: the model then does without. Raises
  UserError if other statistics are given already.
  """
  if settings.model_kwargs.get(ARGUMENT, '') is None:
    return settings
  return dataclasses.replace(settings, model_kwargs_json=json.dumps(
      _with_stats(settings.model_kwargs, stored)))


def _with_stats(kwargs: dict[str, Any],
                stored: dict[str, Any]) -> dict[str, Any]:
  given = kwargs.get(ARGUMENT) or 'auto'
  if given != 'auto' and (FeatureStats.from_json(given).to_json()
                          != FeatureStats.from_json(stored).to_json()):
    raise UserError(
        f'--model_kwargs_json: {ARGUMENT} differ from those of the train '
        'split; leave them out, and they are filled in')
  return {**kwargs, ARGUMENT: stored}


def of_kernels(stats: FeatureStats, every: Partition) -> dict[str, Any]:
  """Statistics in the form in which tile models take them.

  The baseline's trainer scales with the train kernels that have enough
  configurations (`stats`), its evaluation and prediction scripts with `every`
  one. Where the two differ, both are stored, unless their columns differ: then
  those scripts cannot run.
  """
  stored, of_all = stats.to_json(), FeatureStats.of_partition(every).to_json()
  found = {**stored, 'tiles': what_tiles_count(every)}
  if of_all != stored and all(
      of_all[table]['used'] == stored[table]['used'] for table in stored):
    found['all_kernels'] = of_all
  return found


def what_tiles_count(every: Partition) -> str:
  """'elements' or 'layout tiles': see `_count_elements` of models.py."""
  if (every[0].config_feat.shape[1] <= _TILE
      or every[0].node_feat.shape[1] <= _TENSOR):
    return TILES[0]
  parts = np.array([
      float(kernel.config_feat[:, _TILE].max())
      / max(1.0, float(kernel.node_feat[:, _TENSOR].max()))
      for kernel in every])
  parts = parts[parts > 0]
  return TILES[bool(len(parts) and np.median(parts) > _LEAST_PART)]
