"""Files of the layout task: what is refused, and that real ones are not."""

import numpy as np
import pytest

from support import tiny_kernels, tiny_layouts
from tpu_graphs_ext import cli
from tpu_graphs_ext.data import check
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError


@pytest.fixture
def arrays():
  return tiny_layouts.program('a', 20, 4, 5)


@pytest.fixture
def faults(tmp_path):
  """Faults of a file of these arrays, as 'field: message'."""
  def found(arrays, labelled=True):
    np.savez(tmp_path / 'a.npz', **arrays)
    path = str(tmp_path / 'a.npz')
    return [str(fault)[len(path) + 2:] for fault in check.check_kernel_file(
        path, labelled, 'layout')]
  return found


def test_a_sound_file(arrays, faults):
  assert faults(arrays) == []


def changed(array, place, value):
  array = array.copy()
  array[place] = value
  return array


@pytest.mark.parametrize('name, change, said', [
    ('node_config_ids', None, 'node_config_ids: is missing; the file has '
     'config_runtime, edge_index, node_config_feat'),
    ('node_config_ids', lambda x: changed(x, 2, 20),
     'node_config_ids: row 2 is 20; a node must be in 0 to 19 (1 of 4 rows'),
    ('node_config_ids', lambda x: changed(x, 3, x[0]),
     'an earlier row is the same node (1 of 4 rows'),
    ('node_config_ids', lambda x: x[:3],
     'node_config_ids: has 3 configurable nodes (axis 0), but '
     'node_config_feat has 4; both must be equal'),
    ('config_runtime', lambda x: x[:3], 'has 3 configs (axis 0), but'),
    ('config_runtime', lambda x: 0 * x, 'config_runtime: row 0 is 0; times in '
     'ns must be positive (5 of 5 rows'),
    ('node_config_feat', lambda x: changed(x, (1, 2, slice(6, 9)), [1, 0, 1]),
     'configuration 1 gives configurable node 2 the input_layout '
     '[1.0, 0.0, 1.0, -1.0, -1.0, -1.0]; a layout lists different dimensions '
     'of 0 to 5, and then -1 to its end (1 do not)'),
    ('node_config_feat', lambda x: changed(x, (0, 0, 0), 6), 'output_layout'),
    ('node_config_feat', lambda x: changed(x, (0, 0, 0), np.nan), 'output_lay'),
    ('node_config_feat', lambda x: changed(x, (0, 0, 12), -1), 'kernel_layout'),
    ('node_config_feat', lambda x: x[:1], 'has 1 configurations; it takes 2'),
    ('node_config_feat', lambda x: x[:, :0], 'has no configurable node'),
    ('node_splits', lambda x: changed(x, (0, 1), 19), 'node_splits: is [0, 19]'
     '; node numbers must rise from 0 to the number of nodes, 20'),
    ('node_feat', lambda x: changed(x, (3, 4), np.inf),
     'row 3 column 4 is inf; values must be finite'),
    ('edge_index', lambda x: changed(x, (0, 0), 20), 'must be in 0 to 19'),
])
def test_what_is_refused(arrays, faults, name, change, said):
  if change:
    arrays[name] = change(arrays[name])
  else:
    del arrays[name]
  assert any(said in fault for fault in faults(arrays)), faults(arrays)


def test_each_task_says_that_a_file_is_of_the_other(arrays, tmp_path):
  np.savez(tmp_path / 'layout.npz', **arrays)
  layout = str(tmp_path / 'layout.npz')
  with pytest.raises(UserError, match='layout task: it has node_config_feat'):
    Kernel.load(layout)
  fault, = check.check_kernel_file(layout)
  assert 'is a file of the layout collection' in str(fault)
  tile = tiny_kernels.learnable_kernel(
      'tile', np.random.default_rng(0), 4).save(str(tmp_path))
  fault, = check.check_kernel_file(tile, task='layout')
  assert 'is a file of the tile task: it has config_feat' in str(fault)


def test_test_files_may_be_without_labels_and_no_others(tmp_path, capsys):
  root = f'{tiny_layouts.write_collection(str(tmp_path))}/xla/random'
  assert cli.main(['check-data', '--task=layout', root]) == 0
  assert 'no faults' in capsys.readouterr().out
  np.savez(f'{root}/valid/valid_0.npz',
           **tiny_layouts.program('valid 0', labelled=False))
  assert cli.main(['check-data', '--task=layout', root]) == 1
  assert 'valid_0.npz: config_runtime: row 0 is 0' in capsys.readouterr().out


def test_the_published_file_has_no_fault(shared_data):
  path, = (shared_data / 'published_npz').glob('layout__*.npz')
  assert check.check_kernel_file(str(path), task='layout') == []
