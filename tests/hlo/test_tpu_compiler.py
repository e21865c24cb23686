"""Optimised programs -> kernels, by hand and by Google's compiler."""

import os
import threading

import pytest

from support.libtpu import needs_libtpu
from support.tiny_hlo import add, convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  features,
  kernel_sources,
  libtpu,
  programs,
  protos,
  subprocesses,
  tpu_compiler,
)


def optimized():
  """entry: a loop whose body has two fusions, then a copy and a sort."""
  module = protos.HloModuleProto(name='program', entry_computation_id=3)
  inner = module.computations.add(id=1, root_id=102, name='fused')
  add(inner, 100, 'parameter', [64, 256])
  add(inner, 101, 'parameter', [64, 256], parameter_number=1)
  add(inner, 102, 'add', [64, 256], operands=[100, 101])
  body = module.computations.add(id=2, root_id=114, name='body')
  add(body, 110, 'parameter', [])
  add(body, 111, 'get-tuple-element', [64, 256], operands=[110])
  for number, operands in ((112, [111, 111]), (113, [112, 111])):
    add(body, number, 'fusion', [64, 256], operands=operands,
        called_computation_ids=[1])
  add(body, 114, 'tuple', [], operands=[112, 113])
  entry = module.computations.add(id=3, root_id=124, name='entry')
  add(entry, 120, 'parameter', [64, 256])
  add(entry, 121, 'while', [], operands=[120], called_computation_ids=[2])
  add(entry, 122, 'get-tuple-element', [64, 256], operands=[121])
  add(entry, 123, 'sort', [64, 256], operands=[122])
  add(entry, 124, 'copy', [64, 256], [0, 1], operands=[123])
  return module


def test_fusions_of_the_entry_and_its_loops():
  module = optimized()
  program = tpu_compiler.kernels_of(module)
  modules = [kernel.module for kernel in program.kernels]
  assert [(kernel.module.name, kernel.runs) for kernel in program.kernels] == [
      ('copy.124', 1), ('fusion.112', 1), ('fusion.113', 1)]
  assert program.passed_over == {'sort': 1} and program.open_loops == 1
  # parameter, copy; 3 of the fused computation, parameters, the fusion.
  assert [len(features.module_arrays(module).node_opcode)
          for module in modules] == [2, 5, 6]
  # An operand that is read twice is one parameter.
  entry = modules[1].computations[-1]
  assert list(entry.instructions[-1].operand_ids) == 2 * [
      entry.instructions[0].id]
  assert [node.parameter_number
          for node in modules[2].computations[-1].instructions[:2]] == [0, 1]
  assert [list(node.shape.dimensions) for node in entry.instructions] == 2 * [
      [64, 256]]
  # A fusion of a transfer is one, unless it has a tile.
  module.computations[0].instructions[2].opcode = 'all-reduce'
  module.computations[1].instructions[2].backend_config = (
      b'{"window_config": {"output_window_bounds": ["8", "2"]}}')
  assert tpu_compiler.kernels_of(module).passed_over['all-reduce'] == 1
  module.computations[2].instructions[1].opcode = 'conditional'
  assert tpu_compiler.kernels_of(module).conditionals == 1


def test_what_runs_on_another_core_is_named():
  module = optimized()
  start, done = module.computations[2].instructions[3:]
  start.opcode, start.async_execution_thread = 'async-start', 'sparsecore'
  start.metadata.op_name, done.opcode = 'jit(f)/gather', 'async-done'
  assert tpu_compiler.kernels_of(module).passed_over == {
      'gather on the SparseCore': 1}
  start.metadata.op_name, start.name = 'params[0]', 'format-call.1.call-start'
  assert tpu_compiler.kernels_of(module).passed_over == {
      'format-call on the SparseCore': 1}
  start.metadata.op_name, start.async_execution_thread = '', 'main'
  assert tpu_compiler.kernels_of(module).passed_over == {'async-start': 1}


def test_scalar_constants_stay_and_so_does_a_single_kernel():
  module = convolution()
  assert tpu_compiler.kernels_of(module).kernels[0].module is module
  module = optimized()  # A loop at the root whose body has one kernel.
  del module.computations[1].instructions[3], module.computations[2
      ].instructions[2:]
  module.computations[1].instructions[3].operand_ids[:] = [112, 112]
  module.computations[2].root_id = 121
  kernel, = tpu_compiler.kernels_of(module).kernels
  assert kernel.module.name == 'fusion.112'
  module = elementwise([64, 256])
  entry = module.computations[0]
  add(entry, 12, 'constant', [])
  add(entry, 13, 'pad', [72, 256], operands=[11, 12])
  entry.root_id = 13
  pad = tpu_compiler.kernels_of(module).kernels[1].module.computations[-1]
  assert [node.opcode for node in pad.instructions] == [
      'parameter', 'constant', 'pad']


