"""Constants learned from traces, and steps replayed, by hand."""

import json
import math

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event, kernel, launch, op
from tpu_graphs_ext import cli
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.traces import (
  analysis,
  calibrate,
  hardware,
  launches,
  profile,
  replay,
)

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
  assert found.us('ampere_sgemm', {'bytes': 3e7}) is None


def test_a_size_seen_is_drawn_to_what_it_took():
  found = learned([(ADD, {'bytes': size}, 2 + size / 1e6)
                   for size in (1e3, 1e5, 1e7, 1e8) for _ in range(9)]
                  + [(ADD, {'bytes': 1e6}, 12.0)] * 4)
  curve = found.functions[ADD].curves['bytes']
  assert curve.us(1e6) < 5
  # Four of 12 us, and once what the curve says.
  assert found.us(ADD, {'bytes': 1e6}) == pytest.approx(math.exp(
      (4 * math.log(12) + math.log(curve.us(1e6))) / 5))


def test_the_size_that_explains_the_times():
  rows = [('sgemm', {'multiply_adds': size, 'threads': threads}, size / 1e6)
          for size, threads in ((1e7, 64), (1e8, 512), (1e9, 64), (1e9, 128))]
  assert [*learned(rows).functions['sgemm'].curves] == [
      'multiply_adds', 'threads']


def test_kinds_of_kernels():
  for name, kind in (
      ('ncclKernel_AllReduce_RING_LL', 'communication'),
      ('Memcpy HtoD (Pinned -> Device)', 'copy or fill'),
      ('volta_sgemm_128x32_nt', 'product'),
      ('void cudnn::bn_fw_tr_1C11_kernel', 'normalisation'),
      ('cudnn_infer_volta_scudnn_128x64', 'convolution'),
      ('void cub::DeviceRadixSortOnesweepKernel<>', 'sort or scan'),
      ('CatArrayBatchedCopy<float>', 'concat'), ('triton__0d1d', 'other'),
      ('multi_tensor_apply_kernel<AdamFunctor>', 'optimizer'),
      ('reduce_kernel<512, 1>', 'reduction'), (ADD, 'element-wise')):
    assert calibrate.kind_of(name) == kind


# -------------------------------------------------------------------- replays


def traced(*events):
  trace = profile.trace_of('t.json', events, None)
  launches.attribute(trace)
  return trace, launches.window(trace, {})


def replayed(trace, part, duration_us, **host):
  return replay.replay(trace, part, {
      'latency': 3, 'between': 1, 'pause': 10, 'call': 2, **host}, duration_us)


def test_a_queue_and_a_stream_by_hand():
  trace, part = traced(op('a', 0, 90), launch(1, 10), launch(2, 20),
                       kernel(1, 15, 30), kernel(2, 45, 5))
  # Kernel 1 starts at 3 and ends at 53; kernel 2, launched at 2 + 10, is
  # queued and starts at 54. Measured: from 10 to 50.
  assert replayed(trace, part, lambda one: 50) == (104, 40)
  # Of 4 us each the second one starts at 12 + 3.
  assert replayed(trace, part, lambda one: 4) == (19, 40)


def test_streams_and_the_host_wait_as_recorded():
  wait = event('cudaStreamSynchronize', 'cuda_runtime', 30, 90)
  trace, part = traced(
      op('a', 0, 200), launch(1, 10), launch(2, 20), wait, launch(3, 130),
      kernel(1, 15, 60), kernel(2, 78, 40, stream=8), kernel(3, 135, 5))
  # Kernel 2 is on another stream, and began only after kernel 1: 3 to 103,
  # then 104 to 204; there the host goes on, launches after 10 us, and the
  # kernel starts 3 us later.
  assert replayed(trace, part, lambda one: 100) == (204 + 10 + 3 + 100, 130)


def test_a_wait_that_nothing_explains_is_learned():
  trace, part = traced(op('a', 0, 90), launch(1, 10), launch(2, 20),
                       kernel(1, 15, 5), kernel(2, 80, 5))
  host = replay.host_of(trace, part)
  assert host['stall k > k'] == 60
  # Kernel 1 runs from 3 to 7, kernel 2 begins 60 us after its launch at 12.
  assert replayed(trace, part, lambda one: 4, **{'stall k > k': 60}) == (
      12 + 60 + 4, 75)


