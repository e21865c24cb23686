"""TensorFlow functions to HLO modules."""

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import compile as hlo_compile
from tpu_graphs_ext.hlo import features


def dense(x, weights):
  return tf.nn.relu(x @ weights)


def opcodes(module):
  arrays = features.module_arrays(module)
  return [schema.OPCODE_NAMES[number] for number in arrays.node_opcode]


def test_dense_layer():
  module = hlo_compile.function_module(
      dense, tf.TensorSpec([4, 8]), tf.TensorSpec([8, 16]))
  names = opcodes(module)
  assert names.count('parameter') == 2
  assert 'dot' in names
  assert 'maximum' in names
  node_feat = features.module_arrays(module).node_feat
  dims = node_feat[names.index('dot'), schema.NODE_GROUPS['shape_dimensions']]
  # 4 x 16: sum 20, product 64.
  assert dims.tolist() == [4, 16, 0, 0, 0, 0, 20, 64]


def test_tf_function_and_arrays_give_the_same_graph():
  by_spec = hlo_compile.function_module(
      dense, tf.TensorSpec([4, 8]), tf.TensorSpec([8, 16]))
  by_array = hlo_compile.function_module(
      tf.function(dense), np.ones((4, 8), np.float32),
      np.ones((8, 16), np.float32))
  np.testing.assert_array_equal(features.module_arrays(by_spec).node_feat,
                                features.module_arrays(by_array).node_feat)


def test_optimized_module_is_fused():
  specs = tf.TensorSpec([64, 64]), tf.TensorSpec([64, 64])
  def chain(x, y):
    return tf.tanh(x + y) * y
  assert 'fusion' not in opcodes(hlo_compile.function_module(chain, *specs))
  assert 'fusion' in opcodes(
      hlo_compile.function_module(chain, *specs, optimized=True))


def test_what_is_wrong_is_told_without_a_stack_trace():
  @tf.function
  def wrong(x):
    return tf.reshape(x, [7])
  with pytest.raises(UserError, match=r'wrong: .* arguments \(.*reshape.*7'):
    hlo_compile.function_module(wrong, tf.TensorSpec([3]))


def test_function_that_xla_cannot_compile():
  def dynamic(x):
    return tf.strings.as_string(x)
  with pytest.raises(UserError, match='dynamic: XLA cannot compile it'):
    hlo_compile.function_module(dynamic, tf.TensorSpec([3]))


def test_shapes_that_do_not_fit():
  with pytest.raises(UserError, match='dense: XLA cannot compile it'):
    hlo_compile.function_module(dense, tf.TensorSpec([4, 8]),
                                tf.TensorSpec([9, 16]))
