"""Constants learned from traces, and steps replayed, by hand."""

import itertools
import math

import numpy as np
import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op, traced
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import (
  analysis,
  calibrate,
  kinds,
  kineto,
  replay,
  sizes,
)

ADD = 'vectorized_elementwise_kernel<add>'


def learned(rows, host=(), earlier=None):
  return calibrate.calibrate('t', 'a GPU', rows, dict(host), earlier)


def test_a_bandwidth_and_a_least_time_are_found():
  # 2 us, and 1 us more for each of 1e6 bytes; one of seven kernels is odd.
  sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 3e8]
  known = learned([(ADD, {'bytes': size}, 2 + size / 1e6)
                   for size in sizes] * 3 + [(ADD, {'bytes': 1e6}, 90)])
  assert known.formulas['element-wise']['bytes'] == pytest.approx(
      [2, 0, 1e-6], rel=0.03)
  # Between the sizes, and of a kernel of this kind that was never seen.
  assert known.us(ADD, {'bytes': 3e7}) == pytest.approx(32, rel=0.03)
  assert known.us('elementwise<mul>', {'bytes': 3e7}) == pytest.approx(
      32, rel=0.03)
  # And of a kind that was never seen, but never communication.
  assert known.us('ampere_sgemm', {'bytes': 3e7}) == pytest.approx(32, rel=0.1)
  assert known.us('ncclKernel', {'bytes': 3e7}) is None


def test_threads_stand_for_sizes_only_where_the_bytes_are_unknown():
  rows = [(ADD, {'bytes': size, 'threads': size / 16}, 2 + size / 1e6)
          for size in (1e4, 1e5, 1e6, 1e7, 1e8)]
  # One of another program, whose sizes were not recorded.
  known = learned([*rows, ('elementwise<b>', {'threads': 1e6}, 18)])
  assert known.formulas['element-wise'] == {
      'bytes': pytest.approx([2, 0, 1e-6], rel=.01),
      'threads': pytest.approx([2, 16e-6], rel=.01),
      '': pytest.approx([2], abs=1)}
  # A small one of many threads is not taken for a large one.
  assert known.us(ADD, {'bytes': 1e4, 'threads': 1e6}) < 4
  # Where no bytes were recorded, all that is known are threads.
  known = learned([(name, {'threads': sizes['threads']}, us)
                   for name, sizes, us in rows])
  for size in ({'threads': 2e6}, {'bytes': 32e6, 'threads': 2e6}):
    assert known.us('elementwise<b>', size) == pytest.approx(34, rel=.02)


def test_a_rate_is_found_though_some_sizes_are_wrong():
  """A quarter do less than they seem to; the others are up to a bit slower."""
  rng = np.random.default_rng(0)
  moved = 10**rng.uniform(4, 8.5, 300)
  macs = moved * 10**rng.uniform(-.5, 2.2, 300)
  us = (3 + macs / 3e7 + moved / 2e6) * np.exp(.5 * abs(rng.normal(size=300)))
  wrong = rng.random(300) < .25
  us[wrong] = 3 + moved[wrong] / 2e6
  sizes = ({'multiply_adds': a, 'bytes': b} for a, b in zip(macs, moved))
  known = learned([*zip(itertools.repeat('sgemm'), sizes, us)])
  _, us_of_one, _ = known.formulas['product, float']['bytes']
  assert 1 / us_of_one == pytest.approx(3e7, rel=.2)


def test_a_kernel_of_no_size_takes_no_longer_than_the_shortest_tenth():
  rows = [(f'elementwise<{size}>', {'bytes': 1e6 * size}, 30)
          for size in range(1, 9)]
  rows += [('elementwise<b>', {'bytes': size}, 2) for size in (1e6, 2e6)]
  assert learned(rows).formulas['element-wise']['bytes'][0] == pytest.approx(2)


