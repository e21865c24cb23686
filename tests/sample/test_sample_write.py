"""The sample data on disk, and the tiles of one kernel."""

import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest

from run_scripts import pack_kernels
from support import tiny_kernels
from tpu_graphs_ext.data import schema
from tpu_graphs_ext.data.kernel import Kernel
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.sample import kernels as kernels_lib
from tpu_graphs_ext.sample import layouts, write

FOLDERS = ['test', 'test_labelled', 'train', 'valid']


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  out = tmp_path_factory.mktemp('sample') / 'data'
  return write.write_sample_data(str(out), kernels=7)


def kernels_of(out, split):
  return [Kernel.load(str(path))
          for path in sorted(pathlib.Path(out, split).glob('*.npz'))]


def contents(folder):
  return {path.relative_to(folder): path.read_bytes()
          for path in pathlib.Path(folder).rglob('*') if path.is_file()}


# --- The folder --------------------------------------------------------------


def test_folders_names_and_labels(written):
  assert sorted(os.listdir(written.out)) == ['sample_data.json', *FOLDERS]
  kernels = {split: kernels_of(written.out, split) for split in FOLDERS}
  # A seventh each for valid and test.
  assert {split: len(of) for split, of in kernels.items()} == {
      'train': 5, 'valid': 1, 'test': 1, 'test_labelled': 1}
  (valid,) = kernels['valid']
  assert written.statistics['train']['count'] == 5
  assert written.statistics['valid']['configurations'] == valid.num_configs
  assert valid.program not in {kernel.program for kernel in kernels['train']}
  for kernel in kernels['train']:
    assert len(kernel.tile_id.rsplit('_', 1)[1]) == 16
    assert kernel.runtime_ns[0] == kernel.normalizer_ns[0], kernel.tile_id
    assert kernel.num_configs >= 2
  (blank,), (full,) = kernels['test'], kernels['test_labelled']
  assert blank.tile_id == full.tile_id and len(blank.tile_id) == 32
  assert not blank.runtime_ns.any() and (blank.normalizer_ns == 1).all()
  assert (full.runtime_ns > 0).all()
  np.testing.assert_array_equal(blank.config_feat, full.config_feat)


def test_same_settings_are_the_same_bytes_and_written_once(written, tmp_path):
  before = os.stat(os.path.join(written.out, 'train')).st_mtime_ns
  again = write.write_sample_data(written.out, kernels=7)
  assert again.reused and again.statistics == written.statistics
  assert os.stat(os.path.join(written.out, 'train')).st_mtime_ns == before
  assert 'already there' in again.text()
  other = write.write_sample_data(str(tmp_path / 'again'), kernels=7)
  assert contents(written.out) == contents(other.out)


# --- Refusals ----------------------------------------------------------------


def test_nothing_is_replaced(written, tmp_path):
  """Other settings, a file more or less, a changed one, a link, no marker."""
  def change(out, how):
    valid = next((out / 'valid').iterdir())
    if how == 'more':
      (out / 'train' / 'notes.txt').write_text('mine')
    elif how == 'less':
      valid.unlink()
    elif how == 'change':
      valid.write_bytes(valid.read_bytes() + b'!')
    elif how == 'link':
      os.rename(out / 'test', out.parent / 'elsewhere')
      os.symlink(out.parent / 'elsewhere', out / 'test')
    elif how == 'marker':
      (out / 'sample_data.json').write_text('[' * 100_000)

  for how in ('settings', 'more', 'less', 'change', 'link', 'marker'):
    folder = tmp_path / how
    out = shutil.copytree(written.out, folder / 'copy')
    change(out, how)
    before = contents(folder)
    with pytest.raises(UserError, match='copy: exists and does not hold exact'):
      write.write_sample_data(
          str(out), kernels=7, seed=int(how == 'settings'))
    assert contents(folder) == before


def test_what_comes_while_it_is_written_stays(tmp_path, monkeypatch):
  def fill(folder, problems):
    (tmp_path / 'out' / 'train').mkdir(parents=True)
    (tmp_path / 'out' / 'train' / 'mine.npz').write_text('mine')
    return {}

  monkeypatch.setattr(write, '_fill', fill)
  with pytest.raises(UserError, match='does not hold exactly this'):
    write.write_sample_data(str(tmp_path / 'out'))
  assert contents(tmp_path) == {pathlib.Path('out/train/mine.npz'): b'mine'}


def test_settings_are_checked(tmp_path, monkeypatch):
  for settings, message in (
      ({'kernels': 6}, '--kernels must be at least 7'),
      ({'tpu': 'v9'}, "--tpu must be one of v3, v5e, v5p, v6e, v7x; got 'v9'")):
    with pytest.raises(UserError, match=message):
      write.write_sample_data('out', **settings)
  path = tmp_path / 'data'
  path.write_text('')
  # Before the kernels are made.
  monkeypatch.setattr(kernels_lib, 'split_kernels', None)
  with pytest.raises(UserError, match='data: is a link, a file, a device or'):
    write.write_sample_data(str(path))


# --- Tiles of one kernel -----------------------------------------------------


def compiled(count, default=1):
  """A copy of rank 1 with tiles 1, 2, ... of 1000, 1001, ... cycles."""
  kernel = tiny_kernels.make_kernel('copy_0', num_nodes=2, edges=((1, 0),))
  return kernels_lib.WeighedKernel(
      'copy', kernel.node_feat, kernel.node_opcode, kernel.edge_index,
      np.arange(1, count + 1)[:, None], np.zeros((count, 0), np.int64),
      np.arange(1000, 1000 + count), default)


