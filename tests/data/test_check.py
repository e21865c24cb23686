"""Every rule of the data check, each broken on its own."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from support import tiny_kernels, tiny_layouts
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES, Kernel
from tpu_graphs_ext.errors import UserError


def stored(kernel=None) -> dict:
  """A sound file's arrays under their stored names."""
  kernel = kernel or tiny_kernels.diamond()
  return {key: getattr(kernel, name).copy()
          for name, key in STORED_NAMES.items()}


def program() -> dict:
  """The same for the layout task: 20 nodes, 4 of them configurable."""
  return tiny_layouts.program('a', 20, 4, 5)


def write(folder, arrays, name='net_1') -> str:
  folder.mkdir(parents=True, exist_ok=True)
  np.savez(folder / f'{name}.npz', **arrays)
  return str(folder / f'{name}.npz')


def faults(path, task='tile', **kwargs) -> list[str]:
  return [f'{fault.field}: {fault.message}'
          for fault in check.check_file(path, task, **kwargs).faults]


def changed(arrays, key, place, value) -> dict:
  arrays[key][place] = value
  return arrays


# ------------------------------------------------------------------ one file


def test_sound_files_have_no_fault(tmp_path):
  assert faults(write(tmp_path, stored())) == []
  assert faults(write(tmp_path, program()), task='layout') == []


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
    ('node_opcode', np.ones((4, 1), np.uint8),
     'has shape (4, 1); it must be (nodes,)'),
    ('config_runtime', np.array(5), 'has shape (); it must be (configs,)'),
    ('config_runtime_normalizers', np.ones(4, np.int64),
     'has 4 configs (axis 0), but config_feat has 5; both must be equal'),
]


def test_wrong_shapes_and_counts(tmp_path):
  for key, array, expected in SHAPES:
    assert f'{key}: {expected}' in faults(
        write(tmp_path, {**stored(), key: array}))


VALUES = [
    ('edge_index', (3, 0), 4, 'row 3 is [4, 2]; both nodes must be in 0 to 3 '
     '(1 of 4 rows break this)'),
    ('edge_index', 1, (2, 2), 'row 1 is [2, 2]; rows are (consumer, producer),'
     ' and a producer comes before its consumer (1 of 4 rows break this)'),
    ('node_opcode', slice(2, 4), schema.NUM_OPCODES,
     f'row 2 is {schema.NUM_OPCODES}; it is not in the table of opcodes (1 to '
     f'{schema.NUM_OPCODES - 1}) (2 of 4 rows break this)'),
    ('node_feat', (1, 7), np.nan,
     'row 1 column 7 is nan; values must be finite (1 are not)'),
    ('config_runtime', slice(1, 3), 0,
     'row 1 is 0; times in ns must be positive (2 of 5 rows break this)'),
    ('config_runtime_normalizers', 4, -1,
     'row 4 is -1; times in ns must be positive (1 of 5 rows break this)'),
]


def test_values_that_break_a_rule(tmp_path):
  for key, place, value, expected in VALUES:
    path = write(tmp_path, changed(stored(), key, place, value))
    assert faults(path) == [f'{key}: {expected}']


PROGRAMS = [
    ('node_config_ids', lambda x: changed({'': x}, '', 2, 20)[''],
     'node_config_ids: row 2 is 20; a node must be in 0 to 19 (1 of 4 rows'),
    ('node_config_ids', lambda x: changed({'': x}, '', 3, x[0])[''],
     'an earlier row is the same node (1 of 4 rows'),
    ('node_config_ids', lambda x: x[:3],
     'node_config_ids: has 3 configurable nodes (axis 0), but '
     'node_config_feat has 4; both must be equal'),
    ('config_runtime', lambda x: 0 * x, 'config_runtime: row 0 is 0; times in '
     'ns must be positive (5 of 5 rows'),
    ('node_config_feat', lambda x: changed(
        {'': x}, '', (1, 2, slice(6, 9)), [1, 0, 1])[''],
     'configuration 1 gives configurable node 2 the input_layout '
     '[1.0, 0.0, 1.0, -1.0, -1.0, -1.0]; a layout lists different dimensions '
     'of 0 to 5, and then -1 to its end (1 do not)'),
    ('node_config_feat', lambda x: changed({'': x}, '', (0, 0, 0), 6)[''],
     'output_layout'),
    ('node_config_feat', lambda x: changed({'': x}, '', (0, 0, 0), np.nan)[''],
     'output_layout'),
    ('node_config_feat', lambda x: changed({'': x}, '', (0, 0, 12), -1)[''],
     'kernel_layout'),
    ('node_config_feat', lambda x: x[:1], 'has 1 configuration; it takes 2'),
    ('node_config_feat', lambda x: x[:, :0], 'has no configurable node'),
    ('node_splits', lambda x: changed({'': x}, '', (0, 1), 19)[''],
     'node_splits: is [0, 19]; node numbers must rise from 0 to the number of '
     'nodes, 20'),
]


