"""The verb `trace`: its tables and files, and what it refuses."""

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
    _, out, _ = run(capsys, trace, '--step=1', '--calibrate', path)
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
  for said in ('t.json.gz: a GPU, steps 2', '100.0 % of the time of the GPU',
               'measured 65.0, predicted 48.5 (-25.4 %), with communication as '
               'recorded 68.5 (+5.4 %)', 'which takes 40 us', ADD):
    assert said in out
  row, = (line.split() for line in out.splitlines()
          if line.startswith('element-wise'))
  assert row == ['element-wise', '1', '10.0', '8.0', '0.800', '20.0', '%',
                 '20.0', '%']


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


def test_files_that_are_damaged(capsys, trace, learned, tmp_path, monkeypatch):
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
  monkeypatch.setattr(kineto, 'MOST_BYTES', 100_000)
  for content, said in (
      (b'\xff\xfe\x00', 'is not JSON'), (b'[' * 100000, 't.json: is '),
      (b'[]', 'an object with a list traceEvents'),
      # A bomb.
      (gzip.compress(b' ' * 100_001), 'holds more than 100,000 bytes')):
    path.write_bytes(content)
    assert said in error_of(capsys, path, f'--hardware={learned}')
  assert 'cannot be read' in error_of(
      capsys, tmp_path, f'--hardware={learned}')