def test_arithmetic_has_its_own_formula():
  rows = [(name, {'multiply_adds': macs, 'bytes': macs / 100},
           2 + macs / rate) for macs in (1e7, 1e8, 1e9, 1e10)
          for name, rate in (('sgemm_128x64', 3e7), ('bf16_gemm_128x64', 5e8))]
  known = learned(rows)
  size = {'multiply_adds': 3e9, 'bytes': 3e7}
  # A new function of each; and attention, of which nothing was seen.
  assert known.us('sgemm_32x32', size) == pytest.approx(102, rel=0.05)
  for name in ('nvjet_sm90_tst_64x64', 'fmha_cutlassF_bf16'):
    assert known.us(name, size) == pytest.approx(8, rel=0.2)
  for name, label in (('dgemm_x', 'product, double'),
                      ('conv_x', 'convolution, float'),
                      # By Inductor: what it generated, then what it fused.
                      ('triton_poi_fused_addmm_relu_0', 'element-wise'),
                      ('triton_per_fused_convolution_sum_1', 'reduction'),
                      ('triton_tem_fused_mm_2', 'product, float'),
                      ('Functor<half>', 'element-wise')):
    assert kinds.class_of(name) == label


def test_a_function_keeps_its_distance_from_its_kind():
  others = [(f'elementwise<{name}>', {'bytes': size}, 2 + size / 1e6)
            for name in 'abcdef' for size in (1e5, 1e6, 1e7, 1e8)]
  known = learned([*others, *(('elementwise<slow>', {'bytes': size},
                               3 * (2 + size / 1e6)) for size in (1e6, 1e7))])
  assert known.us('elementwise<slow>', {'bytes': 3e6}) == pytest.approx(
      15, rel=0.1)
  assert known.us('elementwise<new>', {'bytes': 3e6}) == pytest.approx(
      5, rel=0.2)


@pytest.mark.parametrize('skew, scatter, threads', [
    (0, 0.1, 0), (0.2, 0.6, 0), (0, 0.1, 1)])  # One thread is a known size.
def test_what_one_launch_says_of_another_by_hand(skew, scatter, threads):
  # Formulas of one launch are exact: only an added one is off. 1 us expected,
  # e us seen; residual 1, covariance 2 * .4^2 + .4^2 + .3^2 + .3^2 = .66.
  known = calibrate.Calibration(
      ('t',), 'a GPU', {ADD: {(0, 1e6, threads, 0, 0): (
          math.e, math.e * math.exp(skew), 4)}}, {})
  known.__dict__['formulas'] = {'': {'': np.ones(1)}}
  noise = 0.05**2 + scatter**2 / 4
  size = {'bytes': 1e6, 'threads': threads}
  assert known.us(ADD, size) == pytest.approx(
      math.exp(0.8 + 0.2 * 0.66 / (0.66 + noise)))  # Four of e us.
  # What fades is 2/3 at a distance of 1.5, and almost gone far beyond what was
  # seen, where what all sizes have in common is left, .4^2 + .3^2.
  for far in (1.5, 40):
    left = 0.25 + 0.32 / (1 + far**2 / 4.5) + 0.09 / (1 + far**2 / 2.88)
    assert known.us(ADD, {**size, 'bytes': 1e6 * math.exp(far)}) == (
        pytest.approx(math.exp(left / (0.66 + noise))))
  # Beside others; of another family; of another kind.
  assert known.us(ADD, {**size, 'beside_copies': 1}) == pytest.approx(
      math.exp(0.95 * 0.66 / (0.66 + noise)))
  assert known.us('elementwise<b>', size) == pytest.approx(
      math.exp(0.16 / (0.66 + noise)))
  assert known.us('sgemm', size) == 1


