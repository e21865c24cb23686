"""Min-max statistics of feature columns."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tpu_graphs_ext.data.normalize import ColumnStats, FeatureStats
from tpu_graphs_ext.errors import UserError


def table(*rows) -> np.ndarray:
  return np.array(rows, np.float32)


def test_values_by_hand():
  stats = ColumnStats.of([np.zeros((0, 3), np.float32),
                          table([0, 5, -2], [4, 5, 6]), table([2, 5, 2])])
  assert stats.minimum.tolist() == [0, 5, -2]
  assert stats.maximum.tolist() == [4, 5, 6]
  # The second column is always 5, so it goes.
  assert stats.used.tolist() == [True, False, True]
  # (1 - 0) / 4, (0 + 2) / 8; outside the training range: (8 - 0) / 4, ...
  data = table([1, 9, 0], [8, 9, -4])
  scaled = stats.apply(data)
  assert scaled.tolist() == [[0.25, 0.25], [2.0, -0.25]]
  assert scaled.dtype == np.float32
  assert data.tolist() == [[1, 9, 0], [8, 9, -4]]
  assert stats.apply(data[:0]).shape == (0, 2)
  with pytest.raises(UserError, match='node_feat has 2 columns, but the '
                     'statistics have 3'):
    stats.apply(data[:, :2], 'node_feat')


def test_json_round_trip_is_exact():
  rng = np.random.default_rng(0)
  data = (rng.standard_normal((20, 6)) * 10.0 ** rng.integers(-30, 30, 6)
          ).astype(np.float32)
  data[:, 2] = 0.1
  stats = FeatureStats(ColumnStats.of([data]), ColumnStats.of([data[:, :3]]))
  again = FeatureStats.from_json(json.loads(json.dumps(stats.to_json())))
  for before, after in ((stats.node, again.node), (stats.config, again.config)):
    for name in ('minimum', 'maximum'):
      assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
  for stored in ({}, [], {'node': {}, 'config': {}},
                 {'node': None, 'config': None},
                 {'node': {'minimum': ['x'], 'maximum': [1]}, 'config': {}}):
    with pytest.raises(UserError, match='feature statistics cannot be read'):
      FeatureStats.from_json(stored)
