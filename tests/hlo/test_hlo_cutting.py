"""Cutting programs into kernels: fusion rules, validity of every kernel."""


import pytest
import tensorflow as tf

from tpu_graphs_ext.hlo import compile as hlo_compile
from tpu_graphs_ext.hlo import cutting, features, graph
from tpu_graphs_ext.hlo.cutting import CutLimits

# Nothing left to chance, no kernels added.
PLAIN = CutLimits(max_fused=50, share_probability=0, join_probability=0,
                  copies=0)


def cut(fn, *shapes, limits=PLAIN, seed=0):
  specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
  module = hlo_compile.function_module(fn, *specs)
  return cutting.cut_kernels(module, limits, seed)


def opcodes(module):
  """Computations' opcodes without parameters, callees first."""
  return [[node.opcode for node in c.instructions
           if node.opcode != 'parameter'] for c in module.computations]


def test_elementwise_chain_joins_its_matrix_product():
  kernels = cut(lambda x, w, b: tf.nn.relu(tf.matmul(x, w) + b),
                (64, 32), (32, 256), (256,))
  assert len(kernels) == 1
  assert opcodes(kernels[0]) == [
      ['convolution', 'broadcast', 'add', 'constant', 'broadcast', 'maximum'],
      ['fusion']]
  fusion = kernels[0].computations[-1].instructions[-1]
  assert fusion.fusion_kind == 'kOutput'
  assert list(fusion.shape.dimensions) == [64, 256]


def test_producers_of_an_operand_are_nested():
  kernels = cut(lambda x, y, w: tf.matmul(x * y, w),
                (64, 32), (64, 32), (32, 256))
  assert opcodes(kernels[0]) == [
      ['multiply'], ['fusion', 'convolution'], ['fusion']]


def test_two_products_are_two_kernels():
  kernels = cut(lambda x, a, b: tf.nn.relu(tf.matmul(x, a)) + tf.matmul(x, b),
                (64, 32), (32, 256), (32, 256))
  # The chain of the first product takes the sum; the second one is stored.
  products = [sum(ops.count('convolution') for ops in opcodes(k))
              for k in kernels]
  assert products == [1, 1]
  # One product alone is no fusion.
  assert [['convolution']] in [opcodes(k) for k in kernels]


def test_reduction_is_a_root_and_its_region_comes_along():
  kernels = cut(lambda x: tf.reduce_sum(tf.square(x), 0), (512, 256))
  assert opcodes(kernels[0]) == [
      ['add'], ['multiply', 'constant', 'reduce'], ['fusion']]


def test_reduction_joins_the_product_that_it_reads():
  def fn(x, w):
    y = tf.matmul(x, w)
    return y, tf.reduce_sum(y, 0)

  apart = cut(fn, (64, 32), (32, 256))
  joined = cut(fn, (64, 32), (32, 256),
               limits=CutLimits(50, 0.0, 1.0, copies=0))
  assert len(apart) == 2
  assert len(joined) == 1
  assert opcodes(joined[0])[1] == ['convolution', 'constant', 'reduce',
                                   'tuple']


def test_sibling_reductions_share_a_kernel():
  def fn(x):
    return tf.reduce_sum(x, 0), tf.reduce_sum(x * x, 0)

  joined = cut(fn, (512, 256), limits=CutLimits(50, 0.0, 1.0, copies=0))
  assert len(joined) == 1
  assert opcodes(joined[0])[-2][-1] == 'tuple'


def test_kernels_keep_to_their_size():
  def fn(x, y):
    for _ in range(40):
      x = tf.tanh(x) * y
    return x

  kernels = cut(fn, (64, 256), (64, 256),
                limits=CutLimits(20, 0.0, 0.0, copies=0))
  # 80 instructions, at most 20 a kernel.
  assert len(kernels) == 4
  fused = [len(ops) for k in kernels for ops in opcodes(k)[:-1]]
  assert fused == [20, 20, 20, 20]


def test_shape_arithmetic_and_identities_leave_no_trace():
  def fn(x):
    x = tf.reshape(tf.reshape(x, [32, 512]), [64, 256])  # x again
    return x + tf.cast(tf.size(x), tf.float32)

  kernels = cut(fn, (64, 256))
  assert len(kernels) == 1
  assert opcodes(kernels[0])[0] == ['constant', 'broadcast', 'add']


