"""Roofline times against worked examples and sums by hand."""

import dataclasses

import pytest

from tpu_graphs_ext.analytic import roofline
from tpu_graphs_ext.analytic.roofline import EmbeddingBags, Gpu
from tpu_graphs_ext.errors import UserError

FORWARD = EmbeddingBags(batch_size=4096, rows=500_000, tables=197, bag_size=32,
                        width=32, rows_per_block=128, shared_memory=True)
BACKWARD = EmbeddingBags(batch_size=2048, rows=200_000, tables=128,
                         bag_size=128, width=128, rows_per_block=32,
                         shared_memory=False)


def test_the_published_examples():
  assert roofline.embedding_forward_us(FORWARD) == pytest.approx(
      4340.7676440049445, rel=1e-12)
  assert roofline.embedding_backward_sgd_us(BACKWARD) == pytest.approx(
      86291.71294932015, rel=1e-12)


# 4 bags of 2 rows of 8 values = one sector each; 1 byte/ns and 1 a cycle.
TINY = EmbeddingBags(batch_size=2, rows=4, tables=2, bag_size=2, width=8,
                     rows_per_block=1)
SLOW = Gpu(dram_gb_s=1, l2_gb_s=1, l2_bytes=96, multiprocessors=1, gflop_s=1)


def test_hit_rate_by_hand():
  # One warp at a time, so one table has all 96 bytes: 3 of its 4 rows.
  assert roofline.cached_table_bytes(TINY, SLOW) == 96
  # Two draws: 3/4 * 2/3.
  assert roofline.hit_rate(TINY, SLOW) == pytest.approx(1 / 2)
  # 4 draws of 4 rows meet the one that is not cached.
  assert roofline.hit_rate(dataclasses.replace(TINY, batch_size=4), SLOW) == 0


def test_forward_by_hand():
  # Rows: 2 * 32 * 2 - 96 = 32 bytes a table, half of them from each memory.
  # Main memory: 2 * ((32 + 32) * 2 + 16 + 96) = 480; cache:
  # 2 * (64 * 2 + 16) = 288; 480 ns.
  assert roofline.embedding_forward_us(TINY, SLOW) == pytest.approx(0.480)
  # With a cache of a tenth of the speed: 2880 ns.
  slow_cache = Gpu(1, 0.1, 96, 1, 1)
  assert roofline.embedding_forward_us(TINY, slow_cache) == pytest.approx(2.88)


def test_backward_by_hand():
  # 4 bags * (64 + 32 indices + 32 gradient + 2 * 2 * 32 rows) = 1024 bytes.
  assert roofline.embedding_backward_sgd_us(TINY, SLOW) == pytest.approx(1.024)
  # 4 bags * 2 rows * 8 = 64 multiply-adds, 6400 ns at a hundredth a ns.
  assert roofline.embedding_backward_sgd_us(
      TINY, Gpu(1, 1, 96, 1, 0.01)) == pytest.approx(6.4)


def test_refusals():
  with pytest.raises(UserError, match='bag_size is 0; it must be above 0'):
    EmbeddingBags(1, 1, 1, 0, 1)
  with pytest.raises(UserError, match='width is 0; it must be above 0'):
    EmbeddingBags(1, 1, 1, 1, 0)
