"""The sample data of the layout task: on disk, and of one program."""

import os
import pathlib

import numpy as np
import pytest

from run_scripts import pack_layouts
from tpu_graphs_ext import cli
from tpu_graphs_ext.course import checkout
from tpu_graphs_ext.data import check, schema
from tpu_graphs_ext.errors import UserError
from tpu_graphs_ext.hlo import layout_choices, protos
from tpu_graphs_ext.sample import layouts, write_layouts


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  out = str(tmp_path_factory.mktemp('layouts') / 'data')
  return write_layouts.write_layout_data(out)


@pytest.fixture(scope='module')
def programs():
  return layouts.load()


def arrays_of(path) -> dict:
  with np.load(path) as stored:
    return dict(stored)


def files_in(folder) -> dict:
  return {path.relative_to(folder).as_posix(): path.read_bytes()
          for path in pathlib.Path(folder).rglob('*') if path.is_file()}


# --- The folder --------------------------------------------------------------


def test_both_collections_pass_the_checks_of_the_layout_task(written):
  folders = [os.path.join(written.out, 'xla', search)
             for search in layouts.SEARCHES]
  for folder in folders:
    report = check.check_data(folder, 'layout')
    assert report.ok, report.text()
    counts = {split: counts['kernels']
              for split, counts in report.counts.items()}
    assert counts['train'] >= 60 and min(counts.values()) >= 5
  for split in ('train', 'valid', 'test', 'test_labelled'):
    names = [sorted(os.listdir(os.path.join(folder, split)))
             for folder in folders]
    assert names[0] == names[1]


def test_labels_of_test_are_blanked_and_kept_aside(written):
  folder = os.path.join(written.out, 'xla', 'random')
  for name in os.listdir(os.path.join(folder, 'test')):
    assert len(name) == 32 + len('.npz')
    hidden, full = (arrays_of(os.path.join(folder, split, name))
                    for split in ('test', 'test_labelled'))
    assert not hidden['config_runtime'].any()
    assert (full['config_runtime'] > 0).all()
    for field in schema.LAYOUT_FIELDS:
      assert full[field.name].dtype == field.dtype
      if field.name != 'config_runtime':
        np.testing.assert_array_equal(hidden[field.name], full[field.name])


def test_train_programs_are_in_several_files_of_distinct_configurations(
    written):
  folder = os.path.join(written.out, 'xla', 'random', 'train')
  parts = [arrays_of(os.path.join(folder, name))
           for name in sorted(os.listdir(folder))[:write_layouts.PARTS]]
  layouts_of = [
      {row.tobytes() for row in part['node_config_feat']} for part in parts]
  assert sum(map(len, layouts_of)) == len(set.union(*layouts_of))
  assert min(map(len, layouts_of)) >= 16
  assert len({part['node_feat'].tobytes() for part in parts}) == 1


def test_it_is_not_written_twice_and_the_same_each_time(written, tmp_path):
  again = write_layouts.write_layout_data(written.out)
  assert again.reused and again.statistics == written.statistics
  assert 'already there' in again.text() and 'xla:default' in again.text()
  other = write_layouts.write_layout_data(str(tmp_path / 'again'))
  assert files_in(other.out) == files_in(written.out)


def test_flags_of_the_tile_task(capsys, tmp_path):
  for flag in ('--kernels=70', '--tpu=v3', '--seed=1'):
    with pytest.raises(SystemExit):
      cli.main(['sample-data', '--task', 'layout', '--out',
                str(tmp_path / 'd'), flag])
    assert flag.split('=')[0] in capsys.readouterr().err
    assert not (tmp_path / 'd').exists()


def test_a_damaged_file_of_the_package_is_named(tmp_path):
  path = tmp_path / 'layouts.xz'
  content = bytearray(pathlib.Path(layouts.PATH).read_bytes())
  content[len(content) // 2] ^= 1
  for damaged in (b'no programs', bytes(content)):
    path.write_bytes(damaged)
    with pytest.raises(UserError, match='install the package again'):
      layouts.load(str(path))


# --- Programs ----------------------------------------------------------------


def test_configurations_are_distinct_and_start_at_the_compilers_own(programs):
  assert len({program.name for program in programs}) == len(programs) >= 35
  for program in programs:
    own = set()
    for search in layouts.SEARCHES:
      chosen, cycles = program.searches[search]
      assert len(np.unique(chosen, axis=0)) == len(chosen) == len(cycles)
      assert len(chosen) >= 50 and cycles.min() > 0
      own.add((tuple(chosen[0].tolist()), int(cycles[0])))
    assert len(own) == 1  # The same in both searches.


def test_layouts_are_options_of_their_nodes(programs):
  program = min(programs, key=lambda program: len(program.module))
  graph = program.graph('random')
  choices = layout_choices.layout_choices(protos.as_module(program.module))
  assert graph.node_config_ids.tolist() == [c.node for c in choices]
  chosen, cycles = program.searches['random']
  np.testing.assert_array_equal(
      graph.config_runtime, np.rint(cycles / 0.94).astype(int))
  for config, place in ((0, 0), (5, -1)):
    choice = choices[place]
    asked = tuple(tuple(int(d) for d in graph.node_config_feat[
        config, place, columns] if d >= 0)
                  for columns in schema.LAYOUT_CONFIG_GROUPS.values())
    assert asked == tuple(choice.options[chosen[config, choice.group]])


def test_programs_come_back_as_they_were_packed(programs, tmp_path):
  path = str(tmp_path / 'layouts.xz')
  pack_layouts.save(programs[:2], 'a compiler', path)
  for one, other in zip(programs, layouts.load(path)):
    assert (one.name, one.split, one.module) == (
        other.name, other.split, other.module)
    for search in layouts.SEARCHES:
      for a, b in zip(one.searches[search], other.searches[search]):
        np.testing.assert_array_equal(a, b)


# --- The baseline ------------------------------------------------------------

READ = '''
import sys
from absl import flags
from tpu_graphs.baselines.layout import data
flags.FLAGS(['read'])
partitions = data.get_npz_dataset(
    sys.argv[1], min_train_configs=4, cache_dir=sys.argv[2])
for name in ('train', 'validation', 'test'):
  print('READ', name, len(list(getattr(partitions, name).iter_graph_tensors())))
'''


@pytest.mark.baseline
def test_the_baselines_unchanged_reader_takes_them(written, tmp_path):
  root = checkout.find()
  if root is None:
    pytest.skip('needs a checkout of the baseline, named by '
                f'{checkout.ROOT_VARIABLE}, which is not set')
  copy = checkout.working_copy(root, str(tmp_path / 'tpu_graphs'))
  with open(os.path.join(copy, 'read_layouts.py'), 'w') as file:
    file.write(READ)
  log = str(tmp_path / 'read.log')
  folder = os.path.join(written.out, 'xla', 'default')
  checkout.run_script(
      copy, ['read_layouts.py', folder, str(tmp_path / 'cache')], log)
  with open(log) as file:
    read = [line.split()[1:] for line in file if line.startswith('READ')]
  assert read == [
      [name, str(len(os.listdir(os.path.join(folder, split))))]
      for name, split in (('train', 'train'), ('validation', 'valid'),
                          ('test', 'test'))]
