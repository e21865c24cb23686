"""Kernels as programs with a tile each, and their measured times."""

import json
import types

import numpy as np
import pytest

from support import tiny_hlo
from support.libtpu import needs_libtpu
from tpu_graphs_ext import cli
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  featurize,
  kernel_modules,
  kernel_sources,
  libtpu,
  programs,
  protos,
  subprocesses,
  tpu_compiler,
)
from tpu_graphs_ext.tasks import TASKS
from tpu_graphs_ext.tasks.tile import LoadSettings


def tiled():
  """An elementwise kernel of f32 [32, 256] with the tile [4, 2]."""
  module = tiny_hlo.tiled([32, 256], [4, 2], 7)
  for node in protos.nodes(module):
    node.shape.layout.memory_space = 1
  return module


def test_a_module_with_a_tile_of_ones_choice():
  module = kernel_modules.with_tile(tiled(), [2, 1])
  root = tpu_compiler.root_of(module)
  assert json.loads(root.backend_config) == {'window_config': {
      'output_window_bounds': ['2', '1'], 'kernel_window_bounds': [],
      'buffering_level': '2'}, 'flag_configs': []}
  assert not any(node.shape.layout.memory_space
                 for node in protos.nodes(module))
  shape = module.host_program_shape
  assert [list(each.dimensions) for each in (
      *shape.parameters, shape.result)] == [[32, 256], [32, 256]]
  order, = module.schedule.sequences.values()
  assert list(order.instruction_ids) == [
      node.id for node in protos.nodes(module)]
  # TensorFlow 2.15 has no names for these types.
  for number, dtype in (28, 'float8_e4m3'), (32, 'float4_e2m1fn'), (26, 'int2'):
    shape = protos.ShapeProto(element_type=number, dimensions=[8])
    assert kernel_modules._tensor(shape)['dtype'] == dtype


def choice(place, *bounds):
  return types.SimpleNamespace(place=place, tile=types.SimpleNamespace(
      output_bounds=bounds, kernel_bounds=()))


def ranked(name='f'):
  """(source, ranking): the model prefers [2, 2], [4, 2] and [1, 1]."""
  kernel = kernel_sources.source_kernel(
      tpu_compiler.kernels_of(tiled()).kernels[0], 'tanh/1')
  return kernel_sources.Source(name, [kernel], [], []), types.SimpleNamespace(
      kernels=[types.SimpleNamespace(
          name='tanh/1', op_name='jit(f)/tanh',
          default_from=kernel_sources.FROM_COMPILER,
          choices=[choice(1, 2, 2), choice(2, 4, 2), choice(3, 1, 1)])])


@pytest.fixture
def compiler(monkeypatch):
  """One that changes the tile [1, 1], the third, to [2, 2]."""
  def compile_all(library, topology, calls):
    assert topology == 'v5e:2x2x1'
    changed = kernel_modules.with_tile(tiled(), [2, 2]).SerializeToString()
    return [(protos.HloProto(hlo_module=protos.as_module(
        changed if place == 2 else module)).SerializeToString(),
             b'code of %d' % place, '')
            for place, (module, *_) in enumerate(calls)]

  monkeypatch.setattr(libtpu, 'library', lambda: 'unused')
  monkeypatch.setattr(subprocesses, 'compile_all', compile_all)


@pytest.fixture
def folder(tmp_path, compiler):
  source, ranking = ranked()
  folder = tmp_path / 'modules'
  count, faults = kernel_modules.write(
      str(folder), [source], [ranking], 'v5litepod-8')
  assert count == 2
  fault, = faults
  assert fault == ('tanh/1, tile [1, 1] []: the compiler made [((2, 2), ())] '
                   'of it')
  return folder


