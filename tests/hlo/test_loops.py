"""How often loops run, on modules like those that the compiler leaves."""

import pytest

from support import damage
from support.tiny_hlo import add
from support.tiny_loops import TUPLE, counting, state, whole
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import loops, protos


@pytest.mark.parametrize('counter, trips', [
    ((0, 12), 12), ((3, 12, 'LT', 2), 5), ((12, 12), 0), ((0, 12, 'LE'), 13),
    ((9, 0, 'GT', -3), 3), ((9, 0, 'GE', -3), 4), ((0, 12, 'NE', 4), 3),
    ((7, 12, 'EQ'), 0), ((12, 12, 'EQ'), 1), ((9, 0, 'LT', -3), 0),
    ((12, 12, 'NE'), 0),
    ((3, 12, 'LT', 2, 'subtract'), None),  # 2 - counter: not a step.
    ((0, 12, 'NE', 5), None), ((12, 0, 'NE', 4), None),  # It never ends, or
    ((9, 12, 'LT', 2**32 - 1), None),  # only when it overflows.
    ((0, 12, 'LT', 0), None), ((1, 12, 'LT', 2, 'multiply'), None)])
def test_trips_of_a_loop(counter, trips):
  runs, open_loops = loops.runs_of(counting(*counter))
  assert runs == {9: (1, False), 110: runs[100], 100: (
      1 if trips is None else trips, trips is None)}
  assert open_loops == (trips is None)


def test_a_loop_in_a_loop_gets_its_limit_through_the_outer_one():
  runs, open_loops = loops.runs_of(counting(0, 12, inner=(8, 'LT')))
  assert (runs[100].times, runs[1000].times, open_loops) == (12, 12 * 4, 0)
  # The outer loop is open, so its inner kernels may run more often too.
  runs, _ = loops.runs_of(counting(0, 12, 'NE', 5, inner=(2, 'LT')))
  assert runs[1000] == (2, True)
  module = counting(0, 12)  # A limit that the loop changes is unknown.
  module.computations[0].instructions[-1].operand_ids[1] = 104
  assert loops.runs_of(module)[1] == 1


def test_a_call_runs_as_often_as_its_caller():
  module = counting(0, 12)
  called = module.computations.add(id=300, root_id=301)
  whole(called, 301, 'parameter')
  whole(module.computations[0], 130, 'call', [104],
        called_computation_ids=[300])
  runs, open_loops = loops.runs_of(module)
  assert (runs[300], open_loops) == ((12, False), 0)


def test_a_bound_on_trips_beside_another_condition():
  """As TensorFlow's `maximum_iterations`: both must hold, both count."""
  module = counting(0, 12)
  condition = module.computations[1]
  whole(condition, 131, 5)
  add(condition, 132, 'compare', [], element_type='PRED',
      operands=[122, 131], comparison_direction='LT')
  add(condition, 133, 'and', [], element_type='PRED', operands=[124, 132])
  condition.root_id = 133
  assert loops.runs_of(module)[0][100].times == 5
  condition.instructions[-1].operand_ids[1] = 121  # The state: not known.
  assert loops.runs_of(module)[1] == 1


def in_a_fusion(module):
  """The step, of a fusion with several results: 12 / 3 trips."""
  called = module.computations.add(id=300, root_id=304)
  whole(called, 301, 'parameter')
  whole(called, 302, 3)
  whole(called, 303, 'add', [301, 302])
  state(called, 304, 'tuple', [302, 303])
  body = module.computations[0]
  del body.instructions[-2:]
  state(body, 130, 'fusion', [104], called_computation_ids=[300])
  whole(body, 106, 'get-tuple-element', [130], tuple_index=1)
  state(body, 109, 'tuple', [106, 103])


def condition_in_a_fusion(module):
  called, condition = module.computations.add(id=300, root_id=303), (
      module.computations[1])
  for place in range(2):
    whole(called, 301 + place, 'parameter', parameter_number=place)
  add(called, 303, 'compare', [], element_type='PRED', operands=[302, 301],
      comparison_direction='GT')
  node = condition.instructions[3]
  node.opcode = 'fusion'
  node.called_computation_ids.append(300)


def computed_limit(module, opcode, count):
  """The limit is `count` operations, of the one before and 12 or itself."""
  entry = module.computations[2]
  del entry.instructions[-2:]
  last = 92
  for number in range(1000, 1000 + count):
    whole(entry, number, opcode, [last, 92 if opcode == 'add' else last])
    last = number
  state(entry, 94, 'tuple', [93, last])
  state(entry, 95, 'while', [94], called_computation_ids=[100, 110])


def compared(module, *changed):
  """A condition that compares a product of these operands."""
  condition = module.computations[1]
  whole(condition, 130, 2)
  whole(condition, 131, 'multiply', changed)
  add(condition, 132, 'compare', [], element_type='PRED', operands=[131, 123],
      comparison_direction='LT')
  condition.root_id = 132


