"""What a user names -> kernels."""

import pytest

from support import tiny_hlo, tiny_kernels, tiny_tuning
from support.libtpu import needs_libtpu
from support.tiny_hlo import add, convolution, elementwise
from tpu_graphs_ext.analytic import feature_loops
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import (
  compiling,
  dumps,
  lowering_subprocess,
  tpu_compiler,
)
from tpu_graphs_ext.serving import sources, tile_search


def written(folder, name, message):
  path = folder / name
  path.write_bytes(message.SerializeToString())
  return str(path)


def compiled(module, **fields):
  """A kernel as the TPU compiler made it, of one run and without a window."""
  return tpu_compiler.CompiledKernel(
      module, **{'op_name': '', 'window': None, 'runs': 1, **fields})


def window(bounds, cycles=100):
  return tpu_compiler.Window(bounds, (), cycles)


def program(*kernels, passed_over=(), pallas=(), open_loops=0):
  return tpu_compiler.CompiledProgram(
      list(kernels), dict(passed_over), list(pallas), open_loops)


def names(source):
  return [found.kernel.tile_id for found in source.found]


def test_arguments_by_name():
  for name in ('example_arguments', ' models.py:args', 'a.b:C.args'):
    assert sources.arguments_of(name) == name.strip()
  assert sources.arguments_of('f32[3]') == [('f32', [3])]
  with pytest.raises(UserError, match="read at 'f32'"):
    sources.arguments_of('f32')


def test_shapes():
  assert sources.parsed_shapes(' f32[512, 1024] bf16[],s32[3]') == [
      ('f32', [512, 1024]), ('bf16', []), ('s32', [3])]
  assert sources.parsed_shapes('') == []
  for text, rule in (('f23[3]', "no type 'f23'"), ('f32', "read at 'f32'"),
                     ('f32[3', r"read at 'f32\[3'"), ('f32[3]x', "at 'x'")):
    with pytest.raises(UserError, match=rule):
      sources.parsed_shapes(text)


def test_an_npz_is_one_kernel(tmp_path):
  path = tiny_kernels.make_kernel('net_0').save(str(tmp_path))
  source = sources.read_source(path)
  assert names(source) == ['net_0'] and not source.notes
  assert source.found[0].kernel.num_configs


def test_tuning_data_has_runs(tmp_path):
  data = tiny_tuning.tile_data()
  unmeasured = data.modules.add(fingerprint=0xCD)
  tiny_tuning.fill_module(unmeasured.module, name='other', size=4096)
  path = written(tmp_path, 'data.pb', data)
  source = sources.read_source(path)
  measured, other = (found.kernel for found in source.found)
  assert (measured.num_configs, other.num_configs) == (2, 0)
  assert sources.default_of(measured) == 0
  assert sources.default_of(other) is None
  assert "'other' is ranked as one that was never timed" in source.notes[0]


def test_fusions_of_an_optimised_dump_each_once(tmp_path):
  module = convolution()
  entry = module.computations[1]
  twin = add(entry, 24, 'fusion', [32, 4, 4, 384], [3, 0, 2, 1], [20, 21, 22],
             called_computation_ids=[1])
  twin.name = 'fusion.twin'
  add(entry, 25, 'custom-call', [4], operands=[24])
  source = sources.read_source(
      written(tmp_path, 'module_1.after_optimizations.hlo.pb', module))
  assert names(source) == ['fusion.23'] and source.found[0].copies == 2
  assert source.notes == [
      "not known to be a TPU's: nothing in it says what compiler optimised it",
      'passed over, as no kernels with tiles: 1 custom-call']
  assert source.found[0].kernel.config_feat.shape == (0, 24)


@pytest.mark.parametrize('change, machine', [
    (lambda node: node.__setattr__('custom_call_target', '__cublas$gemm'),
     'a GPU'),
    (lambda node: node.__setattr__(
        'backend_config', b'{"fusion_backend_config":{}}'), 'a GPU'),
    (lambda node: node.__setattr__(
        'backend_config', b'{"outer_dimension_partitions":["2"]}'), 'a CPU')])
def test_dumps_of_other_machines_are_refused(tmp_path, change, machine):
  module = convolution()
  change(module.computations[1].instructions[3])
  path = written(tmp_path, 'a.pb', module)
  with pytest.raises(UserError, match=rf'a\.pb: was optimised for {machine}, '
                     '.* before_optimizations'):
    sources.read_source(path)