def test_programs_that_break_a_rule(tmp_path):
  for key, change, expected in PROGRAMS:
    arrays = program()
    arrays[key] = change(arrays[key])
    found = faults(write(tmp_path, arrays), task='layout')
    assert any(expected in fault for fault in found), found


def test_one_config_none_and_no_node(tmp_path):
  assert faults(write(tmp_path, stored(tiny_kernels.one_config()))) == [
      'config_feat: has 1 configuration; it takes 2 or more to rank']
  arrays = stored(tiny_kernels.one_node())
  for key in arrays.keys() - {'edge_index'}:
    arrays[key] = arrays[key][:0]
  assert faults(write(tmp_path, arrays)) == [
      'node_feat: has no rows; a kernel has at least one node',
      'config_feat: has no rows; a kernel has at least one configuration']


def test_all_faults_of_a_file_at_once(tmp_path):
  arrays = changed(stored(), 'edge_index', (0, 0), 9)
  arrays['node_opcode'] = arrays['node_opcode'].astype(np.int32)
  arrays['node_opcode'][0] = 255
  arrays['config_runtime'] = arrays['config_runtime'][:2] * 0
  del arrays['config_runtime_normalizers']
  fields = [fault.field
            for fault in check.check_file(write(tmp_path, arrays)).faults]
  assert sorted(fields) == [
      'config_runtime', 'config_runtime',  # Too short, and not positive.
      'config_runtime_normalizers', 'edge_index',
      'node_opcode', 'node_opcode']  # Wrong dtype, and unknown.


def test_damaged_and_pickled_files(tmp_path):
  path = write(tmp_path, changed(stored(), 'edge_index', (0, 0), 9))
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo('node_opcode.npy').header_offset
  with open(path, 'r+b') as file:
    file.seek(offset + 170)  # Past the archive's and the array's header.
    file.write(b'\xff\xff')
  damaged, edge = faults(path)  # One does not hide the other.
  assert damaged.startswith('node_opcode: cannot be read (Bad CRC-32')
  assert edge.startswith('edge_index: row 0')
  with open(path, 'r+b') as file:
    file.truncate(700)
  assert 'cannot be read as .npz' in faults(path)[0]
  fault, = faults(write(
      tmp_path, {**stored(), 'edge_index': np.array([{}], object)}))
  assert fault.startswith('edge_index: ') and 'not numbers' in fault
  with open(tmp_path / 'pickle.npz', 'wb') as file:
    np.save(file, np.array([{}], object))
  assert 'cannot be read as .npz' in faults(str(tmp_path / 'pickle.npz'))[0]


def test_withheld_label(tmp_path):
  arrays = stored()
  arrays['config_runtime'][:], arrays['config_runtime_normalizers'][:] = 0, 1
  path = write(tmp_path, arrays)
  assert faults(path, may_hide=True) == []
  fault, = faults(path)
  assert fault.startswith('config_runtime: row 0 is 0')
  arrays['config_runtime_normalizers'][2] = 5
  assert faults(write(tmp_path, arrays), may_hide=True) == [fault]


def test_files_of_the_other_task(tmp_path):
  layout = write(tmp_path / 'mixed', program(), 'unet')
  said = 'is a file of the layout task: it has node_config_feat'
  assert said in faults(layout)[0]
  with pytest.raises(UserError, match=said):
    Kernel.load(layout)
  tile = write(tmp_path, stored())
  assert 'is a file of the tile task: it has config_feat' in faults(
      tile, task='layout')[0]
  # Among tile files each is named, and none counts as a kernel.
  write(tmp_path / 'mixed', stored())
  report = check.check_data(str(tmp_path / 'mixed'))
  assert [fault.file for fault in report.faults] == [layout]
  assert report.counts['mixed']['kernels'] == 1
  for name in ('a', 'b'):
    write(tmp_path / 'all', program(), name)
  fault, = check.check_data(str(tmp_path / 'all')).faults
  assert f'none of its 2 files belongs to the tile task; the first {said}' in (
      fault.message)


