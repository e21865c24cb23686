"""What a user names -> kernels."""

import gzip
import types

import pytest
import tensorflow as tf

from support import tiny_kernels, tiny_tuning
from support.libtpu import needs_libtpu
from support.tiny_hlo import (
  add,
  convolution,
  elementwise,
  pooling,
  written,
)
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  kernel_sources,
  libtpu,
  programs,
  subprocesses,
  tpu_compiler,
)


class Lowered:
  """What `jax.jit(f).lower(...)` returns where no TPU is."""
  __module__ = 'jax.stages'
  _lowering = types.SimpleNamespace(_platforms=('cpu',))

  def compiler_ir(self, dialect):
    return self

  def as_serialized_hlo_module_proto(self):
    return elementwise([64, 256]).SerializeToString()


def compiled(module, bounds=None, cycles=100, runs=1, op_name=''):
  """A kernel as the TPU compiler made it; without bounds it has no window."""
  return tpu_compiler.CompiledKernel(
      module, op_name, bounds and tpu_compiler.Window(bounds, (), cycles), runs)


def from_compiled(*kernels, passed_over=(), pallas=(), counts=(0,)):
  return kernel_sources._from_compiled('f', tpu_compiler.CompiledProgram(
      list(kernels), dict(passed_over), list(pallas), *counts), [])


def names(source):
  return [source_kernel.kernel.tile_id for source_kernel in source.kernels]


def test_tuning_data_has_runs(tmp_path):
  path = tmp_path / 'data.pb'
  written(path, tiny_tuning.tile_data())
  timed, = kernel_sources.read_source(path).kernels
  assert timed.kernel.num_configs == 2
  path.write_bytes(gzip.compress(path.read_bytes()))
  assert names(kernel_sources.read_source(path)) == [timed.name]
  assert kernel_sources.default_of(timed.kernel) == 0
  # Without times the default is the tile listed most, else the first.
  kernel = tiny_kernels.make_kernel('net_0', num_configs=5)
  kernel = kernel_sources.never_timed(kernel, kernel.config_feat)
  assert kernel_sources.default_of(kernel) == 0
  kernel.config_feat[4] = kernel.config_feat[2]
  assert kernel_sources.default_of(kernel) == 2


@pytest.mark.parametrize('dims, layout, bounds, is_changed', [
    ([32, 16, 256, 1], [2, 1, 0, 3], (4, 2, 2), True),
    ([32, 1, 16, 256], [3, 2, 0, 1], (4, 2, 2), True),
    ([1, 32, 16, 1, 256], [4, 2, 1, 3, 0], (4, 2, 2), True),
    ([32, 16, 256, 1], [2, 1, 0, 3], (1, 4, 2, 2), False),  # Is tiled itself.
    ([16, 32, 256, 1], [2, 0, 1, 3], (4, 2, 2), True),  # The same in memory.
    ([16, 32, 256, 1], [2, 1, 0, 3], (4, 2, 2), False),  # Transposed.
])
def test_a_softmax_is_tiled_without_dimensions_of_size_one(
    dims, layout, bounds, is_changed):
  module = pooling([32, 16, 256], [1, 1, 511])
  entry = module.computations[0]
  add(entry, 12, 'bitcast', [32, 1, 16, 256])  # Wider, but no result.
  add(entry, 13, 'bitcast', dims, layout, [11], element_type='BF16')
  entry.root_id = 13
  before = module.SerializeToString()
  kernel = kernel_sources.source_kernel(compiled(module, bounds), 'f').kernel
  assert [kernel.node_feat[
      node, schema.NODE_GROUPS[name]][:5].astype(int).tolist()
          for node in (2, 3)
          for name in ('shape_dimensions', 'layout_minor_to_major')] == [
              [32, 1, 16, 256, 0], [3, 2, 1, 0, 0], *(
                  [[32, 16, 256, 0, 0], [2, 1, 0, 0, 0]] if is_changed else
                  [[*dims, 0][:5], [*layout, 0][:5]])]
  assert module.SerializeToString() == before
  # A tuple's results alike.
  add(entry, 14, 'tuple', [], operands=[13, 11])
  for number in 3, 1:
    entry.instructions[4].shape.tuple_shapes.add().CopyFrom(
        entry.instructions[number].shape)
  entry.root_id = 14
  again = kernel_sources.source_kernel(compiled(module, bounds), 'f').kernel
  columns = slice(1, schema.NODE_COLUMN['parameter_number'])
  assert (again.node_feat[3, columns] == kernel.node_feat[3, columns]).all()


def test_fusions_of_an_optimised_dump_each_once(tmp_path):
  module = convolution()
  entry = module.computations[1]
  twin = add(entry, 24, 'fusion', [32, 4, 4, 384], [3, 0, 2, 1], [20, 21, 22],
             called_computation_ids=[1])
  twin.name = 'fusion.twin'
  add(entry, 25, 'custom-call', [4], operands=[24])
  source = kernel_sources.read_source(
      written(tmp_path / 'module_1.after_optimizations.hlo.pb', module))
  assert names(source) == ['fusion.23'] and source.kernels[0].copies == 2
  assert source.notes == [
      "not known to be a TPU's: nothing in it says what compiler optimised it",
      'passed over, because they have no tiles, so in no share of time: '
      '1 custom-call']
  assert source.kernels[0].kernel.config_feat.shape == (0, 24)
  path = tmp_path / 'a.gz'
  path.write_bytes(gzip.compress(module.SerializeToString()))
  again = kernel_sources.read_source(path, tpu='v6e')
  assert names(again) == names(source)
  assert (source.tpu, again.tpu) == ('v3', 'v6e')