def test_tiles_that_stay_are_written(folder):
  content = json.loads((folder / 'modules.json').read_text())
  assert content['tpu'] == 'v5e'
  tensor = {'dtype': 'float32', 'shape': [32, 256], 'major_to_minor': [0, 1]}
  assert content['modules'][1] == {
      'module': '001_tanh_1.1.pb', 'kernel': 'tanh/1',
      'tile_id': 'f_000-tanh-1', 'is_default': False,
      'operation': 'jit(f)/tanh', 'output_bounds': [2, 2], 'kernel_bounds': [],
      'arguments': [tensor], 'results': [tensor]}
  assert content['modules'][0]['is_default']
  assert {path.name for path in folder.iterdir()} == {
      'modules.json', '000_tanh_1.default.pb', '000_tanh_1.default.tpu',
      '001_tanh_1.1.pb', '001_tanh_1.1.tpu'}
  module = protos.as_module((folder / '001_tanh_1.1.pb').read_bytes())
  assert tpu_compiler.root_of(module).name == 'elementwise'
  source, ranking = ranked()
  with pytest.raises(UserError, match='modules: is there already'):
    kernel_modules.write(str(folder), [source], [ranking], 'v5e')
  ranking.kernels[0].default_from = kernel_sources.FROM_TIME
  with pytest.raises(UserError, match='no kernel here has a tile of the TPU'):
    kernel_modules.write(str(folder) + '2', [source], [ranking], 'v5e')


def test_a_process_compiles_a_few_modules(monkeypatch):
  numbers = []

  def compile_all(unused_library, unused_topology, calls):
    numbers.append(len(calls))
    return [(program, b'', '') for program, *_ in calls]

  monkeypatch.setattr(libtpu, 'library', lambda: 'unused')
  monkeypatch.setattr(subprocesses, 'compile_all', compile_all)
  monkeypatch.setattr(kernel_modules, '_AT_ONCE', 2)
  modules = [protos.HloModuleProto(name=name) for name in 'abcde']
  assert list(kernel_modules._compiled(modules, 'v3', processes=9)) == [
      (module.SerializeToString(), b'', '') for module in modules]
  assert sorted(numbers) == [1, 2, 2]


def test_a_tile_of_a_copy_reads_the_same_elements():
  """16 x 4 are 128 columns of 512 rows, which are 64 x 1 of rows."""
  module = tiny_hlo.elementwise([2048, 1024], opcode='copy')
  root = tpu_compiler.root_of(module)
  root.shape.layout.minor_to_major[:] = [0, 1]
  root.backend_config = json.dumps({'window_config': {
      'output_window_bounds': [], 'input_window_bounds': ['9']}}).encode()
  root = tpu_compiler.root_of(kernel_modules.with_tile(module, [16, 4]))
  assert json.loads(root.backend_config)['window_config'][
      'input_window_bounds'] == ['64', '1']


def test_measured_times_become_a_kernel(folder, tmp_path, capsys):
  table = folder / 'measured.csv'
  table.write_text('module,runtime_ns,runs,device\n'
                   '000_tanh_1.default.pb,2000,200,TPU v5 lite\n'
                   '001_tanh_1.1.pb,1500,200,TPU v5 lite\n')
  out = str(tmp_path / 'out')
  assert cli.main(['featurize', str(table), '--out', out]) == 0
  kernel = Kernel.load(capsys.readouterr().out.strip())
  assert kernel.runtime_ns.tolist() == [2000, 1500]
  assert kernel.normalizer_ns.tolist() == [2000, 2000]
  assert kernel.config_feat[:, 8:10].tolist() == [[4, 2], [2, 2]]
  assert kernel.num_nodes == 2 and kernel.program == 'f'
  read = TASKS['tile'].read(str(table), LoadSettings())
  assert read[0].runtime_ns.tolist() == [2000, 1500]
  for line, rule in (('001_tanh_1.1.pb,1500', 'its default tile was not timed'),
                     ('9.pb,1500', "module '9.pb', runtime_ns '1500'"),
                     ('001_tanh_1.1.pb,-1', "runtime_ns '-1'"),
                     ('001_tanh_1.1.pb,٣٤', 'a whole number'),
                     ('', 'no module was timed; time_modules.py says why'),
                     ('000_tanh_1.default.pb,' + 30 * '9', 'is damaged'),
                     ('x' * 200_000, 'is damaged (Error: field larger')):
    table.write_text('module,runtime_ns\n' + line)
    assert cli.main(['featurize', str(table), '--out', out]) == 1
    assert rule in capsys.readouterr().err
  listed = json.loads((folder / 'modules.json').read_text())
  for row in listed['modules']:
    row['output_bounds'] = [row['output_bounds']]
  (folder / 'modules.json').write_text(json.dumps(listed))
  table.write_text('module,runtime_ns\n000_tanh_1.default.pb,9')
  with pytest.raises(UserError, match='f_000-tanh-1: config_feat has '):
    featurize.measured_kernels(str(table))


