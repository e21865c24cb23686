"""Files of the layout task: read, cached, and refused where they are bad."""

import os

import numpy as np
import pytest

from support import tiny_layouts
from tpu_graphs_ext.data import cache, programs, rules
from tpu_graphs_ext.errors import UserError


def write(path, **changes) -> str:
  """A file with some arrays replaced."""
  np.savez_compressed(path, **{**tiny_layouts.program('a'), **changes})
  return str(path)


def test_a_program_is_what_its_file_holds(tmp_path, caplog):
  arrays = tiny_layouts.program('a')
  path = write(tmp_path / 'a.npz')
  # Written to a temporary folder, to the cache, and opened again.
  for cache_dir in ('', str(tmp_path / 'cache'), str(tmp_path / 'cache')):
    program = programs.open_program(path, cache_dir)
    for ours, field in rules.LAYOUT.arrays.items():
      np.testing.assert_array_equal(getattr(program, ours), arrays[field.name])
    chosen = np.array([7, 0, 7])
    layouts = program.layouts(chosen)
    assert layouts.dtype == np.float32
    np.testing.assert_array_equal(layouts, arrays['node_config_feat'][chosen])
  assert program.name == 'a' and program.is_labelled
  bounds = tiny_layouts.bounds([arrays])
  for table, columns in (('node', program.bounds.node),
                         ('config', program.bounds.config)):
    np.testing.assert_array_equal(columns.minimum, bounds[table]['minimum'])
    np.testing.assert_array_equal(columns.maximum, bounds[table]['maximum'])
  entry, = (tmp_path / 'cache').iterdir()
  assert (entry / rules.LAYOUTS).stat().st_size == (
      arrays['node_config_feat'].size)
  meta = entry / cache.META_FILE
  meta.write_text(meta.read_text().replace(': [', ':[', 1))
  programs.open_program(path, str(tmp_path / 'cache'))
  assert 'meta.json does not have its checksum) and will' in caplog.text


def test_only_blocks_that_are_asked_for_are_read(tmp_path, monkeypatch):
  # Blocks of three configurations; the file is read in two parts of six.
  monkeypatch.setattr(cache, 'BLOCK_BYTES', 3 * 6 * 18)
  monkeypatch.setattr(programs, '_READ_BYTES', 4 * 6 * 6 * 18)
  path = write(tmp_path / 'a.npz')
  program = programs.open_program(path, str(tmp_path / 'cache'))
  entry, = (tmp_path / 'cache').iterdir()
  content = bytearray((entry / rules.LAYOUTS).read_bytes())
  content[4 * 6 * 18] ^= 1  # Configuration 4, in the second block.
  (entry / rules.LAYOUTS).write_bytes(content)
  program = programs.open_program(path, str(tmp_path / 'cache'))
  program.layouts(np.array([0, 2, 6, 11]))
  with pytest.raises(UserError, match='does not have its checksum'):
    program.layouts(np.array([3]))
  # The next run builds the entry anew.
  again = programs.open_program(path, str(tmp_path / 'cache'))
  np.testing.assert_array_equal(
      again.layouts(np.arange(12)),
      tiny_layouts.program('a')['node_config_feat'])


def test_a_bad_file_names_the_field_and_the_rule(tmp_path):
  layouts = tiny_layouts.program('a')['node_config_feat']
  layouts[5, 3, :2] = 2
  with pytest.raises(UserError, match=r'a\.npz: node_config_feat row 5, 3, 0 '
                     r'is \[2\.0, 2\.0.*check-data --task layout'):
    programs.open_program(write(tmp_path / 'a.npz', node_config_feat=layouts),
                          str(tmp_path / 'cache'))
  layouts = np.asfortranarray(tiny_layouts.program('a')['node_config_feat'])
  with pytest.raises(UserError, match='is stored column by column'):
    programs.open_program(write(tmp_path / 'a.npz', node_config_feat=layouts),
                          str(tmp_path / 'cache'))
  assert os.listdir(tmp_path / 'cache') == []


def test_a_file_cut_short_after_its_directory(tmp_path):
  """The sum of the layouts' bytes is wrong, which shows when they are read."""
  path = write(tmp_path / 'a.npz')
  content = bytearray((tmp_path / 'a.npz').read_bytes())
  place = content.index(b'node_config_feat.npy') + 400
  content[place:place + 20] = bytes(20)
  (tmp_path / 'a.npz').write_bytes(content)
  with pytest.raises(UserError, match=r'node_config_feat .*cannot be read|'
                     'node_config_feat configuration'):
    programs.open_program(path, str(tmp_path / 'cache'))
  assert os.listdir(tmp_path / 'cache') == []


def test_a_collection_and_what_is_left_out(tmp_path, caplog):
  root = tiny_layouts.write_collection(str(tmp_path))
  few = tiny_layouts.program('few', configs=4)
  np.savez_compressed(f'{root}/xla/random/train/few.npz', **few)
  collection = programs.read_collection(root, 'xla', 'random', min_configs=6)
  assert len(collection.train) == 4 and len(collection.valid) == 2
  assert collection.every_train.names[0] == 'few'
  assert 'left out 1 of 5 programs with fewer than 6' in caplog.text
  assert not any(program.is_labelled for program in collection.test)
  with pytest.raises(UserError, match='does not exist; a data root has the '
                     'folders xla/random/train, valid and test'):
    programs.read_collection(f'{root}/xla/random', 'xla', 'random',
                             min_configs=6)


def test_the_fastest_the_slowest_and_some_between(tmp_path):
  program = programs.open_program(write(tmp_path / 'a.npz'))
  order = program.fastest_first
  kept = program.at_most(7, np.random.default_rng(0))
  assert kept.num_configs == 7
  assert kept.rows[:2].tolist() == order[:2].tolist()
  assert kept.rows[2:4].tolist() == order[-2:].tolist()
  assert len(set(kept.rows)) == 7
  np.testing.assert_array_equal(kept.runtime_ns, program.runtime_ns[kept.rows])
  np.testing.assert_array_equal(
      kept.layouts(np.array([6, 1])), program.layouts(kept.rows[[6, 1]]))
  assert program.at_most(-1, None) is program
  assert program.at_most(12, None) is program
