"""The verb `trace`: its tables and files, and what it refuses."""

import csv
import gzip
import json

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
  for _ in range(2):  # Its own kind of file it replaces.
    code, out, _ = run(capsys, trace, '--step=1', '--calibrate', path)
    assert code == 0
  assert 't.json.gz, a GPU, steps 1-1; 2 functions' in out
  code, out, _ = run(capsys, trace, '--step=2', '--hardware', path, '--json')
  found = json.loads(out)
  added, communication = found['kernels']
  assert code == 0 and found['steps'] == [2]
  assert (added['kind'], added['operator'], added['measured_us']) == (
      'element-wise', 'aten::add', 10)
  assert added['predicted_us'] == pytest.approx(8, rel=0.01)
  assert (added['bytes'], added['threads']) == (12000, 1024)
  assert communication['predicted_us'] is communication['error'] is None
  total = found['kinds'][-1]
  assert (total['kind'], total['kernels']) == ('all of these', 1)
  assert total['mean_error'] == pytest.approx(0.2, abs=0.01)
  assert (found['coverage'], found['communication_us']) == (1, 40)
  # Launched at 120 and 142; both begin after (10 + 3) / 2 us, so the last one
  # ends at 148.5 + 20 or, as recorded, 148.5 + 40.
  assert found['step'] == pytest.approx({
      'measured_us': 65, 'predicted_us': 48.5,
      'communication_as_recorded_us': 68.5})
  path.write_text('{"mine": 1}')
  assert run(capsys, trace, f'--calibrate={path}')[0] == 1
  assert path.read_text() == '{"mine": 1}'


def test_the_tables(capsys, trace, learned):
  code, out, err = run(capsys, trace, '--step=2', f'--hardware={learned}')
  assert (code, err) == (0, '')
  lines = out.splitlines()
  assert lines[0].endswith('t.json.gz: a GPU, steps 2')
  row, = (line.split() for line in lines if line.startswith('element-wise'))
  assert row == ['element-wise', '1', '10.0', '8.0', '0.800', '20.0', '%',
                 '20.0', '%']
  assert '100.0 % of the time of the GPU is predicted' in out
  assert ('measured 65.0, predicted 48.5 (-25.4 %), with communication as '
          'recorded 68.5 (+5.4 %)') in out
  assert 'communication, which takes 40 us' in out and ADD in out


def test_the_csv(capsys, trace, learned, tmp_path):
  path = tmp_path / 'kernels.csv'
  words = trace, f'--hardware={learned}', f'--csv={path}'
  for _ in range(2):  # Its own kind of file it replaces.
    assert run(capsys, *words)[0] == 0
  rows = list(csv.DictReader(path.open()))
  assert [(row['kernel'], row['operator'], row['measured_us'], row['bytes'])
          for row in rows[:2]] == [(ADD, 'aten::add', '8.0', '12000.0'),
                                   ('ncclKernel', 'nccl', '20.0', '')]
  path.write_text('something else')
  assert 'kernels.csv' in error_of(capsys, *words)
  assert path.read_text() == 'something else'


def test_ranks_wait_for_the_last_one(capsys, tmp_path, learned):
  """Of two ranks the second one begins 30 us later."""
  paths = []
  for late, us in ((0, 50), (30, 20)):
    paths.append(tiny.write(tmp_path / f'rank{late}.json', [
        op('nccl', late, 10), launch(1, late + 2),
        kernel(1, late + 5, us, 'ncclKernel')]))
  # A call of 2 us; communication begins 6.5 us after its launch and took 20 us
  # where it was learned: until 58.5 on the clock of both.
  for path, predicted, measured in zip(paths, (56.5, 26.5), (53, 23)):
    code, out, _ = run(capsys, path, f'--hardware={learned}', '--json',
                       '--ranks', *paths)
    found = json.loads(out)
    assert code == 0 and len(found['kernels']) == 1
    assert found['step'] == pytest.approx({
        'measured_us': measured, 'predicted_us': predicted,
        'communication_as_recorded_us': measured + 3.5})
  # Rank 0 ends before the other one begins, and others never communicate.
  for events in ([op('nccl', 90, 10), launch(1, 92),
                  kernel(1, 95, 20, 'ncclKernel')], tiny.one_step()):
    other = tiny.write(tmp_path / 'other.json', events)
    assert 'other.json: communicates ' in error_of(
        capsys, paths[0], f'--hardware={learned}', '--ranks', other)


# ------------------------------------------------------------------ bad input


def error_of(capsys, *words):
  code, out, err = run(capsys, *words)
  assert code == 1 and out == ''
  assert err.startswith('error: ') and err.count('\n') == 1
  return err


def test_flags_that_are_refused(capsys, trace, tmp_path):
  path, learn = tmp_path / 'no.json', f'--calibrate={tmp_path}/no.json'
  for words, said in (
      ([], 'name one of --calibrate'),
      ([learn, '--hardware=b.json'], 'name one of --calibrate'),
      ([learn, '--json'], '--csv, --json and --ranks go'),
      (['--hardware=v100'], 'v100: cannot be read'),
      ([learn, '--step=1-3'], 'has no step 3; its steps are: 1, 2')):
    assert said in error_of(capsys, trace, *words)
  host = tiny.write(tmp_path / 'host.json', [op('a', 0, 10)])
  assert 'has no GPU work in these steps' in error_of(capsys, host, learn)
  assert not path.exists()


def test_files_that_are_damaged(capsys, trace, learned, tmp_path):
  whole = open(trace, 'rb').read()
  text = gzip.decompress(whole)
  damaged = bytearray(whole)
  damaged[len(whole) // 2] ^= 255
  cut = [content[:length] for content in (whole, text) for length in (
      3, 40, len(content) // 2, len(content) - 1)]
  path = tmp_path / 't.json'
  for content in (*cut, damaged):
    path.write_bytes(content)
    error = error_of(capsys, path, f'--hardware={learned}')
    assert 't.json: cannot be read, or is cut off' in error or (
        't.json: is not JSON' in error)
  for content, said in (
      (b'\xff\xfe\x00', 'is not JSON'), (b'[' * 100000, 't.json: is '),
      (b'{"traceEvents": 5}', 'an object with a list traceEvents'),
      (b'[]', 'an object with a list traceEvents')):
    path.write_bytes(content)
    assert said in error_of(capsys, path, f'--hardware={learned}')
  for path in (tmp_path / 'none.json', tmp_path):
    assert 'cannot be read' in error_of(capsys, path, f'--hardware={learned}')


def test_a_file_that_unpacks_to_too_much(
    capsys, learned, tmp_path, monkeypatch):
  monkeypatch.setattr(kineto, 'MOST_BYTES', 1000)
  path = tmp_path / 'bomb.json.gz'
  path.write_bytes(gzip.compress(b' ' * 100_000))
  assert 'holds more than 1,000 bytes' in error_of(
      capsys, path, f'--hardware={learned}')
