"""TensorFlow and JAX functions -> HLO, in this process and another."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import lowering, protos, subprocesses

SOURCE = '''
import tensorflow as tf

def dense(x, w):
  return tf.nn.relu(x @ w)

@tf.function(input_signature=[tf.TensorSpec([8, 16], tf.bfloat16)])
def signed(x):
  return tf.tanh(x)

@tf.function(input_signature=[tf.TensorSpec([None, 16])])
def of_any_batch(x):
  return x

@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def of_text(x):
  return tf.strings.length(x)

class Module(tf.Module):
  def __init__(self):
    self.w = tf.Variable(tf.ones([16, 8]))

  @tf.function(input_signature=[tf.TensorSpec([4, 16])])
  def __call__(self, x):
    return x @ self.w

module = Module()

def printing(x):
  tf.print(x)
  return x

def fails(x):
  raise KeyError('no such layer')

def silent(x):
  raise ValueError

def in_a_loop(x):
  for _ in tf.range(3):
    x = tf.tanh(x)
  return x

of_a_lambda = lambda x: in_a_loop(x)

def nested(inputs, bias):
  return inputs['x'] + bias

def arguments():
  return {'x': tf.TensorSpec([4, 8])}, tf.TensorSpec([8])

def argument():
  return tf.TensorSpec([8, 16], tf.bfloat16)

def broken_arguments():
  return 1 / 0
'''


@pytest.fixture
def module_name(tmp_path, monkeypatch):
  name = 'functions_of_a_user'
  (tmp_path / f'{name}.py').write_text(SOURCE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
  yield name
  sys.modules.pop(f'file_{name}_py', None)
  sys.modules.pop(name, None)


def lowered(target, shapes=''):
  return protos.as_module(lowering.lower_named(target, shapes))


def nodes(module):
  return {node.opcode: node for computation in module.computations
          for node in computation.instructions}


def test_shapes_of_arguments():
  assert lowering.parse_shapes(' f32[512, 1024] bf16[],s32[3] f8e8m0fnu[]'
                               ) == [('f32', [512, 1024]), ('bf16', []),
                                     ('s32', [3]), ('f8e8m0fnu', [])]
  for text in ('f23[3]', 'f32', 'f32[3]x', 'f32[3,,4]', 'f32[' + 60 * '9',
               f'f32[{5000 * "9"}]'):
    with pytest.raises(UserError, match='cannot be read; write'):
      lowering.parse_shapes(text)
  with pytest.raises(UserError, match=r'--shapes: .*float8_e3m4'):
    lowering.arguments_of_shapes(len, 'f32[8] f8e3m4[8]')
  with pytest.raises(UserError, match=r'^complex: XLA cannot compile it'):
    lowering.lower(complex, (tf.TensorSpec([3]),))


def test_what_names_a_function(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'step:1').touch()  # The path of a file.
  assert [lowering.names_function(name) for name in (
      'step:1', 'step:f', 'a/b.py:f', 'step', 'step:2')] == [
          False, True, True, False, False]
  (tmp_path / 'step:f').touch()
  assert not lowering.names_function('step:f')
  # Who compiles a function that says nothing of it: what is imported.
  monkeypatch.setitem(sys.modules, 'jax', sys)
  assert not lowering.is_jax(abs)
  monkeypatch.delitem(sys.modules, 'tensorflow')
  assert lowering.is_jax(abs)


def test_a_type_that_an_older_jax_lacks(monkeypatch):
  monkeypatch.setattr(lowering, 'is_jax', lambda _: True)
  monkeypatch.setitem(sys.modules, 'jax', types.SimpleNamespace(
      __version__='0.4.34',
      ShapeDtypeStruct=lambda _, name: np.dtype(f'no {name}'),
      config=types.SimpleNamespace(jax_enable_x64=False)))
  with pytest.raises(UserError, match=r"^--shapes: .*; JAX 0[.]4[.]34 does "
                     'not have it: name .* --jax_python'):
    lowering.arguments_of_shapes(abs, 's2[8,8]')


def test_functions_of_modules_and_files(module_name):
  shapes = 'f32[4,8] f32[8,16]'
  by_opcode = nodes(lowered(f'{module_name}:dense', shapes))
  assert {'dot', 'maximum'} <= set(by_opcode)
  assert list(by_opcode['dot'].shape.dimensions) == [4, 16]
  assert set(nodes(
      lowered(f'{module_name}.py:dense', shapes))) == set(by_opcode)
  # The signature has the shapes; a function returns nested arguments.
  for shapes in '', 'argument':
    signed = nodes(lowered(f'{module_name}:signed', shapes))['parameter']
    assert list(signed.shape.dimensions) == [8, 16]
  assert list(nodes(lowered(f'{module_name}:module'))[
      'dot'].shape.dimensions) == [4, 8]
  model = tf.keras.Sequential([tf.keras.layers.Input([8], batch_size=4),
                               tf.keras.layers.Dense(2)])
  assert list(nodes(protos.as_module(lowering.lower(model, ())))[
      'dot'].shape.dimensions) == [4, 2]
  assert list(nodes(lowered(f'{module_name}:nested', 'arguments'))[
      'add'].shape.dimensions) == [4, 8]
  # In its own process: AutoGraph remembers what it has read.
  assert b'while' in subprocesses.lower_named(
      f'{module_name}.py:of_a_lambda', 'f32[8]')


class Served(tf.Module):
  """Serves (x w + b) a, with x, which it declares first, of any rows."""

  def __init__(self):
    self.w = tf.Variable(tf.ones([16, 8]))

  @tf.function(input_signature=[tf.TensorSpec([None, 16], name='x'),
                                tf.TensorSpec([8], name='b'),
                                tf.TensorSpec([], name='a')])
  def serve(self, x, b, a):
    return {'y': (x @ self.w + b) * a}


def test_what_a_saved_model_serves(tmp_path, monkeypatch):
  folder, model = str(tmp_path / '[1]' / 'saved'), Served()
  tf.saved_model.save(model, folder, signatures=model.serve)
  (tmp_path / 'x_saved_model.pb').symlink_to(folder)
  monkeypatch.chdir(folder)
  for target in (folder, f'{folder}/saved_model.pb', '.', 'saved_model.pb',
                 f'{tmp_path}/x_saved_model.pb'):
    dot = nodes(lowered(target, 'f32[] f32[8] f32[4,16]'))['dot']
    assert list(dot.shape.dimensions) == [4, 8]
  for shapes, rule in (('', r'saved: an argument has the shape \(None, 16\)'),
                       ('f32[8]', 'takes 3 inputs, a, b, x, in this order; --'),
                       ('arguments', '--shapes=arguments: cannot be read')):
    with pytest.raises(UserError, match=rule):
      lowered(folder, shapes)
  tf.saved_model.save(model, folder, signatures={'other': model.serve})
  with pytest.raises(UserError, match='without the signature serving_default; '
                     r'it has other\. Name a function'):
    lowered(folder)
  (tmp_path / '[1]/saved/saved_model.pb').write_bytes(b'damaged')
  with pytest.raises(UserError, match='saved: cannot be loaded as a SavedMod'):
    lowered(folder)


@pytest.mark.parametrize('target, shapes, rule', [
    ('{}:dens', '', "has no 'dens'"),
    ('{}:fails', 'f32[3]', r'XLA cannot compile it for the arguments '
     r"TensorSpec\(shape=\(3,\),.* \(KeyError: KeyError: 'no such layer'\)"),
    ('{}:silent', 'f32[3]', r'\(ValueError: ValueError'),
    ('{}:printing', 'f32[3]', r'unsupported operations.*host, such as tf\.pr'),
    ('{}:dense', '', 'arguments .none; give --shapes'),
    ('{}:of_any_batch', '', r'^\w+:of_any_batch: an argument has the shape '
     r'\(None, 16\), but a TPU compiles for whole sizes'),
    ('{}:of_text', '', r'of_text: an argument is text \(tf\.string\), which'),
    ('{}:signed', 'broken_arguments', 'broken_arguments: must return the '
     r'arguments of .*ZeroDivisionError'),
    ('no_such_module:dense', '', "No module named 'no_such_module'"),
    ('no_such.py:dense', '', r'no_such\.py cannot be .*No such file'),
    ('broken.py:f', '', r'broken\.py cannot be .*\(ZeroDivisionError'),
    ('needs_jax.py:f', '', r'pip install -e "\.\[jax\]"')])
def test_what_cannot_be_lowered(module_name, tmp_path, target, shapes, rule):
  (tmp_path / 'broken.py').write_text('1 / 0')
  (tmp_path / 'needs_jax.py').write_text(
      'raise ModuleNotFoundError(name="jax")')
  with pytest.raises(UserError, match=rule):
    lowered(target.format(module_name), shapes)


def test_a_process_that_dies(monkeypatch):
  monkeypatch.setattr(subprocesses.sys, 'executable', '/bin/false')
  with pytest.raises(UserError, match=r'process ended with code 1'):
    subprocesses.lower_named('a:b', '')
  with pytest.raises(UserError, match=r'--jax_python=/no/python: cannot be'):
    subprocesses.lower_named('a:b', '', '/no/python')
