"""The sample data on disk, and the tiles of one kernel."""

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
import tensorflow as tf

from tpu_graphs_ext.analytic import tpu
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import compile as hlo_compile
from tpu_graphs_ext.hlo import cutting
from tpu_graphs_ext.sample import folder as folder_lib
from tpu_graphs_ext.sample import programs as programs_lib
from tpu_graphs_ext.sample import tiles, write
from tpu_graphs_ext.sample.write import SampleDataSettings

QUIET = dataclasses.replace(
    tpu.TPU_V3_LIKE, repeat_noise=0.0, outlier_chance=0.0,
    machine_spread=0.0)


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  out = tmp_path_factory.mktemp('sample') / 'data'
  # The programs of this seed take a third of the time of those of seed 0.
  settings = SampleDataSettings(str(out), kernels=7, workers=1, seed=11)
  return settings, write.write_sample_data(settings)


def npz_of(folder):
  return sorted(n for n in os.listdir(folder) if n.endswith('.npz'))


def kernels_of(out, split):
  folder = os.path.join(out, split)
  return [Kernel.load(os.path.join(folder, name)) for name in npz_of(folder)]


def product_module():
  """relu(x w + b): f32 [256, 384] x [384, 512]."""
  specs = [tf.TensorSpec(s, tf.float32)
           for s in ((256, 384), (384, 512), (512,))]
  module = hlo_compile.function_module(
      lambda x, w, b: tf.nn.relu(tf.matmul(x, w) + b), *specs)
  kernel = cutting.cut_kernels(
      module, cutting.CutLimits(copies=0), 0)[0]
  for computation in kernel.computations:
    for node in computation.instructions:
      rank = len(node.shape.dimensions)
      node.shape.layout.minor_to_major[:] = range(rank - 1, -1, -1)
  return kernel


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


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(written, tmp_path):
  settings, _ = written
  other = dataclasses.replace(settings, out=str(tmp_path / 'two'), workers=2)
  write.write_sample_data(other)
  for folder in ('train', 'valid', 'test_labelled'):
    names = npz_of(os.path.join(settings.out, folder))
    assert names == npz_of(os.path.join(other.out, folder))
    for name in names:
      with open(os.path.join(settings.out, folder, name), 'rb') as file:
        first = file.read()
      with open(os.path.join(other.out, folder, name), 'rb') as file:
        assert file.read() == first, name


def test_a_kernel_of_two_programs_is_written_once(tmp_path, monkeypatch):
  sizes = {'batch': 64, 'width': 256, 'depth': 2}
  one, two = (programs_lib.Program('deep_cross', tuple(sizes.items()), d, '')
              for d in ('f32', 'bf16'))
  # The first program comes twice: all of its kernels are doubles then, and
  # their names, which carry no program in the test split, are the same.
  monkeypatch.setattr(programs_lib, 'programs',
                      lambda split, seed: iter([one, one, two]))
  settings = SampleDataSettings(str(tmp_path), kernels=35, workers=1)
  folder = tmp_path / 'test_labelled'
  folder.mkdir()
  with folder_lib.pool(1) as pool:
    facts = write._write_kernels(settings, 'test', 5, str(folder), pool)
  assert len({fact['graph'] for fact in facts}) == 5
  assert sorted(os.path.basename(f['path']) for f in facts) == npz_of(folder)


def test_too_few_kernels_are_refused(tmp_path, monkeypatch):
  sizes = (('batch', 64), ('width', 256), ('depth', 2))
  monkeypatch.setattr(programs_lib, 'programs', lambda split, seed: iter(
      [programs_lib.Program('deep_cross', sizes, 'f32', '')]))
  settings = SampleDataSettings(str(tmp_path / 'out'), kernels=70, workers=1)
  with pytest.raises(UserError, match=r'train split has only \d+ distinct'):
    write.write_sample_data(settings)
  assert not (tmp_path / 'out' / 'train').exists()


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
  assert 'synthetic' in text
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
  assert mine['runtime_rel_std'] == real['runtime_over_normalizer']['std']
  held_out = real['quantiles_0_5_25_50_75_95_100_over_1261_held_out_kernels']
  assert mine['nodes_quantiles'] == held_out['nodes']
  assert mine['kernel_mean_quantiles'] == held_out[
      'mean_over_configs_of_runtime_over_normalizer']


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
    os.utime(out / name, (time.time() - 3600,) * 2)
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
    ('workers', 0, 'workers is 0; it must be at least 1'),
])
def test_settings_are_checked(field, value, message):
  with pytest.raises(UserError, match=message):
    SampleDataSettings('out', **{field: value})


def test_full_size_is_the_real_one():
  settings = SampleDataSettings('out', full_size=True)
  assert settings.split_sizes() == {'train': 5709, 'valid': 676, 'test': 844}
  assert settings.max_configs == 10_000


# --- Tiles of one kernel -----------------------------------------------------