def test_medians_are_predicted_and_means_add_up():
  # Of six kernels of one size one is late: 5 * 2 + 12 us.
  known = learned([(ADD, {'bytes': 1e6}, us) for us in (2, 2, 12, 2, 2, 2)])
  assert known.us(ADD, {'bytes': 1e6}) == pytest.approx(2, rel=0.01)
  assert known.us(ADD, {'bytes': 1e6}, mean=True) == pytest.approx(22 / 6)
  # Of a function never seen those of its kind are taken.
  assert known.us('elementwise<mul>', {'bytes': 1e6}, mean=True) == (
      pytest.approx(22 / 6, rel=0.01))
  # A size has its own mean.
  known = learned([*((ADD, {'bytes': 1e6}, us) for us in (2, 2, 12)),
                   *[(ADD, {'bytes': 1e8}, 50)] * 3])
  assert known.us(ADD, {'bytes': 1e8}, mean=True) == pytest.approx(50, rel=.05)


def test_the_time_learned_has_the_least_relative_error():
  # Weights 1, 1/2, 1/4, 1/4, with middles at .5 and 1.25; half of all is 1.
  assert calibrate._typical([4, 1, 4, 2]) == pytest.approx(1 + .5 / .75)


def test_what_ran_beside_is_told_from_what_ran_alone(tmp_path):
  elsewhere = kernel(3, 0, 30, ADD)
  elsewhere['args']['device'] = 1
  path = tiny.write(tmp_path / 't.json', [
      *(launch(number, 0) for number in range(4)), elsewhere,
      kernel(0, 0, 20, ADD), kernel(1, 10, 12, ADD, stream=8),
      kernel(2, 11, 10, 'Memcpy HtoD', stream=9)])
  # Beside the first, of 20 us, a kernel ran for 10 and the copy for 9.
  assert [{*size} for size in sizes.all_sizes(kineto.read(path))] == [
      set(), set(), {'beside_kernels', 'beside_copies'}, {'beside_kernels'}]
  assert {*analysis.calibrated(path).launches[ADD]} == {
      (0, 0, 0, 0, 0), (0, 0, 0, 1, 1)}


def test_kernels_of_whole_microseconds_are_predicted_in_them(tmp_path):
  """Though some took less than one."""
  for us, predicted in ((4, 4), (4.5, 4.4)):
    path = tiny.write(tmp_path / 't.json', [
        launch(1, 0), launch(2, 3), kernel(1, 5, 0), kernel(2, 9, us)])
    known = learned([('k', {}, 4.4)] * 9)
    kernels = analysis.compared(path, None, known).kernels
    assert kernels.predicted_us.tolist() == pytest.approx([predicted] * 2)


def test_a_second_trace_adds():
  first = learned([(ADD, {'bytes': 1e6}, 4.0)] * 3,
                  {'pause': (2.0, 3), 'call': (1.0, 1)})
  both = learned([(ADD, {'bytes': 1e6}, 8.0), ('k', {}, 5.0)],
                 {'pause': (6.0, 1)}, first)
  assert both.launches == {
      ADD: {(0, 1e6, 0, 0, 0): (5, 5, 4)}, 'k': {(0,) * 5: (5, 5, 1)}}
  assert both.host == {'pause': (3, 4), 'call': (1, 1)}
  assert both.sources == ('t', 't') and len(first.launches) == 1


# -------------------------------------------------------------------- replays


def replayed(trace, us, **host):
  """Of work that takes `us` each."""
  constants = {'latency': 3, 'between': 1, 'pause': 10, 'call': 2, **host}
  return replay.replay(
      trace, {key: (value, 1) for key, value in constants.items()},
      dict.fromkeys(trace.work, us))[:2]


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
  assert host['stall k > k'] == (60, 1)
  # Kernel 1 runs from 3 to 7, kernel 2 begins 60 us after its launch at 12.
  assert replayed(trace, 4, **{'stall k > k': 60}) == (12 + 60 + 4, 75)


def test_a_thread_goes_on_only_after_its_own_wait():
  """Even if a call of another thread ended later."""
  trace = traced(
      launch(1, 10), kernel(1, 15, 80),
      event('cudaDeviceSynchronize', 'cuda_runtime', 20, 76),
      launch(2, 90, 8, thread=2), kernel(2, 95, 5, stream=8),
      launch(3, 100), kernel(3, 105, 5))
  # The wait ends at 103, the launch of thread 2 at 14.
  assert replayed(trace, 100) == (103 + 3 + 100, 100)


