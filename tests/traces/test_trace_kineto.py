"""Calls within one another, launches and steps, by hand."""

import json
import logging
import time

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op, traced
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import analysis, kineto, replay, sizes


def around(trace, name):
  """The name of the call around that of a name; None without any."""
  call, = (call for call in trace.calls if call.name == name)
  return call.parent and call.parent.name


def callers(trace):
  return [work.caller and work.caller.name for work in trace.work]


def test_which_call_contains_another():
  """By times that may have been cut off to whole microseconds."""
  for first, second, expected in (
      (op('one', 10, 3), op('two', 11, 3), 'one'),
      # Where the next call begins this one ends: it is beside it.
      (op('one', 10, 3), op('two', 13, 1), None),
      # Nor does one contain a call that goes on for longer.
      (op('one', 10, 20), op('two', 20, 20), None),
      # Of two that begin together the longer one is the outer, or the
      # operator, or the one with the smaller number.
      (op('two', 10, 3), op('one', 10, 5), 'one'),
      (launch(1, 10, 5) | {'name': 'two'}, op('one', 10, 5), 'one'),
      (op('two', 10, 5, External_id=2), op('one', 10, 5, External_id=1),
       'one')):
    assert around(traced(first, second), 'two') == expected


def test_nanoseconds_of_times_since_1970_are_kept():
  """As PyTorch 2.3 writes them; their sums are rounded to quarters of 1 us."""
  start = 1712195495502094.5
  work, = traced(launch(1, start), kernel(1, start + 5, 1.376)).work
  assert work.duration_us == pytest.approx(1.376, abs=1e-6)


def test_events_without_times_are_left_out():
  for change in ({'ts': None}, {'dur': -1}, {'ts': float('nan')},
                 {'ts': True}, {'dur': '5'}, {'ph': 'i'}):
    trace = traced(op('a', 0, 10), {**op('b', 1, 2), **change}, None)
    assert [call.name for call in trace.calls] == ['a']


def test_work_belongs_to_the_innermost_operator_of_its_launch():
  trace = traced(*tiny.one_step())
  assert callers(trace) == ['aten::addmm', 'aten::add']
  assert [work.launch.start for work in trace.work] == [24, 62]
  # To no step or other annotation.
  assert callers(traced(
      tiny.step(1, 0, 50), launch(1, 2), kernel(1, 3, 1), launch(2, 12),
      event('region', 'user_annotation', 10, 10), kernel(2, 13, 1)
  )) == [None, None]


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
  with pytest.raises(UserError, match='its steps are: none; leave out --step'):
    kineto.steps_of(trace._replace(calls=[]), [1])


# ------------------------------------------------------------------ bad traces


def test_durations_that_cannot_be_right_are_dropped_and_counted():
  trace = traced(
      launch(1, 0), launch(2, 3), launch(3, 6), launch(4, 9),
      kernel(1, 10, 5_000_000, 'overlaps'), kernel(2, 20, 5, 'good'),
      # By rounding, or because the next kernel was launched early.
      kernel(3, 30, 12.5, 'rounded'), kernel(4, 40, 5, 'good'),
      # Another stream may run at the same time, but not for years.
      kernel(5, 10, 25, 'beside', stream=8), kernel(6, 50, 1e14, 'years'),
      op('years', 60, 1e14))
  assert [each.name for each in trace.work] == [
      'beside', 'good', 'rounded', 'good']
  assert trace.dropped == 3


@pytest.mark.parametrize('content', [
    rb'{"a": "C:\Users\Jo", "traceEvents": EVENTS}',
    b'{"a": "one\x01\ttwo", "traceEvents": EVENTS}',
    b'{"a": "\xff\xfe", "traceEvents": EVENTS}',
    b'{"a": N/A, "traceEvents": EVENTS}',
    rb'{"a": "C:\x N/A \" \u00e9", "traceEvents": EVENTS}',
    rb'{"deviceProperties": [{"name": "\A \" 100"}], "traceEvents": EVENTS}'])
def test_json_of_some_exporters_is_mended(tmp_path, caplog, content):
  path = tmp_path / 't.json'
  path.write_bytes(content.replace(
      b'EVENTS', json.dumps(tiny.one_step()).encode()))
  with caplog.at_level(logging.WARNING):
    trace = kineto.read(str(path))
  assert callers(trace) == ['aten::addmm', 'aten::add']
  assert trace.gpu == (r'\A " 100' if b'100' in content else 'a GPU')
  record, = caplog.records
  assert 'is not valid JSON' in record.getMessage()


def test_traces_of_others_say_what_to_do(tmp_path):
  """Of PyTorch before 1.13, an Intel XPU and ROCm's own profiler."""
  for number, category in enumerate(('Kernel', 'xpu_runtime', 'hip_api')):
    path = tiny.write(tmp_path / f'{number}.json',
                      [op('a', 0, 10), event('k', category, 1, 2)])
    with pytest.raises(UserError, match='or later, on a GPU of NVIDIA'):
      analysis.calibrated(path)


def test_time_is_linear_in_calls_around_calls():
  count = 8_000
  events = [event('cudaLaunchKernel', 'cuda_runtime', number,
                  4 * count - 2 * number, correlation=number)
            for number in range(count)]
  events += [kernel(count - 1, 10 * count + number, 1)
             for number in range(count)]
  start = time.process_time()
  trace = traced(*events)
  assert len(replay.commands_of(trace)) == 1 and replay.host_of(trace)
  for each in trace.work:
    sizes.sizes_of(each)
  assert time.process_time() - start < 10  # Several minutes if quadratic.