def test_a_schedule_without_tiled_layouts_is_no_tpus(tmp_path):
  module = convolution()
  module.schedule.sequences[2].instruction_ids.append(23)
  path = written(tmp_path, 'a.pb', module)
  with pytest.raises(UserError, match='optimised for a CPU or GPU'):
    sources.read_source(path)
  tile = module.computations[1].instructions[0].shape.layout.tiles.add()
  tile.dimensions.extend([8, 128])
  source = sources.read_source(written(tmp_path, 'a.pb', module))
  assert names(source) == ['conv'] and not source.notes


def test_a_compiled_program_with_most_time_first():
  # Bounds of f32 [64, 256]: 8 by 2 layout tiles; of [64, 512]: 8 by 4.
  small, large = elementwise([64, 256]), elementwise([64, 512])
  source = sources._of_compiled('f', program(
      compiled(small, op_name='jit(f)/tanh', window=window((8, 2), 50)),
      compiled(large, window=window((4, 4), 300)),
      compiled(small, window=window((8, 2), 50), runs=11),
      compiled(elementwise([])), passed_over={'sort': 1}, open_loops=1), [])
  assert source.notes == [
      'passed over, as no kernels with tiles: 1 sort, 1 operation on scalars',
      '1 of its loops make a number of trips that is not known; their kernels '
      'count once']
  first, second = source.found
  # 12 runs of 50 cycles of 900; 300 of 900.
  assert (first.copies, first.cycles, first.share) == (12, 50, 600 / 900)
  assert (second.copies, second.share) == (1, 300 / 900)
  assert first.op_name == 'jit(f)/tanh'
  assert first.default_from == sources.FROM_COMPILER
  assert sources.default_of(second.kernel) == 0
  assert second.kernel.config_feat[0, 8:10].tolist() == [4, 4]


def test_a_window_of_another_tensor_is_no_default():
  source = sources._of_compiled('f', program(
      compiled(elementwise([64, 256]), window=window((9, 2)))), [])
  assert sources.default_of(source.found[0].kernel) is None
  assert 'output [9, 2], kernel [], is of another' in source.found[0].notes[0]


def test_pallas_kernels():
  plain = compiled(elementwise([64, 256]))
  source = sources._of_compiled('f', program(plain, pallas=['attend']), [])
  assert len(source.found) == 1
  assert source.notes[0].startswith('attend: written in Pallas')
  with pytest.raises(UserError, match=r'f: has no kernel to rank\. attend: '):
    sources._of_compiled('f', program(pallas=['attend']), [])


def test_kernels_with_the_same_name_are_told_apart():
  found, faults = sources._each_once(
      [compiled(elementwise([64, 256 * n])) for n in (1, 2, 2)])
  assert [(one.kernel.tile_id, one.copies) for one in found] == [
      ('elementwise', 1), ('elementwise (2)', 2)]
  assert not faults


def test_what_features_cannot_say():
  """One kernel of eight dimensions, one of a new opcode; the third is plain."""
  odd = elementwise([64, 256], opcode='erf')
  found, faults = sources._each_once(list(map(compiled, (
      elementwise([2] * 7 + [128]), odd, elementwise([64, 128])))))
  assert faults == [
      'elementwise: parameter.10 has 8 dimensions; features have columns for '
      '6, so this kernel cannot be ranked']
  assert len(found) == 2
  assert found[0].notes == ('the model does not know what erf does: no number '
                            'of the data set stands for it',)
  source = sources._of_dump('f.pb', dumps.Dump(
      elementwise([2] * 7 + [128]), True), tpu_compiler.GENERATIONS['v3'])
  assert source.faults[0].startswith('f.pb: ')


def test_programs_are_compiled(tmp_path, monkeypatch):
  asked = []
  content = elementwise([64, 256]).SerializeToString()

  def lowered(*arguments):
    asked.append(arguments)
    return content

  def compile_program(*arguments):
    asked.append(arguments)
    if b'bad' in arguments[0]:
      raise compiling.CompileError('the compiler refuses it')
    return program(compiled(elementwise([64, 256])))

  monkeypatch.setattr(tpu_compiler, 'library', lambda: 'libtpu.so')
  monkeypatch.setattr(lowering_subprocess, 'module_of_function', lowered)
  monkeypatch.setattr(tpu_compiler, 'compile_program', compile_program)
  v5e, v3 = (tpu_compiler.GENERATIONS[name] for name in ('v5e', 'v3'))
  source = sources.read_source('layers:dense', 'f32[64,256]', 'v5e', 'python9')
  assert asked == [('layers:dense', [('f32', [64, 256])], 'python9'),
                   (content, v5e, 'hlo')]
  assert source.notes == ['compiled for a TPU v5e by libtpu']
  sources.read_source('layers:dense', 'example_arguments')
  assert asked[2] == ('layers:dense', 'example_arguments', '')
  sources.read_source(written(tmp_path, 'a.pb', elementwise([64, 256])))
  assert asked[-1] == (content, v3, 'hlo')
  path = tmp_path / 'a.mlir'
  path.write_bytes(b'func.func @main() { stablehlo.add } // bad')
  with pytest.raises(UserError, match=r'a\.mlir: the compiler refuses it'):
    sources.read_source(str(path))
  assert asked[-1][2] == 'mlir'


