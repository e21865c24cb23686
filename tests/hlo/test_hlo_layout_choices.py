"""Whole programs, and which of their nodes have layouts to choose."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from support import tiny_hlo
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.hlo import features, layout_choices, whole_program
from tpu_graphs_ext.hlo.layout_choices import Layouts


def program_of(fn, *shapes):
  return whole_program.whole_program(tiny_hlo.lowered(
      fn, *(tf.TensorSpec(shape, tf.float32) for shape in shapes)))


@pytest.fixture(scope='module')
def program():
  """Two products that share a constant, a reshape, a reduction."""
  def fn(x, w, v):
    y = tf.matmul(x, w) * 2 + 2
    y = tf.reshape(tf.matmul(y * 2, v), [4, 8, 16])
    return tf.reduce_sum(y, 1) + tf.reduce_max(y, 1)
  return program_of(fn, (32, 24), (24, 40), (40, 16))


def opcodes(module):
  return collections.Counter(
      node.opcode for node in module.computations[-1].instructions)


def test_products_and_reshapes_stay_what_they_are(program):
  counts = opcodes(program)
  assert counts['dot'] == 2 and counts['reshape'] == 1
  assert counts['parameter'] == 3 and counts['reduce'] == 2
  assert not counts['convolution'] and not counts['bitcast']


def test_what_is_computed_twice_is_there_once(program):
  """2 as a number, and as a [32, 40] of that number."""
  entry = program.computations[-1]
  doubles = [node for node in entry.instructions if node.opcode == 'broadcast'
             and list(node.shape.dimensions) == [32, 40]]
  assert len(doubles) == 1
  readers = [node for node in entry.instructions
             if doubles[0].id in node.operand_ids]
  assert len(readers) == 3


def test_different_numbers_are_not_the_same():
  module = program_of(lambda x: (x + 2) * 3, (8, 8))
  assert opcodes(module)['constant'] == 2


def test_a_program_is_a_module_to_featurize(program):
  arrays = features.module_arrays(program)
  entry = program.computations[-1]
  assert len(arrays.node_opcode) == sum(
      len(c.instructions) for c in program.computations)
  assert len(entry.instructions) < len(arrays.node_opcode)  # Reducers.
  assert (arrays.edge_index[:, 0] > arrays.edge_index[:, 1]).all()
  order = arrays.node_feat[:, schema.NODE_GROUPS['layout_minor_to_major']]
  three, = np.flatnonzero(arrays.node_opcode == schema.OPCODES['reshape'])
  assert order[three].tolist() == [2, 1, 0, 0, 0, 0]


def test_numbers_of_the_configurable_nodes_are_those_of_the_features(program):
  arrays = features.module_arrays(program)
  choices = layout_choices.layout_choices(program)
  names = [schema.OPCODE_NAMES[arrays.node_opcode[c.node]] for c in choices]
  assert sorted(names) == ['dot', 'dot', 'reshape']
  dots = {c.group for c, name in zip(choices, names) if name == 'dot'}
  assert len(dots) == 1  # Both have the same options.


def test_options_of_a_product(program):
  dot = next(c for c in layout_choices.layout_choices(program)
             if len(c.options) == 9)
  assert dot.options[0] == Layouts((1, 0), (1, 0), (1, 0))
  assert dot.options[-1] == Layouts((1, 0), (), ())
  assert len(set(dot.options)) == 9


def test_a_product_with_batch_orders_its_last_dimensions_alone():
  module = program_of(
      lambda x, y: tf.einsum('bsnd,btnd->bnst', x, y),
      (2, 3, 4, 5), (2, 6, 4, 5))
  dot, = (c for c in layout_choices.layout_choices(module)
          if len(c.options) == 8)
  for option in dot.options:
    assert [len(layout) for layout in option] == [2, 2, 2]
  assert {frozenset(o.output) for o in dot.options} == {frozenset({2, 3})}


def test_options_of_a_convolution():
  module = program_of(
      lambda x, w: tf.nn.conv2d(x, w, 1, 'SAME'), (2, 8, 8, 3), (3, 3, 3, 5))
  choice, = layout_choices.layout_choices(module)
  assert len(choice.options) == 8
  assert choice.options[0] == Layouts((3, 0), (3, 0), (3, 2))
  assert choice.options[-1] == Layouts((0, 3), (0, 3), (2, 3))


@pytest.mark.parametrize('source, target, groups', [
    ([1024, 768], [8, 128, 768], [([0], [0, 1]), ([1], [2])]),
    ([512, 1792], [512, 14, 128], [([0], [0]), ([1], [1, 2])]),
    ([1, 96, 96, 96], [96, 96, 96], [([1], [0]), ([2], [1]), ([3], [2])]),
    ([512, 27, 27], [512, 729], [([0], [0]), ([1, 2], [1])]),
    ([6, 4], [4, 6], [([0, 1], [0, 1])]),
    ([1], [], []),
])
def test_what_a_reshape_keeps_together(source, target, groups):
  assert layout_choices.reshape_groups(source, target) == groups


@pytest.mark.parametrize('source, target, options', [
    # As published files have them.
    ([512, 1792], [512, 14, 128],
     [((2, 1, 0), (1, 0)), ((0, 2, 1), (0, 1)), ((), ())]),
    ([512], [512, 1], [((0, 1), (0,)), ((), ())]),
    ([1], [], [((), (0,)), ((), ())]),
])
def test_options_of_a_reshape(source, target, options):
  found = layout_choices._of_reshape(source, target)
  assert [(o.output, o.input) for o in found] == options


def test_a_named_dimension_comes_first_and_the_others_row_major():
  assert layout_choices.completed((0, 2), 4) == (0, 2, 3, 1)
  assert layout_choices.completed((), 3) == (2, 1, 0)
