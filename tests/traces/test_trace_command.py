"""The verb `trace`: its tables and files, and what it refuses."""

import csv
import gzip
import json
import re

import pytest

from support import tiny_traces as tiny
from support.tiny_traces import event
from tpu_graphs_ext import cli
from tpu_graphs_ext.traces import analysis, read, texts


def run(capsys, *words):
  code = cli.main(['trace', *map(str, words)])
  said = capsys.readouterr()
  return code, said.out, said.err


@pytest.fixture
def step(tmp_path):
  """A packed trace of a step, and hardware for it."""
  return (tiny.write(tmp_path / 't.json.gz', tiny.one_step(), packed=True),
          f'--hardware={tiny.write_hardware(tmp_path / "hw.json")}')


def cells(text, first):
  """The cells of the line that starts with a word."""
  line, = (line for line in text.splitlines()
           if line.strip().startswith(first))
  return re.split(r'  +', line.strip())


def test_the_tables(capsys, step):
  code, out, err = run(capsys, *step)
  assert (code, err) == (0, '')
  assert 'profiler trace, step 3\n  100 us, 7 calls\n' in out
  assert 'GPU 0: busy 28 us (28.0%), idle 72 us' in out
  assert '2 of 2 kernels, copies and fills belong to an operator' in out
  assert cells(out, 'fully connected') == [
      'fully connected', 'forward', '1', '8.00', '0.22', '0.028', '97.2 %',
      '97.2 %', '-']
  assert cells(out, 'all of these')[:5] == [
      'all of these', '2', '28.0', '0.30', '0.011']
  assert 'of all work of the GPU, 28.0 us' in out


def test_json(capsys, step):
  code, out, _ = run(capsys, '--json', *step)
  found = json.loads(out)
  assert code == 0
  assert (found['steps'], found['duration_us'], found['times_of']) == (
      [3], 100, 'gpu')
  assert found['busy_us'] == {'0': 28}
  assert sum(found['idle_us']['0'].values()) == 72
  assert [one['name'] for one in found['calls']] == ['aten::addmm', 'aten::add']
  assert found['calls'][1]['predicted_us'] == pytest.approx(0.080)
  assert found['total']['calls'] == 2 and len(found['groups']) == 2


def test_the_csv(capsys, step, tmp_path):
  path = tmp_path / 'calls.csv'
  for _ in range(2):  # Its own kind of file it replaces.
    assert run(capsys, *step, f'--csv={path}')[0] == 0
  rows = list(csv.DictReader(path.open()))
  assert [(row['name'], row['start_us'], row['cpu_us'], row['measured_us'])
          for row in rows] == [('aten::addmm', '20.0', '20.0', '8.0'),
                               ('aten::add', '60.0', '10.0', '20.0')]
  path.write_text('something else')
  code, _, err = run(capsys, *step, f'--csv={path}')
  assert code == 1 and 'calls.csv' in err
  assert path.read_text() == 'something else'


def test_only_some_rows_of_tables(capsys, step):
  _, out, _ = run(capsys, *step, '--top=1')
  assert '  and 3 more; --top shows them' in out


# ----------------------------------------------------------- execution traces


def node(number, name, parent, shapes=(), types=(), schema='s', chakra=False):
  shapes, types = list(shapes), list(types)
  if chakra:
    return {'id': number, 'name': name, 'ctrl_deps': parent,
            'inputs': {'values': [], 'shapes': shapes, 'types': types},
            'attrs': [{'name': 'op_schema', 'value': schema},
                      {'name': 'tid', 'value': 1}]}
  return {'id': number, 'name': name, 'parent': parent, 'op_schema': schema,
          'tid': 1, 'inputs': [], 'input_shapes': shapes,
          'input_types': types}


