"""Every rule of the data check, each broken on its own."""

from __future__ import annotations

import dataclasses
import json
import zipfile

import numpy as np
import pytest

from support import tiny_kernels, tiny_layouts
from tpu_graphs_ext.data import check, read, rules, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.tasks import TASKS


def stored(kernel=None) -> dict:
  """A sound file's arrays under their stored names."""
  kernel = tiny_kernels.lawful(kernel or tiny_kernels.diamond())
  return {name: array.copy() for name, array in kernel.stored().items()}


def program() -> dict:
  """The same for the layout task: 20 nodes, 4 of them configurable."""
  return tiny_layouts.program('a', 20, 4, 5)


def write(folder, arrays, name='net_1') -> str:
  folder.mkdir(parents=True, exist_ok=True)
  np.savez(folder / f'{name}.npz', **arrays)
  return str(folder / f'{name}.npz')


def faults(path, of_task=rules.TILE, **kwargs) -> list[str]:
  return [f'{fault.field}: {fault.message}'
          for fault in check.check_file(path, of_task, **kwargs)[0]]


def at(row, column, value):
  """What changes one place of a table."""
  def change(table):
    table[(row, column) if column != () else row] = value
    return table
  return change


def changed(arrays, key, place, value) -> dict:
  arrays[key][place] = value
  return arrays


# ------------------------------------------------------------------ one file


def test_sound_files_have_no_fault(tmp_path):
  assert faults(write(tmp_path, stored())) == []
  assert faults(write(tmp_path, program()), of_task=rules.LAYOUT) == []


def test_wrong_dtype_and_missing_array(tmp_path):
  for key in STORED_NAMES.values():
    arrays = stored()
    dtype = arrays[key].dtype
    arrays[key] = arrays[key].astype(np.float64)
    assert faults(write(tmp_path, arrays)) == [
        f'{key}: has dtype float64; it must be {dtype}']
    del arrays[key]
    fault, = faults(write(tmp_path, arrays))
    assert fault.startswith(f'{key}: is missing; the file has ')


SHAPES = [
    ('node_feat', np.zeros((4, 139), np.float32),
     'has shape (4, 139); it must be (nodes, 140)'),
    ('config_runtime', np.array(5), 'has shape (); it must be (configs)'),
    ('config_runtime_normalizers', np.ones(4, np.int64),
     'has 4 configs (axis 0), but config_feat has 5; both must be equal'),
]


def test_wrong_shapes_and_counts(tmp_path):
  for key, array, expected in SHAPES:
    assert f'{key}: {expected}' in faults(
        write(tmp_path, {**stored(), key: array}))


VALUES = [
    ('edge_index', (3, 0), 4, 'row 3 is [4, 2]; both nodes must be in 0 to 3 '
     '(1 of 4 break this)'),
    ('edge_index', 1, (2, 2), 'row 1 is [2, 2]; rows are (consumer, producer),'
     ' and a producer comes before its consumer (1 of 4 break this)'),
    ('node_opcode', slice(2, 4), schema.NUM_OPCODES,
     f'row 2 is {schema.NUM_OPCODES}; it must be 0 (unknown) or in the table '
     f'of opcodes (1 to {schema.NUM_OPCODES - 1}) (2 of 4 break this)'),
    ('node_feat', (1, 139), np.nan,
     'row 1, 139 is nan; values must be finite (1 of 560 break this)'),
    ('config_runtime', slice(1, 3), 0,
     'row 1 is 0; times in ns must be positive (2 of 5 break this)'),
    ('config_runtime_normalizers', slice(None), 0,
     'row 0 is 0; times in ns must be positive (5 of 5 break this)'),
]


def test_values_that_break_a_rule(tmp_path):
  for key, place, value, expected in VALUES:
    path = write(tmp_path, changed(stored(), key, place, value))
    assert faults(path) == [f'{key}: {expected}']


def test_unknown_opcodes_are_counted_and_no_fault(tmp_path):
  """As featurize writes them of operations newer than the data set."""
  path = write(tmp_path, changed(stored(), 'node_opcode', slice(2, 4), 0))
  assert faults(path) == []
  report = check.check_data(str(tmp_path))
  assert report.counts[tmp_path.name]['nodes of unknown opcode'] == 2
  assert '4 nodes, 2 nodes of unknown opcode, ' in report.text()


