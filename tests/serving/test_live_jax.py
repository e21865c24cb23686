"""The whole path of a function of JAX: lowered, compiled, ranked.

Needs the extra [tpu], and JAX: in this environment, or in the one whose Python
TPU_GRAPHS_EXT_JAX_PYTHON names.
"""

import json

import pytest

from support.libtpu import needs_libtpu
from tpu_graphs_ext import cli
from tpu_graphs_ext.hlo import subprocesses

pytestmark = needs_libtpu

FUNCTIONS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def step(params, x, y):
  def loss(params):
    hidden = jax.nn.gelu(x @ params['w1'] + params['b1'])
    return jnp.mean((hidden @ params['w2'] - y) ** 2)
  value, grads = jax.value_and_grad(loss)(params)
  return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def step_arguments():
  def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)
  params = {'w1': f32(256, 512), 'b1': f32(512), 'w2': f32(512, 256)}
  return params, f32(1024, 256), f32(1024, 256)


def doubled(x):
  def body(x_ref, y_ref):
    y_ref[...] = 2 * x_ref[...]
  return pl.pallas_call(body, out_shape=x)(x)


@jax.custom_vjp
def product(x, w):
  return x @ w


product.defvjp(product, product)  # Without one JAX refuses to call it.


def grouped(x, w, sizes):
  return jax.lax.ragged_dot(x, w, sizes)


def grouped_rows(x, w, sizes, dy):
  return jax.vjp(lambda x: grouped(x, w, sizes), x)[1](dy)[0]


def grouped_weights(x, w, sizes, dy):
  return jax.vjp(lambda w: grouped(x, w, sizes), w)[1](dy)[0]


print('imported')
"""


@pytest.fixture(scope='module')
def rank(tmp_path_factory, jax_python):
  """A function that ranks one of `FUNCTIONS` for a TPU v3 by the command."""
  path = tmp_path_factory.mktemp('live_jax') / 'functions.py'
  path.write_text(FUNCTIONS)

  def call(name, shapes, *flags):
    return cli.main(['rank', f'{path}:{name}', '--shapes', shapes, '--tpu',
                     'v3', '--jax_python', jax_python, '--quiet', *flags])

  return call


def test_a_training_step_is_ranked_by_the_model_of_the_package(rank, capsys):
  assert rank('step', 'step_arguments', '--json', '--top_k', '3') == 0
  source, = json.loads(capsys.readouterr().out)
  assert source['notes'][0] == 'compiled for a TPU v3 by libtpu'
  kernels = source['kernels']
  shares = [kernel['share'] for kernel in kernels]
  assert shares == sorted(shares, reverse=True)
  assert sum(kernel['share'] for kernel in kernels) == pytest.approx(1)
  products = [
      kernel for kernel in kernels if 'dot_general' in kernel['op_name']]
  # Two forward; of the backward pass two for the weights and one for `hidden`.
  assert sum(kernel['copies'] for kernel in products) == 5
  for kernel in products:
    assert kernel['default_from'] == "the TPU compiler's"
    assert kernel['default']['over_default'] == 1
    assert 1 <= kernel['default']['place'] <= kernel['scored']
    scores = [choice['score'] for choice in kernel['choices']]
    assert len(scores) == 3 and scores == sorted(scores)


def test_64_bits_and_a_pallas_kernel_alone_are_errors(rank, capsys):
  assert rank('product', 'f64[8,8] f32[8,8]') == 1
  assert 'JAX makes f64 half as wide' in capsys.readouterr().err
  assert rank('doubled', 'f32[256,512]') == 1
  error, = capsys.readouterr().err.splitlines()
  # The second where libtpu is older than JAX.
  assert 'written in Pallas, so the author' in error or (
      'which may need the libtpu of the JAX' in error)


BLOCKS = """
import functools, jax, jax.numpy as jnp, numpy as np, sys, types
from tpu_graphs_ext.hlo import lowering
from tpu_graphs_ext.serving import pallas_kernel


def values_agree():
  for batch, block, weights, extra in (
      (1, (32, 256, 128), 1, 0), (2, (16, 128, 128), 1, 4),
      (1, (64, 128, 256), 2, 0)):
    product = types.SimpleNamespace(
        batch=batch, m=64, k=256, n=256, x_bytes=4, w_bytes=4, out_bytes=4,
        narrow='', weights=weights, extra_bytes=extra)
    shapes = pallas_kernel.shapes(product)
    x, *others = (jax.random.normal(jax.random.key(number), shape.shape)
                  for number, shape in enumerate(shapes))
    expected = x @ others[0]
    if weights > 1:
      expected *= x @ others[1]
    if extra:
      expected += others[-1]
    result = pallas_kernel.kernel(product, block, None, interpret=True)(
        x, *others)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
  return lambda x: x


