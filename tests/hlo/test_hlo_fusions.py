"""Optimised programs -> kernels; trip counts."""

import pytest

from support.feature_tiles import loops_of
from support.tiny_hlo import add, convolution, elementwise
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import features, fusions, protos


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
  split = fusions.kernels_of(optimized())
  assert [module.name for module in split.modules] == [
      'copy.124', 'fusion.112', 'fusion.113']
  assert split.passed_over == {'sort': 1}
  assert split.runs == [1, 1, 1] and split.open_loops == 1
  copy, once, twice = (features.module_arrays(m) for m in split.modules)
  # parameter, copy; 3 of the fused computation, parameters, the fusion.
  assert [len(k.node_opcode) for k in (copy, once, twice)] == [2, 5, 6]
  # An operand that is read twice is one parameter.
  entry = split.modules[1].computations[-1]
  assert list(entry.instructions[-1].operand_ids) == 2 * [
      entry.instructions[0].id]
  assert [node.parameter_number
          for node in split.modules[2].computations[-1].instructions[:2]] == [
              0, 1]
  assert loops_of(split.modules[0]).grid.output_units == (32, 1)
  assert loops_of(split.modules[2]).grid.output_units == (8, 2)


def counting(start, end, direction, step=1, opcode='add'):
  """A loop over one fusion, from `start` until `end` by `step`."""
  module = optimized()
  entry, body = module.computations[2], module.computations[1]
  condition = module.computations.add(id=4, root_id=133, name='condition')
  for computation, number in ((condition, 130), (body, 115)):
    add(computation, number, 'get-tuple-element', [], operands=[110],
        element_type='S32')
  add(condition, 131, 'constant', [], element_type='S32')
  condition.instructions[1].literal.s32s.append(end)
  add(condition, 133, 'compare', [], operands=[130, 131], element_type='PRED',
      comparison_direction=direction)
  add(body, 116, 'constant', []).literal.s32s.append(step)
  counter = add(body, 117, opcode, [], operands=[115, 116])
  body.instructions[4].operand_ids[0] = counter.id
  add(entry, 125, 'constant', []).literal.s32s.append(start)
  add(entry, 126, 'copy', [], operands=[125])
  add(entry, 127, 'tuple', [], operands=[126, 120])
  loop = entry.instructions[1]
  loop.operand_ids[:] = [127]
  loop.called_computation_ids[:] = [2, 4]
  return module


def test_trips_of_a_loop():
  for counter, trips in (
      ((0, 12, 'LT'), 12), ((3, 12, 'LT', 2), 5), ((5, 5, 'LT'), 0),
      ((9, 0, 'LT', -3), None), ((0, 12, 'NE'), None),
      ((0, 12, 'LT', 1, 'multiply'), None)):
    split = fusions.kernels_of(counting(*counter))
    runs = dict(zip([module.name for module in split.modules], split.runs))
    assert runs['fusion.112'] == (1 if trips is None else trips), counter
    assert runs['copy.124'] == 1
    assert split.open_loops == (trips is None)


def test_scalar_constants_stay_and_so_does_a_single_kernel():
  module = convolution()
  split, = fusions.kernels_of(module).modules
  assert split is module
  module = elementwise([64, 256])
  entry = module.computations[0]
  add(entry, 12, 'constant', [])
  add(entry, 13, 'pad', [72, 256], operands=[11, 12])
  entry.root_id = 13
  pad = fusions.kernels_of(module).modules[1].computations[-1]
  assert [node.opcode for node in pad.instructions] == [
      'parameter', 'constant', 'pad']


def test_real_kernels_come_out_as_they_are(shared_data):
  data = protos.TuningData.FromString(
      (shared_data / 'op_tuning_data.pb').read_bytes())
  for entry in data.modules:
    assert fusions.kernels_of(entry.module).modules == [entry.module]


@pytest.mark.parametrize('damage', [
    lambda module: setattr(module, 'entry_computation_id', 77),
    lambda module: module.computations[2].instructions[1]
    .called_computation_ids.append(3),  # A loop that contains itself.
    lambda module: module.computations[1].instructions[2]
    .called_computation_ids.append(77),
    lambda module: module.computations[2].instructions[4]
    .operand_ids.append(77)])
def test_damaged_modules(damage):
  module = optimized()
  damage(module)
  with pytest.raises(UserError, match=r"'program' refers to .*(77|itself)"):
    fusions.kernels_of(module)
