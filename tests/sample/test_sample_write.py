"""The sample data on disk, and the tiles of one kernel."""

import collections
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support import tiny_kernels
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample import kernels as kernels_lib
from tpu_graphs_ext.sample import tiles, write
from tpu_graphs_ext.sample.write import SampleDataSettings


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  out = tmp_path_factory.mktemp('sample') / 'data'
  settings = SampleDataSettings(str(out), kernels=7)
  return settings, write.write_sample_data(settings)


def npz_of(folder):
  return sorted(n for n in os.listdir(folder) if n.endswith('.npz'))


def kernels_of(out, split):
  folder = os.path.join(out, split)
  return [Kernel.load(os.path.join(folder, name)) for name in npz_of(folder)]


# --- The folder --------------------------------------------------------------


def test_folders_counts_and_names(written):
  settings, summary = written
  assert sorted(os.listdir(settings.out)) == [
      'sample_data.json', 'test', 'test_labelled', 'train', 'valid']
  # A seventh each for valid and test.
  counts = {split: len(npz_of(os.path.join(settings.out, split)))
            for split in ('train', 'valid', 'test', 'test_labelled')}
  assert counts == {'train': 5, 'valid': 1, 'test': 1, 'test_labelled': 1}
  assert summary.splits['train']['kernels'] == 5
  programs = {split: {k.program for k in kernels_of(settings.out, split)}
              for split in ('train', 'valid')}
  assert not programs['train'] & programs['valid']
  for kernel in kernels_of(settings.out, 'train'):
    assert len(kernel.tile_id.rsplit('_', 1)[1]) == 16
  for kernel in kernels_of(settings.out, 'test'):
    assert len(kernel.tile_id) == 32 and '_' not in kernel.tile_id


def test_test_labels_are_blanked_and_kept_aside(written):
  settings, _ = written
  hidden = kernels_of(settings.out, 'test')
  labelled = kernels_of(settings.out, 'test_labelled')
  assert [k.tile_id for k in hidden] == [k.tile_id for k in labelled]
  for blank, full in zip(hidden, labelled):
    assert not blank.runtime_ns.any()
    assert (blank.normalizer_ns == 1).all()
    assert (full.runtime_ns > 0).all()
    np.testing.assert_array_equal(blank.config_feat, full.config_feat)


def test_default_comes_first_and_is_the_normalizer(written):
  settings, _ = written
  for kernel in kernels_of(settings.out, 'train'):
    assert kernel.runtime_ns[0] == kernel.normalizer_ns[0], kernel.tile_id
    assert kernel.num_configs >= 2


def test_same_settings_are_not_written_twice(written, tmp_path):
  settings, summary = written
  before = os.stat(os.path.join(settings.out, 'train')).st_mtime_ns
  again = write.write_sample_data(settings)
  assert again.reused and again.splits == summary.splits
  assert os.stat(os.path.join(settings.out, 'train')).st_mtime_ns == before
  assert 'already there' in again.text()


def test_same_settings_give_the_same_bytes(written, tmp_path):
  settings, _ = written
  other = dataclasses.replace(settings, out=str(tmp_path / 'again'))
  write.write_sample_data(other)
  for folder in ('train', 'valid', 'test', 'test_labelled', '.'):
    names = npz_of(os.path.join(settings.out, folder))
    assert names == npz_of(os.path.join(other.out, folder))
    for name in [*names, *(['sample_data.json'] if folder == '.' else [])]:
      with open(os.path.join(settings.out, folder, name), 'rb') as file:
        first = file.read()
      with open(os.path.join(other.out, folder, name), 'rb') as file:
        assert file.read() == first, name


def test_programs_share_the_kernels_evenly(tmp_path):
  write.write_sample_data(SampleDataSettings(str(tmp_path), kernels=56))
  train = kernels_of(tmp_path, 'train')
  assert len(train) == 40
  taken = collections.Counter(kernel.program for kernel in train)
  there = {k.program for k in kernels_lib.split_kernels('v3', 'train')}
  # One of each program, before another has two.
  assert len(taken) == min(40, len(there))


