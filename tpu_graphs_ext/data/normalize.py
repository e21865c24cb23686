"""Min-max scaling of feature columns, as a value that is saved with a run.

A column is scaled to [0, 1] by its least and largest value in the train split
and dropped where it is constant there. The arithmetic is float32 in the
baseline's order, so that the numbers agree to the last bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnStats:
  """Least and largest values, float32 [columns], of one feature table."""
  minimum: np.ndarray
  maximum: np.ndarray

  @classmethod
  def of(cls, blocks: Iterable[np.ndarray]) -> ColumnStats:
    """Statistics of the rows of all blocks float32 [rows, columns] together."""
    return cls.joined(cls(block.min(axis=0), block.max(axis=0))
                      for block in blocks if len(block))

  @classmethod
  def joined(cls, parts: Iterable[ColumnStats]) -> ColumnStats:
    """Statistics of several tables together."""
    parts = list(parts)
    return cls(np.min([part.minimum for part in parts], axis=0),
               np.max([part.maximum for part in parts], axis=0))

  @functools.cached_property
  def used(self) -> np.ndarray:
    """bool [columns]: the column varies, so it is kept."""
    return self.minimum != self.maximum

  @property
  def num_used(self) -> int:
    return int(self.used.sum())

  @functools.cached_property
  def scale(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the used columns, their minimum and their range."""
    columns = np.flatnonzero(self.used)
    low = self.minimum[columns]
    return columns, low, self.maximum[columns] - low

  def apply(self, table: np.ndarray, name: str = 'table') -> np.ndarray:
    """Scales a table; values outside the training range leave [0, 1].

    float32 [rows, columns] -> a new float32 [rows, used columns]. Raises
    UserError if the table has another number of columns.
    """
    self.require_columns(table, name)
    columns, low, width = self.scale
    scaled = table.take(columns, axis=1)
    scaled -= low
    scaled /= width
    return scaled

  def require_columns(self, table: np.ndarray, name: str) -> None:
    """Raises UserError unless a table has these columns."""
    if table.shape[1] != len(self.minimum):
      raise UserError(
          f'{name} has {table.shape[1]} columns, but the statistics have '
          f'{len(self.minimum)}; use data with the same columns as in training')

  def to_json(self) -> dict[str, list]:
    """Plain lists; float32 survives the round trip through JSON exactly."""
    return {'used': self.used.tolist(), 'minimum': self.minimum.tolist(),
            'maximum': self.maximum.tolist()}

  @classmethod
  def from_json(cls, stored: dict[str, list]) -> ColumnStats:
    """The inverse of `to_json`; see `FeatureStats.from_json`."""
    with np.errstate(over='ignore'):
      low, high = (np.array(stored[name], np.float32)
                   for name in ('minimum', 'maximum'))
    if low.ndim != 1 or low.shape != high.shape or not low.size or not (
        np.isfinite([low, high]).all() and (low <= high).all()):
      raise ValueError('minimum and maximum must be lists of finite numbers, '
                       'one of each for every column, and of at least one')
    return cls(low, high)


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureStats:
  """Statistics of the node features and the configuration features."""
  node: ColumnStats
  config: ColumnStats

  @classmethod
  def of_partition(cls, partition: Partition) -> FeatureStats:
    """Statistics of a partition's kernels, in one pass without a copy."""
    return cls(*(ColumnStats.of(getattr(kernel, name) for kernel in partition)
                 for name in ('node_feat', 'config_feat')))

  def to_json(self) -> dict[str, Any]:
    return {'node': self.node.to_json(), 'config': self.config.to_json()}

  @classmethod
  def from_json(cls, stored: dict[str, Any]) -> FeatureStats:
    """The inverse of `to_json`, or a UserError."""
    try:
      return cls(*(ColumnStats.from_json(stored[name])
                   for name in ('node', 'config')))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
      raise UserError('the stored feature statistics cannot be read: expected '
                      'minimum and maximum under node and config, but '
                      f'{type(error).__name__}: {error}') from error