@pytest.mark.parametrize('chakra', [False, True])
def test_execution_traces_are_predicted(tmp_path, chakra):
  float_tensor = 'Tensor(float)'
  path = tmp_path / 'et.json'
  path.write_text(json.dumps({'schema': '1', 'nodes': [
      node(4, 'aten::clamp_min', 3, [[30], []], [float_tensor, 'Int'],
           chakra=chakra),
      node(3, 'aten::relu', 2, [[30]], [float_tensor], chakra=chakra),
      node(2, 'AddmmBackward0', 1, schema='', chakra=chakra),
      node(5, 'aten::cat', 1, [[[2], [3]], []],
           [f'GenericList[{float_tensor},Tensor(c10::Half)]', 'Int'],
           chakra=chakra),
      {'no': 'id'}]}))
  found = analysis.analyse(str(path), None, tiny.write_hardware(
      tmp_path / 'hw.json'))
  assert [(row.name, row.phase, row.measured_us) for row in found.rows] == [
      ('aten::clamp_min', 'backward', None), ('aten::cat', 'forward', None)]
  assert [row.price.us for row in found.rows] == [
      pytest.approx(0.240), pytest.approx(2 * (8 + 6) / 1000)]
  assert found.total.mean_error is None and found.measured_us is None
  assert found.notes == ['an execution trace has no times: predictions alone',
                         '1 nodes without an id and a name are left out']


def tensor_on(device, values=30):
  return [1, 2, 0, values, 4, device]


def test_operators_on_the_host_are_left_out_beside_a_gpu(tmp_path):
  both = [tensor_on('cuda:0'), tensor_on('cpu')]
  nodes = [
      {**node(2, 'aten::relu', 1, [[30]], ['Tensor(float)']),
       'inputs': [tensor_on('cpu')]},
      {**node(3, 'aten::copy_', 1, [[30], [30]], ['Tensor(float)'] * 2),
       'inputs': both},
      {**node(4, 'aten::cat', 1, [[[2], [3]], []],
              ['GenericList[Tensor(float),Tensor(float)]', 'Int']),
       'inputs': [[tensor_on('cuda:0'), tensor_on('cuda:0')], 0]}]
  path, machine = tmp_path / 'et.json', tiny.write_hardware(
      tmp_path / 'hw.json')
  path.write_text(json.dumps({'nodes': nodes}))
  rows = analysis.analyse(str(path), None, machine).rows
  assert [(row.name, row.price.bound) for row in rows] == [
      ('aten::copy_', 'link'), ('aten::cat', 'memory')]
  assert rows[0].price.us == pytest.approx(120 / 0.5 / 1000)
  # Where nothing is on a GPU, all of it is told.
  path.write_text(json.dumps({'nodes': nodes[:1]}))
  assert len(analysis.analyse(str(path), None, machine).rows) == 1


def test_the_tables_of_an_execution_trace(capsys, tmp_path):
  path = tmp_path / 'et.json'
  path.write_text(json.dumps({'nodes': [
      node(2, 'aten::relu', 1, [[30]], ['Tensor(float)'])]}))
  code, out, err = run(capsys, path, '--hardware=v100')
  assert (code, err) == (0, '')
  assert 'execution trace, all of it' in out and 'element-wise' in out
  code, out, _ = run(capsys, path, '--json')
  assert json.loads(out)['measured_us'] is None


# ------------------------------------------------------------------ bad input


def error_of(capsys, *words):
  code, out, err = run(capsys, *words)
  assert code == 1 and out == ''
  assert err.startswith('error: ') and err.count('\n') == 1
  return err