def test_pauses_are_told_apart():
  trace, part = traced(op('a', 0, 20), op('b', 50, 60), launch(1, 10),
                       launch(2, 60), launch(3, 100), kernel(1, 15, 1),
                       kernel(2, 65, 1), kernel(3, 105, 1))
  host = replay.host_of(trace, part)
  assert host['pause a k > b k'] == 48 and host['pause b k > b k'] == 38
  assert host['pause'] == 43 and host['call cudaLaunchKernel'] == 2
  assert host['latency'] == 5


# ------------------------------------------------------------------- the verb


@pytest.fixture
def two_steps(tmp_path):
  """Two steps of one kernel of addition each, 8 and 10 us."""
  events = []
  for number, start in ((1, 0), (2, 100)):
    events += [tiny.step(number, start, 100),
               op('aten::add', start + 10, 20, [[1000], [1000]]),
               launch(number, start + 20),
               kernel(number, start + 30, 6 + 2 * number, ADD, grid=[8, 1, 1],
                      block=[128, 1, 1])]
  return tiny.write(tmp_path / 't.json', events)


def test_calibrated_on_one_step_predicted_on_another(
    two_steps, tmp_path, capsys):
  path = tmp_path / 'hw.json'
  for _ in range(2):  # Its own kind of file it replaces.
    assert cli.main(['trace', two_steps, '--step=1', '--calibrate',
                     str(path)]) == 0
  assert 't.json, a GPU, steps 1-1; 1 functions' in capsys.readouterr().out
  assert cli.main(['trace', two_steps, '--step=2', '--hardware', str(path),
                   '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  row, = found['calls']
  assert (row['kind'], row['measured_us']) == ('element-wise', 10)
  assert row['predicted_us'] == pytest.approx(8, rel=0.01)
  assert row['sizes'] == '12,000 bytes 1,024 threads'
  assert found['total']['mean_error'] == pytest.approx(0.2, abs=0.01)
  # From 120: a latency of 10 us, then 8 and 10 us of kernel.
  assert found['replayed_us'] == pytest.approx([18, 18, 20], rel=0.01)
  path.write_text('{"mine": 1}')
  assert cli.main(['trace', two_steps, f'--calibrate={path}']) == 1
  assert path.read_text() == '{"mine": 1}'


@pytest.mark.parametrize('words, said', [
    (['--step=1', '--hardware=v100'], '--calibrate and --hardware exclude'),
    (['--step=1-3'], 'has no step 3; its steps are: 1, 2')])
def test_what_calibrate_refuses(two_steps, tmp_path, capsys, words, said):
  path = tmp_path / 'hw.json'
  assert cli.main(['trace', two_steps, f'--calibrate={path}', *words]) == 1
  assert said in capsys.readouterr().err and not path.exists()


def test_nothing_to_learn_from(tmp_path):
  path = tiny.write(tmp_path / 'host.json', [op('a', 0, 10)])
  with pytest.raises(UserError, match='has no work of a GPU to learn from'):
    analysis.calibrated(path)


ODD = (None, True, -1, 0, 1e300, 10**290, float('nan'), 'x', [], [[]], {})


def places(content, at=()):
  """Where values are in nested objects and lists."""
  if at:
    yield at
  pairs = (content.items() if isinstance(content, dict)
           else enumerate(content) if isinstance(content, list) else ())
  for key, inner in pairs:
    yield from places(inner, (*at, key))


@pytest.mark.survive
def test_odd_values_are_refused_or_harmless(two_steps, tmp_path):
  """Each value of a calibration, replaced by each odd one."""
  text = hardware.to_json(analysis.calibrated(two_steps))
  path, refused = tmp_path / 'hw.json', 0
  for at in places(json.loads(text)):
    for odd in ODD:
      content = json.loads(text)
      inner = content
      for key in at[:-1]:
        inner = inner[key]
      inner[at[-1]] = odd
      path.write_text(json.dumps(content))
      try:
        machine = hardware.find(str(path))
      except UserError as error:
        assert str(path) in str(error) and '\n' not in str(error)
        refused += 1
        continue
      us = machine.calibration and machine.calibration.us(
          ADD, {'bytes': 12000.0, 'threads': 1024.0})
      assert us is None or 0 <= us < math.inf
  assert refused > 200