run = values_agree()
# The kernels of one device, nothing that picks its part of the arguments.
assert b'replica-id' not in lowering.lower(jax.pmap(jnp.sin), (run(
    jax.ShapeDtypeStruct((1, 8, 128), 'float32')),))
# A module's weights are arguments: with them as constants there were one.
layer = jax.tree_util.Partial(jnp.dot, np.ones((8, 128), 'float32'))
x = jax.ShapeDtypeStruct((128, 8), 'float32')
assert b'constant' not in lowering.lower(layer, x)
# Kernels that copy an argument have its name; a number is none.
assert b"table['w']" in lowering.lower(lambda table, by: table['w'] * by,
                                       ({'w': x}, 2))


class Keras:  # A layer of Keras 3 on JAX.
  __module__ = 'keras.src.layers'
  trainable_variables = [types.SimpleNamespace(value=jnp.ones((8, 128)))]
  non_trainable_variables = []
  get_config = None

  def stateless_call(self, trainable, kept, x):
    return trainable[0] @ x, kept


sys.modules['keras'] = types.SimpleNamespace(
    backend=types.SimpleNamespace(backend=lambda: 'jax'))
assert lowering.is_jax(Keras()) and not lowering._signature(Keras())
text = lowering.lower(Keras(), x)
assert b'constant' not in text and b'dot' in text


@jax.tree_util.register_pytree_node_class
class Flax:  # A module of Flax, which changes its own state.
  def __init__(self, *leaves):
    self.w, self.kept = leaves

  def tree_flatten(self):
    return (self.w, self.kept), None

  @classmethod
  def tree_unflatten(cls, _, leaves):
    return cls(*leaves)


def step(module, batch):
  module.w = module.w + 1
  batch['x'] = batch['x'] + 1  # Not a result.
  return module.w.sum()


for_tpu, lowering._for_tpu = lowering._for_tpu, (
    lambda jitted, arguments: jax.eval_shape(jitted, *arguments))
for nested in lambda module: module, lambda module: {'model': [module]}:
  results = lowering.lower(
      lambda module, batch: step(jax.tree_util.tree_leaves(
          module, is_leaf=lambda each: isinstance(each, Flax))[0], batch),
      (nested(Flax(x, x)), {'x': x}))
  assert [each.shape for each in results] == [(), (128, 8)], results
lowering._for_tpu = for_tpu
# Not so a function that itself has a shape, as an operator may.
operator = functools.partial(jnp.sin)
operator.shape, operator.dtype = (8, 8), np.dtype('float32')
assert lowering.lower(operator, x)
if hasattr(jax.jit(abs), 'trace'):  # JAX 0.4.31 or later. Not as for a CPU.
  assert b'lapack' not in lowering.lower(jax.jit(jnp.linalg.cholesky).trace(
      jax.ShapeDtypeStruct((8, 8), 'float32')), ())
"""


def test_the_kernel_that_checks_blocks_multiplies(tmp_path, jax_python):
  """The module's import compares values, in the Python that has JAX."""
  path = tmp_path / 'values.py'
  path.write_text(BLOCKS)
  assert subprocesses.lower_named(f'{path}:run', 'f32[8,128]', jax_python)


def test_blocks_are_checked_by_the_compiler(rank, capsys):
  """One of 17.3 MiB, where a v5e gives 16."""
  capsys.readouterr()
  assert rank('product', 'bf16[32,8192] bf16[8192,1024]', '--check',
              '--blocks=16x8192x512', '--vmem_limit=100', '--tpu=v5e',
              '--json') == 0
  printed = capsys.readouterr()
  assert 'compiling' not in printed.err  # A progress bar, with --quiet.
  choice, = json.loads(printed.out)['choices']
  assert choice['refusal'] == '' and choice['vmem_limit_bytes'] == 18 * 2 ** 20


def test_grouped_products_and_their_gradients(rank, capsys, jax_version):
  for name, kind in (('grouped', 'forward'), ('grouped_rows', 'dlhs'),
                     ('grouped_weights', 'drhs')):
    capsys.readouterr()
    shapes = 'bf16[4096,256] bf16[8,256,512] s32[8]' + (
        '' if kind == 'forward' else ' bf16[4096,512]')
    code = rank(name, shapes, '--blocks=usual', '--tpu=v7x', '--json')
    if jax_version < (0, 6):
      assert code == 1 and 'A JAX before 0.6' in capsys.readouterr().err
      return
    product = json.loads(capsys.readouterr().out)['product']
    assert (product['kind'], product['groups'], product['m']) == (kind, 8, 4096)