def one_element(module, size):
  module.computations[0].instructions[3].shape.dimensions.append(size)


def tuple_in_a_tuple(module):
  body = module.computations[0]
  del body.instructions[-1]
  state(body, 130, 'tuple', [106, 103])
  state(body, 131, 'tuple', [103, 130])
  state(body, 132, 'get-tuple-element', [131], tuple_index=1)
  whole(body, 133, 'get-tuple-element', [132])
  state(body, 109, 'tuple', [133, 103])


def unknown_step(module):
  module.computations[0].instructions[4].opcode = 'negate'


def calls_itself(module):
  """A fusion of a damaged module: its value is unknown."""
  in_a_fusion(module)
  called = module.computations[-1]
  called.instructions[2].opcode = 'fusion'
  called.instructions[2].called_computation_ids.append(300)


def many_conditions(module):
  """Each is the one before, twice."""
  condition = module.computations[1]
  for number in range(130, 200):
    add(condition, number, 'and', [], element_type='PRED',
        operands=2 * [number - 1 if number > 130 else 124])
  condition.root_id = 199


@pytest.mark.parametrize('change, operands, trips', [
    (in_a_fusion, (), 4), (condition_in_a_fusion, (), 12),
    (computed_limit, ('multiply', 1), 144), (compared, (122, 130), 6),
    (compared, (130, 122), 6), (compared, (122, 123), None),
    (one_element, (1,), 12), (one_element, (2,), None),
    (tuple_in_a_tuple, (), 12), (unknown_step, (), None),
    (calls_itself, (), None), (many_conditions, (), None),
    (computed_limit, ('add', 5000), 60_012),  # Too many to follow by calls.
    (computed_limit, ('multiply', 60), None)])  # More digits than memory.
def test_trips_of_a_loop_that_computes(change, operands, trips):
  module = counting(0, 12)
  change(module, *operands)
  runs, open_loops = loops.runs_of(module)
  assert runs[100] == (trips or 1, trips is None)
  assert open_loops == (trips is None)


@pytest.mark.parametrize('limits, times', [((8, 8), 16), ((8, 9), 2)])
def test_what_two_callers_pass_is_known_if_it_is_the_same(limits, times):
  module = counting(0, 12)
  loop = module.computations[2]  # It gets what it is compared with.
  loop.id = 8
  loop.instructions[1].opcode = 'parameter'
  entry = module.computations.add(id=9, root_id=93)
  for place, limit in enumerate(limits):
    whole(entry, 90 + place, limit)
    state(entry, 92 + place, 'call', [90 + place], called_computation_ids=[8])
  assert loops.runs_of(module)[0][100] == (times, times == 2)


def test_work_is_bounded_by_the_size_of_the_module(monkeypatch):
  """Calls of the next one twice, fusions of many others, tuples of tuples."""
  module = protos.HloModuleProto(name='m', entry_computation_id=3)
  for number in range(4):
    computation = module.computations.add(id=number, root_id=1)
    whole(computation, 1, 'parameter')
    for node in range(2, 200):
      whole(computation, node, 'fusion' if number else 'copy', [1],
            called_computation_ids=[number - 1] * (number > 0))
  monkeypatch.setattr(loops, '_MOST_FUSED', 1 << 14)  # A sixteenth.
  with damage.within_limits('fusions'):
    assert loops.runs_of(module)[0] == {3: (1, False)}
  for levels, is_sound in ((40, True), (60, False), (2000, False)):
    module = protos.HloModuleProto(name='m', entry_computation_id=1)
    for number in range(levels, 0, -1):
      computation = module.computations.add(id=number, root_id=2 * number)
      for place in (0, 1):
        node = computation.instructions.add(
            id=2 * number + place, opcode='call' if number < levels else 'add')
        node.called_computation_ids.extend([number + 1] * (number < levels))
    if is_sound:
      assert loops.runs_of(module)[0][levels].times == 2 ** (levels - 1)
    else:
      with pytest.raises(UserError, match='times, which no program does'):
        loops.runs_of(module)
  module = protos.HloModuleProto(name='m', entry_computation_id=1)
  computation = module.computations.add(id=1, root_id=61)
  for number in range(60):
    node = computation.instructions.add(
        id=number, opcode='tuple', operand_ids=2 * [number - 1] * (number > 0))
    node.shape.element_type = TUPLE
  for number in (60, 61):
    computation.instructions.add(
        id=number, opcode='call', operand_ids=[59], called_computation_ids=[2])
  module.computations.add(id=2, root_id=0).instructions.add(id=0, opcode='add')
  assert loops.runs_of(module)[0][2].times == 2
