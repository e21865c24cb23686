"""Runtimes of whole programs by layout, worked out by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_hlo
from tpu_graphs_ext.analytic import layout_cost, tpu
from tpu_graphs_ext.hlo import layout_choices, whole_program

# One byte takes a nanosecond; arithmetic and launches are free.
MOVING = layout_cost.LayoutConstants(
    machine=dataclasses.replace(
        tpu.TPU_V3_LIKE, launch_ns=0.0, bytes_per_ns=1.0, matrix_row_ns=0.0,
        vector_ns=0.0),
    stored=1.0, against_grain=0.0, turned=3.0, unhidden_copies=1.0,
    most_padding=100.0)
# 4 bytes an element, in whole tiles of 8 x 128 elements.
TALL, WIDE = 4 * 256 * 128, 4 * 8 * 256  # [256, 8], rows or columns innermost.


def program_of(fn, *shapes):
  module = whole_program.whole_program(tiny_hlo.lowered(
      fn, *(tf.TensorSpec(shape, tf.float32) for shape in shapes)))
  return module, layout_choices.layout_choices(module)


def ns_of(program, chosen, constants=MOVING):
  module, choices = program
  return layout_cost.program_ns(module, choices, np.array(chosen), constants)


@pytest.fixture(scope='module')
def product():
  """[256, 8] x [8, 256]: both operands and the output row-major at first."""
  return program_of(lambda x, w: tf.matmul(x, w), (256, 8), (8, 256))


def option(program, output, left, right):
  return program[1][0].options.index(
      layout_choices.Layouts(output, left, right))


def test_a_product_moves_its_tensors_in_whole_layout_tiles(product):
  plain = option(product, (1, 0), (1, 0), (1, 0))
  # x takes 128 lanes for its 8 columns; w and the output waste nothing.
  assert ns_of(product, [[plain]]) == TALL + WIDE + 4 * 256 * 256


def test_another_order_is_a_copy_and_another_size(product):
  turned = option(product, (1, 0), (0, 1), (1, 0))
  # x is copied, which takes three times as it is turned, and is small then.
  copy = 3 * (TALL + WIDE)
  assert ns_of(product, [[turned]]) == copy + WIDE + WIDE + 4 * 256 * 256


def test_results_are_row_major(product):
  turned = option(product, (0, 1), (1, 0), (1, 0))
  plain = option(product, (1, 0), (1, 0), (1, 0))
  ns = ns_of(product, [[plain], [turned]])
  assert ns[1] - ns[0] == 3 * 2 * 4 * 256 * 256


def test_left_to_the_compiler_nothing_is_copied(product):
  free = option(product, (1, 0), (), ())
  plain = option(product, (1, 0), (1, 0), (1, 0))
  ns = ns_of(product, [[plain], [free]])
  assert ns[0] == ns[1]


def test_padding_has_an_end(product):
  plain = option(product, (1, 0), (1, 0), (1, 0))
  little = dataclasses.replace(MOVING, most_padding=2.0)
  ns = ns_of(product, [[plain]], little)
  assert ns == 2 * 4 * 256 * 8 + WIDE + 4 * 256 * 256


def test_the_matrix_unit_turns_what_comes_against_the_grain(product):
  slow = dataclasses.replace(MOVING, against_grain=0.5, machine=(
      dataclasses.replace(MOVING.machine, bytes_per_ns=1e12,
                          matrix_row_ns=1.0)))
  options = [option(product, *orders) for orders in (
      [(1, 0), (1, 0), (1, 0)], [(1, 0), (0, 1), (1, 0)],
      [(0, 1), (0, 1), (0, 1)])]
  ns = ns_of(product, [[o] for o in options], slow)
  # 256 rows through 1 x 2 blocks.
  np.testing.assert_allclose(ns, [512, 512 * 1.5, 512 * 2.5], rtol=1e-6)


def test_a_copy_that_two_need_is_made_once():
  program = program_of(
      lambda x, w: (tf.matmul(x, w), tf.matmul(x, w + 1)), (256, 8), (8, 256))
  turned = option(program, (1, 0), (0, 1), (1, 0))
  plain = option(program, (1, 0), (1, 0), (1, 0))
  ns = ns_of(program, [[plain], [turned]])
  assert ns[1] - ns[0] == 3 * (TALL + WIDE) + 2 * (WIDE - TALL)


def test_elementwise_results_keep_the_order_and_a_transpose_renames_it():
  program = program_of(
      lambda x, w: tf.matmul(tf.transpose(tf.tanh(x) + 1), w),
      (8, 256), (8, 8))
  # x comes as [8, 256] and is transposed to [256, 8] without moving, so that
  # columns are innermost: just what this option asks for.
  as_it_comes = option(program, (1, 0), (0, 1), (1, 0))
  plain = option(program, (1, 0), (1, 0), (1, 0))
  ns = ns_of(program, [[plain], [as_it_comes]])
  assert ns[0] - ns[1] == 3 * (WIDE + TALL) + TALL - WIDE


def test_a_reshape_asks_for_the_order_that_it_keeps():
  program = program_of(
      lambda x: tf.tanh(tf.reshape(x, [2, 128, 8])), (256, 8))
  first, second, free = range(3)
  assert len(program[1][0].options) == 3
  ns = ns_of(program, [[first], [second], [free]])
  assert ns[0] == ns[2] == TALL  # tanh alone, 8 of 128 lanes used.
  # x is turned, tanh made where it is small, and its result turned back.
  assert ns[1] == 3 * (TALL + WIDE) + WIDE + 3 * (WIDE + TALL)