def test_noise_scatters_as_repeats_do(written, tmp_path):
  settings, _ = written
  noisy = dataclasses.replace(settings, out=str(tmp_path / 'n'), noise=True)
  write.write_sample_data(noisy)
  for quiet, loud in zip(kernels_of(settings.out, 'train'),
                         kernels_of(noisy.out, 'train')):
    np.testing.assert_array_equal(quiet.config_feat, loud.config_feat)
    ratio = loud.runtime_ns / quiet.runtime_ns
    assert 0.99 < np.median(ratio) < 1.01 and len(set(ratio)) > 1


def test_unfinished_data_is_written_again(written, tmp_path):
  settings, _ = written
  out = shutil.copytree(settings.out, tmp_path / 'copy')
  again = dataclasses.replace(settings, out=str(out))
  assert write.write_sample_data(again).reused
  victim = out / 'train' / npz_of(out / 'train')[0]
  content = victim.read_bytes()
  victim.unlink()
  assert not write.write_sample_data(again).reused
  assert victim.read_bytes() == content
  assert write.write_sample_data(again).reused


def test_other_settings_replace_sample_data(written, tmp_path):
  settings, _ = written
  out = shutil.copytree(settings.out, tmp_path / 'copy')
  other = dataclasses.replace(settings, out=str(out), seed=1)
  assert not write.write_sample_data(other).reused
  assert npz_of(out / 'train') != npz_of(os.path.join(settings.out, 'train'))
  assert sorted(os.listdir(out)) == [
      'sample_data.json', 'test', 'test_labelled', 'train', 'valid']


def test_text_sets_the_real_collection_beside(written):
  _, summary = written
  text = summary.text()
  assert "Google's TPU compiler; runtimes are its estimates" in text
  assert '5,709' in text and '1,917.6' in text and '4.98' in text


def test_reference_numbers_are_the_published_ones(shared_data):
  real = json.loads((shared_data / 'tile_xla_statistics.json').read_text())
  train, mine = real['totals']['train'], write.REAL_TILE_XLA
  assert mine['kernels'] == {
      'train': train['files'], 'valid': real['totals']['valid']['kernels'],
      'test': real['totals']['test']['kernels']}
  for key in ('nodes', 'edges', 'configs'):
    assert mine[f'{key}_mean'] == round(train[key] / train['files'], 1)
  assert mine['runtime_rel_mean'] == real['runtime_over_normalizer']['mean']


# --- Refusals ----------------------------------------------------------------


def test_a_folder_with_something_else_is_left_alone(tmp_path):
  (tmp_path / 'thesis.txt').write_text('two years of work')
  with pytest.raises(UserError, match=r"holds 'thesis.txt'.*new or an empty"):
    write.write_sample_data(SampleDataSettings(str(tmp_path)))
  assert os.listdir(tmp_path) == ['thesis.txt']


def test_a_real_data_root_is_left_alone(tmp_path):
  (tmp_path / 'train').mkdir()
  with pytest.raises(UserError, match="holds 'train', which is not sample"):
    write.write_sample_data(SampleDataSettings(str(tmp_path)))


def add_file(out):
  (out / 'train' / 'notes.txt').write_text('mine')
  return 'train/notes.txt'


def change_file(out):
  path = out / 'valid' / npz_of(out / 'valid')[0]
  path.write_bytes(path.read_bytes() + b'!')
  return f'valid/{path.name}'


def link_folder(out):
  os.rename(out / 'test', out.parent / 'elsewhere')
  os.symlink(out.parent / 'elsewhere', out / 'test')
  return 'test'


def change_marker(out):
  (out / 'sample_data.json').write_text('{"settings": 1}')
  return 'sample_data.json'


def nest_marker(out):
  (out / 'sample_data.json').write_text('[' * 100_000)
  return 'sample_data.json'


