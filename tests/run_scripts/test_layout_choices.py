"""Which nodes of a program have layouts to choose, and which layouts."""

import pytest
import tensorflow as tf

from run_scripts import layout_choices
from run_scripts.layout_choices import Layouts
from support import tiny_hlo
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import features


def program_of(fn, *shapes):
  return tiny_hlo.lowered(
      fn, *(tf.TensorSpec(shape, tf.float32) for shape in shapes))


@pytest.fixture(scope='module')
def program():
  """Two products with the same options, and a reshape."""
  def fn(x, w, v):
    y = tf.matmul(tf.matmul(x, w), v)
    return tf.reduce_sum(tf.reshape(y, [4, 8, 16]), 1)
  return program_of(fn, (32, 24), (24, 40), (40, 16))


def choices_of(module, options: int) -> list:
  return [choice for choice in layout_choices.layout_choices(module)
          if len(choice.options) == options]


def test_two_products_and_a_reshape(program, monkeypatch):
  arrays = features.module_arrays(program)
  choices = layout_choices.layout_choices(program)
  names = [schema.OPCODE_NAMES[arrays.node_opcode[c.node]] for c in choices]
  assert names.count('dot') == 2 and set(names) == {'dot', 'reshape'}
  first, second = choices_of(program, 9)
  assert first.options[0] == Layouts((1, 0), (1, 0), (1, 0))
  assert first.options[-1] == Layouts((1, 0), (), ())
  assert len(set(first.options)) == 9
  assert first.group != second.group
  # In programs with many kinds of nodes the sizes may differ.
  monkeypatch.setattr(layout_choices, '_MAX_GROUPS', 1)
  for too_few, alike in ((len(names), False), (0, True)):
    monkeypatch.setattr(layout_choices, '_TOO_FEW_GROUPS', too_few)
    first, second = choices_of(program, 9)
    assert (first.group == second.group) == alike


def test_a_product_with_batch_orders_its_last_dimensions_alone():
  module = program_of(
      lambda x, y: tf.einsum('bsnd,btnd->bnst', x, y),
      (2, 3, 4, 5), (2, 6, 4, 5))
  dot, = choices_of(module, 8)
  for option in dot.options:
    assert [len(layout) for layout in option] == [2, 2, 2]
  assert {frozenset(o.output) for o in dot.options} == {frozenset({2, 3})}


def test_options_of_a_convolution():
  module = program_of(
      lambda x, w: tf.nn.conv2d(x, w, 1, 'SAME'), (2, 8, 8, 3), (3, 3, 3, 5))
  choice, = choices_of(module, 8)
  assert choice.options[0] == Layouts((3, 0), (3, 0), (3, 2))
  assert choice.options[-1] == Layouts((0, 3), (0, 3), (2, 3))


def test_a_reshape_permutes_the_groups_that_it_keeps_together():
  for source, target, groups in (
      ([1024, 768], [8, 128, 768], [([0], [0, 1]), ([1], [2])]),
      ([512, 1792], [512, 14, 128], [([0], [0]), ([1], [1, 2])]),
      ([1, 96, 96, 96], [96, 96, 96], [([1], [0]), ([2], [1]), ([3], [2])]),
      ([6, 4], [4, 6], [([0, 1], [0, 1])]), ([1], [], [])):
    assert layout_choices.reshape_groups(source, target) == groups
  for source, target, options in (  # As published files have them.
      ([512, 1792], [512, 14, 128],
       [((2, 1, 0), (1, 0)), ((0, 2, 1), (0, 1)), ((), ())]),
      ([512], [512, 1], [((0, 1), (0,)), ((), ())]),
      ([1], [], [((), (0,)), ((), ())])):
    layouts = layout_choices._of_reshape(source, target)
    assert [(o.output, o.input) for o in layouts] == options
  # A named dimension comes first, and the others are row-major.
  assert layout_choices.completed((0, 2), 4) == (0, 2, 3, 1)
