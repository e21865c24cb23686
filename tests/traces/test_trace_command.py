"""The verb `trace`: its tables and files, and what it refuses."""

import gzip
import json
import pathlib

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import kernel, launch, op
from tpu_graphs_ext import cli
from tpu_graphs_ext.traces import analysis, calibrate, kineto

ADD = 'vectorized_elementwise_kernel<add>'


def run(capsys, *words):
  code = cli.main(['trace', *map(str, words)])
  said = capsys.readouterr()
  return code, said.out, said.err


@pytest.fixture
def trace(tmp_path):
  """Two steps of a kernel of addition each, 8 and 10 us, and one of
  communication, 20 and 40 us."""
  events = []
  for number, start in ((1, 0), (2, 100)):
    events += [tiny.step(number, start, 100),
               op('aten::add', start + 10, 20, [[1000], [1000]]),
               launch(number, start + 20),
               kernel(number, start + 30, 6 + 2 * number, ADD, grid=[8, 1, 1],
                      block=[128, 1, 1]),
               op('nccl', start + 40, 5), launch(10 + number, start + 42),
               kernel(10 + number, start + 45, 20 * number, 'ncclKernel')]
  return tiny.write(tmp_path / 't.json.gz', events, packed=True)


@pytest.fixture
def learned(trace, tmp_path):
  path = tmp_path / 'hw.json'
  path.write_text(calibrate.to_json(analysis.calibrated(trace, [1])))
  return path


def test_calibrated_on_one_step_predicted_on_another(trace, tmp_path, capsys):
  path = tmp_path / 'hw.json'
  _, out, _ = run(capsys, trace, '--step=1', '--calibrate', path)
  assert 't.json.gz, a GPU, steps 1-1 of ' in out
  assert ', 28 us in 2 kernels; 2 functions' in out
  code, out, _ = run(capsys, trace, '--step=2', '--hardware', path, '--json')
  content = json.loads(out)
  added, communication = content['kernels']
  assert code == 0 and content['steps'] == [2]
  assert (added['kind'], added['operator'], added['measured_us']) == (
      'element-wise', 'aten::add', 10)
  assert added['predicted_us'] == pytest.approx(8, rel=0.01)
  assert (added['bytes'], added['threads']) == (12000, 1024)
  assert communication['predicted_us'] is communication['error'] is None
  total = content['kinds'][-1]
  assert (total['kind'], total['kernels']) == ('all of these', 1)
  assert total['mean_error'] == pytest.approx(0.2, abs=0.01)
  assert content['communication_us'] == 40
  assert content['step'].pop('slow_steps') == []
  # The host takes 100 us; two operators and two launches were recorded.
  assert content['step'] == pytest.approx({
      'measured_us': 100, 'predicted_us': 100, 'gpu_busy_us': 50,
      'communication_as_recorded_us': 100, 'profiler_us': 2 * .6 + 2 * 7.4})
  path.write_text('{"mine": 1}')
  assert run(capsys, trace, f'--calibrate={path}')[0] == 1
  assert path.read_text() == '{"mine": 1}'


def test_the_tables(capsys, trace, learned):
  code, out, err = run(capsys, trace, '--step=2', f'--hardware={learned}')
  assert (code, err) == (0, '')
  for said in ('t.json.gz: a GPU, steps 2', 'not compared, takes 40 us',
               'measured 100.0, predicted 100.0 (+0.0 %), with communication '
               'as recorded 100.0 (+0.0 %)',
               'The GPU is busy for 50 us of it. The profiler adds about 16 us '
               'to the host; without it expect about 84 us'):
    assert said in out
  row, = (line.split() for line in out.splitlines()
          if line.startswith('element-wise'))
  assert row == ['element-wise', '1', '10.000', '8.000', '0.800', '0.200',
                 '0.200']
  learned.write_text(learned.read_text().replace('a GPU",', 'a V100",'))
  *_, err = run(capsys, trace, '--step=2', f'--hardware={learned}')
  assert ('recorded on a GPU, but the calibration, and so each prediction, is '
          'for a V100') in err


def test_a_step_takes_what_its_kernels_are_predicted_to_take(tmp_path):
  traces = [tiny.write(tmp_path / f'{us}.json', [
      tiny.step(1, 0, 100), op('aten::add', 10, 20, [[1000], [1000]]),
      launch(1, 20), kernel(1, 30, us, ADD, grid=[8, 1, 1])])
            for us in (400, 200)]
  learned = analysis.calibrated(traces[0])
  step = analysis.compared(traces[1], None, learned).step
  assert (step['measured_us'], step['predicted_us']) == (230, 430)
  nccl = tiny.write(tmp_path / 'nccl.json', [
      tiny.step(1, 0, 100), launch(1, 20), kernel(1, 30, 90, 'ncclKernel')])
  learned_less = analysis.calibrated(nccl)  # Of communication alone.
  step = analysis.compared(traces[1], None, learned_less).step
  assert (step['measured_us'], step['predicted_us']) == (230, None)
  assert analysis.compared(nccl, None, learned_less).step['predicted_us'] == 120
  # Without a launch nothing is known of the host.
  alone = tiny.write(tmp_path / 'alone.json', [
      launch(2, 20), kernel(1, 30, 40, ADD)])
  assert analysis.compared(alone, None, learned).step == {}
  whole = tiny.write(tmp_path / 'whole.json', [launch(1, 20), kernel(1, 30, 9)])
  assert '\nFrom the first launch to the last end, in us: measured 19.0,' in (
      analysis.text(analysis.compared(whole, None, learned)))


