"""Kernels are scored side by side, in order; duplicates of a tile come last."""

import dataclasses
import math
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from support import eager_training, model_checks, saved_run, tiny_kernels
from tpu_graphs_ext.data.kernel import Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import scoring
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TILE
from tpu_graphs_ext.tasks.tile import LoadSettings

KERNELS = [tiny_kernels.make_kernel(f'net_{i}', num_configs=i + 2, base=i)
           for i in range(12)]
PARTITION = Partition.from_kernels(KERNELS)


class Gathering:
  """The number of configurations as scores, of three kernels at a time.

  The first ends last.
  """
  _members = ()  # As of a model that traces its `forward`.

  def __init__(self):
    self._barrier = threading.Barrier(3, timeout=300)

  def forward(self, graph, num_configs):
    self._barrier.wait()
    if num_configs == KERNELS[0].num_configs:
      time.sleep(0.1)
    return np.full([1, num_configs], num_configs, np.float32)


def ranker_of(model, kernels=PARTITION, num_ops=100):
  return scoring.Ranker(
      model, FeatureStats.of_partition(kernels), num_ops, TILE, name='model_x')


def test_kernels_are_scored_side_by_side_and_come_in_order(monkeypatch):
  monkeypatch.setattr(scoring.threads, 'cores', lambda: 3)
  results = list(ranker_of(Gathering()).score_all(PARTITION, 'score'))
  assert [kernel.tile_id for kernel, _ in results] == [
      kernel.tile_id for kernel in KERNELS]
  for (_, scores), kernel in zip(results, KERNELS):
    assert scores.given.tolist() == [kernel.num_configs] * kernel.num_configs


class Alone:
  """Notes how many calls of `forward` run at once."""

  def __init__(self):
    self.running, self.most = 0, 0

  def forward(self, graph, num_configs):
    self.running += 1
    self.most = max(self.most, self.running)
    time.sleep(0.02)
    self.running -= 1
    return np.zeros([1, num_configs], np.float32)


def test_a_models_own_forward_runs_in_one_thread_at_a_time(monkeypatch):
  """The baseline's models call Keras's Sequential, made for one shape."""
  monkeypatch.setattr(scoring.threads, 'cores', lambda: 3)
  model = Alone()
  assert len(list(ranker_of(model).score_all(PARTITION, 'score'))) == 12
  assert model.most == 1


class FixedModel:
  """Returns given scores, and keeps the opcodes that it sees."""

  def __init__(self, scores):
    self._scores = np.array(scores, np.float32)

  def forward(self, graph, num_configs):
    self.opcodes = graph.node_sets['op']['op'].numpy().tolist()
    return self._scores


def test_scores_columns_and_opcodes_that_do_not_fit(caplog):
  kernel = tiny_kernels.make_kernel(num_configs=2)  # Opcodes 2, 3, 4.
  partition = Partition.from_kernels([kernel])
  with pytest.raises(UserError, match=r'model_x: scores of tiny_net_0 have the '
                     r'shape \(1, 3\); it must be \(1, 2\)'):
    ranker_of(FixedModel([[1, 2, 3]]), partition).scored(kernel)
  with pytest.raises(UserError, match='scores of tiny_net_0 are NaN or'):
    ranker_of(FixedModel([[1, math.nan]]), partition).scored(kernel)
  narrow = tiny_kernels.make_kernel(num_configs=2, config_width=7)
  with pytest.raises(UserError, match=r'config_feat has 7 columns, but .* 24'):
    ranker_of(FixedModel([[1, 2]]), partition).scored(narrow)
  ranker = ranker_of(FixedModel([[1, 2]]), partition, num_ops=4)
  assert ranker.scored(kernel).given.tolist() == [1, 2]
  assert ranker.model.opcodes == [2, 3, 0]
  assert caplog.messages == [
      'model_x was trained on opcodes below 4; nodes with others, up to 4, '
      'count as opcode 0']


# --------------------------------------------------------- duplicate tiles

@pytest.mark.parametrize('tiles', ['elements', 'layout tiles'])
def test_an_ensemble_counts_tiles_as_its_members_do(
    tmp_path, monkeypatch, tiles):
  """As it finds out in the baseline's trainer, which gives it nothing."""
  monkeypatch.setattr(tf.keras.Model, 'save', eager_training.save_weights)
  stats = model_checks.stats_of(saved_run.KERNELS).to_json()
  model_dir = saved_run.save(str(tmp_path), 'EnsembleRanker', {
      'copies': 1, 'members': {'AnalyticTileModel': {
          'feature_stats': {**stats, 'tiles': tiles}}}})
  ranker = scoring.load_ranker(model_dir, LoadSettings())
  assert ranker.in_elements == (tiles == 'elements')


# Tiles a, b, a, c, b, a.
FIRST = np.array([0, 1, 0, 3, 1, 0])


def test_first_copies():
  rows = np.float32([[1, 2], [1, 3], [1, 2], [0, 2], [1, 3], [1, 2]])
  np.testing.assert_array_equal(scoring.first_copies(rows), FIRST)
  near = np.nextafter(np.float32(1), np.float32(2))
  np.testing.assert_array_equal(
      scoring.first_copies(np.float32([[1], [near], [0.0], [-0.0]])),
      [0, 1, 2, 2])
  np.testing.assert_array_equal(
      scoring.first_copies(np.zeros([3, 0], np.float32)), [0, 0, 0])


def test_order_of_duplicates():
  plain = np.float32([2, 1, 2, 3, 1, 2])
  # The second model puts duplicates last itself, a's before b's.
  for from_model, kept in (
      (plain, [1, 4, 0, 2, 5, 3]),
      (np.float32([2, 1, 8, 3, 9, 8]), [1, 0, 3, 2, 5, 4])):
    scores = scoring.Scores(from_model, FIRST)
    assert scores.repeats.tolist() == [False, False, True, False, True, True]
    assert scores.of_tiles.tolist() == plain.tolist()
    # b 1, a 2, c 3; then b's copy and those of a, as in the file.
    assert scores.order.tolist() == [1, 0, 3, 4, 2, 5]
    assert dataclasses.replace(scores, keep_repeats=True).order.tolist() == kept
  alike = scoring.Scores(np.float32([5, 5, 5]), np.zeros(3, np.int64))
  assert not alike.repeats.any() and alike.order.tolist() == [0, 1, 2]