def test_damaged_modules():
  for damage in (
      lambda module: setattr(module, 'entry_computation_id', 77),
      lambda module: module.computations[2].instructions[1]
      .called_computation_ids.append(3),  # A loop that contains itself.
      lambda module: module.computations[1].instructions[2]
      .called_computation_ids.append(77),
      lambda module: module.computations[2].instructions[4]
      .operand_ids.append(77)):
    module = optimized()
    damage(module)
    with pytest.raises(UserError, match=r"'program' refers to .*(77|itself)"):
      tpu_compiler.kernels_of(module)
  with pytest.raises(UserError, match='not an HLO module'):
    tpu_compiler.parse_optimized(b'no message')


def test_windows_that_are_missing_or_infeasible():
  root = tpu_compiler.root_of(elementwise([64, 256]))
  for config, window in (
      (b'', None), (b'{"window_con', None), (b'[]', None),
      (b'[' * 99_999, None),
      (b'{"window_config": {"output_window_bounds": [1, 9223372036854775808]}}',
       None),
      (b'{"window_config": {"buffering_level": "2"}}', ((), (), None)),
      (b'{"window_config": {"estimated_cycles": "9223372036854775807",'
       b' "output_window_bounds": ["8", "2"]}}', ((8, 2), (), None))):
    root.backend_config = config
    assert tpu_compiler.window_of(root) == window


def test_positions_are_those_of_the_header():
  import tensorflow as tf
  path = os.path.join(os.path.dirname(tf.__file__),
                      'include/xla/pjrt/c/pjrt_c_api.h')
  with open(path, encoding='utf-8') as header:
    names = [line.split('(')[1].split(')')[0] for line in header
             if line.startswith('  _PJRT_API_STRUCT_FIELD(')]
  assert libtpu.FUNCTIONS == {
      name: names.index(name) for name in libtpu.FUNCTIONS}


# In the process, in place of libtpu.
FAKE = '''
import atexit, os, sys, time
from tpu_graphs_ext.hlo import libtpu
class Compiler:
  def __init__(self, library, topology):
    pass
  def compile(self, program, program_format, options):
    print('printed', flush=True)
    if program == b'bad':
      raise libtpu.PjrtError('no\\n shape')
    if program == b'abort':
      print('E0101 12:00:00.5  77 topology.cc:9] Check failed: x\\n'
            '*** the stack\\nF0101 12:00:01.5  77 RAW: Raising signal 6',
            file=sys.stderr, flush=True)
      os.abort()
    if program == b'late':
      atexit.register(os.abort)
    if program == b'exit':
      os._exit(0)
    if program == b'kill':
      os.kill(os.getpid(), 9)
    if program == b'hang':
      time.sleep(60)
    return program_format.encode() + program, b''
libtpu.Compiler = Compiler
'''


@pytest.fixture
def fake_compiler(monkeypatch):
  # Programs that fill a pipe arrive however slowly the process starts.
  monkeypatch.setattr(subprocesses, '_POLL_SECONDS', 0.01)
  before, after = subprocesses._START.rsplit('; ', 1)
  monkeypatch.setattr(subprocesses, '_START', f'{before}{FAKE}{after}')


def test_a_compiler_that_refuses_ends_or_hangs(monkeypatch, fake_compiler):
  def compiled(program):
    monkeypatch.setattr(subprocesses, 'COMPILE_SECONDS',
                        3 if program == b'hang' else 60)
    return subprocesses.compile_program(
        'unused', 'unused', program, 'mlir', b'')

  assert compiled(b'a' * 200_000) == b'mlir' + b'a' * 200_000
  for program, message in (
      (b'bad', r'refuses it \(no shape\)'),
      (b'abort', r'ended with code -6 \(topology.cc:9] Check failed: x\)'),
      (b'hang', 'more than 3 s')):
    with pytest.raises(UserError, match=message):
      compiled(program)


