"""What a run trains on: the splits, read and looked over, and their scale."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from tpu_graphs_ext.data import read
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.host import evaluate
from tpu_graphs_ext.host.settings import TrainSettings


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingData:
  """The splits of a run.

  Attributes:
    train: kernels with enough configurations.
    every_train: the others too.
    validated: the valid kernels that are looked at after each epoch.
    valid: all of them.
    test: labelled where the run measures it.
    stats: scale of the features: that of `train`.
    num_ops: rows of an embedding of the opcodes.
  """
  train: Partition
  every_train: Partition
  validated: Partition
  valid: Partition
  test: Partition
  stats: FeatureStats
  num_ops: int

  @classmethod
  def read(cls, settings: TrainSettings) -> TrainingData:
    """Reads the splits of the data root.

    Raises:
      UserError: they cannot be read, or the run cannot use them: too few
        kernels for a batch, other columns than in `train`, no labels.
    """
    splits = read.read_dataset(
        settings.data_root, min_train_configs=settings.configs,
        cache_dir=settings.cache_dir, toy_data=settings.toy_data)
    stats = FeatureStats.of_partition(splits.train)
    for partition in (splits.valid, splits.test):
      stats.check_columns(partition)
    data = cls(
        splits.train, splits.every_train, _validated(splits.valid, settings),
        splits.valid, splits.test, stats, splits.num_ops)
    _require_batch(data.train, settings, 'train')
    _require_batch(data.validated, settings, 'valid')
    if settings.test_mode == 'metrics':
      evaluate.require_labels(
          data.test, os.path.join(settings.data_root, 'test'))
    return data


def _validated(valid: Partition, settings: TrainSettings) -> Partition:
  if settings.validate_batches < 0:
    return valid
  # As the baseline: 5 % more kernels than the batches hold, for those that
  # drop out because they have too few configurations.
  count = int(settings.validate_batches * settings.batch * 1.05)
  return valid.select(np.arange(min(count, len(valid))))


def _require_batch(partition: Partition, settings: TrainSettings,
                   split: str) -> None:
  usable = int((partition.num_configs >= settings.configs).sum())
  if usable < settings.batch:
    raise UserError(
        f'{os.path.join(settings.data_root, split)}: only {usable} of '
        f'{len(partition)} kernels have at least --configs='
        f'{settings.configs} configurations, fewer than one --batch='
        f'{settings.batch}; lower --batch or --configs')
