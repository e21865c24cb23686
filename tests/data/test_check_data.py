"""Every rule of the data check, each broken on its own."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from support import tiny_kernels
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.data.kernel import STORED_NAMES
from tpu_graphs_ext.errors import UserError


def stored_arrays(kernel=None) -> dict:
  """A sound file's arrays under their stored names."""
  kernel = kernel or tiny_kernels.diamond()
  return {key: getattr(kernel, name) for name, key in STORED_NAMES.items()}


def write(folder, arrays, name='net_1') -> str:
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{name}.npz'
  np.savez(path, **arrays)
  return str(path)


def changed(key, place, value) -> dict:
  """A sound file's arrays with one value replaced."""
  arrays = stored_arrays()
  arrays[key] = arrays[key].copy()
  arrays[key][place] = value
  return arrays


def texts(faults) -> list:
  return [f'{fault.field}: {fault.message}' for fault in faults]


# ------------------------------------------------------------------ one file


def test_sound_file_has_no_fault(tmp_path):
  path = write(tmp_path, stored_arrays())
  assert check.check_kernel_file(path) == []


def test_missing_key(tmp_path):
  arrays = stored_arrays()
  del arrays['edge_index']
  fault, = check.check_kernel_file(write(tmp_path, arrays))
  assert fault.field == 'edge_index'
  assert fault.message.startswith('is missing; the file has config_feat, ')
  assert str(fault).startswith(f'{tmp_path}/net_1.npz: edge_index: is missing')


@pytest.mark.parametrize('key', list(STORED_NAMES.values()))
def test_wrong_dtype(tmp_path, key):
  arrays = stored_arrays()
  stored = arrays[key].dtype
  arrays[key] = arrays[key].astype(np.float64)
  assert texts(check.check_kernel_file(write(tmp_path, arrays))) == [
      f'{key}: has dtype float64; it must be {stored}']


@pytest.mark.parametrize('key, array, expected', [
    ('node_feat', np.zeros((4, 139), np.float32),
     'has shape (4, 139); it must be (nodes, 140)'),
    ('node_opcode', np.ones((4, 1), np.uint8),
     'has shape (4, 1); it must be (nodes,)'),
    ('edge_index', np.zeros((2, 4), np.int64),
     'has shape (2, 4); it must be (edges, 2)'),
    ('config_feat', np.zeros((5, 3, 24), np.float32),
     'has shape (5, 3, 24); it must be (configs, 24)'),
    ('config_runtime', np.array(5), 'has shape (); it must be (configs,)'),
])
def test_wrong_shape(tmp_path, key, array, expected):
  arrays = {**stored_arrays(), key: array}
  assert f'{key}: {expected}' in texts(
      check.check_kernel_file(write(tmp_path, arrays)))


@pytest.mark.parametrize('key, expected', [
    ('node_opcode', 'has 3 rows, but node_feat has 4; both must equal the '
     'number of nodes'),
    ('config_runtime', 'has 4 rows, but config_feat has 5; both must equal '
     'the number of configs'),
    ('config_runtime_normalizers', 'has 4 rows, but config_feat has 5; both '
     'must equal the number of configs'),
])
def test_counts_that_disagree(tmp_path, key, expected):
  arrays = stored_arrays()
  arrays[key] = arrays[key][1:]
  assert texts(check.check_kernel_file(write(tmp_path, arrays))) == [
      f'{key}: {expected}']