def test_a_trace_that_is_cut_off(capsys, step, tmp_path):
  whole = open(step[0], 'rb').read()
  text = gzip.decompress(whole)
  path = tmp_path / 'cut.json.gz'
  for length in (3, 40, len(whole) // 2, len(whole) - 9, len(whole) - 1):
    path.write_bytes(whole[:length])
    assert 'cut.json.gz: is cut off: gzip ends too early' in error_of(
        capsys, path)
  damaged = bytearray(whole)
  damaged[len(whole) // 2] ^= 255
  path.write_bytes(damaged)
  assert 'cut.json.gz: is ' in error_of(capsys, path)
  path = tmp_path / 'cut.json'
  for length in (1, 30, len(text) // 2, len(text) // 3, len(text) - 1):
    path.write_bytes(text[:length])
    assert f'cut.json: is cut off: its JSON ends after {length:,} letters' in (
        error_of(capsys, path))


@pytest.mark.parametrize('content, said', [
    (b'', 'is not JSON'), (b'no json', 'is not JSON'),
    (b'{"traceEvents": [}', 'is not JSON'),
    (b'\xff\xfe\x00', 'is not JSON'), (b'[' * 100000, 't.json: is '),
    (b'{"a": 1, "b": 2}', 'its keys are a, b'), (b'{}', 'its keys are none'),
    (b'{"traceEvents": 5}', 'no list traceEvents'), (b'5', 'it holds a int'),
    (b'[]', 'has no operators'), (b'{"traceEvents": []}', 'has no operators'),
    (b'{"nodes": [{"id": 1, "name": "x"}]}', 'has no operators'),
    (b'{"nodes": [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]}',
     'two nodes have the id 1')])
def test_what_is_no_trace(capsys, tmp_path, content, said):
  path = tmp_path / 't.json'
  path.write_bytes(content)
  err = error_of(capsys, path)
  assert said in err and 't.json: ' in err


def test_a_file_that_cannot_be_read(capsys, tmp_path):
  assert 'cannot be read' in error_of(capsys, tmp_path / 'none.json')
  assert 'cannot be read' in error_of(capsys, tmp_path)


def test_a_file_that_unpacks_to_too_much(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(read, 'MOST_BYTES', 1000)
  path = tmp_path / 'bomb.json.gz'
  path.write_bytes(gzip.compress(b' ' * 100_000))
  assert 'holds more than 1,000 bytes' in error_of(capsys, path)
  path.write_bytes(b' ' * 1001)
  assert 'holds more than 1,000 bytes' in error_of(capsys, path)


def test_steps_and_hardware_that_are_not_there(capsys, step):
  path, machine = step
  assert 'has no step 4; its steps are: 3' in error_of(
      capsys, path, machine, '--step=4')
  assert 'must be one of notebook-v100, ' in error_of(
      capsys, path, '--hardware=tpu')


ODD = (None, True, -1, 0, 1e300, 10**299, float('nan'), 'x', [], [[]], {},
       [[2, 8], [2**50] * 30], [[10**200, 8], [8, 10**200]])


@pytest.mark.survive
def test_no_odd_value_anywhere_does_harm(tmp_path):
  """Each field of each event, replaced by each odd value."""
  machine = tiny.write_hardware(tmp_path / 'hw.json')
  events = tiny.one_step()
  tried = 0
  for number, changed in enumerate(events):
    for key in [*changed, *(('args', key) for key in changed['args'])]:
      for odd in ODD:
        new = ({**changed, 'args': {**changed['args'], key[1]: odd}}
               if isinstance(key, tuple) else {**changed, key: odd})
        path = tiny.write(tmp_path / 't.json',
                          [*events[:number], new, *events[number + 1:]])
        found = analysis.analyse(path, None, machine)
        said = texts.text(found)
        assert key == 'name' or 'nan' not in said
        json.dumps(texts.to_json(found), allow_nan=False)
        tried += 1
  assert tried > 900


def test_what_a_trace_lacks_is_said(capsys, tmp_path):
  without = [dict(one, args={key: value for key, value in one['args'].items()
                             if not key.startswith('Input')})
             for one in tiny.one_step()]
  path = tiny.write(tmp_path / 't.json', without)
  code, out, _ = run(capsys, path, '--hardware=v100')
  assert code == 0
  assert 'note: the trace has no shapes' in out
  assert re.search(r'aten::addmm +1 +8.00 +no shapes here', out)
  host = [one for one in tiny.one_step() if one['cat'] != 'kernel']
  path = tiny.write(tmp_path / 'host.json', host)
  code, out, _ = run(capsys, path, '--hardware=v100')
  assert code == 0 and 'note: the trace has no work of a GPU' in out
  assert 'Predicted' not in out and 'aten::linear' in out
  path = tiny.write(tmp_path / 'two.json', [
      *tiny.one_step(), tiny.step(4, 200, 10),
      event('aten::relu', 'cpu_op', 201, 2)])
  code, out, _ = run(capsys, path, '--step=4')
  assert code == 0 and 'note: no work of the GPU was launched' in out