def test_a_schedule_without_tiled_layouts_is_not_from_a_tpu(tmp_path):
  module = convolution()
  module.schedule.sequences[2].instruction_ids.append(23)
  path = written(tmp_path / 'a.pb', module)
  with pytest.raises(UserError, match=r'is HLO optimised for a CPU or GPU, '
                     '.* before_optimizations'):
    kernel_sources.read_source(path)
  module.ClearField('schedule')  # Older XLA says so in the name alone.
  with pytest.raises(UserError, match='is HLO optimised for a CPU or GPU'):
    kernel_sources.read_source(
        written(tmp_path / 'm.cpu_after_optimizations.hlo.pb', module))
  tile = module.computations[1].instructions[0].shape.layout.tiles.add()
  tile.dimensions.extend([8, 128])
  module.schedule.sequences[2].instruction_ids.append(23)
  source = kernel_sources.read_source(written(tmp_path / 'a.pb', module))
  assert names(source) == ['fusion.23'] and not source.notes


def test_what_cannot_be_ranked(tmp_path):
  for name, rule in (
      ('none.pb', 'no such file; a function is named as module:function'),
      (3, 'a program must be a file, .* got int'), ('.', 'cannot be read')):
    with pytest.raises(UserError, match=rule):
      kernel_sources.read_source(name)
  for content, rule in (
      (b' \n', 'is empty'), (b'PK\x03\x04..', 'is a zip archive'),
      (b'{"a": 1}\n[', r'is text that begins with \'{"a": 1}\''),
      (b'\xff' * 40, 'its 40 bytes are not a whole HloModuleProto')):
    (tmp_path / 'a.pb').write_bytes(content)
    with pytest.raises(UserError, match=rf'a\.pb: {rule}'):
      kernel_sources.read_source(str(tmp_path / 'a.pb'))
  module = elementwise([64, 256])
  module.computations[0].instructions[1].operand_ids[0] = 77
  source = kernel_sources.read_source(
      written(tmp_path / 'b.after_optimizations.hlo.pb', module))
  assert "b.after_optimizations.hlo.pb: HLO module 'elementwise': " in (
      source.faults[0])


def test_a_compiled_program_with_most_time_first():
  # Bounds of f32 [64, 256]: 8 by 2 layout tiles; of [64, 512]: 8 by 4.
  small, large = elementwise([64, 256]), elementwise([64, 512])
  source = from_compiled(
      compiled(small, (8, 2), 50, op_name='jit(f)/tanh'),
      compiled(large, (4, 4), 300)._replace(in_open_loop=True),
      compiled(small, (8, 2), 50, runs=11), compiled(elementwise([])),
      compiled(elementwise([])), compiled(elementwise([8, 128])),
      passed_over={'sort': 1}, counts=(1, 2))
  assert source.notes == [
      'passed over, because they have no tiles, so in no share of time: 1 '
      'sort, 2 scalar operations',
      'in no share of time, because the compiler estimates none: '
      'elementwise (4)', 'conditionals: 2; all branches count',
      'loops with an unknown number of trips: 1; their kernels, marked '
      '*, count once: 33.3 % of the time, or more']
  first, second, _ = source.kernels
  # 12 runs of 50 cycles of 900; 300 of 900.
  assert (first.copies, first.cycles, first.share) == (12, 50, 600 / 900)
  assert (second.copies, second.share) == (1, 300 / 900)
  assert first.compiled.op_name == 'jit(f)/tanh'
  assert second.compiled.in_open_loop
  assert second.compiled.window.output_bounds == (4, 4)


def test_pallas_kernels():
  source = from_compiled(compiled(elementwise([64, 256])), pallas=['attend'])
  assert len(source.kernels) == 1
  assert source.notes[0] == (  # As of the compiler's own online-softmax.
      'attend: written in Pallas, so the author (you, a library or the '
      'compiler) chooses the blocks')
  with pytest.raises(UserError, match=r'f: has no kernel to rank\. attend: '):
    from_compiled(pallas=['attend'])


