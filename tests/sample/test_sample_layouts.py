"""The sample data of the layout task: on disk, and of one program."""

import os

import numpy as np
import pytest

from run_scripts import layout_choices
from tpu_graphs_ext.data import check, rules, schema
from tpu_graphs_ext.hlo import protos
from tpu_graphs_ext.sample import layouts, write


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  out = str(tmp_path_factory.mktemp('layouts') / 'data')
  return write.write_layout_data(out)


@pytest.fixture(scope='module')
def programs():
  return layouts.load()


# --- The folder --------------------------------------------------------------


def test_both_collections_pass_the_checks_of_the_layout_task(written):
  names = []
  for search in layouts.SEARCHES:
    folder = os.path.join(written.out, 'xla', search)
    report = check.check_data(folder, rules.LAYOUT)
    assert not report.faults, report.text()
    assert report.counts['train']['programs'] == 3 * written.statistics[
        f'xla/{search}/train']['count'] >= 60
    names.append({split: sorted(os.listdir(os.path.join(folder, split)))
                  for split in ('train', 'valid', 'test', 'test_labelled')})
  assert names[0] == names[1]
  assert min(map(len, names[0].values())) >= 5


def test_labels_of_test_are_blanked_and_kept_aside(written):
  folder = os.path.join(written.out, 'xla', 'random')
  for name in os.listdir(os.path.join(folder, 'test')):
    assert len(name) == 32 + len('.npz')
    hidden, full = (dict(np.load(os.path.join(folder, split, name)))
                    for split in ('test', 'test_labelled'))
    assert not hidden.pop('config_runtime').any()
    assert (full['config_runtime'] > 0).all()
    for field in schema.LAYOUT_FIELDS:
      assert full[field.name].dtype == field.dtype
    for name, array in hidden.items():
      np.testing.assert_array_equal(array, full[name])


def test_train_programs_are_in_several_files_of_distinct_configurations(
    written):
  folder = os.path.join(written.out, 'xla', 'random', 'train')
  parts = [np.load(os.path.join(folder, name))
           for name in sorted(os.listdir(folder))[:write.PARTS]]
  layouts_of = [
      {row.tobytes() for row in part['node_config_feat']} for part in parts]
  assert sum(map(len, layouts_of)) == len(set.union(*layouts_of))
  assert min(map(len, layouts_of)) >= 16
  assert len({part['node_feat'].tobytes() for part in parts}) == 1


# --- Programs ----------------------------------------------------------------


def test_configurations_are_distinct_and_start_at_the_compilers_own(programs):
  assert len({program.name for program in programs}) == len(programs) >= 35
  for program in programs:
    first = set()
    for search in layouts.SEARCHES:
      chosen, cycles = program.searches[search]
      assert len(np.unique(chosen, axis=0)) == len(chosen) == len(cycles)
      assert len(chosen) >= 150 and cycles.min() > 0
      first.add((tuple(chosen[0].tolist()), int(cycles[0])))
    assert len(first) == 1  # The same in both searches.


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