# ---------------------------------------------------------------- many files


@pytest.fixture
def root(tmp_path):
  return tiny_kernels.write_data_root(tmp_path / 'root')


def test_sound_data_root(root):
  report = check.check_data(str(root) + '/')
  assert report.ok and not report.notes
  assert list(report.counts) == ['train', 'valid', 'test']
  assert report.counts['train']['kernels'] == 24
  assert report.counts['train']['configs'] == sum(
      Kernel.load(str(path)).num_configs for path in (root / 'train').iterdir())
  assert report.counts['test']['without label'] == 6
  assert report.text().endswith('\nno faults')
  assert check.check_data(str(root / 'test_labelled')).ok


def test_labels_are_withheld_in_all_test_files_or_in_none(root):
  hidden = sorted((root / 'test').iterdir())
  labelled = sorted((root / 'test_labelled').iterdir())
  for source, target in zip(labelled[:4], hidden):
    target.write_bytes(source.read_bytes())
  faults = check.check_data(str(root)).faults
  assert [fault.file for fault in faults] == [str(path) for path in hidden[4:]]
  assert 'is withheld, but 4 other files' in faults[0].message
  for source, target in zip(labelled, hidden):
    target.write_bytes(source.read_bytes())
  assert check.check_data(str(root)).ok


def test_plain_folder_without_labels_is_a_note(root):
  folder = root / 'to_rank'
  (root / 'test').rename(folder)
  report = check.check_data(str(folder))
  assert report.ok and report.notes == [
      f'{folder}: none of the 6 kernels has labels, as all their runtimes are '
      '0; they can be ranked, but not be trained or evaluated on']
  assert report.counts['to_rank']['without label'] == 6
  first = sorted((root / 'test_labelled').iterdir())[0]
  (folder / first.name).write_bytes(first.read_bytes())
  note, = check.check_data(str(folder)).notes
  assert '5 of 6 kernels have no labels (' in note and first.name not in note
  # A time of 0 among others is not a withheld label.
  write(folder, changed(stored(), 'config_runtime', 1, 0))
  fault, = check.check_data(str(folder)).faults
  assert 'row 1 is 0; times in ns must be positive' in fault.message


def test_a_kernel_in_two_splits_and_missing_splits(root, tmp_path):
  leaked = sorted((root / 'train').iterdir())[3]
  (root / 'valid' / leaked.name).write_bytes(leaked.read_bytes())
  fault, = check.check_data(str(root)).faults
  assert fault.file == str(root / 'valid' / leaked.name)
  assert fault.message == (f'{leaked} has the same tile id; each kernel '
                           'belongs to one split')
  (root / 'valid').rename(root / 'validation')
  for path in (root / 'test').iterdir():
    path.unlink()
  assert [fault.message for fault in check.check_data(str(root)).faults] == [
      'the split folder valid is missing', 'has no .npz files']
  with pytest.raises(UserError, match='neither the folders train, valid, test '
                     r'nor \.npz files'):
    check.check_data(str(tmp_path))


def test_text_and_json_of_faults(tmp_path, monkeypatch):
  for i in range(3):
    write(tmp_path, changed(stored(), 'edge_index', (0, 0), 9), f'net_{i}')
  report = check.check_data(str(tmp_path))
  assert report.text().endswith('\n3 faults in 3 files')
  assert f'fault: {tmp_path}/net_0.npz: edge_index: row 0 is' in report.text()
  monkeypatch.setattr(check, 'MAX_LINES', 1)
  assert '... and 2 more; --json has all\n' in report.text()
  content = json.loads(json.dumps(report.to_json()))
  assert len(content['faults']) == 3 and content['ok'] is False


def test_real_files_are_sound(shared_data):
  report = check.check_data(str(shared_data / 'real_more' / 'unlabelled'))
  assert report.ok
  assert 'none of the 6 kernels has labels' in report.text()
  paths = list((shared_data / 'published_npz').glob('*.npz'))
  assert len(paths) > 1
  for path in paths:
    assert faults(str(path), path.name.split('__')[0],
                  may_hide='__test__' in path.name) == []