@needs_libtpu
def test_a_function_in_this_process():
  import tensorflow as tf

  def dense(inputs, bias):
    return tf.nn.relu(inputs['x'] @ inputs['w'] + bias)

  source = sources.of_function(dense, (
      {'x': tf.TensorSpec([256, 512]), 'w': tf.TensorSpec([512, 1024])},
      tf.TensorSpec([1024])))
  found, = source.found
  assert found.share == 1 and found.op_name
  assert sources.default_of(found.kernel) == 0
  assert sources.of_function(
      lambda x: tf.tanh(x), 'f32[256,512]', 'v5e').notes == [
          'compiled for a TPU v5e by libtpu']
  with pytest.raises(UserError, match=r'dense: .*XLA cannot compile it'):
    sources.of_function(dense, 'f32[3] f32[4]')


@needs_libtpu
def test_optimised_programs_of_a_tpu_are_taken_as_they_are(tmp_path):
  path = tmp_path / 'a.mlir'
  path.write_text("""
      func.func @main(%a: tensor<256x512xf32>) -> tensor<256x512xf32> {
        %0 = stablehlo.tanh %a : tensor<256x512xf32>
        return %0 : tensor<256x512xf32>
      }""")
  source = sources.read_source(str(path))
  v3 = tpu_compiler.GENERATIONS['v3']
  with tpu_compiler.process(v3) as process:
    optimized = process.compile(path.read_bytes(), 'mlir')
  dumped = tmp_path / 'a.hlo.pb'
  dumped.write_bytes(optimized)
  again = sources.read_source(str(dumped))
  assert not again.notes
  assert [one.cycles for one in again.found] == [
      one.cycles for one in source.found]


@pytest.mark.parametrize('name, rule', [
    ('none.pb', 'no such file; a function is named as module:function'),
    ('', 'no such file'), ('.', 'is a folder')])
def test_what_is_nothing_to_rank(name, rule):
  with pytest.raises(UserError, match=rule):
    sources.read_source(name)


def test_shapes_of_a_file_and_damaged_ones(tmp_path):
  path = written(tmp_path, 'a.pb', elementwise([64, 256]))
  with pytest.raises(UserError, match='--shapes goes with a function'):
    sources.read_source(path, 'f32[3]')
  module = elementwise([64, 256])
  module.computations[0].instructions[1].operand_ids[0] = 77
  source = sources.read_source(
      written(tmp_path, 'b.after_optimizations.hlo.pb', module))
  assert "b.after_optimizations.hlo.pb: HLO module 'elementwise': " in (
      source.faults[0])


def test_a_default_whose_time_is_withheld_is_the_tile_listed_most():
  kernel = tiny_kernels.make_kernel('net_0', num_configs=5)
  kernel.runtime_ns[:] = 0
  kernel.normalizer_ns[:] = 1
  assert sources.default_of(kernel) == 0
  kernel.config_feat[4] = kernel.config_feat[2]
  assert sources.default_of(kernel) == 2


def test_a_product_is_told_by_rows_columns_and_summands():
  kernel, _ = sources._kernel(tiny_hlo.product(64, 256, 512), 'x')
  assert tile_search._product_of(feature_loops.kernel_loops(kernel)) == (
      64, 512, 256)
  kernel, _ = sources._kernel(tiny_hlo.convolution(), 'x')
  # 32 images of 4 x 4, 3 x 3 taps of 256 features.
  assert tile_search._product_of(feature_loops.kernel_loops(kernel)) == (
      32 * 16, 384, 9 * 256)
  kernel, _ = sources._kernel(tiny_hlo.elementwise([32, 256]), 'x')
  assert tile_search._product_of(feature_loops.kernel_loops(kernel)) is None