def test_several_traces_and_a_sweep(trace, tmp_path, capsys):
  path = tmp_path / 'hw.json'
  sweep = tmp_path / 'sweep.json'
  sweep.write_text(json.dumps({
      'tpu_graphs_ext_sweep': {'operator': 0.5, 'runtime': 4},
      'traceEvents': [op('aten::add', 0, 20, [[500], [500]]), launch(1, 5),
                      kernel(1, 10, 5, ADD, grid=[4, 1, 1],
                             block=[128, 1, 1])]}))
  assert run(capsys, sweep, '--calibrate', path)[0] == 0
  # A sweep has no constants of a host, but what the profiler adds.
  assert calibrate.read(str(path)).host == {
      'profiler operator': (0.5, 1), 'profiler runtime': (4, 1)}
  _, out, _ = run(capsys, trace, '--step=2', '--hardware', path, '--json')
  step = json.loads(out)['step']
  assert step['predicted_us'] is None and step['profiler_us'] == 2 * .5 + 2 * 4
  _, out, _ = run(capsys, trace, '--step=2', '--hardware', path)
  assert 'measured 100.0, not predicted: this needs --calibrate on such ' in out
  content = json.loads(sweep.read_text())
  for odd in {'operator': '1', 'runtime': -1, 'x': 1}, 5:
    content['tpu_graphs_ext_sweep'] = odd
    (tmp_path / 'odd.json').write_text(json.dumps(content))
    host = analysis.calibrated(str(tmp_path / 'odd.json')).host
    assert not any('profiler' in key for key in host)
  # The second calibration adds; both at once come to the same.
  path.write_text('')  # As mktemp leaves a file.
  for words in ([sweep], [trace]):
    assert run(capsys, *words, '--calibrate', path)[0] == 0
  other = tmp_path / 'both.json'
  assert run(capsys, sweep, trace, '--calibrate', other)[0] == 0
  assert json.loads(path.read_text()) == json.loads(other.read_text())
  assert 'pause' in calibrate.read(str(path)).host
  for words, said in (
      ([trace, f'--calibrate={path}'], 'already has these kernels'),
      ([sweep, trace, f'--hardware={path}'], 'one trace at a time')):
    assert said in error_of(capsys, *words)
  tiny.write(tmp_path / 'a100.json', tiny.one_step())
  content = json.loads((tmp_path / 'a100.json').read_text())
  (tmp_path / 'a100.json').write_text(json.dumps(
      {'deviceProperties': [{'name': 'A100'}], **content}))
  assert 'is of A100, but ' in error_of(
      capsys, tmp_path / 'a100.json', f'--calibrate={path}')


def test_what_another_calibration_adds_meanwhile_is_kept(
    trace, learned, tmp_path, capsys, monkeypatch):
  path, calibrated = tmp_path / 'both.json', analysis.calibrated

  def slow(*asked):
    path.write_text(learned.read_text())
    return calibrated(*asked)

  monkeypatch.setattr(analysis, 'calibrated', slow)
  assert 'another command has changed it; run this again' in error_of(
      capsys, trace, f'--calibrate={path}')
  assert path.read_text() == learned.read_text()


def test_a_sweep_of_another_program_is_recognized(tmp_path):
  """By a great many kernels that hardly ever run twice."""
  for different, is_sweep in ((1500, True), (300, False)):
    events = [tiny.step(1, 0, 30000)]
    for number in range(1500):
      events += [launch(number, 10 * number + 1, 1),
                 kernel(number, 10 * number + 5, 1, f'k{number % different}')]
    path = tiny.write(tmp_path / 't.json', events)
    assert ('pause' in analysis.calibrated(path).host) is not is_sweep


def test_no_step_counts_twice_whatever_its_file_is_called(
    trace, learned, tmp_path, capsys):
  other = tmp_path / 'renamed.json'
  other.write_bytes(gzip.decompress(pathlib.Path(trace).read_bytes()))
  for words in [trace, '--step=1'], [trace, '--step=1-2'], [other]:
    assert 'already has these kernels, or some' in error_of(
        capsys, *words, f'--calibrate={learned}')
  assert run(capsys, other, '--step=2', f'--calibrate={learned}')[0] == 0
  assert 'already has' in error_of(
      capsys, trace, '--step=2', f'--calibrate={learned}')


# ------------------------------------------------------------------ bad input


def error_of(capsys, *words):
  code, out, err = run(capsys, *words)
  assert code == 1 and out == ''
  assert err.startswith('error: ') and err.count('\n') == 1
  return err


def test_flags_that_are_refused(capsys, trace, tmp_path):
  learn = f'--calibrate={tmp_path}/no.json'
  for words, said in (
      ([], 'name one of --calibrate'),
      ([learn, '--hardware=b.json'], 'name one of --calibrate'),
      ([learn, '--json'], '--json goes with --hardware'),
      (['--hardware=v100'], 'v100: cannot be read'),
      ([learn, '--step=1-3'], 'has no step 3; its steps are: 1, 2')):
    assert said in error_of(capsys, trace, *words)
  host = tiny.write(tmp_path / 'host.json', [op('a', 0, 10)])
  assert 'has no GPU work in these steps' in error_of(capsys, host, learn)
  assert not (tmp_path / 'no.json').exists()


def test_files_that_are_no_traces(capsys, learned, tmp_path, monkeypatch):
  path = tmp_path / 't.json'
  monkeypatch.setattr(kineto, 'MOST_BYTES', 100_000)
  for content, said in (
      (b'\xff\xfe\x00', 'is not JSON'), (b'[' * 100000, 't.json: is '),
      (b'[]', 'an object with a list traceEvents'),
      # A bomb.
      (gzip.compress(b' ' * 100_001), 'has more than 100,000 bytes')):
    path.write_bytes(content)
    assert said in error_of(capsys, path, f'--hardware={learned}')
  assert 'cannot be read' in error_of(capsys, tmp_path, f'--hardware={learned}')