COLUMNS = [  # Array, change of it, row that is named, first words of the rule.
    ('node_feat', lambda table: np.roll(table, 1, 1), 0, 'sums and products'),
    ('node_feat', lambda table: table[:, ::-1], 0, 'sums and products must be'),
    ('node_feat', np.ones_like, 0, 'sums and products must be'),
    ('node_feat', at(2, 27, 9), 2, 'sums and products must be'),
    ('node_feat', at(1, 28, 7), 1, 'sums and products must be'),
    ('node_feat', at(3, 84, 7), 3, 'sums and products must be'),
    ('node_feat', at(3, 20, 1), 3, 'sums and products must be'),
    ('node_feat', at(0, 2, .5), 0, 'sums and products must be'),
    ('config_feat', lambda table: table[:, ::-1], 0, 'bounds must be positive'),
    ('config_feat', lambda table: np.roll(table, 1, 1), 0, 'bounds must be'),
    ('config_feat', np.negative, 0, 'bounds must be positive'),
    ('config_feat', at(4, 6, 8), 4, 'bounds must be positive'),
    ('config_feat', at(3, 15, 9), 3, 'bounds must be positive'),
    ('config_feat', at(2, slice(7, 16, 8), 0), 2, 'bounds must be positive'),
    ('config_feat', at(1, slice(8, 16), 0), 1, 'bounds must be positive'),
    ('config_feat', lambda table: np.roll(table, 16, 1), 0, 'bounds must be'),
    ('config_feat', at(1, slice(0, 2), (0, 2)), 1, 'bounds must be positive'),
    ('config_runtime_normalizers', at(4, (), 3000), 4,
     'the default tile of one kernel cannot take twice as long')]


def test_columns_that_contradict_each_other(tmp_path, monkeypatch):
  monkeypatch.setattr(rules, '_VALUES_AT_ONCE', 2 * 24)  # Two of five tiles.
  for key, change, row, rule in COLUMNS:
    arrays = stored()
    arrays[key] = np.ascontiguousarray(change(arrays[key].copy()))
    fault, = faults(write(tmp_path, arrays))
    assert fault.startswith(f'{key}: row {row} is ') and rule in fault
    assert len(fault) < 500


@pytest.mark.parametrize('place, value', [
    # More dimensions than columns; an empty tensor; padding of 0, 3 and 0.
    (slice(21, 29), [2, 2, 2, 2, 2, 2, 14, 128]),
    (slice(21, 29), [0, 5, 0, 0, 0, 0, 5, 0]),
    (slice(53, 61), [0, 3, 0, 0, 0, 0, 3, 0]),
    (slice(2, 21), 0)])  # A type without a column.
def test_columns_that_only_look_odd(tmp_path, place, value):
  assert faults(write(tmp_path, changed(
      stored(), 'node_feat', (1, place), value))) == []


def test_reading_warns_once_a_process(tmp_path, caplog):
  for number in range(6):
    kernel = tiny_kernels.lawful(tiny_kernels.diamond())
    if number > 3:
      kernel = dataclasses.replace(kernel, config_feat=np.roll(
          kernel.config_feat, 1, 1))
    write(tmp_path / 'data', kernel.stored(), f'net_{number}')
  for cache_dir in ('', *2 * [str(tmp_path / 'cache')]):
    read._warn_once.cache_clear()  # As another process.
    for _ in range(2):
      read.read_kernels(str(tmp_path / 'data'), cache_dir=cache_dir)
    message, = caplog.messages
    assert 'the columns of 2 of 6 kernels contradict each other' in message
    assert 'net_4, net_5. Run' in message
    caplog.clear()
  read.read_kernels(str(tmp_path / 'data' / 'net_0.npz'))
  assert not caplog.messages


PROGRAMS = [  # Array, place, value there.
    ('node_config_ids', 2, 20,
     'node_config_ids: row 2 is 20; a node must be in 0 to 19 (1 of 4'),
    ('node_config_ids', slice(0, 2), 3,
     'an earlier row is the same node (1 of 4'),
    ('config_runtime', slice(None), 0, 'config_runtime: row 0 is 0; times in '
     'ns must be positive (5 of 5'),
    # Of configuration 1 and configurable node 2, the layout of the input.
    ('node_config_feat', (1, 2, slice(6, 9)), [1, 0, 1],
     'row 1, 2, 1 is [1.0, 0.0, 1.0, -1.0, -1.0, -1.0]; each layout'),
    ('node_config_feat', (0, 0, 0), 6, 'lists different dimensions of 0'),
    ('node_config_feat', (0, 0, 0), np.nan, 'row 0, 0, 0 is [nan, '),
    ('node_config_feat', (0, 0, 12), -1, 'row 0, 0, 2 is [-1.0, ')]


def test_programs_that_break_a_rule(tmp_path):
  for key, place, value, expected in PROGRAMS:
    reported = faults(write(tmp_path, changed(program(), key, place, value)),
                   of_task=rules.LAYOUT)
    assert any(expected in fault for fault in reported), (expected, reported)


def test_no_configuration_and_no_node(tmp_path):
  arrays = stored(tiny_kernels.one_node())
  for key in arrays.keys() - {'edge_index'}:
    arrays[key] = arrays[key][:0]
  assert faults(write(tmp_path, arrays)) == [
      'node_feat: has 0 nodes; it must have at least 1',
      'config_feat: has 0 configs; it must have at least 2']


def test_a_damaged_array_does_not_hide_other_faults(tmp_path):
  path = write(tmp_path, changed(stored(), 'edge_index', (0, 0), 9))
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo('node_opcode.npy').header_offset
  with open(path, 'r+b') as file:
    file.seek(offset + 170)  # Past the archive's and the array's header.
    file.write(b'\xff\xff')
  damaged, edge = faults(path)  # One does not hide the other.
  assert damaged.startswith('node_opcode: cannot be read (Bad CRC-32')
  assert edge.startswith('edge_index: row 0')


