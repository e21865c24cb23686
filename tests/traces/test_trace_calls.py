"""Trees of calls, launches and idle time, by hand."""

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op
from tpu_graphs_ext.traces import calls, launches, profile, read


def traced(events, **more):
  trace = profile.trace_of('t.json', events, more.get('devices'))
  launches.attribute(trace)
  return trace


def named(trace, name):
  call, = (call for call in trace.calls if call.name == name)
  return call


def test_a_tree_and_its_self_times():
  trace = traced(tiny.one_step())
  linear, addmm = named(trace, 'aten::linear'), named(trace, 'aten::addmm')
  assert [child.name for child in linear.children] == [
      'aten::t', 'aten::addmm']
  assert [child.name for child in addmm.children] == ['cudaLaunchKernel']
  assert linear.self_us == 40 - 4 - 20
  assert addmm.self_us == 20 - 2
  assert named(trace, 'ProfilerStep#3').self_us == 100 - 40 - 10
  # Counted from the first event.
  assert (linear.start, linear.end) == (10, 50)
  assert sum(call.self_us for call in trace.calls) == 100


def test_threads_have_trees_of_their_own():
  trace = traced([op('a', 0, 10), op('b', 2, 3, tid=1),
                  {**op('c', 4, 2), 'tid': 2}, {**op('d', 4, 2), 'pid': 8}])
  assert named(trace, 'b').parent is named(trace, 'a')
  assert named(trace, 'c').parent is None and named(trace, 'd').parent is None


def test_equal_times_are_told_apart_by_number():
  trace = traced([op('inner', 0, 10, External_id=6),
                  op('outer', 0, 10, External_id=5)])
  assert named(trace, 'inner').parent is named(trace, 'outer')
  assert named(trace, 'outer').self_us == 0


def test_times_that_were_cut_off_to_whole_microseconds():
  # 10.9 to 13.95 becomes 10 to 13; within it 11.2 to 13.9, 11 and 2.7 -> 14?
  trace = traced([op('outer', 10, 3), op('inner', 11, 3)])
  assert named(trace, 'inner').parent is named(trace, 'outer')
  assert named(trace, 'outer').self_us == 1  # What lies outside counts not.
  assert not trace.notes
  # The next call begins where this one ends: beside it, not within.
  trace = traced([op('one', 10, 3), op('next', 13, 1)])
  assert named(trace, 'next').parent is None


def test_calls_that_cross_are_beside_one_another_and_told():
  trace = traced([op('around', 0, 100), op('one', 10, 20),
                  op('two', 20, 20)])
  assert named(trace, 'two').parent is named(trace, 'around')
  assert named(trace, 'around').self_us == 100 - 30  # 10 to 40, once.
  assert trace.notes == ['1 calls overlap with another of their thread '
                         'without lying within it']


@pytest.mark.parametrize('around, phase', [
    ('aten::linear', 'forward'),
    ('autograd::engine::evaluate_function: AddmmBackward0', 'backward'),
    ('AddmmBackward0', 'backward'), ('AddmmBackward', 'backward'),
    ('torch::autograd::CppNode<SplitLookupFunction_sgd_Op>', 'backward'),
    ('Optimizer.step#SGD.step', 'optimizer')])
def test_phases_are_those_of_the_calls_around(around, phase):
  trace = traced([op(around, 0, 10), op('aten::mm', 1, 5),
                  op('aten::t', 2, 1)])
  assert named(trace, 'aten::t').phase == phase


@pytest.mark.parametrize('change', [
    {'ts': None}, {'dur': None}, {'dur': -1}, {'ts': float('nan')},
    {'ts': True}, {'dur': '5'}, {'ts': float('inf')}])
def test_events_without_times_are_left_out_and_counted(change):
  trace = traced([op('a', 0, 10), {**op('b', 1, 2), **change}])
  assert [call.name for call in trace.calls] == ['a']
  assert trace.notes == ['1 events without a usable start and duration are '
                         'left out']


def test_other_events_are_not_counted():
  trace = traced([op('a', 0, 10), {'ph': 'i', 'cat': 'cpu_op'}, None, 5,
                  event('p', 'python_function', 0, 9), {**op('b', 0, 1),
                                                        'args': None}])
  assert {call.name for call in trace.calls} == {'a', 'b'}
  assert not trace.notes


# ------------------------------------------------------------------- launches


def test_work_belongs_to_the_innermost_operator_of_its_launch():
  trace = traced(tiny.one_step())
  assert [work.caller.name for work in trace.activities] == [
      'aten::addmm', 'aten::add']
  assert [work.launch.start for work in trace.activities] == [24, 62]


def test_the_number_of_an_operator_decides_where_there_is_no_launch():
  trace = traced([op('a', 0, 10, External_id=5),
                  kernel(90, 3, 1, External_id=5)])
  assert trace.activities[0].caller.name == 'a'
  # The correlation number written into both fields says nothing.
  trace = traced([op('a', 0, 10, External_id=5),
                  kernel(5, 3, 1, External_id=5)])
  assert trace.activities[0].caller is None