def test_work_waits_for_nothing_that_was_launched_later():
  events = kernel(1, 15, 60), kernel(2, 78, 5, stream=8)
  for launches, waits_for in (((1, 2), 'k'), ((2, 1), None)):
    trace = traced(launch(launches[0], 0), launch(launches[1], 5), *events)
    other, = (other for each, _, other, _ in replay._queues(trace)
              if each.place == (0, 8))
    assert (other and other.name) == waits_for


def test_a_synchronization_waits_for_the_copy_of_its_operator():
  trace = traced(
      op('aten::item', 10, 80), launch(1, 12), kernel(1, 15, 10),
      event('cudaStreamSynchronize', 'cuda_runtime', 24, 3),
      # What ends just then, on another stream, is not waited for.
      launch(2, 0), kernel(2, 2, 24.5, stream=8))
  wait = replay.commands_of(trace)[-1]
  assert wait.name.endswith('Synchronize') and wait.waits_for.start == 15


def test_a_long_launch_waits_for_the_queue():
  events = [launch(1, 0), kernel(1, 5, 195), launch(2, 50, 151),
            kernel(2, 203, 5)]
  wait = replay.commands_of(traced(*events))[-1]
  assert wait.waits_for.start == 5
  # Its time is not that of a call.
  assert replay.host_of(traced(*events))['call'] == (2, 1)


def test_communication_has_no_stalls():
  trace = traced(launch(1, 0), kernel(1, 5, 5), kernel(1, 50, 5),
                 launch(2, 60), kernel(2, 200, 5, 'nccl'))
  assert {key: pair for key, pair in replay.host_of(trace).items()
          if 'stall' in key} == {'stall k > k': (40, 1)}


def test_communication_takes_the_mean_of_its_size():
  rows = [('nccl', {'bytes': size}, us) for size, us in (
      (1e3, 10), (1e3, 14), (1e6, 900))]
  known = learned(rows)
  for size, us in ((1e3, 12), (2e3, 12), (5e5, 900)):
    assert known.us('nccl', {'bytes': size}) == us
    # Another version's arguments; of another function the mean of all.
    assert known.us('nccl(Work*)', {'bytes': size}) == us
  assert known.us('ncclOther', {'bytes': 1e3}) == pytest.approx(924 / 3)


def test_a_step_that_the_gpu_bounds_by_hand():
  """The host launches in 40 us what takes the GPU 100; work piles up."""
  events = []
  for number in range(1, 5):
    start = 40 * (number - 1)
    events += [tiny.step(number, start, 40), launch(number, start + 10),
               kernel(number, 15 + 100 * (number - 1), 100)]
  trace = traced(*events)
  for steps in (range(2, 4), range(3, 5), range(4, 5)):
    part = kineto.steps_of(trace, steps)
    true = {each: each.duration_us for each in part.work}
    host = replay.host_of(part)
    # The wait for earlier work is no stall. A period is what the GPU takes.
    assert not any('stall' in key for key in host)
    assert replay.replay(part, host, true)[:2] == (100, 100)
  # Of all steps, begin with the first: 415 us of the four.
  whole = kineto.steps_of(trace, None)
  true = {each: each.duration_us for each in whole.work}
  assert replay.replay(whole, replay.host_of(whole), true)[:2] == (
      pytest.approx((415 / 4, 415 / 4)))


def test_work_that_was_launched_before_the_trace_is_earlier_work():
  """It is of no step, no stall, and over when the first step begins."""
  trace = traced(kernel(9, 0, 500), *(each for number in (1, 2) for each in (
      tiny.step(number, 40 * number, 40), launch(number, 40 * number + 10),
      kernel(number, 400 + 100 * number, 100))))
  part = kineto.steps_of(trace, [1, 2])
  assert len(part.work) == 2
  host = replay.host_of(part)
  assert not any('stall' in key for key in host)
  times = dict.fromkeys(part.work, 70)
  assert replay.replay(part, host, times) == (70, 100, 100, [])


