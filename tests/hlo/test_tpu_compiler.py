"""Google's TPU compiler, where it is installed."""

import os

import pytest

from support.libtpu import needs_libtpu
from support.places import SHARED_DATA
from support.tiny_hlo import elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import compiling, protos, single_kernel, tpu_compiler

V3 = tpu_compiler.GENERATIONS['v3']
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


def test_generation_that_is_none():
  with pytest.raises(UserError, match=r"v5x.* v2, v3, v4, v5e.*did you mean"):
    tpu_compiler.generation_of('v5x')


def test_without_libtpu_a_sentence_says_what_to_install(monkeypatch):
  monkeypatch.delenv(tpu_compiler.LIBRARY_VARIABLE, raising=False)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(UserError, match=r'pip install -e "\.\[tpu\]"'):
    tpu_compiler.library()
  monkeypatch.setenv(tpu_compiler.LIBRARY_VARIABLE, '/no/libtpu.so')
  with pytest.raises(UserError, match=r'/no/libtpu\.so: no such file'):
    tpu_compiler.library()


def test_windows_that_are_none_or_infeasible():
  module = elementwise([64, 256])
  root = tpu_compiler.root_of(module)
  assert tpu_compiler.window_of(root) is None
  root.backend_config = b'{"window_config": {"estimated_cycles": "9223372036854'
  assert tpu_compiler.window_of(root) is None
  root.backend_config += b'775807", "output_window_bounds": ["8", "2"]}}'
  assert tpu_compiler.window_of(root) == tpu_compiler.Window((8, 2), (), None)


def test_pallas_kernels_of_another_jax(monkeypatch):
  class Refuses:
    def __enter__(self):
      return self

    def __exit__(self, *_):
      pass

    def compile(self, *_):
      raise compiling.CompileError('the compiler refuses it (debug_locations)')

  monkeypatch.setattr(tpu_compiler, 'process', lambda _: Refuses())
  with pytest.raises(compiling.CompileError, match=r'debug_locations\)$'):
    tpu_compiler.compile_program(b'sine', V3)
  with pytest.raises(compiling.CompileError, match=r'libtpu of the JAX that '
                     r'lowers them: name that one in TPU_GRAPHS_EXT_LIBTPU'):
    tpu_compiler.compile_program(b'.. tpu_custom_call ..', V3)


@needs_libtpu
@pytest.mark.parametrize('name', tpu_compiler.GENERATIONS)
def test_every_generation_compiles(name):
  program = tpu_compiler.compile_program(
      PROGRAM, tpu_compiler.GENERATIONS[name], 'mlir')
  runs = {kernel.module.name: kernel.runs for kernel in program.kernels}
  assert runs['sine.2'] == 5 and program.open_loops == 0
  windows = [kernel.window for kernel in program.kernels if kernel.window]
  assert [(len(window.output_bounds), len(window.kernel_bounds))
          for window in windows] == [(2, 2), (2, 0)]
  assert all(500 < window.cycles < 10_000 for window in windows)


@needs_libtpu
def test_kernels_compile_alone_to_the_same_tile():
  program = tpu_compiler.compile_program(PROGRAM, V3, 'mlir')
  with tpu_compiler.process(V3) as process:
    for kernel in program.kernels:
      again, = tpu_compiler.kernels_of(tpu_compiler.optimized_module(
          single_kernel.alone(kernel.module).compiled_by(process))).kernels
      assert again.window == kernel.window


@needs_libtpu
def test_programs_that_do_not_compile():
  with pytest.raises(compiling.CompileError, match=r'refuses it .*garbage'):
    tpu_compiler.compile_program(b'garbage', V3, 'mlir')


@needs_libtpu
@pytest.mark.skipif(not SHARED_DATA, reason='needs the measured kernels')
def test_measured_kernels_compile_as_one_kernel_each():
  path = os.path.join(SHARED_DATA, 'op_tuning_data.pb')
  with open(path, 'rb') as file:
    modules = protos.TuningData.FromString(file.read()).modules
  assert len(modules) == 15
  defaults = 0
  with tpu_compiler.process(V3) as process:
    for data in modules:
      compiled, = tpu_compiler.kernels_of(tpu_compiler.optimized_module(
          single_kernel.alone(data.module).compiled_by(process))).kernels
      known = next(run.op_config.tile_size_config for run in data.runs
                   if run.is_default)
      if compiled.window:
        defaults += (
            compiled.window.output_bounds == tuple(known.output_bounds)
            and compiled.window.kernel_bounds == tuple(known.kernel_bounds))
  assert defaults == 9  # Of 12 with tiles: the timed compiler was another.