def test_files_of_the_other_task(tmp_path):
  layout = write(tmp_path / 'mixed', program(), 'unet')
  said = 'is a file of the layout task: it has node_config_feat'
  assert said in faults(layout)[0]
  assert 'is a file of the tile task: it has config_feat' in faults(
      write(tmp_path / 'mixed', stored()), of_task=rules.LAYOUT)[0]
  fault, = check.check_data(str(tmp_path / 'mixed')).faults
  assert fault.file == layout


# ---------------------------------------------------------------- many files


def test_hidden_files_which_are_read_too_are_checked(tmp_path):
  """Archives of macOS have such a file beside each."""
  write(tmp_path, stored())
  (tmp_path / '._net_1.npz').write_bytes(b'Mac OS X')
  with pytest.raises(UserError, match=r'/\._net_1\.npz: cannot be read'):
    read.read_kernels(str(tmp_path))
  fault, = check.check_data(str(tmp_path)).faults
  assert fault.file == str(tmp_path / '._net_1.npz')


@pytest.fixture
def root(tmp_path):
  return tiny_kernels.write_lawful_root(tmp_path / 'root')


def test_sound_data_root(root):
  report = check.check_data(str(root) + '/')
  assert not report.faults and report.text().endswith('\nno faults')
  assert list(report.counts) == ['train', 'valid', 'test']
  assert report.counts['train']['kernels'] == 24
  assert report.counts['test']['without label'] == 6
  assert not check.check_data(str(root / 'test_labelled')).faults


def test_labels_may_be_withheld_in_a_plain_folder(root):
  hidden = sorted((root / 'test').iterdir())
  labelled = sorted((root / 'test_labelled').iterdir())
  for source, target in zip(labelled[:4], hidden):
    target.write_bytes(source.read_bytes())
  # A time of 0 among others is not withheld.
  (root / 'test').rename(root / 'to_rank')
  report = check.check_data(str(root / 'to_rank'))
  assert not report.faults and report.counts['to_rank']['without label'] == 2
  write(root / 'to_rank', changed(stored(), 'config_runtime', 1, 0))
  fault, = check.check_data(str(root / 'to_rank')).faults
  assert 'row 1 is 0; times in ns must be positive' in fault.message


def test_a_kernel_in_two_splits_and_missing_splits(root, tmp_path):
  leaked = sorted((root / 'train').iterdir())[3]
  (root / 'valid' / leaked.name).write_bytes(leaked.read_bytes())
  fault, = check.check_data(str(root)).faults
  assert fault.file == str(root / 'valid' / leaked.name)
  assert fault.message == (
      f'{leaked} has the same name; kernels belong to one split each')
  twin = root / 'valid' / 'other_net_1.npz'
  (root / 'valid' / leaked.name).rename(twin)
  fault, = check.check_data(str(root)).faults
  assert (fault.file, fault.message) == (str(twin), (
      f'{leaked} has the same nodes and configurations under another name; '
      'kernels belong to one split each'))
  twin.unlink()
  kernel = Kernel.load(str(leaked))  # Of the same sizes, but another kernel.
  dataclasses.replace(kernel, tile_id='other_net_1', node_feat=(
      kernel.node_feat + 1)).save(str(root / 'valid'))
  assert not [fault for fault in check.check_data(str(root)).faults
              if 'under another name' in fault.message]
  twin.unlink()
  (root / 'valid').rename(root / 'validation')
  fault, = check.check_data(str(root)).faults
  assert fault.message == 'the split folder valid is missing'
  kernel = next((root / 'train').glob('*.npz'))
  for place in tmp_path, kernel:  # One file has no folders either.
    with pytest.raises(UserError, match=r'is no folder with \.npz files or'):
      check.check_data(str(place))


def test_a_program_in_three_splits(tmp_path):
  for split in schema.SPLITS:
    write(tmp_path / split, program(), 'unet')
  faults = check.check_data(str(tmp_path), rules.LAYOUT).faults
  assert [fault.message for fault in faults] == 2 * [
      f'{tmp_path}/train/unet.npz has the same name; programs belong to one '
      'split each']


def test_text_and_json_of_faults(tmp_path):
  for i in range(3):
    write(tmp_path, changed(stored(), 'edge_index', (0, 0), 9), f'net_{i}')
  report = check.check_data(str(tmp_path))
  _, fault, *_, count = report.text().splitlines()
  assert fault.startswith(f'fault: {tmp_path}/net_0.npz: edge_index: row 0 is')
  assert count == 'faults: 3'
  content = json.loads(json.dumps(report.to_json()))
  assert len(content['faults']) == 3 and content['ok'] is False


def test_real_files_are_sound(shared_data):
  report = check.check_data(str(shared_data / 'real_more' / 'unlabelled'))
  assert not report.faults and report.counts['unlabelled']['without label'] == 6
  paths = list((shared_data / 'published_npz').glob('*.npz'))
  assert len(paths) > 1
  for path in paths:
    assert faults(str(path), TASKS[path.name.split('__')[0]].rules,
                  may_hide='__test__' in path.name) == []