@pytest.mark.parametrize('change', [
    add_file, change_file, link_folder, change_marker, nest_marker])
def test_nothing_but_sample_data_is_replaced(written, tmp_path, change):
  settings, _ = written
  out = shutil.copytree(settings.out, tmp_path / 'copy')
  name = change(out)
  before = contents(tmp_path)
  for seed in (0, 1):  # What is there, and something else.
    with pytest.raises(UserError, match=f'holds {name!r}, which is not'):
      write.write_sample_data(
          dataclasses.replace(settings, out=str(out), seed=seed))
  assert contents(tmp_path) == before


def contents(folder):
  return {path: path.read_bytes() for path in pathlib.Path(folder).rglob('*')
          if path.is_file()}


def test_what_comes_while_it_is_written_stays(tmp_path, monkeypatch):
  def fill(settings, places):
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train' / 'mine.npz').write_text('mine')
    return {}

  monkeypatch.setattr(write, '_write_splits', fill)
  with pytest.raises(UserError, match="holds 'train', which is not sample"):
    write.write_sample_data(SampleDataSettings(str(tmp_path)))
  assert contents(tmp_path) == {tmp_path / 'train' / 'mine.npz': b'mine'}


@pytest.mark.parametrize('out', ['', ' '])
def test_an_empty_name_is_no_folder(tmp_path, monkeypatch, out):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'train').mkdir()
  (tmp_path / 'train' / 'mine.npz').write_text('mine')
  with pytest.raises(UserError, match='--out is empty'):
    SampleDataSettings(out)
  with pytest.raises(UserError, match="holds 'train', which is not sample"):
    write.write_sample_data(SampleDataSettings('.'))
  assert contents(tmp_path) == {tmp_path / 'train' / 'mine.npz': b'mine'}


KILLED = '''
import sys
from tpu_graphs_ext.sample import write
def fill(settings, places):
  print('there', flush=True)
  import time
  time.sleep(60)
write._write_splits = fill
write.write_sample_data(write.SampleDataSettings(sys.argv[1]))
'''