def test_what_ends_the_compiler_is_refused_alone(fake_compiler):
  fault = ('compile: the process ended with code -6 (topology.cc:9] Check '
           'failed: x)')
  results = subprocesses.compile_all('unused', 'unused', [
      (program, 'hlo', b'') for program in (
          b'a', b'abort', b'bad', b'abort', b'b', b'abort')])
  assert results == [
      (b'hloa', b'', ''), (b'', b'', fault), (b'', b'', 'no shape'),
      (b'', b'', fault), (b'hlob', b'', ''), (b'', b'', fault)]
  # Nothing is lost by a process that ends after its work.
  assert subprocesses.compile_program(
      'unused', 'unused', b'late', 'hlo', b'') == b'hlolate'
  with pytest.raises(UserError, match='the process ended early'):
    subprocesses.compile_program('unused', 'unused', b'exit', 'hlo', b'')
  with pytest.raises(UserError, match=r'^compile: .* ended with code -9'):
    subprocesses.compile_all('unused', 'unused', [
        (program, 'hlo', b'') for program in (b'a', b'kill', b'b')])


def test_a_compiler_that_ends_while_it_is_loaded_compiles_nothing(
    monkeypatch, fake_compiler):
  monkeypatch.setattr(subprocesses, '_START', subprocesses._START.replace(
      '    pass', '    os.abort()'))
  with pytest.raises(UserError, match=r'^compile: .* ended with code -6'):
    subprocesses.compile_all('unused', 'unused', [(b'a', 'hlo', b'')] * 2)


def test_a_compiler_ends_when_nobody_waits(monkeypatch, fake_compiler):
  monkeypatch.setattr(libtpu, 'library', lambda: 'unused')
  begun = threading.Event()
  source = kernel_sources.Source(
      'f', [], [], [], 'v3', programs.Program(b'hang', 'mlir'))
  with kernel_sources.compiling([source], lambda _: begun.set()) as (result,):
    assert begun.wait(60)
  fault, = result.result(timeout=30).faults
  assert fault.startswith('f: compile: the process ended with code -9')


def test_generation_and_library_that_are_missing(monkeypatch):
  with pytest.raises(UserError, match=r'cannot be loaded .*\[tpu\]'):
    subprocesses.compile_program(os.__file__, 'v3:2x2x1', b'', 'hlo', b'')
  with pytest.raises(UserError, match=r'v5x.* v2, v3, v4, v5e, v5p'):
    libtpu.topology_of('v5x')
  monkeypatch.delenv(libtpu.LIBRARY_VARIABLE, raising=False)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(UserError, match=r'not installed.*install -e "\.\[tpu\]"'):
    libtpu.library()
  monkeypatch.setenv(libtpu.LIBRARY_VARIABLE, '/no/libtpu.so')
  with pytest.raises(UserError, match=r'is missing \(/no/libtpu\.so\)'):
    libtpu.library()


def test_pallas_kernels_of_another_jax(monkeypatch):
  def refuse(*_, **__):
    raise UserError('the compiler refuses it (locations)')

  monkeypatch.setattr(libtpu, 'library', lambda: 'unused')
  monkeypatch.setattr(subprocesses, 'compile_program', refuse)
  with pytest.raises(UserError, match=r'locations\)$'):
    tpu_compiler.compile_program(programs.Program(b'sine', 'hlo'), 'v3')
  with pytest.raises(UserError, match=r'libtpu of the JAX '
                     r'that lowers them: name that one in TPU_GRAPHS_EXT_LIB'):
    tpu_compiler.compile_program(
        programs.Program(b'.. tpu_custom_call ..', 'hlo'), 'v3')


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


@needs_libtpu
def test_every_generation_compiles():
  for generation in libtpu.GENERATIONS:
    program = tpu_compiler.compile_program(
        programs.Program(PROGRAM, 'mlir'), generation)
    runs = {kernel.module.name: kernel.runs for kernel in program.kernels}
    assert runs['sine.2'] == 5 and program.open_loops == 0, generation
    windows = [kernel.window for kernel in program.kernels if kernel.window]
    assert [(len(window.output_bounds), len(window.kernel_bounds))
            for window in windows] == [(2, 2), (2, 0)], generation
    assert all(500 < window.cycles < 10_000 for window in windows)
  for content, message in (
      (b'garbage', 'refuses it .*garbage'),
      (PROGRAM.replace(b'<128x', b'<?x'), 'a number in place of each')):
    with pytest.raises(UserError, match=message):
      tpu_compiler.compile_program(programs.Program(content, 'mlir'), 'v3')
  for message in (  # The latter two of `jax.export` with symbols, by age.
      '(tensor<f32>) -> tensor<8x?xf32>', "loc(\"shape_assertion\"): unregist",
      "'stablehlo.dynamic_broadcast_in_dim' op can't be translated"):
    assert 'each ? or symbol' in tpu_compiler._advice(
        message, programs.Program(b'', 'mlir'), 'v3')
  assert not tpu_compiler._advice(
      "'stablehlo.dynamic_slice' op", programs.Program(b'', 'mlir'), 'v3')