def test_kernels_of_one_name_in_two_programs_stay_two(tmp_path, compiler):
  folder = tmp_path / 'two'
  kernel_modules.write(
      str(folder), *zip(ranked('a/f.hlo.pb'), ranked('b/my_g.py:step')), 'v5e')
  (folder / 'measured.csv').write_text(
      'module,runtime_ns\n000_tanh_1.default.pb,20\n001_tanh_1.1.pb,15\n'
      '003_tanh_1.default.pb,70\n')
  kernels = featurize.measured_kernels(str(folder / 'measured.csv'))
  assert [(kernel.tile_id, kernel.program, kernel.runtime_ns.tolist())
          for kernel in kernels] == [
              ('f_000-tanh-1', 'f', [20, 15]),
              ('my_g_step_001-tanh-1', 'my_g_step', [70])]
  assert [kernel_sources.tile_id(source, 7, 'copy.2') for source in (
      'a/saved/', 'ü b.hlo.pb', '.x.pb', 'my.nets:Net.step')] == [
          'saved_007-copy.2', 'ü_b_007-copy.2', 'x_007-copy.2',
          'my_Net_step_007-copy.2']


def test_programs_become_kernels_with_the_compilers_tile(tmp_path):
  path = tiny_hlo.written(
      tmp_path / 'a.after_optimizations.hlo.pb',
      protos.HloSnapshot(hlo=protos.HloProto(hlo_module=tiled())))
  (made,), faults = featurize.featurize(
      [path, 'none.pb'], str(tmp_path / 'out'))
  kernel = Kernel.load(made)
  assert kernel.tile_id == 'a_000-elementwise' and not kernel.is_labelled
  assert kernel.config_feat[:, 8:10].tolist() == [[4, 2]]
  assert faults == ['none.pb: no such file; a function is named as '
                    'module:function']


PRODUCT = b"""func.func @main(%a: tensor<512x1024xf32>,
    %b: tensor<1024x512xf32>) -> tensor<512x512xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<512x1024xf32>, tensor<1024x512xf32>) -> tensor<512x512xf32>
  return %0 : tensor<512x512xf32>
}"""


@needs_libtpu
@pytest.mark.parametrize('tpu', ['v3', 'v5e', 'v6e'])
def test_the_compiler_keeps_a_tile(tpu):
  """Its own default, and half of that along the first dimension."""
  kernel, = tpu_compiler.compile_program(
      programs.Program(PRODUCT, 'mlir'), tpu).kernels
  default = kernel.window[:2]
  other = (default[0][0] // 2, *default[0][1:]), default[1]
  modules = [kernel_modules.with_tile(kernel.module, *bounds)
             for bounds in (default, other)]
  results = subprocesses.compile_all(
      libtpu.library(), libtpu.topology_of(tpu),
      [(module.SerializeToString(), 'hlo', tpu_compiler.compile_options(
          shape=module.host_program_shape), True) for module in modules])
  windows = [tpu_compiler.kernels_of(tpu_compiler.parse_optimized(
      optimized)).kernels[0].window[:2] for optimized, _, _ in results]
  assert windows == [default, other]
  assert all(len(executable) > 10_000 for _, executable, _ in results)
  assert np.prod(other[0]) < np.prod(default[0])
