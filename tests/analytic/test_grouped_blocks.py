"""Grouped products: visits, memory, time, the usual tiles."""

import dataclasses

import numpy as np
import pytest

from tpu_graphs_ext.analytic import grouped_blocks
from tpu_graphs_ext.analytic.machines import Machine
from tpu_graphs_ext.analytic.products import GroupedProduct

MACHINE = Machine(
    bytes_per_ns=100.0, flops_per_ns=1e5, narrow='int8', matrix_unit=128,
    vmem_bytes=2**20, vmem_limit_bytes=2**20)
# Keeps nothing but the tiles and sums.
ADDING = dataclasses.replace(MACHINE, accumulates=True)
# 11 groups of 1,024 rows: 10 borders, of which 9 lie inside a tile.
FORWARD = GroupedProduct('forward', 11, 11264, 256, 512, 2, 2, 2)
ROWS = GroupedProduct('dlhs', 11, 11264, 256, 512, 2, 2, 2)
WEIGHTS = GroupedProduct('drhs', 11, 11264, 256, 512, 2, 2, 2)


def time_of(product, *block):
  return grouped_blocks.times_ns(product, np.array([block]), MACHINE)[0]


def memory_of(product, *block):
  return grouped_blocks.vmem_bytes(product, np.array([block]), ADDING)[0]


def test_memory():
  # 2 x (128 x 256 + 256 x 512 + 128 x 512) x 2 bytes, and sums in parts of k.
  assert memory_of(FORWARD, 128, 256, 512) == 4 * (32768 + 131072 + 65536)
  assert memory_of(FORWARD, 128, 128, 512) == (
      4 * (16384 + 65536 + 65536) + 4 * 65536)
  # The weights' gradient: x and dy of 128 rows, a result of 256 x 512, sums.
  assert memory_of(WEIGHTS, 128, 256, 512) == (
      4 * (32768 + 65536 + 131072) + 4 * 131072)
  # Rows are kept twice for more columns than the matrix unit has.
  assert grouped_blocks.vmem_bytes(
      FORWARD, np.array([[128, 256, 512]]), MACHINE) == (
          4 * (32768 + 131072 + 65536) + 524288 + 65536)


def test_weights_come_in_when_the_group_changes():
  # 11264 / 128 + 9 = 97 visits. In: x 655.36 ns, w 2621.44; out 1310.72;
  # 2 x 128 x 256 x 512 / 1e5 = 335.54432 ns and 200 of the step.
  x, w, out = 655.36, 2621.44, 1310.72
  assert time_of(FORWARD, 128, 256, 512) == pytest.approx(
      86 * (x + out) + 11 * (x + w + out) + x + w + out)
  # In two parts of k every step takes weights, and half of a result goes out.
  assert time_of(FORWARD, 128, 128, 512) == pytest.approx(
      2 * 97 * (x / 2 + w / 2 + out / 2) + x / 2 + w / 2 + out)


def test_the_rows_gradient_turns_weights():
  # 256 x 512 / 4e3 = 32.768 ns a step, hidden where memory is slower.
  fast = Machine(1e9, 1e5, '', 128, 2**20, 2**20)
  block = np.array([[128, 256, 512]])
  assert (grouped_blocks.times_ns(ROWS, block, fast)
          - grouped_blocks.times_ns(FORWARD, block, fast)) == pytest.approx(
              97 * 32.768)


def test_the_weights_gradient_has_a_result_for_each_group():
  # 97 visits; 11 of them end a group. x 655.36, dy 1310.72, out 2621.44 ns,
  # less than that: 335.54432 + 200 + sums 8 x 256 x 512 / 1e4 = 104.8576.
  assert time_of(WEIGHTS, 128, 256, 512) == pytest.approx(
      86 * (655.36 + 1310.72) + 11 * (655.36 + 1310.72 + 2621.44)
      + 655.36 + 1310.72 + 2621.44)


def test_the_usual_tiles_and_faults():
  odd = GroupedProduct('forward', 4, 200, 2880, 640, 2, 2, 2)
  tiles = grouped_blocks.usual_blocks(odd, ADDING, 2**30)
  assert set(tiles[:, 0]) == {128, 208}  # Rows are packed by 16.
  # Powers up to 2,944, and 2880 / 1, 2, 4, ... rounded up to 128.
  assert set(tiles[:, 1]) == {128, 256, 384, 512, 768, 1024, 1536, 2048, 2944}
  assert set(tiles[:, 2]) == {128, 256, 384, 512, 640}
  small = grouped_blocks.usual_blocks(odd, ADDING, 2**20)
  assert 0 < len(small) < len(tiles)
  assert (grouped_blocks.vmem_bytes(odd, small, ADDING) <= 2**20).all()
  assert grouped_blocks.fault_of(odd, (128, 2944, 640), ADDING, 2**30) == ''
  assert 'bk is larger' in grouped_blocks.fault_of(
      odd, (128, 4096, 640), ADDING, 2**30)
  assert 'vmem_limit is 1 MiB' in grouped_blocks.fault_of(
      odd, (128, 2944, 640), ADDING, 2**20)
