"""Tiles that a kernel lists again come last, whatever the model."""

import dataclasses

import numpy as np
import pytest

from support import model_checks, tiny_kernels
from tpu_graphs_ext import load_models
from tpu_graphs_ext.data.partition import Partition
from tpu_graphs_ext.engine import duplicate_configs, scoring

# Tiles a, b, a, c, b, a.
FIRST = np.array([0, 1, 0, 3, 1, 0])
PLAIN = np.float32([2, 1, 2, 3, 1, 2])


def test_first_copies():
  rows = np.float32([[1, 2], [1, 3], [1, 2], [0, 2], [1, 3], [1, 2]])
  np.testing.assert_array_equal(duplicate_configs.first_copies(rows), FIRST)


def test_first_copies_of_odd_rows():
  near = np.nextafter(np.float32(1), np.float32(2))
  np.testing.assert_array_equal(
      duplicate_configs.first_copies(np.float32([[1], [near], [0.0], [-0.0]])),
      [0, 1, 2, 2])
  np.testing.assert_array_equal(
      duplicate_configs.first_copies(np.zeros([3, 0], np.float32)), [0, 0, 0])


def test_order_of_a_model_that_gives_copies_one_score():
  scores = duplicate_configs.Scores(PLAIN, FIRST)
  assert scores.repeats.tolist() == [False, False, True, False, True, True]
  # b 1, a 2, c 3; then b's copy and those of a, as in the file.
  assert scores.order.tolist() == [1, 0, 3, 4, 2, 5]
  kept = dataclasses.replace(scores, keep_repeats=True)
  assert kept.order.tolist() == [1, 4, 0, 2, 5, 3]


def test_order_of_a_model_that_puts_repetitions_last_itself():
  # Repetitions of a before that of b: not the order of their tiles.
  scores = duplicate_configs.Scores(np.float32([2, 1, 8, 3, 9, 8]), FIRST)
  assert scores.of_tiles.tolist() == PLAIN.tolist()
  assert scores.order.tolist() == [1, 0, 3, 4, 2, 5]
  kept = dataclasses.replace(scores, keep_repeats=True)
  assert kept.order.tolist() == [1, 0, 3, 2, 5, 4]


def test_no_repetitions_where_all_are_alike():
  scores = duplicate_configs.Scores(np.float32([5, 5, 5]), np.zeros(3, np.int64))
  assert not scores.repeats.any()
  assert scores.order.tolist() == [0, 1, 2]


@pytest.mark.parametrize('name', ['EarlyJoinSAGE', 'LateJoinConcatPoolSAGE'])
def test_host_and_models_agree_which_tiles_come_first(name):
  """The second puts repetitions last in `forward`, the first does not."""
  rng = np.random.default_rng(0)
  kernel = tiny_kernels.learnable_kernel('net_0', rng, 30)
  kernel.config_feat[20:] = kernel.config_feat[rng.integers(0, 20, 10)]
  stats = model_checks.stats_of([kernel])
  model = model_checks.make(name)
  ranker = scoring.Ranker(model, stats, 100)
  kept = dataclasses.replace(ranker, keep_repeats=True)
  (_, scores), (_, scores_kept) = (
      each for either in (ranker, kept)
      for each in either.score_all(Partition.from_kernels([kernel]), 'test'))
  assert sorted(scores.order[:20]) == list(range(20))
  given = model_checks.scores(model, kernel, stats)
  np.testing.assert_array_equal(
      scores_kept.order, np.argsort(given, kind='stable'))
  last_itself = load_models.model_class(name)._repeats_last
  assert np.array_equal(scores_kept.order, scores.order) == last_itself
