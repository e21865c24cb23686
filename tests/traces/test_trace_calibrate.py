"""Constants learned from traces, and steps replayed, by hand."""

import math

import pytest

from support.tiny_traces import event, kernel, launch, op
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import calibrate, kineto, replay

ADD = 'vectorized_elementwise_kernel<add>'


def learned(rows, **more):
  return calibrate.calibrate('t', [(name, sizes, us) for name, sizes, us
                                   in rows], more)


def test_a_bandwidth_and_a_least_time_are_found():
  # 2 us, and 1 us more for each of 1e6 bytes; one of seven kernels is odd.
  sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 3e8]
  found = learned([(ADD, {'bytes': size}, 2 + size / 1e6)
                   for size in sizes] * 3 + [(ADD, {'bytes': 1e6}, 90)])
  curve = found.kinds['element-wise'].curves['bytes']
  assert curve.least_us == pytest.approx(2, rel=0.02)
  assert curve.us_per_million == pytest.approx(1, rel=0.03)
  assert curve.exponent == pytest.approx(1, abs=0.01)
  # Between the sizes, and of a kernel of this kind that was never seen.
  assert found.us(ADD, {'bytes': 3e7}) == pytest.approx(32, rel=0.03)
  assert found.us('elementwise<mul>', {'bytes': 3e7}) == pytest.approx(
      32, rel=0.03)
  # Nor of a kind that was never seen, but never communication.
  assert found.us('ampere_sgemm', {'bytes': 3e7}) == pytest.approx(32, rel=0.1)
  assert found.us('ncclKernel', {'bytes': 3e7}) is None


def test_a_size_seen_is_drawn_to_what_it_took():
  found = learned([(ADD, {'bytes': size}, 2 + size / 1e6)
                   for size in (1e3, 1e5, 1e7, 1e8) for _ in range(9)]
                  + [(ADD, {'bytes': 1e6}, 12.0)] * 4)
  curve = found.functions[ADD].curves['bytes']
  assert curve.us(1e6) < 5
  # Four of 12 us, and once what the curve says.
  assert found.us(ADD, {'bytes': 1e6}) == pytest.approx(math.exp(
      (4 * math.log(12) + math.log(curve.us(1e6))) / 5))


def test_medians_are_predicted_and_means_add_up():
  # Of six kernels of one size one is late: 5 * 2 + 12 us.
  found = learned([(ADD, {'bytes': 1e6}, us) for us in (2, 2, 12, 2, 2, 2)])
  assert found.us(ADD, {'bytes': 1e6}) == pytest.approx(2, rel=0.01)
  assert found.us(ADD, {'bytes': 1e6}, mean=True) == pytest.approx(22 / 6)
  # Of a function never seen those of its kind are taken.
  assert found.us('elementwise<mul>', {'bytes': 1e6}, mean=True) == (
      pytest.approx(22 / 6))


# -------------------------------------------------------------------- replays


def traced(*events):
  return kineto.trace_of('t.json', {'traceEvents': [*events]})


def replayed(trace, us, **host):
  """Of work that takes `us` each."""
  return replay.replay(trace, {
      'latency': 3, 'between': 1, 'pause': 10, 'call': 2, **host},
                       dict.fromkeys(trace.work, us))


def test_a_queue_and_a_stream_by_hand():
  trace = traced(op('a', 0, 90), launch(1, 10), launch(2, 20),
                       kernel(1, 15, 30), kernel(2, 45, 5))
  # Kernel 1 starts at 3 and ends at 53; kernel 2, launched at 2 + 10, is
  # queued and starts at 54. Measured: from 10 to 50.
  assert replayed(trace, 50) == (104, 40)
  # Of 4 us each the second one starts at 12 + 3.
  assert replayed(trace, 4) == (19, 40)


def test_streams_and_the_host_wait_as_recorded():
  wait = event('cudaStreamSynchronize', 'cuda_runtime', 30, 90)
  trace = traced(
      op('a', 0, 200), launch(1, 10), launch(2, 20), wait, launch(3, 130),
      kernel(1, 15, 60), kernel(2, 78, 40, stream=8), kernel(3, 135, 5))
  # Kernel 2 is on another stream, and began only after kernel 1: 3 to 103,
  # then 104 to 204; there the host goes on, launches after 10 us, and the
  # kernel starts 3 us later.
  assert replayed(trace, 100) == (204 + 10 + 3 + 100, 130)


def test_a_wait_that_nothing_explains_is_learned():
  trace = traced(op('a', 0, 90), launch(1, 10), launch(2, 20),
                       kernel(1, 15, 5), kernel(2, 80, 5))
  host = replay.host_of(trace)
  assert host['stall k > k'] == 60
  # Kernel 1 runs from 3 to 7, kernel 2 begins 60 us after its launch at 12.
  assert replayed(trace, 4, **{'stall k > k': 60}) == (
      12 + 60 + 4, 75)


# ------------------------------------------------------------------- the file


def test_the_file_holds_all_of_a_calibration(tmp_path):
  path = tmp_path / 'hw.json'
  known = calibrate.calibrate(
      't', [(ADD, {'bytes': 12e3, 'threads': 1e3}, 8.0)], {'pause': 4.0})
  path.write_text(calibrate.to_json(known))
  assert calibrate.read(str(path)) == known
  for content, said in (
      ('[]', 'was not written by --calibrate'), ('{', 'is not JSON'),
      (calibrate.to_json(known).replace('"pause": 4.0', '"pause": -4'),
       'pause is -4; it must be a number from 0')):
    path.write_text(content)
    with pytest.raises(UserError, match=f'hw.json: .*{said}'):
      calibrate.read(str(path))