@pytest.mark.parametrize('key, place, value, expected', [
    ('edge_index', (3, 0), 4, 'row 3 is [4, 2]; both nodes must be in 0 to 3 '
     '(1 of 4 rows break this)'),
    ('edge_index', (0, 1), -1, 'row 0 is [1, -1]; both nodes must be in 0 to '
     '3 (1 of 4 rows break this)'),
    ('edge_index', 1, (0, 2), 'row 1 is [0, 2]; rows are (consumer, producer),'
     ' and a producer comes before its consumer (1 of 4 rows break this)'),
    ('edge_index', 1, (2, 2), 'row 1 is [2, 2]; rows are (consumer, producer),'
     ' and a producer comes before its consumer (1 of 4 rows break this)'),
    ('node_opcode', slice(2, 4), schema.NUM_OPCODES,
     f'row 2 is {schema.NUM_OPCODES}; it is not in the table of opcodes (1 to '
     f'{schema.NUM_OPCODES - 1}) (2 of 4 rows break this)'),
    ('node_opcode', 1, 0, 'row 1 is 0; it is not in the table of opcodes (1 '
     f'to {schema.NUM_OPCODES - 1}) (1 of 4 rows break this)'),
    ('node_feat', (1, 7), np.nan,
     'row 1 column 7 is nan; values must be finite (1 are not)'),
    ('config_feat', (4, 2), -np.inf,
     'row 4 column 2 is -inf; values must be finite (1 are not)'),
    ('config_runtime', slice(1, 3), 0,
     'row 1 is 0; times in ns must be positive (2 of 5 rows break this)'),
    ('config_runtime_normalizers', 4, -1,
     'row 4 is -1; times in ns must be positive (1 of 5 rows break this)'),
])
def test_value_that_breaks_a_rule(tmp_path, key, place, value, expected):
  path = write(tmp_path, changed(key, place, value))
  assert texts(check.check_kernel_file(path)) == [f'{key}: {expected}']


def test_one_config_none_and_no_node(tmp_path):
  arrays = stored_arrays(tiny_kernels.one_config())
  assert texts(check.check_kernel_file(write(tmp_path, arrays))) == [
      'config_feat: has 1 configurations; it takes 2 or more to rank']
  arrays = stored_arrays(tiny_kernels.one_node())
  for key in ('config_feat', 'config_runtime', 'config_runtime_normalizers',
              'node_feat', 'node_opcode'):
    arrays[key] = arrays[key][:0]
  assert texts(check.check_kernel_file(write(tmp_path, arrays))) == [
      'node_feat: has no rows; a kernel has at least one node',
      'config_feat: has no rows; a kernel has at least one configuration']


def test_all_faults_of_a_file_at_once(tmp_path):
  arrays = changed('edge_index', (0, 0), 9)
  arrays['node_opcode'] = arrays['node_opcode'].astype(np.int32)
  arrays['node_opcode'][0] = 255
  arrays['config_runtime'] = arrays['config_runtime'][:2] * 0
  del arrays['config_runtime_normalizers']
  fields = [fault.field
            for fault in check.check_kernel_file(write(tmp_path, arrays))]
  assert sorted(fields) == [
      'config_runtime', 'config_runtime',  # Too short, and not positive.
      'config_runtime_normalizers', 'edge_index',
      'node_opcode', 'node_opcode']  # Wrong dtype, and unknown.


def test_file_cut_short(tmp_path):
  path = write(tmp_path, stored_arrays())
  with open(path, 'r+b') as file:
    file.truncate(700)
  fault, = check.check_kernel_file(path)
  assert fault.field == ''
  assert 'cannot be read as .npz' in fault.message


def test_damaged_array_does_not_hide_the_others(tmp_path):
  arrays = changed('edge_index', (0, 0), 9)
  path = write(tmp_path, arrays)
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo('node_opcode.npy').header_offset
  with open(path, 'r+b') as file:
    file.seek(offset + 170)  # Past the archive's and the array's header.
    file.write(b'\xff\xff')
  faults = check.check_kernel_file(path)
  assert [fault.field for fault in faults] == ['node_opcode', 'edge_index']
  assert 'cannot be read (Bad CRC-32' in faults[0].message


def test_pickled_array_and_pickled_file(tmp_path):
  arrays = {**stored_arrays(), 'edge_index': np.array([{}], object)}
  fault, = check.check_kernel_file(write(tmp_path, arrays))
  assert fault.field == 'edge_index'
  assert 'holds object, not numbers' in fault.message
  path = tmp_path / 'pickle.npz'
  with open(path, 'wb') as file:
    np.save(file, np.array([{}], object))
  fault, = check.check_kernel_file(str(path))
  assert 'cannot be read as .npz' in fault.message


