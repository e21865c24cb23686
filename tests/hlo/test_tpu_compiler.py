"""The compiler's process, with a fake; Google's compiler where installed."""

import os
import time

import pytest

from support.libtpu import needs_libtpu
from support.tiny_hlo import elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import libtpu, pjrt, subprocesses, tpu_compiler

V3 = libtpu.GENERATIONS['v3']
# tanh(a @ b), then a loop of five trips over sine.
PROGRAM = b"""
func.func @main(%a: tensor<128x256xf32>, %b: tensor<256x256xf32>)
    -> tensor<128x256xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<128x256xf32>, tensor<256x256xf32>) -> tensor<128x256xf32>
  %1 = stablehlo.tanh %0 : tensor<128x256xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %five = stablehlo.constant dense<5> : tensor<i32>
  %2:2 = stablehlo.while(%i = %zero, %x = %1)
      : tensor<i32>, tensor<128x256xf32>
    cond {
      %c = stablehlo.compare LT, %i, %five
          : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %y = stablehlo.sine %x : tensor<128x256xf32>
      %n = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %n, %y : tensor<i32>, tensor<128x256xf32>
    }
  return %2#1 : tensor<128x256xf32>
}
"""


def test_positions_are_those_of_the_header():
  import tensorflow as tf
  path = os.path.join(os.path.dirname(tf.__file__),
                      'include/xla/pjrt/c/pjrt_c_api.h')
  with open(path, encoding='utf-8') as header:
    names = [line.split('(')[1].split(')')[0] for line in header
             if line.startswith('  _PJRT_API_STRUCT_FIELD(')]
  assert pjrt.FUNCTIONS == {name: names.index(name) for name in pjrt.FUNCTIONS}


# In the process, in place of libtpu.
FAKE = '''
import os, time
from tpu_graphs_ext.hlo import subprocesses
class Compiler:
  def __init__(self, library, topology):
    pass
  def compile(self, program, program_format):
    print('printed', flush=True)
    if program == b'bad':
      raise subprocesses.pjrt.PjrtError('no\\n shape')
    if program == b'abort':
      sys.stderr.write('F0000 Check failed: x\\nthe stack')
      sys.stderr.flush()
      os.abort()
    if program == b'hang':
      time.sleep(60)
    return program_format.encode() + program
subprocesses.pjrt.Compiler = Compiler
'''


def test_a_compiler_that_refuses_ends_or_hangs(monkeypatch):
  before, after = subprocesses._START.rsplit('; ', 1)
  monkeypatch.setattr(subprocesses, '_START', f'{before}{FAKE}{after}')

  def compiled(program, seconds=60.0):
    return subprocesses.compile_program(
        'unused', 'unused', program, 'mlir', seconds)

  assert compiled(b'a' * 200_000) == b'mlir' + b'a' * 200_000
  for program, message in (
      (b'bad', r'refuses it \(no shape\)'),
      (b'abort', r'ended with code -6 \(F0000 Check failed: x\)')):
    with pytest.raises(subprocesses.CompileError, match=message):
      compiled(program)
  start = time.monotonic()
  with pytest.raises(subprocesses.CompileError, match='more than 3 s'):
    compiled(b'hang', 3)
  assert time.monotonic() - start < 30


def test_generation_and_library_that_are_missing(monkeypatch):
  with pytest.raises(UserError, match=r'cannot be loaded .*\[tpu\]'):
    subprocesses.compile_program(os.__file__, 'v3:2x2x1', b'')
  with pytest.raises(UserError, match=r"v5x.* v2, v3, v4, v5e.*did you mean"):
    libtpu.generation_of('v5x')
  monkeypatch.delenv(libtpu.LIBRARY_VARIABLE, raising=False)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(UserError, match=r'pip install -e "\.\[tpu\]"'):
    libtpu.library()
  monkeypatch.setenv(libtpu.LIBRARY_VARIABLE, '/no/libtpu.so')
  with pytest.raises(UserError, match=r'/no/libtpu\.so: no such file'):
    libtpu.library()


def test_windows_that_are_missing_or_infeasible():
  root = tpu_compiler.root_of(elementwise([64, 256]))
  assert tpu_compiler.window_of(root) is None
  root.backend_config = b'{"window_config": {"estimated_cycles": "9223372036854'
  assert tpu_compiler.window_of(root) is None
  root.backend_config += b'775807", "output_window_bounds": ["8", "2"]}}'
  assert tpu_compiler.window_of(root) == ((8, 2), (), None)


def test_pallas_kernels_of_another_jax(monkeypatch):
  def refuse(*_):
    raise subprocesses.CompileError('the compiler refuses it (locations)')

  monkeypatch.setattr(tpu_compiler, 'library', lambda: 'unused')
  monkeypatch.setattr(subprocesses, 'compile_program', refuse)
  with pytest.raises(subprocesses.CompileError, match=r'locations\)$'):
    tpu_compiler.compile_program(b'sine', V3)
  with pytest.raises(subprocesses.CompileError, match=r'libtpu of the JAX '
                     r'that lowers them: name that one in TPU_GRAPHS_EXT_LIB'):
    tpu_compiler.compile_program(b'.. tpu_custom_call ..', V3)


@needs_libtpu
def test_every_generation_compiles():
  for generation in libtpu.GENERATIONS.values():
    program = tpu_compiler.compile_program(PROGRAM, generation, 'mlir')
    runs = {kernel.module.name: kernel.runs for kernel in program.kernels}
    assert runs['sine.2'] == 5 and program.open_loops == 0, generation
    windows = [kernel.window for kernel in program.kernels if kernel.window]
    assert [(len(window.output_bounds), len(window.kernel_bounds))
            for window in windows] == [(2, 2), (2, 0)], generation
    assert all(500 < window.cycles < 10_000 for window in windows)
  with pytest.raises(subprocesses.CompileError, match=r'refuses it .*garbage'):
    tpu_compiler.compile_program(b'garbage', V3, 'mlir')
