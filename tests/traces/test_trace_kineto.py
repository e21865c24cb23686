"""Calls within one another, launches and steps, by hand."""

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import kineto


def traced(*events):
  return kineto.trace_of('t.json', {'traceEvents': [*events]})


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


def test_times_that_were_cut_off_to_whole_microseconds():
  for outer, inner, expected in (
      (op('one', 10, 3), op('two', 11, 3), 'one'),
      # Where the next call begins this one ends: it is beside it.
      (op('one', 10, 3), op('two', 13, 1), None),
      # Nor does one contain a call that goes on for longer.
      (op('one', 10, 20), op('two', 20, 20), None)):
    assert around(traced(outer, inner), 'two') == expected


def test_events_without_times_are_left_out():
  for change in ({'ts': None}, {'dur': -1}, {'ts': float('nan')},
                 {'ts': True}, {'dur': '5'}, {'ph': 'i'}):
    trace = traced(op('a', 0, 10), {**op('b', 1, 2), **change}, None)
    assert [call.name for call in trace.calls] == ['a']


def test_work_belongs_to_the_innermost_operator_of_its_launch():
  trace = traced(*tiny.one_step())
  assert callers(trace) == ['aten::addmm', 'aten::add']
  assert [one.launch.start for one in trace.work] == [24, 62]
  # Without one, to an annotation that is no step.
  assert callers(traced(
      tiny.step(1, 0, 50), launch(1, 2), kernel(1, 3, 1), launch(2, 12),
      event('nccl:all_reduce', 'user_annotation', 10, 10), kernel(2, 13, 1)
  )) == [None, 'nccl:all_reduce']


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