def test_filter_follows_the_output_features():
  kernel = tiles.sample_kernel(
      product_module(), 'k_0', 1.0, 500, QUIET, 3)
  filters = kernel.config_feat[:, schema.CONFIG_GROUPS['kernel_bounds']]
  outputs = kernel.config_feat[:, schema.CONFIG_GROUPS['output_bounds']]
  # Layouts are {1,0}: [256/8, 512/128] = [32, 4], filter [384/8, 512/128].
  np.testing.assert_array_equal(filters[:, 1], outputs[:, 1])
  assert outputs[:, 0].max() == 32 and filters[:, 0].max() == 48
  # Summands are lanes of x, so that they are cut in multiples of 16 x 8.
  assert set(outputs[:, 0]) == {32, 16, *range(1, 9), 11}
  assert set(filters[:, 0]) == {16, 32, 48}
  # 11 x 3 (columns: 4, 2, 1) x 3, and all fit; the default may come twice.
  assert len(kernel.config_feat) == 99
  assert len(np.unique(kernel.config_feat, axis=0)) >= 98


def copies(kernel) -> list[int]:
  """How often each of the tiles that a kernel repeats is in it."""
  _, counts = np.unique(kernel.config_feat, axis=0, return_counts=True)
  repeated = counts[counts > 1].tolist()
  of_default = (kernel.config_feat == kernel.config_feat[0]).all(1).sum()
  assert repeated in ([], [of_default])
  return repeated


def test_small_kernels_have_their_default_once_or_twice():
  found = [copies(tiles.sample_kernel(
      product_module(), 'k', 1.0, 500, QUIET, seed)) for seed in range(20)]
  assert 1 <= found.count([2]) <= 12  # 6 on average.
  assert found.count([]) == 20 - found.count([2])


def test_kernels_of_many_tiles_repeat_their_default_here_and_there():
  module = hlo_compile.function_module(
      lambda x: tf.tanh(x) * 2, tf.TensorSpec((960, 960, 1920), tf.float32))
  kernel = cutting.cut_kernels(
      module, cutting.CutLimits(copies=0), 0)[0]
  for seed in range(4):
    sampled = tiles.sample_kernel(kernel, 'k', 1.0, 700, QUIET, seed)
    assert sampled.num_configs == 700
    number, = copies(sampled)
    assert 6 <= number <= 10
    default = sampled.config_feat[0]
    again = np.flatnonzero((sampled.config_feat == default).all(1))
    assert again[1:].max() - again[1:].min() > 100


def test_default_is_near_the_best_and_the_largest_is_not_always():
  kernel = tiles.sample_kernel(
      product_module(), 'k_0', 1.0, 500, QUIET, 3)
  assert kernel.runtime_rel[0] == 1.0
  assert kernel.runtime_rel.min() > 0.95
  assert kernel.runtime_rel.max() > 1.2


def test_reshapes_have_configurations_that_cannot_be_ranked():
  program = hlo_compile.function_module(
      lambda x: tf.tanh(x), tf.TensorSpec((64, 64, 32), tf.float32))
  reshape = next(
      kernel for seed in range(20) for kernel in cutting.cut_kernels(
          program, cutting.CutLimits(copies=2), seed)
      if kernel.name.startswith('reshape'))
  kernel = tiles.sample_kernel(
      reshape, 'k_1', 1.0, 500, tpu.TPU_V3_LIKE, 0)
  assert kernel.num_configs >= 2
  assert not kernel.config_feat.any()
  assert len(set(kernel.runtime_ns)) > 1
  assert schema.OPCODE_NAMES[kernel.node_opcode[-1]] == 'reshape'


def test_machines_differ_a_little():
  kernels = [tiles.sample_kernel(
      product_module(), 'k', 1.0, 500, tpu.TPU_V3_LIKE, seed)
             for seed in range(8)]
  spreads = [np.ptp(k.normalizer_ns) / k.normalizer_ns[0] for k in kernels]
  assert max(spreads) > 0  # Some kernels ran on more than one machine.
  assert max(spreads) < 0.2


def test_configurations_that_do_not_fit_are_not_sampled():
  tight = dataclasses.replace(QUIET, memory_bytes=1_200_000.0)
  kernel = tiles.sample_kernel(
      product_module(), 'k', 1.0, 500, tight, 0)
  outputs = kernel.config_feat[:, schema.CONFIG_GROUPS['output_bounds']]
  filters = kernel.config_feat[:, schema.CONFIG_GROUPS['kernel_bounds']]
  # Rows, columns and summands in elements, of x in 128-wide tiles. Two blocks
  # of what is cut, else one; the operands once more, and the result has the
  # sums.
  rows, columns, depth = (
      outputs[:, 0] * 8, outputs[:, 1] * 128, filters[:, 0] * 8)
  cut_rows, cut_columns, cut_depth = rows < 256, columns < 512, depth < 384
  needed = 4 * (
      rows * columns * (1 + (cut_rows | cut_columns))
      + rows * np.ceil(depth / 128) * 128 * (2 + (cut_rows | cut_depth))
      + depth * columns * (2 + (cut_depth | cut_columns)))
  assert (needed <= 1_200_000).all()
  assert needed.max() > 1_000_000
  assert 2 <= kernel.num_configs < 99


def test_another_machine_ranks_otherwise():
  slow_memory = dataclasses.replace(QUIET, bytes_per_ns=20.0, step_ns=5.0)
  one, other = (
      tiles.sample_kernel(product_module(), 'k', 1.0, 500, machine, 0)
      for machine in (QUIET, slow_memory))
  assert other.runtime_ns.min() > 2 * one.runtime_ns.min()