def test_withheld_label(tmp_path):
  arrays = stored_arrays()
  arrays['config_runtime'] = np.zeros(5, np.int64)
  arrays['config_runtime_normalizers'] = np.ones(5, np.int64)
  path = write(tmp_path, arrays)
  assert check.check_kernel_file(path, labelled=False) == []
  fault, = check.check_kernel_file(path)
  assert fault.field == 'config_runtime'
  arrays['config_runtime_normalizers'][2] = 5
  fault, = check.check_kernel_file(write(tmp_path, arrays), labelled=False)
  assert fault.message == ('is not all 0 with normalizers of 1, as a withheld '
                           'label is')


# ---------------------------------------------------------------- many files


def hide(folder):
  """Blanks the labels of a folder's files."""
  for path in folder.glob('*.npz'):
    arrays = dict(np.load(path))
    arrays['config_runtime'][:] = 0
    arrays['config_runtime_normalizers'][:] = 1
    np.savez(path, **arrays)


def test_sound_data_root(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
  report = check.check_data(str(root) + '/')
  assert report.ok and not report.notes
  assert list(report.counts) == ['train', 'valid', 'test']
  assert report.counts['train']['kernels'] == 24
  assert report.counts['test']['without label'] == 6
  assert report.text().endswith('\nno faults')
  assert check.check_data(str(root / 'test_labelled')).ok


def test_counts_and_quantiles_by_hand(tmp_path):
  for i, configs in enumerate((2, 4, 10)):
    tiny_kernels.make_kernel(f'net_{i}', num_configs=configs).save(
        str(tmp_path))
  report = check.check_data(str(tmp_path))
  counts, = report.counts.values()
  assert counts == {'kernels': 3, 'nodes': 9, 'edges': 6, 'configs': 16,
                    'without label': 0}
  quantiles, = report.quantiles.values()
  assert quantiles['nodes'] == [3] * 7
  # Of 2, 4, 10: 5 % lies a tenth of the way from 2 to 4, 25 % half of it;
  # 75 % half of the way from 4 to 10, 95 % nine tenths.
  np.testing.assert_allclose(quantiles['configs'],
                             [2, 2.2, 3, 4, 7, 9.4, 10])


def test_labels_may_be_withheld_in_test_only(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
  hide(root / 'valid')
  report = check.check_data(str(root))
  assert len(report.faults) == 12
  assert {fault.field for fault in report.faults} == {'config_runtime'}


def test_labelled_test_split_is_fine_and_a_mixed_one_is_not(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
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


def test_plain_folder_without_labels_is_a_note(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
  folder = root / 'to_rank'
  (root / 'test').rename(folder)
  report = check.check_data(str(folder))
  assert report.ok
  assert report.notes == [
      f'{folder}: none of the 6 kernels has labels, as all their runtimes are '
      '0; they can be ranked, but not be trained or evaluated on']
  assert report.counts['to_rank']['without label'] == 6
  first = sorted((root / 'test_labelled').iterdir())[0]
  (folder / first.name).write_bytes(first.read_bytes())
  report = check.check_data(str(folder))
  note, = report.notes
  assert report.ok and '5 of 6 kernels have no labels (' in note
  assert first.name not in note
  # A time of 0 among others is no label that is withheld.
  write(folder, changed('config_runtime', 1, 0))
  fault, = check.check_data(str(folder)).faults
  assert 'row 1 is 0; times in ns must be positive' in fault.message


def layout_arrays() -> dict:
  """What a layout graph's file has: 4 nodes, 1 to lay out, 2 configurations."""
  arrays = stored_arrays()
  del arrays['config_feat'], arrays['config_runtime_normalizers']
  return {**arrays, 'config_runtime': arrays['config_runtime'][:2],
          'node_config_feat': np.zeros((2, 1, 18), np.float32),
          'node_config_ids': np.array([1]), 'node_splits': np.array([[0, 4]])}


def test_layout_files_are_called_so(tmp_path):
  path = write(tmp_path, layout_arrays(), 'unet')
  fault, = check.check_kernel_file(path)
  assert str(fault) == (
      f'{path}: is a file of the layout collection, not of the tile collection '
      'that this checks; move it to a folder of its own')
  write(tmp_path, layout_arrays(), 'bert')
  fault, = check.check_data(str(tmp_path)).faults
  assert str(fault).startswith(
      f'{tmp_path}: all 2 files are of the layout collection')
  # Among tile files each is named, and none counts as a kernel.
  write(tmp_path, stored_arrays())
  report = check.check_data(str(tmp_path))
  assert [fault.file for fault in report.faults] == [
      f'{tmp_path}/bert.npz', f'{tmp_path}/unet.npz']
  counts, = report.counts.values()
  assert counts['kernels'] == 1


def test_a_tile_file_that_lacks_an_array_is_no_layout_file(tmp_path):
  arrays = stored_arrays()
  del arrays['config_feat']
  fault, = check.check_kernel_file(write(tmp_path, arrays))
  assert fault.field == 'config_feat' and 'is missing' in fault.message


def test_real_kernels_without_labels(shared_data):
  report = check.check_data(str(shared_data / 'real_more' / 'unlabelled'))
  assert report.ok
  assert 'none of the 6 kernels has labels' in report.text()


def test_tile_id_in_two_splits(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
  leaked = sorted((root / 'train').iterdir())[3]
  (root / 'valid' / leaked.name).write_bytes(leaked.read_bytes())
  fault, = check.check_data(str(root)).faults
  assert fault.file == str(root / 'valid' / leaked.name)
  assert fault.message == (f'the tile id is also that of {leaked}; each kernel '
                           'belongs to one split')


def test_missing_and_empty_split(tmp_path):
  root = tiny_kernels.write_data_root(tmp_path / 'root')
  (root / 'valid').rename(root / 'validation')
  for path in (root / 'test').iterdir():
    path.unlink()
  assert [fault.message for fault in check.check_data(str(root)).faults] == [
      'the split folder valid is missing', 'has no .npz files']


def test_kernel_that_cannot_be_ranked_is_a_note(tmp_path):
  tiny_kernels.identical_configs().save(str(tmp_path))
  report = check.check_data(str(tmp_path))
  assert report.ok
  assert report.notes == [
      f'{tmp_path}/identical_configs_0.npz: all configurations have the same '
      'features, so they cannot be ranked']


def test_no_data_at_all(tmp_path):
  with pytest.raises(UserError, match='neither the folders train, valid, test '
                     r'nor \.npz files'):
    check.check_data(str(tmp_path))


def test_text_and_json_of_faults(tmp_path, monkeypatch):
  for i in range(3):
    write(tmp_path, changed('edge_index', (0, 0), 9), f'net_{i}')
  report = check.check_data(str(tmp_path))
  assert not report.ok
  assert report.text().endswith('\n3 faults in 3 files')
  assert f'fault: {tmp_path}/net_0.npz: edge_index: row 0 is' in report.text()
  monkeypatch.setattr(check, 'MAX_LINES', 1)
  assert '... and 2 more; --json has all\n' in report.text()
  stored = json.loads(json.dumps(report.to_json()))
  assert len(stored['faults']) == 3
  assert stored['faults'][0]['field'] == 'edge_index'
  assert stored['ok'] is False


def test_published_kernels_are_sound(shared_data):
  paths = list((shared_data / 'published_npz').glob('tile*.npz'))
  assert paths
  for path in paths:
    faults = check.check_kernel_file(
        str(path), labelled='__test__' not in path.name)
    assert [str(fault) for fault in faults] == []