def test_an_annotation_is_named_where_there_is_no_operator_but_no_step():
  trace = traced([tiny.step(1, 0, 50), launch(1, 2), kernel(1, 3, 1),
                  event('nccl:all_reduce', 'user_annotation', 10, 10),
                  launch(2, 12), kernel(2, 13, 1)])
  assert [work.caller and work.caller.name for work in trace.activities] == [
      None, 'nccl:all_reduce']


def test_many_kernels_of_one_launch():
  trace = traced([op('graph', 0, 10), launch(1, 2), kernel(1, 3, 1),
                  kernel(1, 5, 2)])
  assert [work.caller.name for work in trace.activities] == ['graph'] * 2


def test_old_names_of_categories_and_fields(tmp_path):
  path = tiny.write(tmp_path / 'old.json', [
      event('addmm', 'Operator', 0, 10, External_id='5',
            Input_dims=[[4], [2, 8], [8, 4]]),
      event('cudaLaunchKernel', 'Runtime', 2, 2, correlation=9, external_id=5),
      event('k', 'Kernel', 6, 8, thread=0, correlation=9, external_id=5,
            block=[32, 4, 1]),
      event('Memcpy HtoD', 'Memcpy', 20, 1, thread=0, correlation=10,
            external_id=5, bytes=64)], bare=True)
  trace = read.read(path)
  launches.attribute(trace)
  gemm, copy = trace.activities
  assert gemm.caller.name == copy.caller.name == 'addmm'
  assert gemm.launch.name == 'cudaLaunchKernel' and copy.launch is None
  assert gemm.block == (32, 4, 1) and copy.moved_bytes == 64


# -------------------------------------------------------------- steps and idle


def part_of(trace, *numbers):
  steps = launches.steps_of(trace)
  return launches.window(trace, {number: steps[number] for number in numbers})


def test_a_step_has_what_it_launched_whenever_that_ran():
  trace = traced([
      tiny.step(1, 0, 100), op('a', 10, 10), launch(1, 12),
      tiny.step(2, 100, 100), op('b', 110, 10), launch(2, 112),
      kernel(1, 90, 40), kernel(2, 130, 10)])
  assert launches.steps_of(trace) == {1: (0, 100), 2: (100, 200)}
  for number, name in ((1, 'a'), (2, 'b')):
    part = part_of(trace, number)
    assert [work.caller.name for work in part.activities] == [name]
    assert [call.name for call in part.calls] == [
        f'ProfilerStep#{number}', name, 'cudaLaunchKernel']
  assert len(part_of(trace, 1, 2).activities) == 2
  # Both kernels keep the GPU busy in the second step: 30 and 10 us.
  stretches = launches.busy(trace.activities, 100, 200)
  assert stretches == [(100, 140)]


def test_idle_time_by_hand():
  trace = traced(tiny.one_step())
  part = part_of(trace, 3)
  waits = launches.idle(trace, part)[0]
  # Before kernel 1, 0 to 30, launched at 26 by addmm; from there on it waits
  # for itself. Kernel 2, from 65 on, was launched at 64 by add; idle from 38.
  # Last 85 to 100.
  assert waits == {'aten::addmm': 26, launches.QUEUED: 4 + 1,
                   'aten::add': 64 - 38, launches.AFTER: 15}
  assert sum(waits.values()) == 100 - 8 - 20


def test_idle_time_of_work_that_was_launched_long_before():
  trace = traced([op('a', 0, 10), launch(1, 1), launch(2, 4),
                  kernel(1, 10, 5), kernel(2, 20, 5), kernel(77, 30, 5)])
  waits = launches.idle(trace, launches.window(trace, {}))[0]
  # Launched after 3 us, and run from 10 on; the last one nobody launched.
  assert waits == {'a': 3, launches.QUEUED: 7 + 5, launches.UNKNOWN: 5}


def test_streams_of_a_device_are_busy_together_and_devices_apart():
  other = kernel(3, 12, 8)
  other['args']['device'] = 1
  trace = traced([op('a', 0, 30), launch(1, 1), launch(2, 1), launch(3, 1),
                  kernel(1, 5, 10), kernel(2, 10, 10, stream=8), other])
  part = launches.window(trace, {})
  assert launches.busy(
      [work for work in trace.activities if work.device == 0],
      0, 30) == [(5, 20)]
  assert {device: sum(waits.values())
          for device, waits in launches.idle(trace, part).items()} == {
              0: 30 - 15, 1: 30 - 8}


def test_pieces_of_a_call_are_disjoint_and_fill_it():
  outer = calls.Call('o', calls.OPERATOR, 1, 0, 10, {})
  for start, end in ((2, 5), (4, 7), (9, 12)):
    inner = calls.Call('i', calls.OPERATOR, 1, start, end, {})
    outer.children.append(inner)
  assert [(start, end, of.name) for start, end, of in calls.pieces(outer)] == [
      (0, 2, 'o'), (2, 5, 'i'), (5, 7, 'i'), (7, 9, 'o'), (9, 10, 'i')]