def test_batched_product_has_a_window_as_wide_as_its_batch():
  kernels = cut(lambda x, y: tf.matmul(x, y), (6, 64, 32), (6, 32, 128))
  node = kernels[0].computations[-1].instructions[-1]
  assert node.opcode == 'convolution'
  window = node.window.dimensions[0]
  assert (window.size, window.stride, window.base_dilation) == (6, 5, 6)
  numbers = node.convolution_dimension_numbers
  assert list(numbers.output_spatial_dimensions) == [0]
  assert numbers.input_feature_dimension == 2


def test_reversed_filters_become_reversed_windows():
  def fn(x, w):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.nn.conv2d(x, w, 1, 'SAME')
    return tape.gradient(y, x, output_gradients=y)

  kernels = cut(fn, (4, 16, 16, 32), (3, 3, 32, 64))
  nodes = [n for k in kernels for c in k.computations for n in c.instructions]
  assert 'reverse' not in {n.opcode for n in nodes}
  reversals = [[w.window_reversal for w in n.window.dimensions]
               for n in nodes if n.opcode == 'convolution']
  # The forward convolution, then the gradient of its input.
  assert reversals == [[False, False], [True, True]]


def test_copies_change_the_layout_and_nothing_else():
  kernels = cut(lambda x: tf.tanh(x), (64, 8, 256),
                limits=CutLimits(50, 0.0, 0.0, copies=2))
  movers = [k for k in kernels if len(k.computations[0].instructions) == 2
            and k.computations[0].instructions[1].opcode in (
                'copy', 'reshape')]
  assert len(movers) == 2
  for kernel in movers:
    source, moved = kernel.computations[0].instructions
    assert (graph.num_elements(source.shape)
            == graph.num_elements(moved.shape))
    if moved.opcode == 'copy':
      assert (list(source.shape.layout.minor_to_major)
              != list(moved.shape.layout.minor_to_major))


@pytest.mark.parametrize('dims, minor_two', [
    ((32, 26, 26, 192), [3, 0]),  # batch x channels: 32 and 192 fill tiles
    ((3, 3, 64, 128), [3, 2]),  # a filter keeps its channels minor
    ((1000, 32), [0, 1]),  # 1000 lanes waste less than 32
])
def test_layout_puts_what_fills_tiles_on_the_minor_axes(dims, minor_two):
  # One seed in eight draws something else: most must agree.
  layouts = [graph.choose_layout(dims, seed) for seed in range(20)]
  assert all(sorted(layout) == list(range(len(dims))) for layout in layouts)
  assert sum(layout[:2] == minor_two for layout in layouts) > 10


def check_module(module):
  """Rules that XLA's verifier has for such modules."""
  assert module.computations[-1].id == module.entry_computation_id
  arrays = features.module_arrays(module)  # Ids are unique, operands exist.
  assert (arrays.edge_index[:, 0] > arrays.edge_index[:, 1]).all()
  roots = {c.id: c for c in module.computations}
  for computation in module.computations:
    nodes = {node.id: node for node in computation.instructions}
    assert computation.root_id == computation.instructions[-1].id
    numbers = [n.parameter_number for n in computation.instructions
               if n.opcode == 'parameter']
    assert sorted(numbers) == list(range(len(numbers)))
    for node in computation.instructions:
      assert all(i in nodes for i in node.operand_ids)
      dims = list(node.shape.dimensions)
      layout = list(node.shape.layout.minor_to_major)
      assert not layout or sorted(layout) == list(range(len(dims)))
      if node.opcode == 'fusion':
        body = roots[node.called_computation_ids[0]]
        inputs = sorted(
            (n for n in body.instructions if n.opcode == 'parameter'),
            key=lambda n: n.parameter_number)
        assert [n.shape.dimensions for n in inputs] == [
            nodes[i].shape.dimensions for i in node.operand_ids]
    products = [n for n in computation.instructions
                if n.opcode == 'convolution']
    assert len(products) <= 1
