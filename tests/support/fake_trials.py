"""Sweeps whose trials are no trainings, and end at once."""

from __future__ import annotations

import json

from support import tiny_kernels
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sweep import trials


def trained(trial):
  """What a worker does: OPA is what the argument `width` says, and the seed.

  A width of 13 is refused.
  """
  width = trial.configuration.kwargs.get('width', 4)
  if width == 13:
    raise UserError('out of memory')
  return trials.FINISHED, {
      'run': trial.key * 2, 'epochs': 2, 'best_epoch': 1,
      'parameters': int(10 * width), 'seconds': 1.5,
      'values': {'opa': width / 100 + trial.seed / 1000, 'top1': 1 / width}}


def write_data(folder):
  """A data root of one kernel a split."""
  return str(tiny_kernels.write_data_root(
      folder, num_train=1, num_valid=1, num_test=1))


def write_grid(folder, data_root, models_py, **more):
  """A grid of TinyRanker with three widths, two seeds; returns its path."""
  path = folder / 'grid.json'
  path.write_text(json.dumps({
      'models': ['TinyRanker'], 'kwargs': {'width': [2, 4, 8]},
      'settings': {'epochs': 2, 'models_py': str(models_py)},
      'data_root': data_root, 'seeds': [0, 1], **more}))
  return str(path)
