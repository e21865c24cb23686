"""Kernels are scored at once, and come out in order."""

import threading
import types

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import artifacts, scoring

KERNELS = [tiny_kernels.make_kernel(f'net_{i}', num_configs=i + 2, base=i)
           for i in range(12)]
PARTITION = Partition.from_kernels(KERNELS)


class Gathering:
  """Scores are the number of configurations.

  No kernel is done before `together` have been looked at at once, and the
  first not before another.

  Args:
    together: 1 for no waiting.
    fails: a number of configurations that gets NaN.
  """

  def __init__(self, together=1, fails=None):
    self._together = together
    self._fails = fails
    self._change = threading.Condition()
    self.now = self.most = self.done = 0

  def forward(self, graph, num_configs):
    with self._change:
      self.now += 1
      self.most = max(self.most, self.now)
      self._change.notify_all()
      self._wait_for(lambda: self.most >= self._together)
      if self._together > 1 and num_configs == KERNELS[0].num_configs:
        self._wait_for(lambda: self.done)
      self.now -= 1
      self.done += 1
      self._change.notify_all()
    value = np.nan if num_configs == self._fails else num_configs
    return np.full([1, num_configs], value, np.float32)

  def _wait_for(self, condition):
    """Where it never comes, the test fails and does not hang."""
    assert self._change.wait_for(condition, timeout=300)


def ranker_of(model):
  return scoring.Ranker(model, FeatureStats.of_partition(PARTITION), 100)


@pytest.mark.parametrize('cores, at_once', [(1, 1), (3, 3), (64, 8)])
def test_kernels_come_in_order_and_few_at_once(monkeypatch, cores, at_once):
  monkeypatch.setattr(scoring.os, 'cpu_count', lambda: cores)
  model = Gathering(together=at_once)
  results = list(ranker_of(model).score_all(PARTITION, 'score'))
  assert [kernel.tile_id for kernel, _ in results] == [
      kernel.tile_id for kernel in KERNELS]
  for (_, scores), kernel in zip(results, KERNELS):
    assert scores.given.tolist() == [kernel.num_configs] * kernel.num_configs
  assert model.most == at_once


def test_a_kernel_without_scores_is_named_after_those_before_it():
  scored = ranker_of(Gathering(fails=5)).score_all(PARTITION, 'score')
  assert [next(scored)[0].tile_id for _ in range(3)] == [
      'net_0', 'net_1', 'net_2']
  with pytest.raises(scoring.UserError, match='scores of net_3 are NaN'):
    next(scored)


@pytest.mark.parametrize('kwargs, found, expected', [
    ({'feature_stats': {'tiles': 'elements'}}, None, True),
    ({'feature_stats': {'tiles': 'layout tiles'}}, True, False),
    ({}, True, True), ({}, False, False),
    ({'feature_stats': None}, None, False)])
def test_what_tiles_count_is_what_the_model_was_told_or_found(
    kwargs, found, expected):
  scaling = types.SimpleNamespace(in_elements=lambda: found)
  statistics = types.SimpleNamespace(read=lambda: scaling)
  model = types.SimpleNamespace(
      **({} if found is None else {'_statistics': statistics}))
  run = artifacts.Run('model_x', {}, kwargs)
  assert scoring._counts_elements(run, model) is expected