def test_what_a_killed_run_left_goes(tmp_path, monkeypatch):
  monkeypatch.setattr(write, '_write_splits', lambda settings, places: {})
  out = tmp_path / 'out'
  process = subprocess.Popen([sys.executable, '-c', KILLED, str(out)],
                             stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'there\n'
  process.send_signal(signal.SIGKILL)
  process.wait()
  left = os.listdir(out)
  assert len(left) == 4
  for name in left:
    os.utime(out / name, (time.time() - 48 * 3600,) * 2)
  write.write_sample_data(SampleDataSettings(str(out)))
  assert sorted(os.listdir(out)) == [
      'sample_data.json', 'test', 'test_labelled', 'train', 'valid']


def test_a_file_is_no_folder(tmp_path):
  path = tmp_path / 'data'
  path.write_text('')
  with pytest.raises(UserError, match='is a file; give a folder'):
    write.write_sample_data(SampleDataSettings(str(path)))


@pytest.mark.parametrize('field, value, message', [
    ('kernels', 6, 'kernels is 6; it must be at least 7'),
    ('seed', -1, 'seed is -1; it must not be negative'),
    ('tpu', 'v9', "tpu is 'v9'; choose from v3, v5e"),
])
def test_settings_are_checked(field, value, message):
  with pytest.raises(UserError, match=message):
    SampleDataSettings('out', **{field: value})


# --- Tiles of one kernel -----------------------------------------------------


def compiled(count, default=1):
  """A copy of rank 1 with tiles 1, 2, ... of 1000, 1001, ... cycles."""
  kernel = tiny_kernels.make_kernel('copy_0', num_nodes=2, edges=((1, 0),))
  return kernels_lib.CompiledKernel(
      'copy', kernel.node_feat, kernel.node_opcode, kernel.edge_index,
      np.arange(1, count + 1)[:, None], np.zeros((count, 0), np.int64),
      np.arange(1000, 1000 + count), default)


def test_cycles_become_nanoseconds_and_the_default_comes_first():
  kernel = tiles.sample_kernel(compiled(5), 'k', 0.5, False, 0)
  first = schema.CONFIG_GROUPS['output_bounds'].start
  bounds = kernel.config_feat[:, first]
  assert bounds[0] == 2 and set(bounds) == {1, 2, 3, 4, 5}
  # Tile n has 999 + n cycles, of 2 ns each.
  np.testing.assert_array_equal(kernel.runtime_ns, 2 * (999 + bounds))
  assert (kernel.normalizer_ns == 2002).all()


def copies(kernel) -> list[int]:
  """How often each of the tiles that a kernel repeats is in it."""
  _, counts = np.unique(kernel.config_feat, axis=0, return_counts=True)
  repeated = counts[counts > 1].tolist()
  of_default = (kernel.config_feat == kernel.config_feat[0]).all(1).sum()
  assert repeated in ([], [of_default])
  return repeated


def test_small_kernels_have_their_default_once_or_twice():
  found = [copies(tiles.sample_kernel(compiled(50), 'k', 1.0, False, seed))
           for seed in range(20)]
  assert 1 <= found.count([2]) <= 12  # 6 on average.
  assert found.count([]) == 20 - found.count([2])


def test_kernels_of_many_tiles_repeat_their_default_here_and_there():
  for seed in range(4):
    sampled = tiles.sample_kernel(compiled(700), 'k', 1.0, False, seed)
    number, = copies(sampled)
    assert 6 <= number <= 10
    assert sampled.num_configs == 700 + number - 1
    default = sampled.config_feat[0]
    again = np.flatnonzero((sampled.config_feat == default).all(1))
    assert again[1:].max() - again[1:].min() > 100


# --- What the package brings -------------------------------------------------


def test_kernels_come_back_as_they_were_packed(tmp_path):
  tiny = tiny_kernels.make_kernel('dot_0', num_nodes=3,
                                  edges=((1, 0), (2, 1)))
  given = [compiled(4), kernels_lib.CompiledKernel(
      'dot', tiny.node_feat, tiny.node_opcode, tiny.edge_index,
      np.array([[32, 4], [16, 300]]), np.array([[48, 4], [1, 300]]),
      np.array([70_000, 3_000_000_000]), 0)]
  path = str(tmp_path / 'v3_train.xz')
  kernels_lib.save(path, given, 'v3', 'a compiler')
  found = kernels_lib.load(path)
  assert [k.program for k in found] == ['copy', 'dot']
  for one, other in zip(given, found):
    assert one.default == other.default
    assert one.graph_hash() == other.graph_hash()
    for name in ('output_bounds', 'kernel_bounds', 'cycles'):
      np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_damaged_file_of_the_package_is_named(tmp_path):
  path = tmp_path / 'v3_train.xz'
  with pytest.raises(UserError, match=r'v3_train\.xz: cannot be read'):
    kernels_lib.load(str(path))
  content = bytearray(
      pathlib.Path(kernels_lib.path_of('v3', 'test', 0)).read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(UserError, match='install the package again'):
    kernels_lib.load(str(path))


@pytest.mark.parametrize('tpu', kernels_lib.CLOCK_GHZ)
def test_no_kernel_is_in_two_splits(tpu):
  found = {split: kernels_lib.split_kernels(tpu, split)
           for split in kernels_lib.SPLITS}
  graphs = [k.graph_hash() for kernels in found.values() for k in kernels]
  assert len(graphs) == len(set(graphs))
  programs = [{k.program for k in kernels} for kernels in found.values()]
  assert sum(map(len, programs)) == len(set.union(*programs))
  for kernel in found['test']:
    assert kernel.cycles.min() > 0
    assert 0 <= kernel.default < len(kernel.cycles)
    # The compiler takes one of the best by its own estimate.
    assert kernel.cycles[kernel.default] <= 2 * kernel.cycles.min()
