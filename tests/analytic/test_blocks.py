"""Blocks of a matrix product: memory, time, the usual grid, and faults."""

import dataclasses

import numpy as np
import pytest

from tpu_graphs_ext.analytic import blocks
from tpu_graphs_ext.analytic.machines import MACHINES, Machine
from tpu_graphs_ext.analytic.products import Product

LIMIT = 768 * 1024
MACHINE = Machine(bytes_per_ns=100.0, flops_per_ns=1e5, narrow='int8',
                  matrix_unit=128, vmem_bytes=2**20, vmem_limit_bytes=LIMIT)
# Keeps nothing but the blocks and sums.
ADDING = dataclasses.replace(MACHINE, accumulates=True)
# 512 x 256 times 256 x 1024 in bfloat16.
PRODUCT = Product(1, 512, 256, 1024, 2, 2, 2)


def time_of(product, *block, machine=MACHINE):
  return blocks.times_ns(product, np.array([block]), machine)[0]


def test_memory_has_two_of_each_block_and_sums_where_k_is_in_parts():
  # 2 x (256 x 256 + 256 x 512 + 256 x 512) x 2 bytes.
  whole, parts = blocks.vmem_bytes(
      PRODUCT, np.array([[256, 256, 512], [256, 128, 512]]), ADDING)
  assert whole == 2 * 2 * (65536 + 131072 + 131072)
  # Half of x and of w, and 256 x 512 sums of four bytes.
  assert parts == 2 * 2 * (32768 + 65536 + 131072) + 4 * 131072


def test_one_step_hides_nothing():
  # In: (512 x 256 + 256 x 1024) x 2 B / 100 B/ns = 7864.32 ns; out: 1 MiB,
  # 10485.76 ns; 2 x 512 x 256 x 1024 flops / 1e5 = 2684.35456 ns.
  assert time_of(PRODUCT, 512, 256, 1024) == pytest.approx(
      7864.32 + 2684.35456 + 800 + 10485.76)


def test_rows_are_kept_twice_for_more_columns_than_the_matrix_unit_has():
  narrow, wide = blocks.vmem_bytes(
      PRODUCT, np.array([[256, 256, 128], [256, 256, 256]]), MACHINE)
  assert narrow == 2 * 2 * (65536 + 32768 + 32768) + 524288
  assert wide == 2 * 2 * 3 * 65536 + 524288 + 2 * 65536
  whole = dataclasses.replace(PRODUCT, narrow='int8')
  assert blocks.vmem_bytes(whole, np.array([[256, 256, 256]]), MACHINE) == (
      2 * 2 * 3 * 65536 + 2**20)


def test_steps_hide_the_shorter_of_compute_and_transfers():
  # Two steps over n: x and half of w in (5242.88), then the second half of w
  # comes in while the first is computed; nothing goes out yet. The formula
  # counts a result with every transfer: 2621.44 + 5242.88 > 1342.17728 + 800.
  assert time_of(PRODUCT, 512, 256, 512) == pytest.approx(
      5242.88 + (2621.44 + 5242.88) + (1342.17728 + 800) + 5242.88)
  # Two steps over k: half of x and of w each (1310.72 + 2621.44), half of the
  # result with the transfer, and 4 MiB of sums at 1e4 B/ns.
  sums = 8 * 512 * 1024 / 1e4
  assert time_of(PRODUCT, 512, 128, 1024) == pytest.approx(
      3932.16 + (3932.16 + 10485.76 / 2) + (1342.17728 + sums + 800) + 10485.76)
  assert time_of(PRODUCT, 512, 128, 1024, machine=ADDING) == pytest.approx(
      time_of(PRODUCT, 512, 128, 1024) - sums)


def test_weights_stay_where_one_block_holds_them_all():
  # Two steps over m, x 1310.72 and a result of 5242.88 each; w comes in once.
  assert time_of(PRODUCT, 256, 256, 1024) == pytest.approx(
      1310.72 + 5242.88 + (1310.72 + 5242.88) + (1342.17728 + 800) + 5242.88)
  # Each element of a batch has weights of its own.
  batch = dataclasses.replace(PRODUCT, batch=2)
  assert time_of(batch, 512, 256, 1024) == pytest.approx(
      7864.32 + (7864.32 + 10485.76) + (2684.35456 + 800) + 10485.76)