def test_cycles_become_nanoseconds_and_the_default_comes_first():
  kernel = write.sample_kernel(compiled(5), 'k', 0.5, 0)
  first = schema.CONFIG_GROUPS['output_bounds'].start
  bounds = kernel.config_feat[:, first]
  assert bounds[0] == 2 and set(bounds) == {1, 2, 3, 4, 5}
  # Tile n has 999 + n cycles, of 2 ns each.
  np.testing.assert_array_equal(kernel.runtime_ns, 2 * (999 + bounds))
  assert (kernel.normalizer_ns == 2002).all()


def test_kernels_repeat_their_default_here_and_there():
  """Few of them once, large ones five to nine times; no other tile."""
  for tiles, least, most in ((50, 1, 2), (700, 6, 10)):
    copies = []
    for seed in range(20):
      kernel = write.sample_kernel(compiled(tiles), 'k', 1.0, seed)
      again = (kernel.config_feat == kernel.config_feat[0]).all(1).sum()
      assert kernel.num_configs == tiles + again - 1
      copies.append(again)
    assert {least, most} <= set(copies) <= set(range(least, most + 1))
  assert copies.count(10) < 12


# --- What the compiler's log says --------------------------------------------


def test_tiles_that_the_compiler_refuses_are_left_out():
  """The cycles of a product that does not fit; else fewer than the default."""
  product = [[[1], [2], 50, 900], [[1], [4], 40, 9000],
             [[2], [2], 2**63 - 1, 0]]
  assert pack_kernels.feasible(product, ((1,), (2,))) == {
      ((1,), (2,)): 50, ((1,), (4,)): 40}
  loop = [[[1], [], 50], [[2], [], 40], [[4], [], 60], [[8], [], 10**9]]
  assert pack_kernels.feasible(loop, ((1,), ())) == {
      ((1,), ()): 50, ((4,), ()): 60}
  assert ((3,), ()) not in pack_kernels.feasible(loop, ((3,), ()))


def test_an_older_pack_loses_the_refused_tiles_too():
  kernel = dataclasses.replace(compiled(6, default=3), cycles=np.array(
      [70, 40, 90, 60, 50, 80]))
  kept = pack_kernels._without_refused(kernel)
  assert kept.cycles.tolist() == [70, 90, 60, 80] and kept.default == 2
  assert kept.output_bounds.tolist() == [[1], [3], [4], [6]]
  product = dataclasses.replace(kernel, kernel_bounds=np.ones((6, 1), int))
  assert pack_kernels._without_refused(product) is product


# --- What the package brings -------------------------------------------------


def test_kernels_come_back_as_they_were_packed(tmp_path):
  tiny = tiny_kernels.make_kernel('dot_0')
  kernels = [compiled(4), kernels_lib.WeighedKernel(
      'dot', tiny.node_feat, tiny.node_opcode, tiny.edge_index,
      np.array([[32, 4], [16, 300]]), np.array([[48, 4], [1, 300]]),
      np.array([70_000, 3_000_000_000]), 0)]
  path = str(tmp_path / 'v3_train.xz')
  pack_kernels.save(path, kernels, 'v3', 'a compiler')
  loaded = kernels_lib.load(path)
  for kernel, other in zip(kernels, loaded):
    assert (kernel.program, kernel.default, kernel.graph_hash()) == (
        other.program, other.default, other.graph_hash())
    for name in ('output_bounds', 'kernel_bounds', 'cycles'):
      np.testing.assert_array_equal(getattr(kernel, name), getattr(other, name))


def test_a_damaged_file_of_the_package_is_named(tmp_path):
  for path, load in ((kernels_lib.path_of('v3', 'test', 0), kernels_lib.load),
                     (layouts.PATH, layouts.load)):
    content = bytearray(pathlib.Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / 'damaged.xz'
    for text in (b'no kernels', bytes(content)):
      damaged.write_bytes(text)
      with pytest.raises(UserError, match=(
          r'damaged\.xz: cannot be read .* install the package again')):
        load(str(damaged))


@pytest.mark.parametrize('tpu', kernels_lib.CLOCK_GHZ)
def test_no_kernel_is_in_two_splits(tpu):
  graphs, programs, refused = [], [], 0
  for split in schema.SPLITS:
    kernels = kernels_lib.split_kernels(tpu, split)
    graphs += [kernel.graph_hash() for kernel in kernels]
    programs += {kernel.program for kernel in kernels}
    refused += sum(kernel.cycles[kernel.default] > kernel.cycles.min()
                   for kernel in kernels)
  assert len(graphs) == len(set(graphs)) > 1400
  assert len(programs) == len(set(programs)) > 40
  # Of v3 the tiles that the compiler refuses were not known.
  assert tpu == 'v3' or not refused
  for kernel in kernels:
    # The compiler takes one of the best by its own estimate.
    assert 0 < kernel.cycles[kernel.default] <= 2 * kernel.cycles.min()


@pytest.mark.parametrize('marker, tpu', [
    ('{"settings": {"tpu": "v6e"}}', 'v6e'), ('{"settings": {"tpu": 6}}', ''),
    ('{"settings": {}}', ''), ('{"settings": 3}', ''), ('[]', ''), ('{', ''),
    ('', ''), ('\0' * 9, '')])
def test_the_generation_of_a_folder(tmp_path, marker, tpu):
  (tmp_path / write._MARKER).write_text(marker)
  (tmp_path / 'valid').mkdir()
  assert write.tpu_of(str(tmp_path)) == tpu
  assert write.tpu_of(str(tmp_path / 'valid')) == tpu
  assert write.tpu_of(str(tmp_path / 'valid' / 'none')) == ''
