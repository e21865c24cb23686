"""Functions by name; what is done in the other process, without one."""

import importlib.util
import sys

import pytest

from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import lowering, lowering_subprocess, protos

SOURCE = '''
import tensorflow as tf

def dense(x, w):
  return tf.nn.relu(x @ w)

@tf.function(input_signature=[tf.TensorSpec([8, 16], tf.bfloat16)])
def signed(x):
  return tf.tanh(x)

class Layer:
  @staticmethod
  def call(x):
    return x + 1

def fails(x):
  raise KeyError('no such layer')

number = 3
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


def compiled(target, shapes=()):
  return protos.as_module(lowering.module_of(target, list(shapes)))


def opcodes(module):
  return {node.opcode for computation in module.computations
          for node in computation.instructions}


def test_functions_of_modules_and_files(module_name):
  shapes = [('f32', [4, 8]), ('f32', [8, 16])]
  by_name = compiled(f'{module_name}:dense', shapes)
  assert {'dot', 'maximum'} <= opcodes(by_name)
  assert opcodes(compiled(f'{module_name}.py:dense', shapes)) == opcodes(
      by_name)
  assert 'add' in opcodes(compiled(f'{module_name}:Layer.call',
                                   [('s32', [4])]))


def test_a_signature_says_the_shapes(module_name):
  module = compiled(f'{module_name}:signed')
  assert module.computations[0].instructions[0].shape.dimensions == [8, 16]


@pytest.mark.parametrize('target, rule', [
    ('{}:dens', "has no 'dens'; did you mean dense"),
    ('{}:number', 'is no function, but of the type int'),
    ('{}:fails', r'XLA cannot compile it for the arguments f32\[3\] '
     r"\(KeyError: KeyError: 'no such layer'\)"),
    ('{}:dense', r"takes x, w: give 2 shapes with --shapes, as in "
     r"'f32\[512,1024\] .*; 1 given"),
    ('no_such_module:dense', "there is no module 'no_such_module'"),
    ('no_such.py:dense', r'there is no file no_such\.py')])
def test_what_cannot_be_compiled(module_name, target, rule):
  target = target.format(module_name)
  with pytest.raises(UserError, match=rule) as raised:
    lowering.module_of(target, [('f32', [3])])
  assert str(raised.value).startswith(target)


def test_a_module_that_cannot_be_imported(module_name, tmp_path):
  (tmp_path / 'broken_functions.py').write_text('1 / 0')
  with pytest.raises(UserError, match='broken_functions cannot be imported '
                     r'\(ZeroDivisionError: division by zero\)'):
    lowering.module_of('broken_functions:f', [])


def test_code_of_jax_without_jax(module_name, tmp_path):
  (tmp_path / 'needs_jax.py').write_text(
      'raise ModuleNotFoundError(name="jax")')
  with pytest.raises(UserError, match=r'pip install -e "\.\[jax\]"'):
    lowering.module_of('needs_jax:f', [])


@pytest.mark.skipif(importlib.util.find_spec('jax') is None,
                    reason='jax is not installed')
def test_functions_of_jax_in_a_process_of_their_own(tmp_path, monkeypatch):
  (tmp_path / 'layers_of_jax.py').write_text(
      'import jax\n'
      'def dense(x, w):\n  return jax.nn.relu(x @ w)\n'
      'print("imported")\n')
  monkeypatch.chdir(tmp_path)
  module = protos.as_module(lowering_subprocess.module_of_function(
      'layers_of_jax:dense', [('bf16', [4, 8]), ('bf16', [8, 16])]))
  assert {'dot', 'call'} <= opcodes(module) or {
      'dot', 'maximum'} <= opcodes(module)
  with pytest.raises(UserError, match='layers_of_jax:dense: JAX cannot'):
    lowering_subprocess.module_of_function(
        'layers_of_jax:dense', 2 * [('f32', [4, 8])])


TEXT = b'HloModule m\nENTRY e {\n  ROOT a = f32[8,16] parameter(0)\n}\n'


@pytest.mark.parametrize('name', ['jaxlib', 'tempfile', 'json', 'numpy'])
def test_reading_text_runs_no_file_of_the_working_folder(
    tmp_path, monkeypatch, name):
  (tmp_path / f'{name}.py').write_text(
      f'open({str(tmp_path / "ran")!r}, "w")\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  # As `python -m` leaves it.
  monkeypatch.setattr(sys, 'path', [str(tmp_path), '', *sys.path])
  try:
    protos.as_module(lowering_subprocess.module_of_text('a.txt', TEXT))
  except UserError as error:
    assert 'needs JAX' in str(error)
  assert not (tmp_path / 'ran').exists()
