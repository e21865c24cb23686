"""Roofline times against the notebook's examples and sums by hand."""

import pytest

from tpu_graphs_ext.analytic import roofline


def test_the_published_examples():
  assert roofline.embedding_forward_us(
      bags=4096, rows=500_000, tables=197, bag_size=32, width=32,
      rows_per_block=128) == pytest.approx(4340.7676440049445, rel=1e-12)
  assert roofline.embedding_backward_sgd_us(
      bags=2048, tables=128, bag_size=128, width=128,
      shared_memory=False) == pytest.approx(86291.71294932015, rel=1e-12)


def test_hit_rate_by_hand():
  # Two draws of four rows, three of them cached: 3/4 * 2/3.
  assert roofline.hit_rate(3, 4, 2) == pytest.approx(1 / 2)
  # Four draws meet the one that is not cached.
  assert roofline.hit_rate(3, 4, 4) == 0


def test_backward_with_shared_memory_by_hand():
  # 4 bags * (64 + 32 indices + 32 gradient + 2 * 2 * 32 rows) = 1024 bytes.
  assert roofline.embedding_backward_sgd_us(2, 2, 2, 8, True) == pytest.approx(
      1024 / 809 / 1000)
