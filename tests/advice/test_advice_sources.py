"""What a user names -> kernels."""

import pytest

from support import tiny_kernels, tiny_tuning
from support.tiny_hlo import add, convolution, elementwise
from tpu_graphs_ext.advice import sources
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import dumps, workers


def written(folder, name, message):
  path = folder / name
  path.write_bytes(message.SerializeToString())
  return str(path)


def names(source):
  return [found.kernel.tile_id for found in source.found]


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
  assert source.notes == ['passed over, as no kernels with tiles: '
                          '1 custom-call']
  assert source.found[0].kernel.config_feat.shape == (0, 24)


def test_a_program_that_is_not_fused_is_cut(tmp_path):
  source = sources.read_source(
      written(tmp_path, 'a.pb', elementwise([64, 256])))
  assert len(source.found) == 1
  assert source.notes == [
      'not fused: cut into kernels (1), with layouts, by the rules of the '
      "sample data, which are not the TPU compiler's"]
  source = sources.read_source(written(tmp_path, 'b.pb', elementwise([8, 8])))
  assert not source.found and 'fewer than 512 elements' in source.notes[1]


def test_kernels_with_the_same_name_are_told_apart():
  modules = [elementwise([64, 256 * n]) for n in (1, 2, 2)]
  found, faults = sources._each_once(modules)
  assert [(one.kernel.tile_id, one.copies) for one in found] == [
      ('elementwise', 1), ('elementwise (2)', 2)]
  assert not faults


def test_what_features_cannot_say():
  """One kernel of seven dimensions, one of a new opcode; the third is plain."""
  odd = elementwise([64, 256], opcode='erf')
  found, faults = sources._each_once(
      [elementwise([2] * 7 + [128]), odd, elementwise([64, 128])])
  assert faults == [
      'elementwise: parameter.10 has 8 dimensions; features have columns for '
      '6, so this kernel cannot be ranked']
  assert len(found) == 2
  assert found[0].notes == ('the model does not know what erf does: no number '
                            'of the data set stands for it',)
  source = sources._of_program('f', dumps.Dump(elementwise([2] * 9), False))
  assert 'parameter.10, tanh.11: more than 6 dimensions' in source.notes[1]
  source = sources._of_program(
      'f.pb', dumps.Dump(elementwise([2] * 7 + [128]), True))
  assert source.faults[0].startswith('f.pb: ')


def test_functions(tmp_path, monkeypatch):
  asked = []

  def compiled(target, shapes):
    asked.append((target, shapes))
    return elementwise([64, 256]).SerializeToString()

  monkeypatch.setattr(workers, 'module_of_function', compiled)
  source = sources.read_source('layers:dense', 'f32[64,256]')
  assert asked == [('layers:dense', [('f32', [64, 256])])]
  assert len(source.found) == 1


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
  with pytest.raises(UserError, match=r"b\.pb: HLO module 'elementwise' refers "
                     'to 77'):
    sources.read_source(written(tmp_path, 'b.pb', module))


def test_a_default_whose_time_is_withheld_is_the_tile_listed_most():
  kernel = tiny_kernels.make_kernel('net_0', num_configs=5)
  kernel.runtime_ns[:] = 0
  kernel.normalizer_ns[:] = 1
  assert sources.default_of(kernel) == 0
  kernel.config_feat[4] = kernel.config_feat[2]
  assert sources.default_of(kernel) == 2
