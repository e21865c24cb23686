"""The scale of the features, as the argument `feature_stats` of a model.

For models that need sizes in their own units, such as `AnalyticTileModel`:
features are scaled by the train split and lack its constant columns.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from tpu_graphs_ext import load_models
from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine.settings import Training
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks.tile import StatsSettings

ARGUMENT = 'feature_stats'
_TILES_OF_FLAG = {'elements': 'elements', 'layout': 'layout tiles'}

_log = logging.getLogger(__name__)


def model_kwargs_json(settings: StatsSettings) -> str:
  """JSON for --model_kwargs_json with the statistics of the train split."""
  folder = os.path.join(settings.data_root, 'train')
  every = read.read_kernels(
      folder, min_configs=-1, cache_dir=settings.cache_dir,
      limit=read.TOY_FILES if settings.toy_data else None)
  stats = FeatureStats.of_partition(
      read.with_enough_configs(every, folder, settings.configs))
  return json.dumps(_with_stats(settings, of_kernels(stats, every)),
                    separators=(',', ':'))


def given_to_model(settings: Training, stored: dict[str, Any]) -> Training:
  """The settings with `stored` statistics.

  A null that is given already stays: the model then does without. What tiles
  count may be given alone. Raises UserError if other statistics are given.
  """
  if settings.model_kwargs.get(ARGUMENT, '') is None:
    return settings
  return dataclasses.replace(settings, model_kwargs_json=json.dumps(
      _with_stats(settings, stored)))


def _with_stats(settings: Training | StatsSettings,
                stored: dict[str, Any]) -> dict[str, Any]:
  argument = settings.model_kwargs.get(ARGUMENT)
  argument = dict(argument) if isinstance(argument, dict) else {}
  tiles = argument.pop('tiles', None)
  if flag := getattr(settings, 'tiles', ''):
    tiles = _TILES_OF_FLAG[flag]
  if tiles:
    stored = {**stored, 'tiles': tiles}
    _log.info('They are read as %s, as given.', tiles)
  if argument and (FeatureStats.from_json(argument).to_json()
                   != FeatureStats.from_json(stored).to_json()):
    raise UserError(f'--model_kwargs_json: {ARGUMENT} differ from those of the '
                    'train split; leave them out, and they are filled in')
  return {**settings.model_kwargs, ARGUMENT: stored}


def of_kernels(stats: FeatureStats, every: Partition) -> dict[str, Any]:
  """Statistics in the form in which tile models take them.

  The baseline's trainer scales with the train kernels that have enough
  configurations (`stats`), its evaluation and prediction scripts with `every`
  one. Where the two differ, both are stored, unless their columns differ: then
  those scripts cannot run.
  """
  stored, of_all = stats.to_json(), FeatureStats.of_partition(every).to_json()
  tiles, why = what_tiles_count(every)
  _log.info('Tile bounds count %s: %s.', tiles, why)
  together = {**stored, 'tiles': tiles}
  if of_all != stored and all(
      of_all[table]['used'] == stored[table]['used'] for table in stored):
    together['all_kernels'] = of_all
  return together


def what_tiles_count(every: Iterable[Kernel]) -> tuple[str, str]:
  """'elements' or 'layout tiles', and why: as models.py decides."""
  models = load_models.models_module()
  return models.what_tiles_count(
      models.vote_of_tiles(kernel.node_feat, kernel.config_feat.max(0))
      for kernel in every)