def test_work_waits_for_what_its_stream_got_before_the_trace():
  """Stream 8 is busy until 110, from after the first launch on."""
  trace = traced(
      tiny.step(1, 40, 40), launch(1, 50), kernel(1, 60, 20),
      kernel(9, 70, 40, stream=8),
      tiny.step(2, 80, 40), launch(2, 90), kernel(2, 110, 40, stream=8))
  part = kineto.steps_of(trace, [1, 2])
  assert replay.replay(part, replay.host_of(part), {
      each: each.duration_us for each in part.work}) == (
          (150 - 40) / 2, (150 - 40) / 2, (20 + 40) / 2, [])


def test_steps_of_an_interrupted_host_are_left_out(tmp_path):
  """Of six, the first is cold, and something else runs during the fourth."""
  events, start = [], 0
  for number, us in enumerate((900, 100, 120, 400, 110, 130), 1):
    events += [tiny.step(number, start, us), launch(number, start + us - 50),
               kernel(number, start + us - 40, us // 30)]
    start += us
  trace = traced(*events)
  part = kineto.steps_of(trace, None)
  times = dict.fromkeys(part.work, 5)
  host = replay.host_of(part)
  assert host['pause step >  k'] == ((50 + 70 + 60 + 80) / 4, 4)
  assert replay.replay(part, host, times) == (
      pytest.approx(115), pytest.approx(115), (3 + 4 + 3 + 4) / 4, [1, 4])
  path = tiny.write(tmp_path / 't.json', events)
  assert analysis.text(analysis.compared(path, None, analysis.calibrated(
      path))).endswith('\nLeft out are steps that took longer: 1, 4')
  # Every other step: 3 and 5, of which there is no unusual one.
  part = kineto.steps_of(trace, range(3, 7, 2))
  assert replay.host_of(part)['pause step >  k'] == ((70 + 60) / 2, 2)
  assert replay.replay(part, host, dict.fromkeys(part.work, 5)) == (
      pytest.approx(115), pytest.approx(115), (4 + 3) / 2, [])


def test_a_gpu_is_busy_while_anything_runs_on_it():
  """From 10 to 40 on two streams, and from 50 to 60; another GPU beside it."""
  for beside_us, busy_us in ((15, 40), (45, 45)):
    beside = kernel(4, 10, beside_us)
    beside['args']['device'] = 1
    trace = traced(*(launch(number, 2 * number) for number in range(1, 5)),
                   kernel(1, 10, 20), kernel(2, 20, 20, stream=8),
                   kernel(3, 50, 10), beside)
    times = {each: each.duration_us for each in trace.work}
    assert replay.replay(trace, {}, times)[1:] == (60 - 2, busy_us, [])


# ------------------------------------------------------------------- the file


def test_the_file_holds_all_of_a_calibration(tmp_path):
  path = tmp_path / 'hw.json'
  known = learned([(ADD, {'bytes': 12e3, 'threads': 1e3}, 8.0)],
                  {'pause': (4.0, 2)})
  path.write_text(text := calibrate.to_json(known))
  assert calibrate.read(str(path)) == known
  for content, said in (
      ('[]', 'was not written by --calibrate'), ('{', 'is not JSON'),
      ('{"calibration": {}}', r"damaged \('sources'\)"),
      (text.replace('4.0', '-4'), r'\[-4, 2\] must be numbers from 0 to 1e30'),
      (text.replace('4.0', 'NaN'), 'numbers from 0'),
      (text.replace('4.0,', ''), 'reshape'),
      (text.replace('8.0', '0'), 'times and counts above 0')):
    path.write_text(content)
    with pytest.raises(UserError, match=f'hw.json: .*{said}'):
      calibrate.read(str(path))
