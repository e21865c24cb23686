"""Kernels are scored at once, and come out in order."""

import threading
import time

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.host import scoring

KERNELS = [tiny_kernels.make_kernel(f'net_{i}', num_configs=i + 2, base=i)
           for i in range(12)]
PARTITION = Partition.from_kernels(KERNELS)


class SlowestFirst:
  """The first kernels take longest; scores are the number of configurations.

  `fails` is a number of configurations that gets NaN.
  """

  def __init__(self, fails=None):
    self._fails = fails
    self._lock = threading.Lock()
    self.now = self.most = 0

  def forward(self, graph, num_configs):
    with self._lock:
      self.now += 1
      self.most = max(self.most, self.now)
    time.sleep(0.2 / num_configs)
    with self._lock:
      self.now -= 1
    value = np.nan if num_configs == self._fails else num_configs
    return np.full([1, num_configs], value, np.float32)


def ranker_of(model):
  return scoring.Ranker(model, FeatureStats.of_partition(PARTITION), 100)


@pytest.mark.parametrize('cores, at_once', [(1, 1), (3, 3), (64, 8)])
def test_kernels_come_in_order_and_few_at_once(monkeypatch, cores, at_once):
  monkeypatch.setattr(scoring.os, 'cpu_count', lambda: cores)
  model = SlowestFirst()
  results = list(ranker_of(model).score_all(PARTITION, 'score'))
  assert [kernel.tile_id for kernel, _ in results] == [
      kernel.tile_id for kernel in KERNELS]
  for (_, scores), kernel in zip(results, KERNELS):
    assert scores.tolist() == [kernel.num_configs] * kernel.num_configs
  assert model.most <= at_once
  assert model.most > 1 or at_once == 1


def test_a_kernel_without_scores_is_named_after_those_before_it():
  scored = ranker_of(SlowestFirst(fails=5)).score_all(PARTITION, 'score')
  assert [next(scored)[0].tile_id for _ in range(3)] == [
      'net_0', 'net_1', 'net_2']
  with pytest.raises(scoring.UserError, match='scores of net_3 are NaN'):
    next(scored)