def test_names_are_unique_and_odd_kernels_named():
  source = from_compiled(*(
      compiled(elementwise([64, 256 * n])) for n in (1, 2, 2)))
  assert [(named.kernel.tile_id, named.copies) for named in source.kernels] == [
      ('elementwise', 1), ('elementwise (2)', 2)]
  # A kernel of eight dimensions, and one of a new opcode.
  high = elementwise([2] * 7 + [128])
  source = from_compiled(
      compiled(high), compiled(elementwise([64, 256], opcode='erf')))
  assert source.faults == [
      'f: elementwise: parameter.10 has 8 dimensions; features have columns '
      'for 6, so this kernel cannot be ranked']
  small, large = (elementwise([64, 256], element_type='F8E5M2')
                  for _ in range(2))
  for node in large.computations[0].instructions:
    node.shape.element_type = 99
  for module, note in (
      (small, 'elements of F8E5M2 count as S8'),
      (large, 'elements of new types count as 4 bytes each, so bytes, analytic '
       'time and legal tiles are off')):
    kernel, = from_compiled(compiled(module)).kernels
    assert kernel.notes == (
        f'{note}: no number of the data set stands for it',)
  odd, unknown = source.kernels
  assert odd.kernel is None and odd.name == 'elementwise'  # To report.
  assert unknown.notes == (
      'the model does not know what erf does: no number of the data set '
      'stands for it',)


def test_programs_are_compiled(tmp_path, monkeypatch):
  asked = []
  content = elementwise([64, 256]).SerializeToString()

  def lower_named(*arguments):
    asked.append(arguments)
    return content

  def compile_program(*arguments):
    asked.append(arguments)
    if b'bad' in arguments[0].content:
      raise UserError('the compiler refuses it')
    return tpu_compiler.CompiledProgram(
        [compiled(elementwise([64, 256]))], {}, [], 0)

  library = libtpu.library
  monkeypatch.setattr(libtpu, 'library', lambda: 'libtpu.so')
  monkeypatch.setattr(subprocesses, 'lower_named', lower_named)
  monkeypatch.setattr(tpu_compiler, 'compile_program', compile_program)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'layers.py').write_text('def dense(x): pass\n'
                                      'example_arguments = dense')
  read = kernel_sources.read_source
  program = programs.of_module(elementwise([64, 256]))
  source = read('layers:dense', 'f32[64,256]', 'v5e', 'python9')
  assert asked == [('layers:dense', 'f32[64,256]', 'python9'),
                   (program, 'v5e', None)]
  assert source.notes == ['compiled for a TPU v5e by libtpu']
  assert source.tpu == 'v5e'
  with pytest.raises(UserError, match='cannot be read; write'):
    read('layers:dense', 'f23[64]')
  with monkeypatch.context() as without:
    without.setenv(libtpu.LIBRARY_VARIABLE, str(tmp_path / 'none.so'))
    without.setattr(libtpu, 'library', library)
    with pytest.raises(UserError, match='the TPU compiler is missing'):
      read('layers:dense', 'f32[64,256]')
  assert len(asked) == 2  # Both are said before anything is lowered.
  read('layers:dense', 'example_arguments')
  assert asked[-2] == ('layers:dense', 'example_arguments', '')
  (tmp_path / 'saved').mkdir()
  (tmp_path / 'saved' / 'saved_model.pb').touch()
  read(tmp_path / 'saved')
  assert asked[-2] == (str(tmp_path / 'saved'), '')
  read(written(tmp_path / 'a.pb', elementwise([64, 256])))
  assert asked[-1] == (program, 'v3', None)
  path = tmp_path / 'a.mlir'
  path.write_bytes(b'func.func @main(tensor<2xf32>) // bad')
  with pytest.raises(UserError, match=r'a\.mlir: the compiler refuses it'):
    read(str(path))
  assert asked[-1][0].program_format == 'mlir'
  path.write_bytes(b'module attributes {mhlo.num_partitions = 4} {'
                   b'func.func @main(tensor<2xf32>)}')
  assert read(str(path)).notes == [
      'compiled for a TPU v3 by libtpu, for 4 devices (4 partitions, 1 '
      'replicas): the kernels of each']
  path.write_bytes(b'func.func @main(tensor<i32> {"_platform_index"})')
  assert read(str(path)).notes[1].startswith('exported for several platforms')
  assert read(Lowered(), None).notes[1].startswith('lowered for cpu, for ')


@needs_libtpu
def test_functions_and_what_the_compiler_wrote(tmp_path, monkeypatch):
  """A TensorFlow function; then the optimised program, read back."""
  compile_program, optimized = subprocesses.compile_program, []
  monkeypatch.setattr(subprocesses, 'compile_program', lambda *arguments: (
      optimized.append(compile_program(*arguments)) or optimized[0]))

  def dense(inputs, bias):
    return tf.nn.relu(inputs['x'] @ inputs['w'] + bias)

  arguments = ({'x': tf.TensorSpec([256, 512]),
                'w': tf.TensorSpec([512, 1024])}, tf.TensorSpec([1024]))
  source = kernel_sources.read_source(dense, arguments)
  compiled_kernel, = source.kernels
  assert compiled_kernel.share == 1 and compiled_kernel.compiled.op_name
  assert compiled_kernel.cycles > 500
  path = tmp_path / 'a.hlo.pb'
  path.write_bytes(optimized[0])
  again = kernel_sources.read_source(str(path))
  assert not again.notes and again.kernels[0].cycles == compiled_kernel.cycles


def test_one_argument_needs_no_tuple():
  assert kernel_sources.lowered(lambda x: tf.tanh(x), tf.TensorSpec([8]))