def test_few_rows_cost_as_much_as_a_full_matrix_unit():
  few = dataclasses.replace(PRODUCT, m=16)
  compute = 2 * 128 * 256 * 1024 / 1e5  # 671.08864
  x, w, out = 16 * 256 * 2 / 100, 5242.88, 16 * 1024 * 2 / 100
  assert time_of(few, 16, 256, 1024) == pytest.approx(
      x + w + compute + out + 800)
  # Of 8-bit numbers integers take half the time here.
  assert time_of(dataclasses.replace(few, narrow='fp8'), 16, 256, 1024) == (
      time_of(few, 16, 256, 1024))
  assert time_of(dataclasses.replace(few, narrow='int8'), 16, 256, 1024) == (
      pytest.approx(x + w + compute / 2 + out + 800))


def test_the_usual_grid():
  usual = {tuple(block) for block in
           blocks.usual_blocks(PRODUCT, ADDING, LIMIT).tolist()}
  # Rows 128, 256, 512; k 128, 256; n 128, 256, 512, 1024: what fits 768 KiB.
  assert usual == {
      (bm, bk, bn) for bm in (128, 256, 512) for bk in (128, 256)
      for bn in (128, 256, 512, 1024)
      if 4 * (bm * bk + bk * bn + bm * bn) + 4 * bm * bn * (bk < 256)
      <= 768 * 1024}
  assert (256, 256, 256) in usual and (512, 256, 128) not in usual
  # 16 rows, of which int8 packs 32; 200 columns have no divisor of 128.
  odd = Product(1, 16, 384, 200, 1, 1, 4)
  assert {tuple(block) for block in
          blocks.usual_blocks(odd, ADDING, LIMIT).tolist()} == {
              (32, bk, bn) for bk in (128, 384) for bn in (128, 200)}


def test_faults():
  for block, fault in (
      ((100, 256, 128), 'bm is neither a multiple of 16 nor the whole 512'),
      ((512, 256, 100), 'bn is neither a multiple of 128 nor the whole 1,024'),
      ((1024, 256, 128), 'bm is larger than the whole 512'),
      ((512, 256, 1024), 'takes 3.5 MiB; vmem_limit is 1 MiB'),
      ((128, 256, 128), '')):
    assert blocks.fault_of(PRODUCT, block, ADDING, LIMIT) == fault
  assert 'bk does not divide 384' in blocks.fault_of(
      dataclasses.replace(PRODUCT, k=384), (128, 256, 128), ADDING, LIMIT)


def test_columns_that_have_no_divisors_get_powers_of_two():
  """A vocabulary of 151,936 = 128 x 1187 has no divisor but 128."""
  prime = dataclasses.replace(PRODUCT, m=128, k=128, n=128 * 1187)
  assert set(blocks.usual_blocks(prime, MACHINE, 2**30)[:, 2]) == {
      128, 151936, *(512 << power for power in range(8))}
  # 512 is twice the divisor 256, and 1,024 less than twice 896.
  near = dataclasses.replace(prime, n=1792)
  assert set(blocks.usual_blocks(near, MACHINE, 2**30)[:, 2]) == {
      128, 256, 896, 1792}


def test_several_weights_and_what_an_epilogue_reads():
  """A gate: two weights; a residual of 4 bytes comes in with each result."""
  gate = dataclasses.replace(PRODUCT, weights=2, extra_bytes=4)
  block = np.array([[256, 128, 512]])
  # 2 x (256 x 128 x 2 + 2 x 128 x 512 x 2 + 256 x 512 x 6), sums of both.
  assert blocks.vmem_bytes(gate, block, ADDING) == (
      2 * (65536 + 262144 + 786432) + 2 * 4 * 131072)
  # One step: 512 x 256 x 2 and 2 x 256 x 1024 x 2 in, 512 x 1024 x 6 out, all
  # per 100 B/ns; 2 x 2684.35456 ns of compute.
  assert time_of(gate, 512, 256, 1024) == pytest.approx(
      2621.44 + 10485.76 + 31457.28 + 2 * 2684.35456 + 800)


def test_limits_are_within_the_memory():
  for machine in MACHINES.values():
    assert machine.vmem_limit_bytes <= machine.vmem_bytes
