"""Calls within one another, launches and steps, by hand."""

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import kineto


def traced(*events):
  return kineto.trace_of('t.json', events)


def around(trace, name):
  """The name of the call around that of a name; None without any."""
  call, = (call for call in trace.calls if call.name == name)
  return call.parent and call.parent.name


def callers(trace):
  return [one.caller and one.caller.name for one in trace.work]


def test_calls_lie_within_one_another():
  trace = traced(*tiny.one_step())
  assert around(trace, 'aten::addmm') == around(trace, 'aten::t') == (
      'aten::linear')
  assert around(trace, 'aten::add') == 'ProfilerStep#3'
  assert [one.start for one in trace.work] == [30, 65]  # From the first event.


def test_equal_times_are_told_apart_by_number():
  trace = traced(op('inner', 0, 10, External_id=6),
                 op('outer', 0, 10, External_id=5))
  assert around(trace, 'inner') == 'outer'


def test_times_that_were_cut_off_to_whole_microseconds():
  # 10.9 to 13.95 becomes 10 to 13; within it 11.2 to 13.9, 11 and 2.7 -> 14?
  assert around(traced(op('outer', 10, 3), op('inner', 11, 3)),
                'inner') == 'outer'
  # The next call begins where this one ends: beside it, not within.
  assert around(traced(op('one', 10, 3), op('next', 13, 1)), 'next') is None
  # Nor does one that goes on for longer.
  assert around(traced(op('a', 0, 99), op('one', 10, 20), op('two', 20, 20)),
                'two') == 'a'


def test_events_without_times_are_left_out_and_counted():
  for change in ({'ts': None}, {'dur': -1}, {'ts': float('nan')},
                 {'ts': True}, {'dur': '5'}):
    trace = traced(op('a', 0, 10), {**op('b', 1, 2), **change})
    assert [call.name for call in trace.calls] == ['a']
    assert trace.notes == ['1 events without a usable start and duration are '
                           'left out']
  # Events of other kinds are not counted.
  assert not traced(op('a', 0, 10), {'ph': 'i', 'cat': 'cpu_op'}, None, 5,
                    event('p', 'python_function', 0, 9)).notes


def test_work_belongs_to_the_innermost_operator_of_its_launch():
  trace = traced(*tiny.one_step())
  assert callers(trace) == ['aten::addmm', 'aten::add']
  assert [one.launch.start for one in trace.work] == [24, 62]


def test_the_number_of_an_operator_decides_where_there_is_no_launch():
  assert callers(traced(op('a', 0, 10, External_id=5),
                        kernel(90, 3, 1, External_id=5))) == ['a']
  # The correlation number written into both fields says nothing.
  assert callers(traced(op('a', 0, 10, External_id=5),
                        kernel(5, 3, 1, External_id=5))) == [None]


def test_an_annotation_is_named_where_there_is_no_operator_but_no_step():
  assert callers(traced(
      tiny.step(1, 0, 50), launch(1, 2), kernel(1, 3, 1), launch(2, 12),
      event('nccl:all_reduce', 'user_annotation', 10, 10), kernel(2, 13, 1)
  )) == [None, 'nccl:all_reduce']


def test_old_names_of_categories_and_fields(tmp_path):
  path = tiny.write(tmp_path / 'old.json', [
      event('addmm', 'Operator', 0, 10, External_id='5',
            Input_dims=[[4], [2, 8], [8, 4]]),
      event('cudaLaunchKernel', 'Runtime', 2, 2, correlation=9, external_id=5),
      event('k', 'Kernel', 6, 8, thread=0, correlation=9, external_id=5,
            block=[32, 4, 1], grid=[2, 1, 1]),
      event('Memcpy HtoD', 'Memcpy', 20, 1, thread=0, correlation=10,
            external_id=5, bytes=64)], bare=True)
  trace = kineto.read(path)
  gemm, copy = trace.work
  assert callers(trace) == ['addmm'] * 2
  assert gemm.launch.name == 'cudaLaunchKernel' and copy.launch is None
  assert gemm.threads == 256
  assert copy.moved_bytes == 64


def test_a_step_has_what_it_launched_whenever_that_ran():
  trace = traced(
      tiny.step(1, 0, 100), op('a', 10, 10), launch(1, 12),
      tiny.step(2, 100, 100), op('b', 110, 10), launch(2, 112),
      kernel(1, 90, 40), kernel(2, 130, 10))
  for number, name in ((1, 'a'), (2, 'b')):
    part = kineto.steps_of(trace, [number])
    assert callers(part) == [name] and part.steps == (number,)
    assert [call.name for call in part.calls] == [
        f'ProfilerStep#{number}', name, 'cudaLaunchKernel']
  whole = kineto.steps_of(trace, None)
  assert whole.steps == (1, 2) and len(whole.work) == 2
  with pytest.raises(UserError, match='has no step 3; its steps are: 1, 2'):
    kineto.steps_of(trace, range(2, 4))
